use kube::CustomResourceExt;
use serde_json::{Value, json};

use super::*;

/// Returns `base` with these values at their paths; null removes a field.
pub(crate) fn with(mut object: Value, changes: &Value) -> Value {
    for (path, value) in changes.as_object().into_iter().flatten() {
        let (parent, field) = path.rsplit_once('/').unwrap();
        let mut at = &mut object;
        for part in parent.split('/').skip(1) {
            at = at.as_object_mut().unwrap().entry(part).or_insert_with(|| json!({}));
        }
        let parent = at.as_object_mut().unwrap();
        if value.is_null() {
            parent.remove(field);
        } else {
            parent.insert(field.to_owned(), value.clone());
        }
    }
    object
}

fn object(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "kubebrain.io/v1alpha1",
        "kind": "KubeBrainBackup",
        "metadata": {"name": name, "namespace": "brains"},
        "spec": spec,
    })
}

fn read(value: Value) -> KubeBrainBackup {
    serde_json::from_value(value).unwrap()
}

/// Returns the errors of the rules: empty if they accept the object.
fn judged(value: Value) -> String {
    let errors = read(value).validate_cel().err();
    errors.map(|errors| format!("{errors:?}")).unwrap_or_default()
}

fn judged_change(old: Value, new: Value) -> String {
    let errors = read(new).validate_cel_update(&read(old)).err();
    errors.map(|errors| format!("{errors:?}")).unwrap_or_default()
}

/// The manifests of `bad-backups.json` and their refusals. The end-to-end tests check them against a real API server.
#[test]
fn bad_backups_are_refused() {
    let file: Value = serde_json::from_str(include_str!("../../bad-backups.json")).unwrap();
    let made = |bad: &Value, parts: &[&str]| {
        let base = bad["base"].as_str().unwrap();
        let object = object(base, &file["bases"][base]);
        parts.iter().fold(object, |object, part| with(object, &bad[part]))
    };
    for base in file["bases"].as_object().unwrap().keys() {
        assert_eq!(judged(made(&json!({"base": base}), &[])), "", "{base}");
    }
    let mut count = 0;
    for bad in file["manifests"].as_array().unwrap() {
        // These rules cannot check refusals by the schema; only the API server can.
        if bad["schema"] == true {
            continue;
        }
        let message = bad["message"].as_str().unwrap();
        let said = if bad["change"].is_object() {
            assert_eq!(judged(made(bad, &["from"])), "", "{bad}");
            judged_change(made(bad, &["from"]), made(bad, &["from", "change"]))
        } else {
            judged(made(bad, &["set"]))
        };
        assert!(said.contains(message), "{bad}: {said:?}");
        count += 1;
    }
    assert!(count >= 30, "{count} bad backups");
}

#[test]
fn policy_and_pod_may_change() {
    let file: Value = serde_json::from_str(include_str!("../../bad-backups.json")).unwrap();
    let old = object("a", &file["bases"]["s3"]);
    let pod = json!({"resources": {"limits": {"memory": "128Mi"}}, "tolerations": [{"operator": "Exists"}]});
    let new = with(
        old.clone(),
        &json!({"/spec/deletionPolicy": "Delete", "/spec/pod": pod}),
    );
    assert_eq!(judged_change(old, new), "");
}

#[test]
fn defaults_are_those_of_the_documentation() {
    let spec = json!({
        "clusterName": "dev", "encryption": {"keySecretRef": {"name": "k"}},
        "destination": {"s3": {"bucket": "b", "caBundleRef": {"name": "cas"}}},
    });
    let backup = read(object("a", &spec));
    assert_eq!(
        (backup.spec.verify, backup.spec.deletion_policy),
        (false, DeletionPolicy::Keep)
    );
    assert_eq!(backup.spec.timeout(), "24h");
    assert_eq!(backup.spec.encryption.unwrap().key_secret_ref.key, "key");
    let bundle = backup.spec.destination.s3.unwrap().ca_bundle_ref.unwrap();
    assert_eq!(
        (bundle.kind, bundle.key.as_str()),
        (crate::cluster::status::BundleKind::ConfigMap, "ca.crt")
    );
}

#[test]
fn every_field_is_explained() {
    fn walk(schema: &Value, path: &str) {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            assert!(
                field["description"].as_str().is_some_and(|text| !text.is_empty()),
                "{path}"
            );
            walk(field, &path);
            walk(&field["items"], &path);
        }
    }
    let crd = serde_json::to_value(KubeBrainBackup::crd()).unwrap();
    let version = &crd["spec"]["versions"][0];
    walk(&version["schema"]["openAPIV3Schema"]["properties"]["spec"], "spec");
    walk(&version["schema"]["openAPIV3Schema"]["properties"]["status"], "status");
    let columns: Vec<&str> = version["additionalPrinterColumns"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|column| column["priority"].is_null())
        .map(|column| column["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        columns,
        [
            "Cluster",
            "Complete",
            "Reason",
            "Revision",
            "Bytes",
            "Verified",
            "Completed",
            "Age"
        ]
    );
    assert!(crd.to_string().len() < 64 << 10, "the definition is too large");
}
