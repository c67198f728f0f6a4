use kube::CustomResourceExt;
use serde_json::json;

use super::*;
use crate::backup::DeletionPolicy;
use crate::backup::tests::with;

const FILE: &str = include_str!("../../bad-schedules.json");

fn object(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "kubebrain.io/v1alpha1",
        "kind": "KubeBrainBackupSchedule",
        "metadata": {"name": name, "namespace": "brains"},
        "spec": spec,
    })
}

fn base(name: &str) -> Value {
    let file: Value = serde_json::from_str(FILE).unwrap();
    object(name, &file["bases"][name])
}

fn read(value: Value) -> KubeBrainBackupSchedule {
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

/// The manifests of `bad-schedules.json` and their refusals. The end-to-end tests check them against a real API server.
#[test]
fn bad_schedules_are_refused() {
    let file: Value = serde_json::from_str(FILE).unwrap();
    for name in file["bases"].as_object().unwrap().keys() {
        assert_eq!(judged(base(name)), "", "{name}");
    }
    let mut count = 0;
    for bad in file["manifests"].as_array().unwrap() {
        // These rules cannot check refusals by the schema; only the API server can.
        if bad["schema"] == true {
            continue;
        }
        let good = base(bad["base"].as_str().unwrap());
        let said = if bad["change"].is_object() {
            judged_change(good.clone(), with(good, &bad["change"]))
        } else {
            judged(with(good, &bad["set"]))
        };
        assert!(said.contains(bad["message"].as_str().unwrap()), "{bad}: {said:?}");
        count += 1;
    }
    assert!(count >= 10, "{count} bad schedules");
}

#[test]
fn whole_template_may_change_while_a_backup_may_not() {
    let old = base("kept");
    let azure = json!({"azure": {"account": "acc", "container": "c", "credentialsSecretRef": {"name": "az"}}});
    let changes = json!({
        "/spec/template/spec/clusterName": "other",
        "/spec/template/spec/destination": azure,
        "/spec/template/spec/encryption": {"keySecretRef": {"name": "key"}},
        "/spec/template/spec/verify": true,
        "/spec/template/spec/timeout": "1h",
        "/spec/template/spec/backoffLimit": 1,
        "/spec/template/spec/userSecretRef": {"name": "root"},
    });
    assert_eq!(judged_change(old.clone(), with(old, &changes)), "");
}

#[test]
fn defaults_are_those_of_the_documentation() {
    let spec = read(base("nightly")).spec;
    assert_eq!(
        (spec.time_zone(), spec.suspend, spec.immediate),
        ("Etc/UTC", false, false)
    );
    assert_eq!(
        (spec.concurrency_policy, spec.failed_backups_history_limit),
        (ConcurrencyPolicy::Forbid, 3)
    );
    assert_eq!((spec.retention, spec.starting_deadline_seconds), (None, None));
    assert_eq!(spec.template.spec.deletion_policy, DeletionPolicy::Keep);
}

/// Longest names: that of the Job of a backup of a schedule.
#[test]
fn names_of_backups_are_names_of_backups() {
    let longest = "a".repeat(MAX_SCHEDULE_NAME_BYTES);
    assert_eq!(judged(object(&longest, &base("nightly")["spec"])), "");
    assert_eq!(
        format!("{longest}-20261129030000").len(),
        49,
        "the longest name of a KubeBrainBackup"
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
    let crd = serde_json::to_value(KubeBrainBackupSchedule::crd()).unwrap();
    let version = &crd["spec"]["versions"][0];
    let fields = &version["schema"]["openAPIV3Schema"]["properties"];
    walk(&fields["spec"], "spec");
    walk(&fields["status"], "status");
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
            "Schedule",
            "Time zone",
            "Suspend",
            "Ready",
            "Reason",
            "Last schedule",
            "Last success",
            "Age"
        ]
    );
    assert!(crd.to_string().len() < 64 << 10, "the definition is too large");
    let rules = fields["spec"]["properties"]["template"]["properties"]["spec"]["x-kubernetes-validations"].to_string();
    assert!(
        rules.contains("duration(self.timeout)") && !rules.contains("oldSelf"),
        "{rules}"
    );
}
