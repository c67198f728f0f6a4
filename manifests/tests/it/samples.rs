//! The samples, and the tenant of the app of apps: clusters that obey the rules, and what several of them have in common.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::files::{below, objects, objects_below, only, strings, text};

const TENANT: &str = "yaml/samples/tenant-control-plane.yaml";
const EMBEDDED: &str = "yaml/samples/storage-sidecar-embedded.yaml";
const TIKV: &str = "yaml/samples/storage-sidecar-tikv.yaml";
const ARGOCD: &str = "argocd/tenant/apiserver/apiserver.yaml";

#[test]
fn every_sample_has_a_cluster_that_obeys_the_rules() {
    let samples = below("yaml/samples");
    assert_eq!(samples.len(), 14);
    for name in samples {
        let mut clusters = 0;
        for object in objects(&name) {
            if object["kind"] != "KubeBrainCluster" {
                continue;
            }
            clusters += 1;
            obeys(&object, &name);
        }
        let has_none = [
            "/network-policy.yaml",
            "/backup.yaml",
            "/backup-schedule.yaml",
            "/backup-to-volume.yaml",
        ];
        let has_none = has_none.iter().any(|file| name.ends_with(file));
        assert_eq!(clusters, i32::from(!has_none), "{name}");
    }
    let cluster = "argocd/tenant/cluster/cluster.yaml";
    obeys(&only(cluster, "KubeBrainCluster"), cluster);
}

#[test]
fn samples_of_backups_obey_the_rules_and_name_what_is_there() {
    for name in ["yaml/samples/backup.yaml", "yaml/samples/backup-to-volume.yaml"] {
        names_what_is_there(&only(name, "KubeBrainBackup"), name);
    }
    let name = "yaml/samples/backup-schedule.yaml";
    let object = only(name, "KubeBrainBackupSchedule");
    let schedule: crds::KubeBrainBackupSchedule = serde_json::from_value(object.clone()).unwrap();
    schedule
        .validate_cel()
        .unwrap_or_else(|error| panic!("{name}: {error:?}"));
    assert_contains(&serde_json::to_value(&schedule).unwrap(), &object, name);
    // As each of its backups.
    let mut backup = only("yaml/samples/backup.yaml", "KubeBrainBackup");
    backup["spec"] = object["spec"]["template"]["spec"].clone();
    backup["metadata"]["namespace"] = object["metadata"]["namespace"].clone();
    names_what_is_there(&backup, name);
}

/// Checks a backup, and that the objects which it names are in the same file, or its cluster in that of a sample.
#[track_caller]
fn names_what_is_there(object: &Value, name: &str) {
    let backup: crds::KubeBrainBackup = serde_json::from_value(object.clone()).unwrap();
    backup
        .validate_cel()
        .unwrap_or_else(|error| panic!("{name}: {error:?}"));
    assert_contains(&serde_json::to_value(&backup).unwrap(), object, name);
    let cluster = only("yaml/samples/embedded.yaml", "KubeBrainCluster");
    assert_eq!(object["spec"]["clusterName"], cluster["metadata"]["name"], "{name}");
    assert_eq!(
        object["metadata"]["namespace"], cluster["metadata"]["namespace"],
        "{name}"
    );
    let beside: Vec<Value> = objects(name)
        .iter()
        .map(|object| object["metadata"]["name"].clone())
        .collect();
    let to = &backup.spec.destination;
    let secrets = to
        .s3
        .iter()
        .flat_map(|s3| &s3.credentials_secret_ref)
        .map(|secret| &secret.name);
    let keys = backup
        .spec
        .encryption
        .iter()
        .map(|encryption| &encryption.key_secret_ref.name);
    let claims = to.persistent_volume_claim.iter().map(|claim| &claim.claim_name);
    for named in secrets.chain(keys).chain(claims) {
        assert!(beside.contains(&json!(named)), "{name}: {named}");
    }
}

