//! New clusters that begin with a backup.

use clap::Parser as _;

use super::*;
use crate::backup::restore::{RestoreOptions, run};
use crate::tests::target;

/// Only for the parser, which needs a command.
#[derive(Debug, clap::Parser)]
struct Line {
    #[command(flatten)]
    options: RestoreOptions,
}

fn line(arguments: &str) -> Result<RestoreOptions, String> {
    let words = ["restore"].into_iter().chain(arguments.split_whitespace());
    let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
    Ok(line.options)
}

/// A server with this cluster and its backup `a` of revision 7, which has this condition.
fn server(cluster: &Value, condition_of_backup: Value) -> FakeApi {
    let api = serving(FakeApi::new(), cluster);
    let backup = json!({
        "apiVersion": "kubebrain.io/v1alpha1", "kind": "KubeBrainBackup", "metadata": {"name": "a", "namespace": "brains"},
        "spec": {"clusterName": "dev", "destination": {"persistentVolumeClaim": {"claimName": "backups", "path": "dev"}}},
        "status": {
            "revision": 7, "backupName": "20261129T113542.123Z-0000000000000000007", "startTime": "2026-11-29T11:35:42Z",
            "completionTime": "2026-11-29T11:35:43Z", "conditions": [condition_of_backup],
        },
    });
    api.put(&format!("{RESOURCES}/kubebrainbackups/a"), backup);
    api
}

fn complete(cluster: &Value) -> FakeApi {
    server(cluster, condition("Complete", "True", "Completed", ""))
}

/// Runs the command with these arguments, and returns its output and its notes.
async fn restored(api: &FakeApi, arguments: &str) -> Result<(String, Vec<String>), String> {
    let options = line(arguments)?;
    let (mut out, mut notes) = (Vec::new(), Vec::new());
    let done = Box::pin(run(&target(api), &options, &mut out, &mut notes)).await;
    let notes = String::from_utf8(notes).unwrap();
    let output = (
        String::from_utf8(out).unwrap(),
        notes.lines().map(str::to_owned).collect(),
    );
    done.map(|()| output).map_err(|error| format!("{error:#}"))
}

async fn refused(api: &FakeApi, arguments: &str) -> String {
    let said = restored(api, arguments).await.unwrap_err();
    assert!(api.writes().is_empty(), "{:?}", api.writes());
    said
}

fn embedded(more: Value) -> Value {
    let mut cluster = three();
    cluster["spec"] =
        json!({"replicas": 1, "version": "0.2.0", "storage": {"type": "Embedded", "embedded": {"size": "10Gi"}}});
    let spec = cluster["spec"].as_object_mut().unwrap();
    spec.extend(more.as_object().unwrap().clone());
    cluster
}

