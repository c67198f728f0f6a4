use kube::CustomResourceExt;
use serde_json::{Value, json};

use super::*;

fn embedded() -> Value {
    json!({
        "apiVersion": "kubebrain.io/v1alpha1",
        "kind": "KubeBrainCluster",
        "metadata": {"name": "dev", "namespace": "brains"},
        "spec": {
            "replicas": 1,
            "version": "0.1.0",
            "storage": {"type": "Embedded", "embedded": {"size": "10Gi", "storageClassName": "fast"}},
        },
    })
}

fn tikv() -> Value {
    json!({
        "apiVersion": "kubebrain.io/v1alpha1",
        "kind": "KubeBrainCluster",
        "metadata": {"name": "tenant-a", "namespace": "brains"},
        "spec": {
            "replicas": 3,
            "version": "0.1.0",
            "storage": {"type": "TiKV", "tikv": {"pdEndpoints": ["http://pd:2379"], "keyPrefix": "/a"}},
        },
    })
}

/// Returns `base` with `value` at `path`; null removes the field.
fn with(mut base: Value, path: &str, value: Value) -> Value {
    let (parent, field) = path.rsplit_once('/').unwrap();
    let mut at = &mut base;
    for part in parent.split('/').skip(1) {
        at = at.as_object_mut().unwrap().entry(part).or_insert_with(|| json!({}));
    }
    let object = at.as_object_mut().unwrap();
    if value.is_null() {
        object.remove(field);
    } else {
        object.insert(field.to_owned(), value);
    }
    base
}

fn read(value: Value) -> KubeBrainCluster {
    serde_json::from_value(value).unwrap()
}

/// Returns the errors of the rules for a new object: empty if they accept it.
fn judged(value: Value) -> String {
    read(value)
        .validate_cel()
        .err()
        .map(|errors| format!("{errors:?}"))
        .unwrap_or_default()
}

/// Returns the errors of the rules for a change from one object to another.
fn judged_change(old: Value, new: Value) -> String {
    let errors = read(new).validate_cel_update(&read(old)).err();
    errors.map(|errors| format!("{errors:?}")).unwrap_or_default()
}

#[track_caller]
fn refused(value: Value, message: &str) {
    let said = judged(value.clone());
    assert!(
        said.contains(message),
        "{value} should be refused with {message:?}, the rules said {said:?}"
    );
}

#[track_caller]
fn accepted(value: Value) {
    assert_eq!(judged(value.clone()), "", "{value} should be accepted");
}

/// The manifests of `bad-manifests.json` and their refusals. The end-to-end tests check them against a real API server.
#[test]
fn bad_manifests_are_refused() {
    let file: Value = serde_json::from_str(include_str!("../../bad-manifests.json")).unwrap();
    let made = |bad: &Value, parts: &[&str]| {
        let base = bad["base"].as_str().unwrap();
        let object = json!({
            "apiVersion": "kubebrain.io/v1alpha1",
            "kind": "KubeBrainCluster",
            "metadata": {"name": base, "namespace": "brains"},
            "spec": file["bases"][base],
        });
        let changes = parts.iter().filter_map(|part| bad[part].as_object()).flatten();
        changes.fold(object, |object, (path, value)| with(object, path, value.clone()))
    };
    for base in file["bases"].as_object().unwrap().keys() {
        accepted(made(&json!({"base": base}), &[]));
    }
    let mut count = 0;
    for bad in file["manifests"].as_array().unwrap() {
        // These rules cannot check refusals by the schema; only the API server can.
        if bad["schema"] == true {
            continue;
        }
        let message = bad["message"].as_str().unwrap();
        let said = if bad["change"].is_object() {
            accepted(made(bad, &["from"]));
            judged_change(made(bad, &["from"]), made(bad, &["from", "change"]))
        } else {
            judged(made(bad, &["set"]))
        };
        assert!(said.contains(message), "{bad}: {said:?}");
        count += 1;
    }
    assert!(count >= 60, "{count} bad manifests");
}

#[test]
fn both_kinds_of_cluster_are_accepted() {
    accepted(embedded());
    accepted(tikv());
}

#[test]
fn names_that_yield_bad_service_names_are_refused() {
    accepted(with(embedded(), "/metadata/name", json!("a".repeat(45))));
    refused(
        with(embedded(), "/metadata/name", json!("a".repeat(46))),
        "at most 45 characters",
    );
    for name in ["1dev", "a.b", "dev-"] {
        refused(
            with(embedded(), "/metadata/name", json!(name)),
            "must start with a letter",
        );
    }
}

