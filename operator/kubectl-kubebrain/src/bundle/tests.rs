use std::collections::BTreeMap;
use std::io::Read as _;

use fake_api::{CLUSTERS, FakeApi, RecordedRequest, ScriptedReply, failure};
use flate2::read::GzDecoder;
use plan::testing::FakeCluster;

use super::*;
use crate::Command;
use crate::tests::{put_pods, says};

/// In a Secret of the namespace, and wherever a program or a user may repeat it.
const KNOWN: &str = "hunter2-known";
/// In no Secret, and wherever a value may be a secret by its place.
const PLACED: &str = "correct-horse-placed";
const NAMESPACE: &str = "/api/v1/namespaces/brains";
const RESOURCES: &str = "/apis/kubebrain.io/v1alpha1/namespaces/brains";

/// Answers for logs and metrics with a text that has both secrets, in forms that programs print.
fn talkative(forbidden: &'static [&'static str]) -> FakeApi {
    FakeApi::scripted(move |asked: &RecordedRequest| {
        if forbidden.iter().any(|path| asked.path.ends_with(path)) {
            let (code, status) = failure(403, "Forbidden", "it");
            return ScriptedReply::With(code, status);
        }
        if asked.path.ends_with("/log") || asked.path.contains("/proxy/") {
            return ScriptedReply::Text(format!(
                "a line\n{{\"password\":\"{PLACED}\"}} https://me:{PLACED}@host Bearer {PLACED} --user=root:{PLACED} {KNOWN}\n"
            ));
        }
        if asked.path == "/version" {
            let info = json!({"major": "1", "minor": "34", "gitVersion": "v1.34.0", "gitCommit": "", "gitTreeState": "", "buildDate": "",
                "goVersion": "", "compiler": "", "platform": "linux/amd64"});
            return ScriptedReply::With(200, info);
        }
        ScriptedReply::Pass
    })
}

