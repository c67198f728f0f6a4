use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::testing::FakeCluster;

/// Compares what a spec renders to in each epoch with the committed fixtures. `KUBEBRAIN_BLESS=1` writes those of the newest anew, and
/// only them: there are clusters that were made in the others.
#[track_caller]
fn golden(name: &str, spec: Value) {
    let fake = FakeCluster::new(spec);
    let desired = fake.desired();
    for (number, epoch) in (1..).zip(Epoch::ALL) {
        let renderer = Renderer::of_epoch(epoch, &fake.cluster, &desired);
        let rendered = documents(&renderer);
        let file = format!("fixtures/epoch-{number}/{name}.yaml");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(&file);
        if epoch == Epoch::NEWEST && std::env::var_os("KUBEBRAIN_BLESS").is_some() {
            std::fs::write(&path, &rendered).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        let differs = rendered.lines().zip(committed.lines()).find(|(new, old)| new != old);
        assert!(
            committed == rendered,
            "{file} differs, first in {differs:?}; KUBEBRAIN_BLESS=1 writes the newest epoch anew"
        );
    }
}

/// Everything that is rendered, as YAML.
fn documents(renderer: &Renderer<'_>) -> String {
    let mut objects = renderer.all(true).unwrap();
    if renderer.desired.certificates.is_some() {
        let pair = CertificatePair {
            certificate: "certificate".to_owned(),
            key: "key".to_owned(),
        };
        let state = BTreeMap::from([
            ("ca.crt".to_owned(), "certificate".to_owned()),
            ("ca.key".to_owned(), "key".to_owned()),
        ]);
        objects.push(renderer.authority_secret(&state).unwrap());
        objects.push(renderer.bundle("authority").unwrap());
        objects.push(renderer.leaf_secret(Leaf::Server, &pair, "authority").unwrap());
    }
    let documents: Vec<String> = objects
        .iter()
        .map(|object| serde_yaml::to_string(&object.body).unwrap())
        .collect();
    documents.join("---\n")
}

#[test]
fn a_minimal_spec_renders_as_committed() {
    golden("minimal", json!({}));
}

#[test]
fn a_spec_without_tls_renders_as_committed() {
    golden(
        "plain",
        json!({"tls": {"mode": "Disabled"}, "services": {"leader": {"enabled": false}}}),
    );
}

#[test]
fn a_spec_with_every_setting_renders_as_committed() {
    golden(
        "everything",
        json!({
            "version": "1.2.3",
            "image": {
                "repository": "registry.example/brain",
                "pullPolicy": "Always",
            },
            "imagePullSecrets": [{"name": "pull"}],
            "restartedAt": "2026-11-21T00:00:00Z",
            "storage": {"embedded": {
                "size": "20Gi",
                "storageClassName": "fast",
                "volumeAttributesClassName": "gold",
                "whenDeleted": "Delete",
            }},
            "updateStrategy": {"minReadySeconds": 5},
            "services": {"client": {
                "type": "LoadBalancer",
                "annotations": {"lb.example/kind": "internal"},
                "trafficDistribution": "PreferClose",
            }},
            "monitoring": {"podMonitor": {"enabled": true, "labels": {"release": "prometheus"}, "interval": "30s"}},
            "inheritedMetadata": {
                "labels": {"team": "storage", "kubebrain.io/cluster": "not-this-one", "kubebrain.io/role": "leader"},
                "annotations": {"note": "inherited", "argocd.argoproj.io/tracking-id": "not inherited"},
            },
            "pod": {
                "resources": {"requests": {"cpu": "2", "memory": "4Gi"}, "limits": {"memory": "4Gi"}},
                "nodeSelector": {"disk": "nvme"},
                "tolerations": [{"key": "store", "operator": "Exists"}],
                "topologySpreadConstraints": [
                    {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"},
                ],
                "priorityClassName": "system-cluster-critical",
                "serviceAccountName": "theirs",
                "terminationGracePeriodSeconds": 30,
            },
            "podTemplate": {
                "metadata": {"annotations": {"sidecar.example/inject": "true"}},
                "spec": {
                    "containers": [
                        {"name": "brain", "env": [{"name": "RUST_LOG", "value": "debug"}]},
                        {"name": "sidecar", "image": "sidecar:1"},
                    ],
                    "hostNetwork": true,
                },
            },
            "autoCompaction": {"retention": "5m"},
            "quota": "8Gi",
            "logLevel": "Warn",
            "flags": {"log-outputs": "$(POD_NAME)"},
        }),
    );
}

#[test]
fn members_on_tikv_render_as_committed() {
    golden(
        "tikv",
        json!({
            "replicas": 3,
            "storage": {"type": "TiKV", "embedded": null, "tikv": {
                "pdEndpoints": ["https://pd-0.tikv:2379", "pd-1.tikv:2379"],
                "keyPrefix": "tenant-a",
                "tls": {"caSecretRef": {"name": "tikv-ca", "key": "ca.pem"}, "clientSecretRef": {"name": "tikv-client"}},
                "gc": {"owner": "Brain", "window": "1h"},
            }},
            "leaderElection": {"leaseDuration": "3s", "renewDeadline": "2s"},
            "podDisruptionBudget": {"maxUnavailable": 2},
        }),
    );
}

#[test]
fn members_that_compete_for_a_lease_render_as_committed() {
    golden(
        "lease",
        json!({
            "replicas": 3,
            "storage": {"type": "TiKV", "embedded": null, "tikv": {"pdEndpoints": ["pd:2379"]}},
            "leaderElection": {"backend": "Lease", "leaseDuration": "20s"},
        }),
    );
}

/// A token gives the right to the Lease, so no pod gets one that does not need it.
#[test]
fn token_is_mounted_only_for_a_lease() {
    let pod = |backend: &str| {
        let tikv = json!({"pdEndpoints": ["pd:2379"]});
        let storage = json!({"type": "TiKV", "embedded": null, "tikv": tikv});
        let fake = FakeCluster::new(json!({"storage": storage, "leaderElection": {"backend": backend}}));
        let desired = fake.desired();
        let objects = Renderer::new(&fake.cluster, &desired).all(false).unwrap();
        let mut sets = objects
            .into_iter()
            .filter(|object| object.key.kind == ObjectKind::StatefulSet);
        sets.next().unwrap().body["spec"]["template"]["spec"].clone()
    };
    let (storage, lease) = (pod("Storage"), pod("Lease"));
    assert!(!storage.to_string().contains("serviceAccountToken"), "{storage}");
    assert!(lease.to_string().contains("serviceAccountToken"), "{lease}");
    for pod in [&storage, &lease] {
        assert_eq!(pod["automountServiceAccountToken"], false);
    }
    let mounts = lease["containers"][0]["volumeMounts"].as_array().unwrap();
    let mounted = |mount: &&Value| mount["mountPath"] == "/var/run/secrets/kubernetes.io/serviceaccount";
    assert!(
        mounts.iter().any(|mount| mounted(&mount) && mount["readOnly"] == true),
        "{mounts:?}"
    );
}

#[test]
fn certificates_made_by_somebody_else_are_mounted_from_their_secrets() {
    let secrets = json!({
        "caBundle": {"name": "bundle", "key": "trust.pem"}, "server": {"name": "s"}, "peer": {"name": "p"}, "operatorClient": {"name": "o"},
    });
    let fake = FakeCluster::new(json!({"tls": {"mode": "Secret", "secrets": secrets}}));
    let desired = fake.desired();
    let objects = Renderer::new(&fake.cluster, &desired).all(false).unwrap();
    let set = objects
        .into_iter()
        .find(|object| object.key.kind == ObjectKind::StatefulSet)
        .unwrap();
    let sources = set.body["spec"]["template"]["spec"]["volumes"][0]["projected"]["sources"].clone();
    let names: Vec<&Value> = sources
        .as_array()
        .unwrap()
        .iter()
        .map(|source| &source["secret"]["name"])
        .collect();
    assert_eq!(names, ["s", "p", "bundle"]);
    assert_eq!(
        sources[2]["secret"]["items"],
        json!([{"key": "trust.pem", "path": "ca.crt"}])
    );
}

#[test]
fn brains_in_pods_of_somebody_else_get_services_and_no_workload() {
    let workload = json!({"type": "External", "selector": {"matchLabels": {"app": "edge"}}});
    let fake = FakeCluster::new(json!({"workload": workload}));
    let desired = fake.desired();
    let objects = Renderer::new(&fake.cluster, &desired).all(false).unwrap();
    let kinds: Vec<ObjectKind> = objects.iter().map(|object| object.key.kind).collect();
    assert_eq!(kinds, [ObjectKind::Service, ObjectKind::Service, ObjectKind::Service]);
    for object in &objects {
        let selector = object.body["spec"]["selector"].as_object().unwrap();
        assert_eq!(selector["app"], "edge", "{}", object.key);
        assert!(!selector.contains_key("kubebrain.io/cluster"), "{}", object.key);
    }
    assert_eq!(objects[2].body["spec"]["selector"]["kubebrain.io/role"], "leader");
}

/// Scaling must not restart any pod: the template does not depend on the number of members.
#[test]
fn the_template_does_not_depend_on_the_number_of_members() {
    let template = |replicas: i32| {
        let tikv = json!({"pdEndpoints": ["pd:2379"]});
        let fake = FakeCluster::new(
            json!({"replicas": replicas, "storage": {"type": "TiKV", "embedded": null, "tikv": tikv}}),
        );
        let desired = fake.desired();
        let objects = Renderer::new(&fake.cluster, &desired).all(false).unwrap();
        let set = objects
            .into_iter()
            .find(|object| object.key.kind == ObjectKind::StatefulSet)
            .unwrap();
        assert_eq!(set.body["spec"]["replicas"], replicas);
        set.body["spec"]["template"].clone()
    };
    assert_eq!(template(1), template(5));
}

#[test]
fn a_budget_exists_for_two_members_and_more() {
    let fake = FakeCluster::new(json!({}));
    let mut desired = fake.desired();
    for (replicas, exists) in [(0, false), (1, false), (2, true), (3, true)] {
        desired.replicas = replicas;
        let renderer = Renderer::new(&fake.cluster, &desired);
        let budget = renderer
            .all(false)
            .unwrap()
            .into_iter()
            .find(|object| object.key.kind == ObjectKind::PodDisruptionBudget);
        assert_eq!(budget.is_some(), exists, "{replicas} members");
        if let Some(budget) = budget {
            assert_eq!(budget.body["spec"]["unhealthyPodEvictionPolicy"], "AlwaysAllow");
            assert_eq!(budget.body["spec"]["maxUnavailable"], 1);
        }
    }
}

/// The restricted pod security standard, rule by rule.
#[test]
fn pods_obey_the_restricted_standard() {
    let fake = FakeCluster::new(json!({}));
    let desired = fake.desired();
    let objects = Renderer::new(&fake.cluster, &desired).all(false).unwrap();
    let set = objects
        .into_iter()
        .find(|object| object.key.kind == ObjectKind::StatefulSet)
        .unwrap();
    let pod = &set.body["spec"]["template"]["spec"];
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert!(pod["securityContext"]["runAsUser"].as_i64().unwrap() > 0);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    assert_eq!(pod["automountServiceAccountToken"], false);
    for container in pod["containers"].as_array().unwrap() {
        let context = &container["securityContext"];
        assert_eq!(context["allowPrivilegeEscalation"], false);
        assert_eq!(context["readOnlyRootFilesystem"], true);
        assert_eq!(context["capabilities"], json!({"drop": ["ALL"]}));
    }
    let allowed = [
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    ];
    for volume in pod["volumes"].as_array().unwrap() {
        let kinds = volume.as_object().unwrap().keys().filter(|key| *key != "name");
        assert!(
            kinds.into_iter().all(|kind| allowed.contains(&kind.as_str())),
            "{volume}"
        );
    }
}

#[test]
fn every_object_is_owned_and_labelled_and_free_of_nulls() {
    let fake = FakeCluster::new(json!({}));
    let desired = fake.desired();
    for object in Renderer::new(&fake.cluster, &desired).all(true).unwrap() {
        let metadata = &object.body["metadata"];
        let owner = &metadata["ownerReferences"][0];
        assert_eq!(owner["uid"], "cluster-uid", "{}", object.key);
        assert_eq!(
            (&owner["controller"], &owner["blockOwnerDeletion"]),
            (&json!(true), &json!(true)),
            "{}",
            object.key
        );
        assert_eq!(metadata["labels"]["kubebrain.io/cluster"], "dev", "{}", object.key);
        assert!(
            metadata["labels"]["app.kubernetes.io/instance"].is_null(),
            "another tool would take {} for its own",
            object.key
        );
        assert!(!object.body.to_string().contains("null"), "{}", object.body);
    }
}

/// The object of this kind and name that a spec renders to.
#[track_caller]
fn rendered(spec: Value, kind: ObjectKind, name: &str) -> Value {
    let fake = FakeCluster::new(spec);
    let desired = fake.desired();
    let objects = Renderer::new(&fake.cluster, &desired).all(false).unwrap();
    let found = objects
        .into_iter()
        .find(|object| object.key == ObjectKey::new(kind, name));
    found.unwrap().body
}

fn tikv(more: Value) -> Value {
    let mut spec = more;
    spec["storage"] = json!({"type": "TiKV", "embedded": null, "tikv": {"pdEndpoints": ["pd:2379"]}});
    spec
}

#[test]
fn load_balancer_class_is_the_client_services_alone() {
    let spec = json!({"services": {"client": {"type": "LoadBalancer", "loadBalancerClass": "example.com/internal"}}});
    let class = |name: &str| rendered(spec.clone(), ObjectKind::Service, name)["spec"]["loadBalancerClass"].clone();
    assert_eq!(class("dev-client"), "example.com/internal");
    assert_eq!((class("dev-headless"), class("dev-leader")), (Value::Null, Value::Null));
}

#[test]
fn ip_family_policy_is_every_services() {
    for policy in ["SingleStack", "PreferDualStack", "RequireDualStack"] {
        let spec = json!({"services": {"client": {"ipFamilyPolicy": policy}}});
        for name in ["dev-client", "dev-headless", "dev-leader"] {
            let service = rendered(spec.clone(), ObjectKind::Service, name);
            assert_eq!(service["spec"]["ipFamilyPolicy"], policy, "{name}");
        }
    }
    assert!(rendered(json!({}), ObjectKind::Service, "dev-client")["spec"]["ipFamilyPolicy"].is_null());
}

#[test]
fn access_mode_is_the_claims() {
    let modes = |embedded: Value| {
        let set = rendered(
            json!({"storage": {"embedded": embedded}}),
            ObjectKind::StatefulSet,
            "dev",
        );
        set["spec"]["volumeClaimTemplates"][0]["spec"]["accessModes"].clone()
    };
    assert_eq!(modes(json!({})), json!(["ReadWriteOncePod"]));
    assert_eq!(modes(json!({"accessMode": "ReadWriteOnce"})), json!(["ReadWriteOnce"]));
}

fn arguments(spec: Value) -> Vec<Value> {
    let set = rendered(spec, ObjectKind::StatefulSet, "dev");
    let arguments = set.pointer("/spec/template/spec/containers/0/args").unwrap();
    arguments.as_array().unwrap().clone()
}

#[track_caller]
fn has_flag(spec: Value, flag: &str) {
    let arguments = arguments(spec);
    assert!(arguments.contains(&json!(flag)), "{flag} in {arguments:?}");
}

#[test]
fn fields_of_the_brain_become_flags() {
    let election = |field: &str, time: &str| tikv(json!({"leaderElection": {field: time}}));
    has_flag(election("leaseDuration", "30s"), "--election-lease-duration=30s");
    has_flag(election("renewDeadline", "2s"), "--election-renew-deadline=2s");
    has_flag(election("retryPeriod", "500ms"), "--election-retry-period=500ms");
    let revisions = json!({"autoCompaction": {"mode": "Revision", "retention": "1000"}});
    has_flag(revisions.clone(), "--auto-compaction-mode=revision");
    has_flag(revisions, "--auto-compaction-retention=1000");
    let times = json!({"autoCompaction": {"mode": "Periodic", "retention": "1h"}});
    has_flag(times, "--auto-compaction-mode=periodic");
}

#[test]
fn spans_of_each_member_carry_its_name_unless_the_user_chose_one() {
    let flag = json!("--distributed-tracing-instance-id=$(POD_NAME)");
    for (flags, has) in [
        (json!({}), false),
        (json!({"enable-distributed-tracing": "false"}), false),
        (json!({"enable-distributed-tracing": "true"}), true),
        (json!({"experimental-enable-distributed-tracing": "true"}), true),
        (
            json!({"enable-distributed-tracing": "true", "distributed-tracing-instance-id": "one"}),
            false,
        ),
    ] {
        let arguments = arguments(json!({"flags": &flags}));
        assert_eq!(arguments.contains(&flag), has, "{flags}: {arguments:?}");
    }
}

fn merged(template: Value) -> Value {
    let set = rendered(json!({"podTemplate": template}), ObjectKind::StatefulSet, "dev");
    set["spec"]["template"]["spec"].clone()
}

#[test]
fn pod_template_is_merged_by_keys_and_nulls_remove() {
    let pod = merged(json!({"spec": {
        "containers": [
            {"name": "brain", "startupProbe": null, "fieldOfTomorrow": {"x": 1}, "ports": [{"containerPort": 2379, "name": "etcd"}]},
        ],
        "podFieldOfTomorrow": [1],
    }}));
    let brain = &pod["containers"][0];
    assert!(brain["startupProbe"].is_null() && brain["livenessProbe"].is_object());
    assert_eq!(brain["fieldOfTomorrow"], json!({"x": 1}));
    assert_eq!(pod["podFieldOfTomorrow"], json!([1]));
    assert_eq!(
        brain["ports"][0],
        json!({"containerPort": 2379, "name": "etcd", "protocol": "TCP"})
    );
    assert_eq!(brain["ports"].as_array().unwrap().len(), 3);
}

#[test]
fn added_containers_get_no_further_rights() {
    let pod = merged(json!({"spec": {
        "containers": [{"name": "side", "image": "x"}, {"name": "own", "securityContext": {"runAsUser": 1000}}],
        "initContainers": [{"name": "first", "image": "x"}, {"name": "asks", "securityContext": {"allowPrivilegeEscalation": true}}],
    }}));
    let may = |list: &str, at: usize| pod[list][at]["securityContext"]["allowPrivilegeEscalation"].clone();
    assert_eq!(
        [may("containers", 1), may("containers", 2), may("initContainers", 0)],
        [false; 3]
    );
    assert_eq!(pod["containers"][2]["securityContext"]["runAsUser"], 1000);
    // Such a spec is refused before, unless the operator leaves it to admission.
    assert_eq!(may("initContainers", 1), true);
    for strange in [
        json!(["x"]),
        json!([{"name": "x", "securityContext": "y"}]),
        json!({"a": 1}),
    ] {
        assert!(merged(json!({"spec": {"containers": strange}}))["containers"].is_array() || strange.is_object());
    }
}

#[test]
fn restart_hash_leaves_resources_and_metadata_out() {
    let hashes = |spec: Value| {
        let set = rendered(spec, ObjectKind::StatefulSet, "dev");
        let annotations = set["spec"]["template"]["metadata"]["annotations"].clone();
        (
            annotations[RESTART_HASH].clone(),
            annotations["kubebrain.io/resources-hash"].clone(),
        )
    };
    let (restart, amounts) = hashes(json!({}));
    let limits = hashes(json!({"pod": {"resources": {"limits": {"memory": "1Gi", "cpu": "1"}}}}));
    assert_eq!(limits.0, restart);
    assert_ne!(limits.1, amounts);
    let labelled = json!({"inheritedMetadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}});
    assert_eq!(hashes(labelled), (restart.clone(), amounts.clone()));
    assert_ne!(hashes(json!({"restartedAt": "2026-11-21T00:00:01Z"})).0, restart);
    let device = hashes(json!({"pod": {"resources": {"limits": {"example.com/device": "1"}}}}));
    assert_ne!(device.0, restart, "it cannot be given in place");
    assert_eq!(device.1, amounts);
    let on_tikv = |tikv: Value| {
        let spec = json!({"storage": {"type": "TiKV", "embedded": null, "tikv": tikv}});
        (hashes(spec.clone()).0, rendered(spec, ObjectKind::StatefulSet, "dev"))
    };
    let (of_any, _) = on_tikv(json!({"pdEndpoints": ["pd:2379"]}));
    let (of_one, set) = on_tikv(json!({"pdEndpoints": ["pd:2379"], "clusterID": "7"}));
    assert!(set.to_string().contains("--tikv-cluster-id=7"));
    assert_eq!(of_one, of_any, "brains that run are on it");
}

#[test]
fn service_account_inherits_no_annotation_and_no_object_one_of_the_operator() {
    let spec = json!({
        "inheritedMetadata": {"annotations": {
            "eks.amazonaws.com/role-arn": "arn", "kubebrain.io/render-epoch": "9", "kubebrain.io/adopt-ca": "x", "note": "a",
        }},
        "services": {"client": {"annotations": {"kubebrain.io/applied-hash": "x", "lb.example/kind": "a"}}},
    });
    let keys = |kind, name: &str| {
        let object = rendered(spec.clone(), kind, name);
        let all = object["metadata"]["annotations"].as_object().unwrap().clone();
        all.keys().cloned().collect::<Vec<_>>()
    };
    assert_eq!(keys(ObjectKind::ServiceAccount, "dev"), ["kubebrain.io/applied-hash"]);
    let client = keys(ObjectKind::Service, "dev-client");
    let expected = [
        "eks.amazonaws.com/role-arn",
        "kubebrain.io/applied-hash",
        "lb.example/kind",
        "note",
    ];
    assert_eq!(client, expected);
    let client = rendered(spec.clone(), ObjectKind::Service, "dev-client");
    assert_ne!(client["metadata"]["annotations"]["kubebrain.io/applied-hash"], "x");
    let set = rendered(spec.clone(), ObjectKind::StatefulSet, "dev");
    let template = &set["spec"]["template"]["metadata"]["annotations"];
    assert!(template.get("kubebrain.io/adopt-ca").is_none(), "{template}");
    assert_ne!(set["metadata"]["annotations"]["kubebrain.io/render-epoch"], "9");
}

#[test]
fn account_with_the_name_of_the_cluster_is_its_own_wherever_it_is_named() {
    let kinds = |account: &str| {
        let fake = FakeCluster::new(json!({"pod": {"serviceAccountName": account}}));
        let desired = fake.desired();
        let objects = Renderer::new(&fake.cluster, &desired).all(false).unwrap();
        objects
            .into_iter()
            .any(|object| object.key.kind == ObjectKind::ServiceAccount)
    };
    assert!(kinds("dev"));
    assert!(!kinds("theirs"));
}

#[test]
fn keys_of_tokens_are_mounted_and_nothing_else_of_their_secret() {
    let set = rendered(
        json!({"jwtSecretRef": {"name": "tokens"}}),
        ObjectKind::StatefulSet,
        "dev",
    );
    let pod = &set["spec"]["template"]["spec"];
    let volumes = pod["volumes"].as_array().unwrap();
    let volume = volumes.iter().find(|volume| volume["name"] == "jwt").unwrap();
    let source = |key: &str| json!({"name": "tokens", "items": [{"key": key, "path": key}]});
    let mut private = source("jwt.key");
    private["optional"] = json!(true);
    let expected = json!([{"secret": source("jwt.pub")}, {"secret": private}]);
    assert_eq!(volume["projected"]["sources"], expected);
    let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
    assert!(
        mounts
            .iter()
            .any(|mount| mount["mountPath"] == "/etc/kubebrain/jwt" && mount["readOnly"] == true)
    );
}

#[test]
fn user_is_left_to_the_platform_where_the_spec_says_so() {
    let context = |run_as: Value| {
        let spec = json!({"pod": {"runAs": run_as}});
        rendered(spec, ObjectKind::StatefulSet, "dev")["spec"]["template"]["spec"]["securityContext"].clone()
    };
    assert_eq!(context(json!("Image")), context(json!(null)));
    assert_eq!(context(json!("Image"))["runAsUser"], 65532);
    let left = context(json!("Platform"));
    for field in ["runAsUser", "runAsGroup", "fsGroup"] {
        assert!(left.get(field).is_none(), "{left}");
    }
    assert_eq!(left["runAsNonRoot"], true);
}