#[test]
fn embedded_storage_has_at_most_one_member_and_no_lease() {
    accepted(with(embedded(), "/spec/replicas", json!(0)));
    refused(with(embedded(), "/spec/replicas", json!(2)), "single-member");
    accepted(with(embedded(), "/spec/replicas", json!(null)));
    refused(
        with(embedded(), "/spec/leaderElection", json!({"backend": "Lease"})),
        "leaderElection has no effect with Embedded storage",
    );
    accepted(with(tikv(), "/spec/leaderElection", json!({"backend": "Lease"})));
    let workload = json!({"type": "External", "selector": {"matchLabels": {"app": "edge"}}});
    let external = with(tikv(), "/spec/workload", workload);
    accepted(external.clone());
    refused(
        with(external, "/spec/leaderElection", json!({"backend": "Lease"})),
        "leaderElection has no effect with workload.type External",
    );
}

#[test]
fn storage_is_exactly_the_part_that_its_type_names() {
    refused(
        with(embedded(), "/spec/storage/embedded", json!(null)),
        "storage.embedded is required",
    );
    refused(
        with(tikv(), "/spec/storage/tikv", json!(null)),
        "storage.tikv is required",
    );
    let both = with(tikv(), "/spec/storage/embedded", json!({"size": "1Gi"}));
    refused(both, "storage.embedded is forbidden when type is TiKV");
    let neither = with(tikv(), "/spec/storage/tikv/pdEndpoints", json!(null));
    refused(neither, "exactly one of clusterRef and pdEndpoints");
    let twice = with(tikv(), "/spec/storage/tikv/clusterRef", json!({"name": "tikv-a"}));
    refused(twice, "exactly one of clusterRef and pdEndpoints");
}

#[test]
fn tls_modes_come_with_their_own_settings_only() {
    let tls = |tls: Value| with(embedded(), "/spec/tls", tls);
    let secrets = json!({
        "caBundle": {"name": "ca"}, "server": {"name": "s"}, "peer": {"name": "p"}, "operatorClient": {"name": "o"},
    });
    accepted(tls(json!({"mode": "Disabled"})));
    accepted(tls(json!({"mode": "Secret", "secrets": secrets.clone()})));
    refused(tls(json!({"mode": "Secret"})), "secrets is required with mode Secret");
    refused(tls(json!({"secrets": secrets})), "secrets is required with mode Secret");
}

#[test]
fn certificates_are_renewed_before_they_end_and_last_at_most_a_year() {
    let tls = |validity: &str, before: &str| {
        with(
            embedded(),
            "/spec/tls",
            json!({"validity": validity, "renewBefore": before}),
        )
    };
    accepted(tls("1h", "59m"));
    accepted(tls("1m", "30s"));
    accepted(tls("8760h", "720h"));
    refused(tls("1h", "60m"), "renewBefore must be shorter than validity");
    refused(tls("59s", "30s"), "validity must be between 1m and 8760h");
    refused(tls("8761h", "720h"), "validity must be between 1m and 8760h");
}

#[test]
fn the_generation_of_the_authority_rises_by_single_steps() {
    let generation = |n: i32| with(embedded(), "/spec/tls", json!({"caGeneration": n}));
    assert_eq!(judged_change(generation(1), generation(2)), "");
    assert_eq!(judged_change(generation(2), generation(1)), "");
    assert!(judged_change(generation(1), generation(3)).contains("one step at a time"));
}

#[test]
fn election_timings_keep_their_order_whatever_the_backend() {
    let election = |election: Value| with(tikv(), "/spec/leaderElection", election);
    accepted(election(
        json!({"leaseDuration": "2s", "renewDeadline": "1500ms", "retryPeriod": "400ms"}),
    ));
    accepted(election(json!({"backend": "Lease", "leaseDuration": "11s"})));
    accepted(election(json!({"leaseDuration": "1h", "renewDeadline": "10s"})));
    refused(
        election(json!({"leaseDuration": "1500ms"})),
        "greater than renewDeadline",
    );
    refused(
        election(json!({"backend": "Lease", "leaseDuration": "10s"})),
        "greater than renewDeadline",
    );
    refused(election(json!({"retryPeriod": "1250ms"})), "1.2 x retryPeriod");
    accepted(election(json!({"retryPeriod": "1249ms"})));
    refused(
        election(json!({"backend": "Lease", "renewDeadline": "2400ms"})),
        "1.2 x retryPeriod",
    );
    refused(election(json!({"retryPeriod": "99ms"})), "at least 100ms");
    refused(election(json!({"leaseDuration": "61m"})), "at most 1h");
}

#[test]
fn election_timings_default_by_backend() {
    let timings = |election: Value| {
        let timings = read(with(tikv(), "/spec/leaderElection", election))
            .spec
            .election()
            .timings()
            .unwrap();
        [timings.lease_duration, timings.renew_deadline, timings.retry_period].map(|each| each.as_millis())
    };
    assert_eq!(timings(json!({})), [2000, 1500, 400]);
    assert_eq!(timings(json!({"backend": "Lease"})), [15_000, 10_000, 2000]);
    assert_eq!(
        timings(json!({"backend": "Lease", "retryPeriod": "1s"})),
        [15_000, 10_000, 1000]
    );
}