/// A server with a settled cluster and all that belongs to it, and with secrets in every place that can hold one.
fn planted(api: FakeApi) -> FakeApi {
    let mut fake = FakeCluster::settled(json!({
        "inheritedMetadata": {"annotations": {"team/note": PLACED}},
        "backup": {"destination": {"s3": {
            "bucket": "b", "endpoint": format!("https://me:{PLACED}@minio:9000"), "credentialsSecretRef": {"name": "credentials"},
        }}},
    }));
    fake.settle();
    api.load(&fake);
    put_pods(&api);
    let last_applied = json!({"kubectl.kubernetes.io/last-applied-configuration": format!("{{\"x\":\"{PLACED}\"}}"), "own/note": PLACED});
    let edit = |path: &str, change: &dyn Fn(&mut Value)| {
        let mut object = api.get(path).unwrap_or_else(|| panic!("no {path}"));
        change(&mut object);
        api.put(path, object);
    };
    edit(&format!("{CLUSTERS}/dev"), &|cluster| {
        cluster["metadata"]["annotations"] = last_applied.clone();
        cluster["metadata"]["managedFields"] = json!([{"manager": PLACED}]);
        cluster["status"]["conditions"][0]["message"] = json!(format!("it refused {KNOWN}"));
    });
    let containers = json!([
        {"name": "brain", "image": "x", "args": ["--data-dir=/data", format!("--user=root:{PLACED}")], "env": [{"name": "A", "value": PLACED}]},
        {
            "name": "proxy", "image": "x", "command": ["run", PLACED], "args": ["--key", PLACED],
            "env": [{"name": "B", "value": PLACED}, {"name": "C", "valueFrom": {"secretKeyRef": {"name": "credentials", "key": "password"}}}],
            "livenessProbe": {"httpGet": {"path": "/", "port": 1, "httpHeaders": [{"name": "X-Key", "value": PLACED}]}},
            "lifecycle": {"preStop": {"exec": {"command": ["curl", PLACED]}}},
        },
    ]);
    edit(&format!("{NAMESPACE}/pods/dev-1"), &|pod| {
        pod["metadata"]["annotations"] = last_applied.clone();
        pod["spec"]["containers"] = containers.clone();
        pod["spec"]["initContainers"] = json!([{"name": "init", "image": "x", "args": [PLACED]}]);
        pod["status"]["containerStatuses"][0]["lastState"] =
            json!({"terminated": {"exitCode": 1, "message": format!("no access for {KNOWN}")}});
    });
    edit("/apis/apps/v1/namespaces/brains/statefulsets/dev", &|set| {
        set["spec"]["template"]["spec"]["containers"] = containers.clone();
        set["metadata"]["annotations"]["own/note"] = json!(PLACED);
    });
    edit(&format!("{NAMESPACE}/configmaps/dev-ca-bundle"), &|map| {
        map["data"]["note"] = json!(PLACED)
    });
    edit(&format!("{RESOURCES}/kubebrainbackups/b"), &|backup| {
        backup["metadata"]["annotations"] = last_applied.clone();
        backup["status"] = json!({"conditions": [{"type": "Failed", "status": "True", "reason": "BackupFailed",
            "message": format!("{KNOWN} was refused"), "lastTransitionTime": "2026-11-21T00:00:00Z"}]});
    });
    let schedule = json!({
        "apiVersion": "kubebrain.io/v1alpha1", "kind": "KubeBrainBackupSchedule", "metadata": {"name": "nightly", "namespace": "brains"},
        "spec": {"schedule": "@daily", "template": {"metadata": {"annotations": {"own/note": PLACED}}, "spec": {
            "clusterName": "dev", "destination": {"persistentVolumeClaim": {"claimName": "backups"}},
        }}},
    });
    api.put(&format!("{RESOURCES}/kubebrainbackupschedules/nightly"), schedule);
    // "hunter2-known" and "user: {\"a\": 1}\nhunter2-known" in base64.
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "credentials", "namespace": "brains", "labels": {"kubebrain.io/cluster": "dev"}, "annotations": last_applied},
        "data": {"password": "aHVudGVyMi1rbm93bg==", "file": "dXNlcjogeyJhIjogMX0KaHVudGVyMi1rbm93bg==", "username": "amFuZQ=="},
        "type": "Opaque",
    });
    api.put(&format!("{NAMESPACE}/secrets/credentials"), secret);
    for (name, about) in [("one", "dev-1"), ("two", "other-0")] {
        let event = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": "brains"},
            "involvedObject": {"kind": "Pod", "name": about}, "reason": "Failed",
            "message": format!("aHVudGVyMi1rbm93bg== token={PLACED} {KNOWN}"),
        });
        api.put(&format!("{NAMESPACE}/events/{name}"), event);
    }
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "b-backup", "namespace": "brains", "labels": {"kubebrain.io/backup": "b"}},
        "spec": {"template": {"spec": {"containers": [{"name": "backup", "image": "x", "env": [{"name": "A", "value": PLACED}]}]}}},
    });
    api.put("/apis/batch/v1/namespaces/brains/jobs/b-backup", job);
    for cluster in ["dev", "other"] {
        let name = format!("{cluster}-bootstrap");
        let job = json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"name": name, "namespace": "brains", "labels": {"kubebrain.io/bootstrap": cluster}},
            "spec": {"template": {"spec": {"containers": [{"name": "bootstrap", "image": "x", "args": ["restore", "--once"]}]}}},
        });
        api.put(&format!("/apis/batch/v1/namespaces/brains/jobs/{name}"), job);
    }
    api
}

/// Writes a bundle with all that it can have, and returns its files and what the command printed.
async fn bundle(api: &FakeApi) -> (BTreeMap<String, String>, String) {
    bundle_with(api, true).await
}

async fn bundle_with(api: &FakeApi, operator_logs: bool) -> (BTreeMap<String, String>, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bundle.tar.gz");
    let options = BundleOptions {
        name: "dev".to_owned(),
        output: Some(path.clone()),
        since: Duration::from_secs(3600),
        operator_logs,
    };
    let said = says(api, Command::SupportBundle(options)).await.unwrap();
    let mut archive = tar::Archive::new(GzDecoder::new(File::open(&path).unwrap()));
    let files = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().to_str().unwrap().to_owned();
        let (root, path) = path.split_once('/').unwrap();
        assert!(root.starts_with("dev-support-"), "{root}");
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        (path.to_owned(), text)
    });
    (files.collect(), said)
}

