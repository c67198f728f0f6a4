use fake_api::{FakeApi, ScriptedReply, failure};
use serde_json::{Value, json};

use super::*;
use crate::tests::{says, serving, three};
use crate::{Command, duration};

mod restore;

const RESOURCES: &str = "/apis/kubebrain.io/v1alpha1/namespaces/brains";

fn options(change: impl FnOnce(&mut BackupOptions)) -> Command {
    let mut options = BackupOptions {
        cluster: "dev".to_owned(),
        name: Some("now".to_owned()),
        from_schedule: None,
        wait: false,
        timeout: duration("1m").unwrap(),
    };
    change(&mut options);
    Command::Backup {
        command: BackupCommand::Now(options),
    }
}

fn list(cluster: Option<&str>, output: OutputFormat) -> Command {
    Command::Backup {
        command: BackupCommand::List {
            cluster: cluster.map(str::to_owned),
            output,
        },
    }
}

/// A cluster with this backup in its spec.
fn cluster(backup: Value) -> FakeApi {
    let mut cluster = three();
    cluster["spec"]["backup"] = backup;
    serving(FakeApi::new(), &cluster)
}

fn schedule(cluster: &str) -> Value {
    json!({
        "apiVersion": "kubebrain.io/v1alpha1", "kind": "KubeBrainBackupSchedule", "metadata": {"name": "nightly", "namespace": "brains"},
        "spec": {"schedule": "@daily", "template": {
            "metadata": {"labels": {"team": "a", "kubebrain.io/schedule": "nightly"}, "annotations": {"note": "x"}},
            "spec": {
                "clusterName": cluster, "destination": {"s3": {"bucket": "b", "credentialsSecretRef": {"name": "s"}}},
                "deletionPolicy": "Delete", "verify": true,
            },
        }},
        "status": {
            "lastSuccessfulTime": "2020-11-21T03:00:00Z", "nextScheduleTime": "2020-11-22T00:00:00Z",
            "conditions": [{"type": "Ready", "status": "True", "reason": "Scheduled", "message": "", "lastTransitionTime": "2020-11-21T00:00:00Z"}],
        },
    })
}

fn created(api: &FakeApi) -> Value {
    let writes = api.writes();
    assert_eq!(writes.len(), 1, "{writes:?}");
    assert_eq!(writes[0].path, format!("{RESOURCES}/kubebrainbackups"));
    writes[0].body.clone()
}

#[tokio::test(start_paused = true)]
async fn backup_goes_where_the_cluster_is_archived() {
    let api = cluster(json!({
        "destination": {"persistentVolumeClaim": {"claimName": "backups", "path": "dev"}},
        "encryption": {"keySecretRef": {"name": "key"}},
        "archive": {"pod": {"nodeSelector": {"disk": "fast"}, "resources": {"limits": {"memory": "1Gi"}}}},
    }));
    let said = says(&api, options(|_| {})).await.unwrap();
    assert_eq!(said, "created KubeBrainBackup now, at pvc://backups/dev\n");
    let made = created(&api);
    assert_eq!(made["metadata"]["labels"], json!({"kubebrain.io/manual": "true"}));
    let spec = json!({
        "clusterName": "dev", "verify": false, "verificationMode": "Read", "deletionPolicy": "Keep",
        "destination": {"persistentVolumeClaim": {"claimName": "backups", "path": "dev"}},
        "encryption": {"keySecretRef": {"name": "key", "key": "key"}},
        "pod": {"nodeSelector": {"disk": "fast"}},
    });
    assert_eq!(made["spec"], spec);
    let again = says(&api, options(|_| {})).await.unwrap_err();
    assert_eq!(again, "KubeBrainBackup now exists already: choose another name");

    let api = serving(FakeApi::new(), &three());
    let said = says(&api, options(|_| {})).await.unwrap_err();
    assert_eq!(
        said,
        "the spec of dev has no backup, and so no destination: set spec.backup, or use --from-schedule"
    );
}