#[test]
fn fields_of_stored_data_cannot_be_changed() {
    let size = |size: &str| with(embedded(), "/spec/storage/embedded/size", json!(size));
    assert_eq!(judged_change(size("10Gi"), size("11Gi")), "");
    assert_eq!(
        judged_change(size("10Gi"), size("9Gi")),
        "",
        "back to what the volume has"
    );
    refused(size("63Mi"), "at least 64Mi");

    let class = |class: Value| with(embedded(), "/spec/storage/embedded/storageClassName", class);
    assert_eq!(judged_change(class(json!("fast")), class(json!("fast"))), "");
    assert!(judged_change(class(json!("fast")), class(json!("slow"))).contains("storageClassName is immutable"));
    assert!(judged_change(class(json!(null)), class(json!("slow"))).contains("storageClassName is immutable"));

    let prefix = |prefix: &str| with(tikv(), "/spec/storage/tikv/keyPrefix", json!(prefix));
    assert_eq!(judged_change(prefix("/a"), prefix("/a")), "");
    assert!(judged_change(prefix("/a"), prefix("/b")).contains("keyPrefix is immutable"));

    let turned = with(embedded(), "/spec/storage", tikv()["spec"]["storage"].clone());
    assert!(judged_change(embedded(), turned).contains("storage.type is immutable"));
}

#[test]
fn flags_that_the_brain_does_not_know_are_refused() {
    let flags = |flag: &str| with(embedded(), "/spec/flags", json!({flag: "1"}));
    for known in [
        "max-txn-ops",
        "snapshot-count",
        "experimental-corrupt-check-time",
        "feature-gates",
    ] {
        accepted(flags(known));
    }
    for unknown in ["max-txn-op", "no-such-flag", "discovery-token", "force-new-cluster"] {
        refused(flags(unknown), "this flag cannot be set here");
    }
    refused(
        flags("client-cert-allowed-hostname"),
        "this flag is set by the operator",
    );
}

#[test]
fn an_explicit_null_counts_as_absent() {
    let mut value = tikv();
    value["spec"]["storage"]["embedded"] = json!(null);
    value["spec"]["podTemplate"] = json!(null);
    accepted(value);
}

#[test]
fn every_field_is_explained() {
    let crd = serde_json::to_value(KubeBrainCluster::crd()).unwrap();
    let root = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let mut mute = Vec::new();
    for part in ["spec", "status"] {
        unexplained(&root["properties"][part], part, &mut mute);
    }
    assert_eq!(mute, Vec::<String>::new());
}

/// Returns the paths of fields without a description. Entries of lists and maps need none: their field has one.
fn unexplained(schema: &Value, path: &str, mute: &mut Vec<String>) {
    if !schema["description"].is_string() && !path.ends_with("[]") {
        mute.push(path.to_owned());
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        unexplained(field, &format!("{path}.{name}"), mute);
    }
    for inner in ["items", "additionalProperties"] {
        if schema[inner].is_object() {
            unexplained(&schema[inner], &format!("{path}[]"), mute);
        }
    }
}

#[test]
fn only_version_and_storage_are_required() {
    let crd = serde_json::to_value(KubeBrainCluster::crd()).unwrap();
    let parts = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    assert_eq!(parts["spec"]["required"], json!(["storage", "version"]));
    assert_eq!(parts["status"]["required"], json!(null));
    for (name, field) in parts["status"]["properties"].as_object().unwrap() {
        assert_eq!(
            field["default"],
            json!(null),
            "status.{name} has a default, which the API server would write"
        );
    }
}

#[test]
fn lists_that_several_appliers_share_merge_by_key() {
    let crd = serde_json::to_value(KubeBrainCluster::crd()).unwrap();
    let status = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"];
    for (list, key) in [
        ("conditions", "type"),
        ("members", "name"),
        ("certificates", "secretName"),
    ] {
        assert_eq!(status[list]["x-kubernetes-list-type"], "map", "{list}");
        assert_eq!(status[list]["x-kubernetes-list-map-keys"], json!([key]), "{list}");
    }
}

#[test]
fn the_definition_stays_below_what_client_side_apply_can_annotate() {
    let bytes = serde_json::to_vec(&KubeBrainCluster::crd()).unwrap().len();
    assert!(
        bytes <= 120_000,
        "the definition has {bytes} bytes of 120000; kubectl apply fails at 262144"
    );
}

#[test]
fn repository_with_a_port_is_accepted() {
    for repository in ["localhost:5000/brain", "registry.example/a/brain", "brain"] {
        accepted(with(embedded(), "/spec/image", json!({"repository": repository})));
    }
}