#[tokio::test(start_paused = true)]
async fn new_cluster_is_like_the_other_one_without_what_belongs_to_that_alone() {
    let mut dev = three();
    dev["metadata"]["labels"] = json!({"argocd.argoproj.io/instance": "dev"});
    dev["spec"]["paused"] = json!(true);
    dev["spec"]["restartedAt"] = json!("2026-11-21T00:00:00Z");
    dev["spec"]["bootstrap"] = json!({"fromBackup": {"backup": {"name": "older"}}});
    dev["spec"]["backup"] =
        json!({"destination": {"persistentVolumeClaim": {"claimName": "backups", "path": "dev"}}, "archive": {}});
    dev["spec"]["storage"]["tikv"]["gc"] = json!({"owner": "Brain"});
    dev["spec"]["tls"] = json!({"serverAltNames": ["dev.example.org"], "caGeneration": 3, "validity": "720h"});
    dev["spec"]["services"] = json!({"client": {"type": "LoadBalancer", "annotations": {"lb/ip": "10.0.0.9"}}});
    dev["spec"]["pod"] = json!({"serviceAccountName": "dev"});
    dev["spec"]["flags"] = json!({"max-txn-ops": "1024"});
    dev["spec"]["podTemplate"] =
        json!({"spec": {"volumes": [{"name": "v", "secret": {"secretName": "dev-extra"}}], "hostname": "devices"}});
    let api = complete(&dev);
    let (said, notes) = restored(&api, "a --to new -y").await.unwrap();
    let expected = [
        "This creates KubeBrainCluster new, which begins with the backup a of revision 7 of dev at pvc://backups/dev.",
        "created KubeBrainCluster new; to see its state: kubectl kubebrain status new",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
    let writes = api.writes();
    assert_eq!(writes.len(), 1, "{writes:?}");
    assert_eq!(writes[0].path, format!("{RESOURCES}/kubebrainclusters"));
    let made = &writes[0].body;
    assert_eq!(made["metadata"], json!({"name": "new", "namespace": "brains"}));
    assert_eq!(made["status"], Value::Null);
    let spec = &made["spec"];
    let kept = json!({"type": "TiKV", "tikv": {"pdEndpoints": ["pd:2379"], "whenDeleted": "Retain"}});
    assert_eq!(spec["storage"], kept);
    assert_eq!(spec["bootstrap"], json!({"fromBackup": {"backup": {"name": "a"}}}));
    assert_eq!((&spec["replicas"], &spec["paused"]), (&json!(3), &json!(false)));
    assert_eq!(spec["tls"], json!({"mode": "Operator", "validity": "720h"}));
    assert_eq!(spec["services"]["client"], json!({"type": "LoadBalancer"}));
    assert_eq!(spec["flags"], json!({"max-txn-ops": "1024"}));
    assert_eq!(spec["podTemplate"], dev["spec"]["podTemplate"]);
    for field in ["backup", "restartedAt", "pod"] {
        assert_eq!(spec[field], Value::Null, "{field}");
    }
    let expected = [
        "not copied: spec.paused: a paused cluster is not restored",
        "not copied: spec.restartedAt: a request to dev",
        "not copied: spec.bootstrap: the first data of dev",
        "not copied: spec.backup: the place of the archive of dev: give new another one",
        "not copied: spec.storage.tikv.gc: dev advances the GC safe point, and only one cluster may",
        "not copied: spec.tls.serverAltNames: the names of dev: dev.example.org",
        "not copied: spec.tls.caGeneration: that of the key of dev",
        "not copied: spec.services.client.annotations: they may have addresses or names of dev: lb/ip",
        "not copied: spec.pod.serviceAccountName: the ServiceAccount of dev",
        "copied, but it may be of dev alone: spec.podTemplate.spec.volumes[0].secret.secretName: dev-extra",
    ];
    assert_eq!(notes, expected);
    assert_eq!(
        refused_later(&api, "a --to new -y").await,
        "KubeBrainCluster new exists already: a backup is restored only into a new one"
    );
}

/// The same as `refused`, after an earlier write.
async fn refused_later(api: &FakeApi, arguments: &str) -> String {
    api.forget_requests();
    refused(api, arguments).await
}

#[tokio::test(start_paused = true)]
async fn dry_run_prints_a_cluster_that_can_be_applied() {
    let api = complete(&embedded(json!({})));
    let (said, notes) = restored(&api, "a --to new --revision 9 --dry-run").await.unwrap();
    assert!(api.writes().is_empty(), "{:?}", api.writes());
    let printed: Value = serde_yaml::from_str(&said).unwrap();
    assert_eq!(
        (&printed["apiVersion"], &printed["kind"]),
        (&json!("kubebrain.io/v1alpha1"), &json!("KubeBrainCluster"))
    );
    assert_eq!(
        printed["spec"]["bootstrap"],
        json!({"fromBackup": {"backup": {"name": "a"}, "revision": 9}})
    );
    let none = "dev has no archive at pvc://backups/dev: without one that was made earlier, the restore fails";
    assert_eq!(notes, [none]);
    let cluster: crds::KubeBrainCluster = serde_yaml::from_str(&said).unwrap();
    assert_eq!(serde_json::to_value(cluster).unwrap(), printed);
}

#[tokio::test(start_paused = true)]
async fn point_is_one_of_the_archive() {
    let place =
        json!({"destination": {"persistentVolumeClaim": {"claimName": "backups", "path": "dev"}}, "archive": {}});
    let api = complete(&embedded(json!({"backup": place})));
    let from = async |arguments: &str| {
        let (said, notes) = restored(&api, &format!("a --to new --dry-run {arguments}"))
            .await
            .unwrap();
        assert_eq!(notes.len(), 1, "there is an archive: {notes:?}");
        let printed: Value = serde_yaml::from_str(&said).unwrap();
        printed["spec"]["bootstrap"]["fromBackup"].clone()
    };
    let backup = json!({"name": "a"});
    assert_eq!(from("--revision 7").await, json!({"backup": backup, "revision": 7}));
    assert_eq!(
        from("--time 2026-11-29T17:45:00+01:00").await,
        json!({"backup": backup, "time": "2026-11-29T16:45:00Z"})
    );
    assert_eq!(from("--end").await, json!({"backup": backup, "end": true}));
    let both = line("a --to new --revision 7 --time 2026-11-29T16:45:00Z").unwrap_err();
    assert!(both.contains("cannot be used with"), "{both}");
    assert_eq!(
        refused(&api, "a --to new -y --revision 6").await,
        "KubeBrainBackup a is of revision 7, which is later than 6: choose an earlier backup"
    );
}

#[tokio::test(start_paused = true)]
async fn backup_that_cannot_be_restored_is_refused() {
    let api = server(&three(), condition("Failed", "True", "BackupFailed", ""));
    assert_eq!(
        refused(&api, "a --to new -y").await,
        "KubeBrainBackup a is not complete: its phase is Failed"
    );
    assert_eq!(
        refused(&api, "b --to new -y").await,
        "KubeBrainBackup b does not exist in namespace brains"
    );
    let api = complete(&three());
    assert_eq!(
        refused(&api, "a --to dev -y").await,
        "KubeBrainCluster dev exists already: a backup is restored only into a new one"
    );
    api.remove(&format!("{RESOURCES}/kubebrainclusters/dev"));
    assert_eq!(
        refused(&api, "a --to new -y").await,
        "KubeBrainCluster dev, which the backup a is of, does not exist: choose the spec with --like or -f"
    );
}

#[tokio::test(start_paused = true)]
async fn values_without_a_safe_copy_are_asked_for() {
    let mut prefixed = three();
    prefixed["spec"]["storage"]["tikv"]["keyPrefix"] = json!("eu/dev");
    prefixed["status"]["storage"]["keyPrefix"] = json!("eu/dev");
    let api = complete(&prefixed);
    let taken = "the keys of dev are below the prefix eu/dev, which no other cluster may use: choose one with --prefix";
    assert_eq!(refused(&api, "a --to new -y").await, taken);
    assert_eq!(refused(&api, "a --to new -y --prefix eu/dev").await, taken);
    let (said, notes) = restored(&api, "a --to new --prefix eu/new --dry-run").await.unwrap();
    assert!(said.contains("keyPrefix: eu/new"), "{said}");
    assert_eq!(notes, ["not copied: spec.storage.tikv.keyPrefix: the prefix of dev"]);

    let mut suspended = three();
    suspended["spec"]["replicas"] = json!(0);
    let api = complete(&suspended);
    assert_eq!(
        refused(&api, "a --to new -y").await,
        "replicas of dev is 0, and nothing is restored without members: set their number with --replicas"
    );
    let (said, _) = restored(&api, "a --to new --replicas 5 --dry-run").await.unwrap();
    assert!(said.contains("replicas: 5"), "{said}");
    let api = complete(&embedded(json!({"replicas": 0})));
    let (said, _) = restored(&api, "a --to new --dry-run").await.unwrap();
    assert!(said.contains("replicas: 1"), "{said}");
    assert_eq!(
        refused(&api, "a --to new -y --prefix x").await,
        "--prefix is for storage in TiKV, and that of dev is Embedded"
    );

    let secrets = json!({
        "caBundle": {"name": "ca", "key": "ca.crt"}, "server": {"name": "s"}, "peer": {"name": "p"}, "operatorClient": {"name": "o"},
    });
    let api = complete(&embedded(json!({"tls": {"mode": "Secret", "secrets": secrets}})));
    let said = refused(&api, "a --to new -y").await;
    assert!(said.ends_with("with Secrets of its own, and use -f"), "{said}");
    let external = json!({"type": "External", "selector": {"matchLabels": {"a": "b"}}});
    let api = complete(&embedded(json!({"workload": external})));
    let said = refused(&api, "a --to new -y").await;
    assert!(said.starts_with("workload.type of dev is External: "), "{said}");
}

/// Writes a file with a cluster of this name, and returns its path.
fn file(dir: &tempfile::TempDir, name: &str, more: &str) -> String {
    let path = dir.path().join(format!("{name}.yaml"));
    let text = format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: other}}\n---\napiVersion: kubebrain.io/v1alpha1\nkind: KubeBrainCluster\n\
         metadata:\n  name: {name}\n  labels: {{team: a, kubebrain.io/x: y, kubectl.kubernetes.io/x: y}}\nspec:\n  version: 0.2.0\n  \
         storage: {{type: Embedded, embedded: {{size: 1Gi}}}}\n{more}"
    );
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn file_of_the_new_cluster_is_used_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let archive = |path: &str| {
        format!(
            "  backup:\n    destination: {{persistentVolumeClaim: {{claimName: backups, path: {path}}}}}\n    archive: {{}}\n"
        )
    };
    let place =
        json!({"destination": {"persistentVolumeClaim": {"claimName": "backups", "path": "dev"}}, "archive": {}});
    let api = complete(&embedded(json!({"backup": place})));
    let printed = async |path: &str| {
        let (said, notes) = restored(&api, &format!("a --to new --dry-run -f {path}")).await?;
        Ok::<_, String>((serde_yaml::from_str::<Value>(&said).unwrap(), notes))
    };
    let (made, notes) = printed(&file(&dir, "new", &archive("new"))).await.unwrap();
    assert_eq!(made["metadata"]["labels"], json!({"team": "a"}));
    assert_eq!(
        made["spec"]["backup"]["destination"]["persistentVolumeClaim"]["path"],
        "new"
    );
    assert_eq!(notes, Vec::<String>::new());
    assert_eq!(
        printed(&file(&dir, "new", &archive("dev"))).await.unwrap_err(),
        "spec.backup would store the archive at pvc://backups/dev, where that of dev is: change it, or remove it"
    );
    // That of another cluster is a template, as the cluster itself is.
    let (made, notes) = printed(&file(&dir, "lost", &archive("lost"))).await.unwrap();
    assert_eq!(
        (&made["spec"]["backup"], &made["metadata"]["labels"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(
        notes,
        ["not copied: spec.backup: the place of the archive of lost: give new another one"]
    );
    let said = printed(&file(&dir, "new", "  pod: {nodeSelectors: {a: b}}\n"))
        .await
        .unwrap_err();
    assert!(
        said.ends_with("these fields are not known: spec.pod.nodeSelectors"),
        "{said}"
    );
    let said = printed("/no/such/file").await.unwrap_err();
    assert!(said.starts_with("read /no/such/file: "), "{said}");
}

#[tokio::test(start_paused = true)]
async fn buckets_of_two_services_are_two_places_and_gc_has_one_owner() {
    let dir = tempfile::tempdir().unwrap();
    let archive = |endpoint: &str| {
        let s3 = json!({"bucket": "b", "prefix": "dev", "endpoint": endpoint, "credentialsSecretRef": {"name": "s3"}});
        json!({"destination": {"s3": s3}, "archive": {}})
    };
    let api = complete(&embedded(json!({"backup": archive("https://a.example.org")})));
    let printed = async |api: &FakeApi, more: &str| {
        let path = file(&dir, "new", more);
        restored(api, &format!("a --to new --dry-run -f {path}")).await
    };
    let backup = |endpoint: &str| format!("  backup: {}\n", archive(endpoint));
    printed(&api, &backup("https://b.example.org")).await.unwrap();
    let said = printed(&api, &backup("https://a.example.org")).await.unwrap_err();
    assert!(said.contains("where that of dev is"), "{said}");

    let mut dev = three();
    dev["spec"]["storage"]["tikv"]["gc"] = json!({"owner": "Brain"});
    let api = complete(&dev);
    let path = dir.path().join("own.yaml");
    let mut own = dev.clone();
    own["metadata"] = json!({"name": "new"});
    std::fs::write(&path, own.to_string()).unwrap();
    let said = refused(&api, &format!("a --to new -y --prefix x -f {}", path.display())).await;
    assert!(
        said.starts_with("storage.tikv.gc: dev advances the GC safe point"),
        "{said}"
    );
    own["metadata"] = json!({"name": "new", "namespace": "others"});
    std::fs::write(&path, own.to_string()).unwrap();
    let said = refused(&api, &format!("a --to new -y --prefix x -f {}", path.display())).await;
    assert!(
        said.ends_with("the cluster is of the namespace others, and the backup of brains"),
        "{said}"
    );
}

#[tokio::test(start_paused = true)]
async fn new_volume_is_as_large_as_that_which_has_grown() {
    let mut dev = embedded(json!({}));
    dev["status"]["storage"] = json!({"type": "Embedded", "capacity": "150Gi"});
    let (said, notes) = restored(&complete(&dev), "a --to new --dry-run").await.unwrap();
    assert!(said.contains("size: 150Gi"), "{said}");
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].contains("has grown to 150Gi"), "{notes:?}");
    dev["status"]["storage"]["capacity"] = json!("5Gi");
    let (said, notes) = restored(&complete(&dev), "a --to new --dry-run").await.unwrap();
    assert!(said.contains("size: 10Gi") && notes.is_empty(), "{said} {notes:?}");
}