#[test]
fn sample_of_an_archive_names_the_secret_beside_it() {
    let name = "yaml/samples/archive.yaml";
    let cluster: crds::KubeBrainCluster = serde_json::from_value(only(name, "KubeBrainCluster")).unwrap();
    let backup = cluster.spec.backup.unwrap();
    assert!(backup.archive.is_some_and(|archive| !archive.suspend));
    let secret = backup.destination.s3.unwrap().credentials_secret_ref.unwrap();
    assert_eq!(json!(secret.name), only(name, "Secret")["metadata"]["name"]);
}

#[test]
fn sample_of_a_restored_cluster_begins_where_the_archive_of_another_one_is() {
    let read =
        |name: &str| -> crds::KubeBrainCluster { serde_json::from_value(only(name, "KubeBrainCluster")).unwrap() };
    let (archived, name) = (read("yaml/samples/archive.yaml"), "yaml/samples/restored.yaml");
    let from = read(name).spec.bootstrap.unwrap().from_backup.unwrap();
    assert_eq!(from.destination, Some(archived.spec.backup.unwrap().destination));
    let secret = from.destination.unwrap().s3.unwrap().credentials_secret_ref.unwrap();
    assert_eq!(json!(secret.name), only(name, "Secret")["metadata"]["name"]);
}

#[test]
fn sample_of_a_migrated_cluster_names_the_objects_beside_it() {
    let name = "yaml/samples/migrated.yaml";
    let cluster: crds::KubeBrainCluster = serde_json::from_value(only(name, "KubeBrainCluster")).unwrap();
    let from = cluster.spec.bootstrap.unwrap().from_etcd.unwrap();
    assert!(from.follow);
    let all = objects(name);
    let has = |kind: &str, named: &str| {
        let mut all = all.iter();
        all.any(|object| object["kind"] == kind && object["metadata"]["name"] == named)
    };
    let tls = from.tls.unwrap();
    let ca = tls.ca_bundle_ref.unwrap();
    assert!(has("ConfigMap", &ca.name));
    assert!(has("Secret", &tls.client_secret_ref.unwrap().name));
    assert!(has("Secret", &from.user_secret_ref.unwrap().name));
}

#[track_caller]
fn obeys(object: &Value, name: &str) {
    let cluster: crds::KubeBrainCluster = serde_json::from_value(object.clone()).unwrap();
    cluster
        .validate_cel()
        .unwrap_or_else(|error| panic!("{name}: {error:?}"));
    assert_contains(&serde_json::to_value(&cluster).unwrap(), object, name);
}

#[test]
fn samples_that_own_garbage_collection_exclude_tidb() {
    let samples: Vec<String> = below("yaml/samples").iter().map(|name| text(name)).collect();
    let lines = samples.iter().flat_map(|sample| sample.lines());
    let owners: Vec<&str> = lines.filter(|line| line.trim().starts_with("owner: Brain")).collect();
    assert!(!owners.is_empty());
    for line in owners {
        assert!(line.contains("# Only without TiDB"), "{line}");
    }
}

/// Checks that `whole` contains `part`. A misspelt field would be missing; added defaults are allowed.
#[track_caller]
fn assert_contains(whole: &Value, part: &Value, at: &str) {
    match part {
        Value::Object(map) => {
            for (key, value) in map {
                assert_contains(&whole[key], value, &format!("{at}.{key}"));
            }
        }
        Value::Array(list) => {
            for (i, value) in list.iter().enumerate() {
                assert_contains(&whole[i], value, &format!("{at}[{i}]"));
            }
        }
        part => assert_eq!(whole, part, "{at}"),
    }
}

/// Returns the sidecar of an API server.
#[track_caller]
fn sidecar(sample: &str) -> Value {
    let found = objects(sample)
        .iter()
        .find_map(|object| object.pointer("/spec/template/spec/initContainers/0").cloned());
    found.unwrap()
}