#[tokio::test(start_paused = true)]
async fn bundle_has_everything_but_secrets() {
    let api = planted(talkative(&[]));
    let (files, said) = bundle(&api).await;
    for (path, text) in &files {
        for secret in [KNOWN, PLACED, "aHVudGVyMi1rbm93bg"] {
            assert!(!text.contains(secret), "{secret} is in {path}:\n{text}");
        }
    }
    for path in [
        "index.txt",
        "versions.json",
        "cluster.json",
        "events.json",
        "plan.json",
        "objects/kubebrainbackups/b.json",
        "objects/kubebrainbackupschedules/nightly.json",
        "objects/statefulsets/dev.json",
        "objects/services/dev-client.json",
        "objects/secrets/dev-ca.json",
        "objects/secrets/credentials.json",
        "objects/configmaps/dev-ca-bundle.json",
        "objects/jobs/b-backup.json",
        "objects/jobs/dev-bootstrap.json",
        "objects/pods/dev-0.json",
        "objects/pods/kubebrain-operator-1.json",
        "rendered/statefulsets/dev.json",
        "logs/dev-0/brain.log",
        "logs/dev-1/proxy.log",
        "logs/dev-1/brain.previous.log",
        "logs/b-backup-x/backup.log",
        "logs/dev-bootstrap-x/bootstrap.log",
        "logs/kubebrain-operator-1/operator.log",
        "metrics/dev-0.metrics.txt",
        "metrics/dev-0.member.json",
        "metrics/kubebrain-operator-1.metrics.txt",
    ] {
        assert!(files.contains_key(path), "{path} is not in {:?}", files.keys());
    }
    for path in files.keys() {
        let is_of_another = path.contains("other") || path.contains("/c.json") || path.contains("c-backup");
        assert!(!is_of_another, "{path} is of another cluster");
    }
    let has = |path: &str, text: &str| assert!(files[path].contains(text), "{text} is not in {path}:\n{}", files[path]);
    has("objects/secrets/credentials.json", "\"file\": \"REDACTED\"");
    has("objects/pods/dev-1.json", "\"--data-dir=/data\"");
    has("objects/jobs/dev-bootstrap.json", "\"--once\"");
    has("objects/pods/dev-1.json", "\"key\": \"password\"");
    has("cluster.json", "\"endpoint\": \"https://REDACTED@minio:9000\"");
    has("logs/dev-0/brain.log", "a line\n");
    has("versions.json", "\"gitVersion\": \"v1.34.0\"");
    has("events.json", "\"name\": \"dev-1\"");
    assert!(!files["events.json"].contains("other-0"));
    has("index.txt", "nothing that was looked for");
    has("index.txt", "  objects/statefulsets/dev.json\n");
    assert!(said.ends_with(&format!(": {} files\n", files.len())), "{said}");
    assert!(api.writes().is_empty(), "{:?}", api.writes());
}

#[tokio::test(start_paused = true)]
async fn logs_and_metrics_of_the_operator_are_left_out_unless_asked_for() {
    let (files, said) = bundle_with(&planted(talkative(&[])), false).await;
    let mut of_operator = files.keys().filter(|path| path.contains("kubebrain-operator"));
    assert_eq!(of_operator.next().unwrap(), "objects/pods/kubebrain-operator-1.json");
    assert_eq!(of_operator.next(), None);
    let index = &files["index.txt"];
    let told = "Logs and metrics of the operator are left out: --operator-logs adds them.";
    assert!(index.contains(told), "{index}");
    assert!(
        !index.contains("WARNING") && !said.contains("WARNING"),
        "{said}\n{index}"
    );
}

/// Checks that a bundle without all values of Secrets has no logs of containers of others, and says so.
#[track_caller]
fn check_wary((files, said): &(BTreeMap<String, String>, String), why: &str) {
    assert!(!files.contains_key("logs/dev-1/proxy.log"), "{:?}", files.keys());
    for path in ["logs/dev-1/brain.log", "logs/dev-bootstrap-x/bootstrap.log"] {
        assert!(files.contains_key(path), "{path} is not in {:?}", files.keys());
    }
    let index = &files["index.txt"];
    assert_eq!(index.lines().nth(1), Some(SECRETS_UNKNOWN), "{index}");
    assert!(said.contains(&format!("\n{SECRETS_UNKNOWN}\n")), "{said}");
    for part in [
        why,
        "  the log proxy of pod dev-1: it may have values of Secrets, which could not be read\n",
    ] {
        assert!(index.contains(part), "{part} is not in\n{index}");
    }
}