#[tokio::test(start_paused = true)]
async fn backup_from_a_template_is_none_of_its_schedule() {
    let from_schedule = |of: &str| {
        let api = serving(FakeApi::new(), &three());
        api.put(&format!("{RESOURCES}/kubebrainbackupschedules/nightly"), schedule(of));
        api
    };
    let command = || {
        options(|options| {
            options.from_schedule = Some("nightly".to_owned());
            options.name = None;
        })
    };
    let api = from_schedule("dev");
    says(&api, command()).await.unwrap();
    let made = created(&api);
    assert_eq!(
        made["metadata"]["labels"],
        json!({"team": "a", "kubebrain.io/manual": "true"})
    );
    assert_eq!(made["metadata"]["annotations"], json!({"note": "x"}));
    assert_eq!(made["spec"]["deletionPolicy"], "Delete");
    let name = made["metadata"]["name"].as_str().unwrap();
    let time = name.strip_prefix("dev-manual-").unwrap();
    assert!(
        time.len() == 14 && time.bytes().all(|byte| byte.is_ascii_digit()),
        "{name}"
    );

    let said = says(&from_schedule("other"), command()).await.unwrap_err();
    assert_eq!(
        said,
        "KubeBrainBackupSchedule nightly is of the cluster other, not of dev"
    );
}

#[tokio::test(start_paused = true)]
async fn names_of_backups_are_not_too_long() {
    let mut long = three();
    let name = "a-cluster-whose-name-is-a-l-ong-one";
    long["metadata"]["name"] = json!(name);
    long["spec"]["backup"] = json!({"destination": {"persistentVolumeClaim": {"claimName": "backups"}}});
    let api = FakeApi::new();
    api.put(&format!("{RESOURCES}/kubebrainclusters/{name}"), long);
    let command = options(|options| {
        options.cluster = name.to_owned();
        options.name = None;
    });
    says(&api, command).await.unwrap();
    let made = created(&api);
    let made = made["metadata"]["name"].as_str().unwrap();
    assert!(
        made.len() <= 49 && made.starts_with("a-cluster-whose-name-is-a-l-manual-"),
        "{made}"
    );
}

/// Waits as a user would, while the operator writes these conditions.
async fn waited(conditions: Value) -> Result<String, String> {
    let api = cluster(json!({"destination": {"persistentVolumeClaim": {"claimName": "backups"}}}));
    let operator = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let path = format!("{RESOURCES}/kubebrainbackups/now");
        let mut backup = api.get(&path).unwrap();
        backup["status"] = json!({"conditions": conditions, "storedBytes": 42});
        api.put(&path, backup);
    };
    tokio::join!(says(&api, options(|options| options.wait = true)), operator).0
}

fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-11-21T00:00:00Z"})
}

#[tokio::test(start_paused = true)]
async fn backup_is_waited_for_until_it_ends() {
    let said = waited(json!([condition(
        "Complete",
        "True",
        "Completed",
        "backup x of revision 7 was made"
    )]))
    .await;
    let expected = [
        "created KubeBrainBackup now, at pvc://backups",
        "waiting for the operator",
        "backup x of revision 7 was made at pvc://backups, 42 bytes",
    ];
    assert_eq!(said.unwrap().lines().collect::<Vec<_>>(), expected);
    let said = waited(json!([condition("Failed", "True", "BackupFailed", "no such bucket")])).await;
    assert_eq!(said.unwrap_err(), "BackupFailed: no such bucket");
    let said = waited(json!([condition(
        "Reconciling",
        "True",
        "Running",
        "Job now-backup is running"
    )]))
    .await;
    assert_eq!(
        said.unwrap_err(),
        "timed out waiting for now: Running: Job now-backup is running"
    );
}