/// Returns the flags in a list of arguments, with their values. The names are those of the fixtures' cluster.
fn flags(arguments: &Value, name: &str) -> BTreeMap<String, String> {
    let arguments = arguments.as_array().unwrap().iter();
    arguments
        .map(|argument| {
            let (flag, value) = argument.as_str().unwrap().split_once('=').unwrap();
            let value = value
                .replace(&format!("{name}-headless.brains."), "dev-headless.brains.")
                .replace(&format!("brains/{name}"), "brains/dev");
            (flag.to_owned(), value)
        })
        .collect()
}

/// Compares a sample's flags with those of the operator's fixture. The values of the flags in `own` follow from the spec and may
/// differ; flags in `optional` may be absent.
#[track_caller]
fn same_flags_as_the_operator(name: &str, sample: &str, fixture: &str, own: &[&str], optional: &[&str]) {
    let rendered = only(
        &format!("../operator/plan/fixtures/epoch-2/{fixture}.yaml"),
        "StatefulSet",
    );
    let arguments = &rendered["spec"]["template"]["spec"]["containers"][0]["args"];
    let (mut expected, mut found) = (flags(arguments, "dev"), flags(&sidecar(sample)["args"], name));
    expected.retain(|flag, _| !optional.contains(&flag.as_str()));
    for flag in own {
        let values = [&mut expected, &mut found].map(|flags| flags.remove(*flag));
        assert!(values.iter().all(Option::is_some), "{flag}: {values:?}");
    }
    assert_eq!(found, expected);
}

#[test]
fn embedded_sidecar_has_the_flags_of_the_operator() {
    same_flags_as_the_operator("edge", EMBEDDED, "minimal", &[], &[]);
}

#[test]
fn sidecar_on_tikv_has_the_flags_of_the_operator() {
    let own = ["--tikv-pd-endpoints", "--tikv-key-prefix"];
    let optional = [
        "--tikv-ca",
        "--tikv-cert",
        "--tikv-key",
        "--tikv-gc-window",
        "--election-lease-duration",
        "--election-renew-deadline",
    ];
    same_flags_as_the_operator("hosted", TIKV, "tikv", &own, &optional);
}

/// Returns the pod of the API server in a file.
#[track_caller]
fn apiserver(name: &str) -> Value {
    let all = objects(name);
    let mut workloads = all.iter().filter(|object| object.pointer("/spec/template").is_some());
    workloads.next().unwrap()["spec"]["template"]["spec"].clone()
}