#[tokio::test(start_paused = true)]
async fn logs_of_others_are_left_out_if_secrets_cannot_be_read() {
    let found = bundle(&planted(talkative(&["/secrets"]))).await;
    check_wary(
        &found,
        "not looked for in logs and messages: no permission to list secrets",
    );
}

#[tokio::test(start_paused = true)]
async fn logs_of_others_are_left_out_if_there_are_too_many_secrets() {
    let api = FakeApi::scripted(|asked: &RecordedRequest| {
        if asked.path.ends_with("/log") {
            return ScriptedReply::Text(format!("{KNOWN}\n"));
        }
        if !asked.path.ends_with("/secrets") {
            return ScriptedReply::Pass;
        }
        // A list without an end, whose first page has the only Secret.
        let secret = json!({"metadata": {"name": "credentials", "namespace": "brains"}, "data": {"password": "aHVudGVyMi1rbm93bg=="}});
        let items = if asked.query.contains("continue=") {
            vec![]
        } else {
            vec![secret]
        };
        let metadata = json!({"resourceVersion": "1", "continue": "next"});
        let list = json!({"apiVersion": "v1", "kind": "SecretList", "metadata": metadata, "items": items});
        ScriptedReply::With(200, list)
    });
    let found = bundle(&planted(api)).await;
    check_wary(
        &found,
        "not looked for in logs and messages: only the first 1 were read",
    );
    // The values that were read are removed.
    let log = &found.0["logs/dev-1/brain.log"];
    assert!(!log.contains(KNOWN), "{log}");
}

#[tokio::test(start_paused = true)]
async fn parts_that_cannot_be_read_are_named() {
    let api = planted(talkative(&[
        "/secrets",
        "/events",
        "/kubebrainbackups",
        "/dev-0/log",
        "/proxy/metrics",
        "/version",
    ]));
    let (files, said) = bundle(&api).await;
    let index = &files["index.txt"];
    for part in [
        "  values of Secrets, which are therefore not looked for in logs and messages: no permission to list secrets in namespace brains",
        "  secrets: no permission to list secrets",
        "  events: no permission to list events",
        "  backups: no permission to list kubebrainbackups",
        "  pods of backups: no permission to list kubebrainbackups",
        "  the log brain of pod dev-0: ",
        "  /metrics of dev-1: no permission to get pods/proxy in namespace brains",
        "  the plan and the rendered objects: no permission to list secrets",
        "  the version of the API server: ",
    ] {
        assert!(index.contains(part), "{part} is not in\n{index}");
    }
    assert!(
        said.ends_with("parts could not be read: index.txt in it says why\n"),
        "{said}"
    );
    assert!(files.contains_key("logs/dev-1/brain.log") && files.contains_key("objects/statefulsets/dev.json"));
    // Places that may hold a secret are known without the values of Secrets.
    for (path, text) in &files {
        assert!(!text.contains(PLACED), "{PLACED} is in {path}:\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn part_that_does_not_answer_is_left_out() {
    let api = FakeApi::scripted(|asked: &RecordedRequest| match asked.path.ends_with("/dev-0/log") {
        true => ScriptedReply::Never,
        false => ScriptedReply::Pass,
    });
    let (files, _) = bundle(&planted(api)).await;
    let index = &files["index.txt"];
    assert!(
        index.contains("the log brain of pod dev-0: no answer in 60 seconds"),
        "{index}"
    );
}

#[tokio::test(start_paused = true)]
async fn file_that_exists_is_not_overwritten() {
    let api = planted(talkative(&[]));
    let file = tempfile::NamedTempFile::new().unwrap();
    let options = BundleOptions {
        name: "dev".to_owned(),
        output: Some(file.path().to_owned()),
        since: Duration::from_secs(3600),
        operator_logs: false,
    };
    let said = says(&api, Command::SupportBundle(options)).await.unwrap_err();
    assert!(said.starts_with("create ") && said.contains("exists"), "{said}");
}