#[tokio::test(start_paused = true)]
async fn list_shows_backups_and_schedules() {
    let backup = |name: &str, cluster: &str, status: Value| {
        json!({
            "apiVersion": "kubebrain.io/v1alpha1", "kind": "KubeBrainBackup",
            "metadata": {"name": name, "namespace": "brains", "labels": {"kubebrain.io/schedule": "nightly"}},
            "spec": {"clusterName": cluster, "destination": {"s3": {"bucket": "b", "prefix": name}}},
            "status": status,
        })
    };
    let with_backups = |api: FakeApi| {
        let complete =
            json!({"revision": 7, "storedBytes": 42, "conditions": [condition("Complete", "True", "Completed", "")]});
        let failed = json!({"startTime": "2026-11-21T00:00:00Z", "conditions": [condition("Failed", "True", "BackupFailed", "")]});
        let running = json!({"startTime": "2026-11-21T00:00:00Z"});
        for backup in [
            backup("a", "dev", complete),
            backup("b", "dev", failed),
            backup("c", "dev", running),
            backup("d", "dev", json!({})),
            backup("e", "other", json!({})),
        ] {
            let name = backup["metadata"]["name"].as_str().unwrap();
            api.put(&format!("{RESOURCES}/kubebrainbackups/{name}"), backup.clone());
        }
        api.put(
            &format!("{RESOURCES}/kubebrainbackupschedules/nightly"),
            schedule("dev"),
        );
        api
    };
    let said = says(&with_backups(FakeApi::new()), list(Some("dev"), OutputFormat::Table)).await;
    let said = said.unwrap();
    let expected = "\
BACKUP   CLUSTER   PHASE      REVISION   BYTES   AGE   SCHEDULE   LOCATION
a        dev       Complete   7          42      -     nightly    s3://b/a
b        dev       Failed     -          -       -     nightly    s3://b/b
c        dev       Running    -          -       -     nightly    s3://b/c
d        dev       Waiting    -          -       -     nightly    s3://b/d

SCHEDULE   CLUSTER   TIMES            STATE       LAST SUCCESS   NEXT
";
    assert!(said.starts_with(expected), "{said}");
    let line = said.lines().last().unwrap();
    assert!(
        line.starts_with("nightly    dev       @daily Etc/UTC   Scheduled   "),
        "{line}"
    );
    assert!(line.ends_with("d ago      2020-11-22T00:00:00Z"), "{line}");

    let forbidden = FakeApi::scripted(|asked| match asked.path.ends_with("/kubebrainbackupschedules") {
        true => {
            let (code, status) = failure(403, "Forbidden", "");
            ScriptedReply::With(code, status)
        }
        false => ScriptedReply::Pass,
    });
    let said = says(&with_backups(forbidden), list(None, OutputFormat::Json))
        .await
        .unwrap();
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["backups"].as_array().unwrap().len(), 5);
    assert_eq!(said["backups"][0]["storedBytes"], 42);
    assert!(
        said["notes"][0]
            .as_str()
            .unwrap()
            .starts_with("schedules are unknown: no permission"),
        "{said}"
    );
}

/// Verifies a backup as a user would, while the operator handles the request with this result.
async fn verified(complete: bool, result: &str, handled: Option<&str>) -> Result<String, String> {
    let api = FakeApi::new();
    let path = format!("{RESOURCES}/kubebrainbackups/a");
    let status = if complete { "True" } else { "False" };
    let backup = json!({
        "apiVersion": "kubebrain.io/v1alpha1", "kind": "KubeBrainBackup", "metadata": {"name": "a", "namespace": "brains"},
        "spec": {"clusterName": "dev", "destination": {"persistentVolumeClaim": {"claimName": "backups"}}},
        "status": {"conditions": [condition("Complete", status, "Completed", "")]},
    });
    api.put(&path, backup);
    let operator = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut backup = api.get(&path).unwrap();
        let Some(request) = backup["metadata"]["annotations"]["kubebrain.io/verify"]
            .as_str()
            .map(str::to_owned)
        else {
            return;
        };
        let verifying = condition("Verified", "Unknown", "Verifying", "created Job a-backup-verify");
        backup["status"]["conditions"].as_array_mut().unwrap().push(verifying);
        api.put(&path, backup.clone());
        tokio::time::sleep(Duration::from_secs(1)).await;
        let handled = handled.unwrap_or(&request);
        backup["status"]["verification"] =
            json!({"handled": handled, "time": "2026-11-21T00:00:00Z", "result": result, "message": "the words"});
        api.put(&path, backup);
    };
    let command = Command::Backup {
        command: BackupCommand::Verify {
            name: "a".to_owned(),
            wait: true,
            timeout: duration("1m").unwrap(),
        },
    };
    tokio::join!(says(&api, command), operator).0
}

#[tokio::test(start_paused = true)]
async fn verification_is_waited_for() {
    let said = verified(true, "Verified", None).await.unwrap();
    let expected = [
        "requested a verification of a",
        "waiting for the operator",
        "Verifying: created Job a-backup-verify",
        "Verified: the words",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
    assert_eq!(verified(true, "Damaged", None).await.unwrap_err(), "Damaged: the words");
    assert_eq!(verified(true, "Failed", None).await.unwrap_err(), "Failed: the words");
    assert_eq!(
        verified(true, "Verified", Some("an earlier one")).await.unwrap_err(),
        "timed out waiting for a: Verifying: created Job a-backup-verify"
    );
    assert_eq!(
        verified(false, "Verified", None).await.unwrap_err(),
        "KubeBrainBackup a is not complete: there is nothing to verify"
    );
}