#[tokio::test(start_paused = true)]
async fn spec_of_a_third_cluster_can_be_used() {
    let api = complete(&three());
    let mut other = embedded(json!({}));
    other["metadata"]["name"] = json!("other");
    api.put(&format!("{RESOURCES}/kubebrainclusters/other"), other);
    let (said, notes) = restored(&api, "a --to new --like other --dry-run").await.unwrap();
    assert!(said.contains("type: Embedded"), "{said}");
    assert_eq!(notes, Vec::<String>::new());
}

/// Waits as a user would, while the operator writes these conditions one after another.
async fn waited(steps: &[Value]) -> Result<String, String> {
    let api = complete(&embedded(json!({})));
    let operator = async {
        for step in steps {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let path = format!("{RESOURCES}/kubebrainclusters/new");
            let mut cluster = api.get(&path).unwrap();
            cluster["status"] = json!({"conditions": step});
            api.put(&path, cluster);
        }
    };
    let (said, ()) = tokio::join!(restored(&api, "a --to new -y --wait --timeout 1m"), operator);
    said.map(|(said, _)| said)
}

#[tokio::test(start_paused = true)]
async fn new_cluster_is_waited_for() {
    let running = condition("Bootstrapped", "False", "Bootstrapping", "Job new-bootstrap is running");
    let message = "restored the backup b; the store begins at revision 7";
    let there = condition("Bootstrapped", "True", "Restored", message);
    let starting = condition("Ready", "False", "NoLeader", "no member leads");
    let ready = condition("Ready", "True", "AsExpected", "");
    let said = waited(&[
        json!([running, starting]),
        json!([there, starting]),
        json!([there, ready]),
    ])
    .await;
    let said = said.unwrap();
    let expected = [
        "waiting for the operator".to_owned(),
        "Bootstrapping: Job new-bootstrap is running".to_owned(),
        "NoLeader: no member leads".to_owned(),
        format!("new is ready: {message}"),
    ];
    assert_eq!(said.lines().skip(2).collect::<Vec<_>>(), expected);
    let failed = condition("Stalled", "True", "BootstrapFailed", "no archive has revision 9");
    assert_eq!(
        waited(&[json!([failed])]).await.unwrap_err(),
        "BootstrapFailed: no archive has revision 9"
    );
    let stored = condition("Bootstrapped", "True", "AlreadyStored", "there was a store");
    let said = waited(&[json!([stored, ready])]).await.unwrap_err();
    assert_eq!(
        said,
        "new serves an older store, and nothing was restored into it now: there was a store"
    );
    assert_eq!(
        waited(&[json!([running])]).await.unwrap_err(),
        "timed out waiting for new: Bootstrapping: Job new-bootstrap is running"
    );
}
