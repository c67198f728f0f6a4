use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::world::World;

/// Compares what a spec renders to with the committed fixture. `KUBEBRAIN_BLESS=1` writes it anew.
#[track_caller]
fn golden(name: &str, spec: Value) {
    let world = World::new(spec);
    let desired = world.desired();
    let renderer = Renderer::new(&world.cluster, &desired);
    let mut objects = renderer.all(true).unwrap();
    if desired.certificates.is_some() {
        let pair = Pair {
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
    let rendered = documents.join("---\n");
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join(format!("{name}.yaml"));
    if std::env::var_os("KUBEBRAIN_BLESS").is_some() {
        std::fs::write(&path, &rendered).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = rendered.lines().zip(committed.lines()).find(|(new, old)| new != old);
    assert!(
        committed == rendered,
        "fixtures/{name}.yaml differs, first in {differs:?}; KUBEBRAIN_BLESS=1 writes it anew"
    );
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
fn certificates_made_by_somebody_else_are_mounted_from_their_secrets() {
    let secrets = json!({
        "caBundle": {"name": "bundle", "key": "trust.pem"}, "server": {"name": "s"}, "peer": {"name": "p"}, "operatorClient": {"name": "o"},
    });
    let world = World::new(json!({"tls": {"mode": "Secret", "secrets": secrets}}));
    let desired = world.desired();
    let objects = Renderer::new(&world.cluster, &desired).all(false).unwrap();
    let set = objects
        .into_iter()
        .find(|object| object.key.kind == Kind::StatefulSet)
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
    let world = World::new(json!({"workload": workload}));
    let desired = world.desired();
    let objects = Renderer::new(&world.cluster, &desired).all(false).unwrap();
    let kinds: Vec<Kind> = objects.iter().map(|object| object.key.kind).collect();
    assert_eq!(kinds, [Kind::Service, Kind::Service, Kind::Service]);
    for object in &objects {
        let selector = object.body["spec"]["selector"].as_object().unwrap();
        assert_eq!(selector["app"], "edge", "{}", object.key);
        assert!(!selector.contains_key("kubebrain.io/cluster"), "{}", object.key);
    }
    assert_eq!(objects[2].body["spec"]["selector"]["kubebrain.io/role"], "leader");
}

/// Scaling shall restart nobody: what the pods are made from does not know how many there are.
#[test]
fn the_template_does_not_depend_on_the_number_of_members() {
    let template = |replicas: i32| {
        let tikv = json!({"pdEndpoints": ["pd:2379"]});
        let world =
            World::new(json!({"replicas": replicas, "storage": {"type": "TiKV", "embedded": null, "tikv": tikv}}));
        let desired = world.desired();
        let objects = Renderer::new(&world.cluster, &desired).all(false).unwrap();
        let set = objects
            .into_iter()
            .find(|object| object.key.kind == Kind::StatefulSet)
            .unwrap();
        assert_eq!(set.body["spec"]["replicas"], replicas);
        set.body["spec"]["template"].clone()
    };
    assert_eq!(template(1), template(5));
}

#[test]
fn a_budget_exists_for_two_members_and_more() {
    let world = World::new(json!({}));
    let mut desired = world.desired();
    for (replicas, exists) in [(0, false), (1, false), (2, true), (3, true)] {
        desired.replicas = replicas;
        let renderer = Renderer::new(&world.cluster, &desired);
        let budget = renderer
            .all(false)
            .unwrap()
            .into_iter()
            .find(|object| object.key.kind == Kind::PodDisruptionBudget);
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
    let world = World::new(json!({}));
    let desired = world.desired();
    let objects = Renderer::new(&world.cluster, &desired).all(false).unwrap();
    let set = objects
        .into_iter()
        .find(|object| object.key.kind == Kind::StatefulSet)
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
    let world = World::new(json!({}));
    let desired = world.desired();
    for object in Renderer::new(&world.cluster, &desired).all(true).unwrap() {
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