#[test]
fn every_sample_has_the_same_api_server() {
    let bare = |name: &str| {
        let mut pod = apiserver(name);
        let volumes = pod["volumes"].take();
        let volumes = volumes.as_array().unwrap().iter();
        let volumes: Vec<String> = volumes
            .map(|volume| volume["name"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(volumes[..3], ["pki", "store-ca", "store-client"], "{name}");
        pod.as_object_mut().unwrap().remove("initContainers");
        let store = pod["containers"][0]["args"][0].take();
        (store.as_str().unwrap().to_owned(), pod)
    };
    let (store, expected) = bare(TENANT);
    assert_eq!(store, "--etcd-servers=https://tenant-0.tenant-headless.brains.svc:2379");
    assert_eq!(bare(ARGOCD), (store, expected.clone()));
    for name in [EMBEDDED, TIKV] {
        assert_eq!(
            bare(name),
            ("--etcd-servers=https://127.0.0.1:2379".to_owned(), expected.clone()),
            "{name}"
        );
    }
}

#[test]
fn the_app_of_apps_and_the_sample_have_the_same_tenant() {
    assert_eq!(
        only("argocd/tenant/cluster/cluster.yaml", "KubeBrainCluster"),
        only(TENANT, "KubeBrainCluster")
    );
    // Of the Deployment, only the volume with the API server's own certificates differs.
    let bare = |name: &str| {
        let mut deployment = only(name, "Deployment");
        deployment["spec"]["template"]["spec"]["volumes"][0].take();
        (deployment, only(name, "Service"))
    };
    assert_eq!(bare(ARGOCD), bare(TENANT));
}

#[test]
fn pods_of_api_servers_are_restricted_and_have_a_service() {
    for name in [TENANT, ARGOCD, EMBEDDED, TIKV] {
        let pod = apiserver(name);
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{name}");
        let containers = ["containers", "initContainers"].into_iter();
        for container in containers.filter_map(|list| pod[list].as_array()).flatten() {
            let context = json!({
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "capabilities": {"drop": ["ALL"]},
            });
            assert_eq!(container["securityContext"], context, "{name}: {}", container["name"]);
        }
        let all = objects(name);
        let workload = all
            .iter()
            .find(|object| object.pointer("/spec/template").is_some())
            .unwrap();
        let labels = &workload["spec"]["template"]["metadata"]["labels"];
        assert_eq!(&workload["metadata"]["labels"], labels, "{name}");
        assert_eq!(&workload["spec"]["selector"]["matchLabels"], labels, "{name}");
        assert_eq!(&only(name, "Service")["spec"]["selector"], labels, "{name}");
        for object in all.iter().filter(|object| object["kind"] == "KubeBrainCluster") {
            if object["spec"]["workload"] != Value::Null {
                assert_eq!(&object["spec"]["workload"]["selector"]["matchLabels"], labels, "{name}");
            }
        }
    }
}

#[test]
fn sidecars_differ_in_their_store_alone() {
    let bare = |name: &str, cluster: &str| {
        let mut brain = sidecar(name);
        let mounts = brain["volumeMounts"].as_array_mut().unwrap();
        mounts.retain(|mount| mount["name"] != "data");
        let arguments = brain["args"].take();
        let arguments = strings(&arguments).into_iter();
        let own = [
            "--data-dir",
            "--initial-cluster",
            "--storage",
            "--tikv-",
            "--discovery-srv",
        ];
        let shared = arguments.filter(|argument| !own.iter().any(|own| argument.starts_with(own)));
        let shared: Vec<String> = shared.map(|argument| argument.replace(cluster, "CLUSTER")).collect();
        let certificates = apiserver(name)["volumes"][3].to_string();
        (brain, shared, certificates.replace(cluster, "CLUSTER"))
    };
    assert_eq!(bare(EMBEDDED, "edge"), bare(TIKV, "hosted"));
}

#[test]
fn every_namespace_of_brains_is_restricted() {
    let mut namespaces = 0;
    for (name, object) in ["yaml", "argocd/tenant"].into_iter().flat_map(objects_below) {
        if object["kind"] == "Namespace" {
            let labels = &object["metadata"]["labels"];
            assert_eq!(labels["pod-security.kubernetes.io/enforce"], "restricted", "{name}");
            namespaces += 1;
        }
    }
    assert!(namespaces > 10, "{namespaces}");
    for (name, object) in ["yaml/samples", "argocd/tenant"].into_iter().flat_map(objects_below) {
        let metadata = &object["metadata"];
        let place = if object["kind"] == "Namespace" {
            &metadata["name"]
        } else {
            &metadata["namespace"]
        };
        assert_eq!(place, "brains", "{name}");
    }
}

/// Returns the certificates and issuers in a file as text, by their names without that of the cluster.
fn certificates(name: &str, cluster: &str) -> BTreeMap<String, Value> {
    let all = objects(name)
        .into_iter()
        .filter(|object| object["apiVersion"] == "cert-manager.io/v1");
    all.map(|object| {
        let text = object.to_string().replace(&format!("{cluster}-"), "CLUSTER-");
        let object: Value = serde_json::from_str(&text).unwrap();
        let key = format!(
            "{} {}",
            object["kind"].as_str().unwrap(),
            object["metadata"]["name"].as_str().unwrap()
        );
        (key, object)
    })
    .collect()
}

#[test]
fn certificates_of_all_samples_are_issued_alike() {
    let tenant = certificates("argocd/tenant/secrets/secrets.yaml", "tenant");
    let secure = certificates("yaml/samples/cert-manager.yaml", "secure");
    assert_eq!((tenant.len(), secure.len()), (5, 7));
    for authority in [
        "Issuer CLUSTER-self-signed",
        "Certificate CLUSTER-authority",
        "Issuer CLUSTER-authority",
    ] {
        assert_eq!(tenant[authority], secure[authority], "{authority}");
    }
    let leaves = tenant.values().chain(secure.values());
    for leaf in leaves.filter(|leaf| leaf["spec"]["usages"].is_array()) {
        let (spec, name) = (&leaf["spec"], &leaf["metadata"]["name"]);
        assert_eq!(&spec["secretName"], name);
        assert_eq!(
            (&spec["duration"], &spec["renewBefore"]),
            (&json!("2160h"), &json!("720h")),
            "{name}"
        );
        let issuer = json!({"group": "cert-manager.io", "kind": "Issuer", "name": "CLUSTER-authority"});
        assert_eq!(spec["issuerRef"], issuer, "{name}");
        // Tokens remain valid after a renewal of the certificate, because the key stays the same.
        let rotation = if name == "CLUSTER-service-accounts" {
            "Never"
        } else {
            "Always"
        };
        assert_eq!(spec["privateKey"]["rotationPolicy"], rotation, "{name}");
    }
}

#[test]
fn a_cluster_uses_the_certificates_that_are_issued_beside_it() {
    let name = "yaml/samples/cert-manager.yaml";
    let secrets = &only(name, "KubeBrainCluster")["spec"]["tls"]["secrets"];
    let all = objects(name);
    for (part, secret) in secrets.as_object().unwrap() {
        let issued =
            |object: &&Value| object["kind"] == "Certificate" && object["spec"]["secretName"] == secret["name"];
        assert!(all.iter().any(|object| issued(&object)), "{part}");
    }
    // Keys of the API server of the app of apps.
    let issued = objects("argocd/tenant/secrets/secrets.yaml");
    for source in apiserver(ARGOCD)["volumes"][0]["projected"]["sources"]
        .as_array()
        .unwrap()
    {
        let secret = &source["secret"]["name"];
        assert!(
            issued.iter().any(|object| &object["spec"]["secretName"] == secret),
            "{secret}"
        );
    }
}

#[test]
fn the_network_policy_is_for_the_cluster_of_another_sample() {
    let policy = &only("yaml/samples/network-policy.yaml", "NetworkPolicy")["spec"];
    let cluster = only("yaml/samples/tikv.yaml", "KubeBrainCluster");
    let brains = &policy["podSelector"];
    assert_eq!(
        brains["matchLabels"]["kubebrain.io/cluster"],
        cluster["metadata"]["name"]
    );
    let clients = policy["ingress"][0]["from"].as_array().unwrap().iter();
    let apps: Vec<_> = clients
        .filter_map(|from| from["podSelector"]["matchLabels"]["app.kubernetes.io/name"].as_str())
        .collect();
    assert_eq!(apps, ["kubebrain-backup", "kubebrain-archive"]);
    assert_eq!(&policy["egress"][1]["to"][0]["podSelector"], brains);
    assert_eq!(&policy["ingress"][2]["from"][0]["podSelector"], brains);
    let deployment = only("yaml/operator/operator.yaml", "Deployment");
    let operator = json!([{
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": deployment["metadata"]["namespace"]}},
        "podSelector": deployment["spec"]["selector"],
    }]);
    assert_eq!(policy["ingress"][1]["from"], operator);
    // The operator may enter by the ports that its own policy lets it use.
    let own = &only("yaml/components/network-policy/objects.yaml", "NetworkPolicy")["spec"]["egress"][2];
    assert_eq!(policy["ingress"][1]["ports"], own["ports"]);
}
