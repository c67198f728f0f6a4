//! Backups and the archive of a cluster in an object store that is reached over TLS with credentials from a Secret, while it fails.

use std::fs;
use std::time::Duration;

use crds::KubeBrainBackup;
use e2e_cluster::namespace::NODE;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

use super::backups::{archived, is, program, revision};
use super::brains::{Brains, embedded, on_tikv};
use super::kit::{self, Kit, STATE_TIMEOUT};
use super::load::Load;
use super::pods::{self, Watched};
use super::processes::kill_operator;
use super::resize::Memory;
use super::tikv::Tikv;
use crate::object_store::{ObjectStore, WRONG_CREDENTIALS};

/// The prefix of all objects of the test.
const PREFIX: &str = "of/a";
/// For a condition to name the failure of a destination.
const NAMED_WITHIN: Duration = Duration::from_secs(60);
/// The number of kills, of leader, archive, object store and operator in turn. By default the operator, which other tests use, is not killed.
const ROUNDS_VARIABLE: &str = "KUBEBRAIN_ARCHIVE_ROUNDS";
const ROUNDS: usize = 3;
/// The pods of the archive.
const ARCHIVE_PODS: &str = "kubebrain.io/archive=a";

fn backup(name: &str, destination: &Value) -> Value {
    json!({
        "apiVersion": "kubebrain.io/v1alpha1", "kind": "KubeBrainBackup", "metadata": {"name": name},
        "spec": {"clusterName": "a", "destination": destination, "verify": true, "deletionPolicy": "Delete"},
    })
}

/// Waits until a backup's condition Complete is false, and its message has this text.
async fn fails_with(kit: &Kit, name: &str, text: &str) {
    let names = |it: &KubeBrainBackup| {
        let conditions = it.status.as_ref().and_then(|status| status.conditions.as_ref());
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|condition| condition.message.contains(text))
    };
    kit.until::<KubeBrainBackup>(name, &format!("failing with {text:?}"), STATE_TIMEOUT, names)
        .await;
}

async fn complete(kit: &Kit, name: &str) -> String {
    let made = kit
        .until::<KubeBrainBackup>(name, "complete", STATE_TIMEOUT, |it| is(it, "Complete", "Completed"))
        .await;
    let status = made.status.unwrap();
    assert_eq!(status.verified, Some(true));
    status.backup_name.unwrap()
}

/// Starts the store, and applies the objects by which it is reached.
async fn serve(kit: &Kit, store: &mut ObjectStore) {
    store.start(kit.harness().cluster.home()).await;
    for object in store.named() {
        kit.try_apply(&object).await.unwrap();
    }
}

/// Creates the cluster `a` with an archive in the store, and waits until it keeps up.
async fn archiving<'a>(kit: &'a Kit, store: &ObjectStore, mut spec: Value) -> Brains<'a> {
    spec["backup"] = json!({"destination": store.destination(PREFIX), "archive": {"interval": "1s"}});
    let brains = kit.brains("a", spec).await;
    brains.until_ready().await;
    brains.until_condition("Archiving", "True", &["Archiving"]).await;
    brains
}

/// The pod of the archive takes other credentials from its Secret while it runs, also if it never had right ones.
async fn credentials_are_rotated(brains: &Brains<'_>, load: &Load<'_>, store: &mut ObjectStore) {
    let kit = brains.kit;
    let rotated = store.rotate_credentials();
    store.kill();
    store.start(kit.harness().cluster.home()).await;
    load.acknowledge(100).await;
    brains
        .until_condition("Archiving", "False", &["DestinationFailed"])
        .await;
    let former = archive_pod(kit).await.unwrap().name_any();
    let pods = kit.api::<Pod>();
    pods.delete(&former, &DeleteParams::default()).await.unwrap();
    let failing = kit
        .eventually("a new pod that fails", async || {
            let pod = archive_pod(kit).await?;
            let failing = figure(&pod, "kubebrain_archive_failing").await?;
            match pod.name_any() != former && failing == 1 {
                true => Ok(pod.name_any()),
                false => Err(format!("{} with {failing}", pod.name_any())),
            }
        })
        .await;
    brains
        .until_condition("Archiving", "False", &["DestinationFailed"])
        .await;
    for secret in [rotated, store.right_credentials(WRONG_CREDENTIALS)] {
        kit.try_apply(&secret).await.unwrap();
    }
    brains.until_condition("Archiving", "True", &["Archiving"]).await;
    let pod = archive_pod(kit).await.unwrap();
    let status = pod.status.clone().unwrap().container_statuses.unwrap();
    assert_eq!((pod.name_any(), status[0].restart_count), (failing, 0));
}

/// A cluster that is to begin with a damaged backup says which object is damaged.
async fn damaged_part_is_refused(kit: &Kit, store: &ObjectStore, backup: &str) {
    let part = fs::read_dir(store.objects(PREFIX).join("parts").join(backup)).unwrap();
    let part = part.map(|part| part.unwrap().path()).next().unwrap();
    let mut content = fs::read(&part).unwrap();
    let middle = content.len() / 2;
    content[middle] ^= 1;
    fs::write(&part, content).unwrap();
    let mut spec = embedded();
    spec["bootstrap"] = json!({"fromBackup": {"destination": store.destination(PREFIX), "name": backup}});
    let damaged = kit.brains("c", spec).await;
    let failed = damaged
        .until_condition("Bootstrapped", "False", &["BootstrapFailed"])
        .await;
    assert!(
        failed.message.contains(backup) && failed.message.contains("damaged"),
        "{}",
        failed.message
    );
}

#[test]
fn object_store_that_fails_is_named_and_nothing_is_lost() {
    kit::run_troubled("objects", async |kit| {
        let home = kit.harness().cluster.home().clone();
        let mut store = ObjectStore::create(&kit.harness().progress);
        serve(&kit, &mut store).await;
        let brains = archiving(&kit, &store, embedded()).await;
        let watched = Watched::start(&brains).await;
        let load = Load::start(&brains, 1, &watched, None).await;
        load.acknowledge(100).await;
        kit.try_apply(&backup("first", &store.destination(PREFIX)))
            .await
            .unwrap();
        let first = complete(&kit, "first").await;

        // wrong credentials are said in the store's words, and right ones are taken without another request
        let wrong = store.destination_with(PREFIX, WRONG_CREDENTIALS);
        kit.try_apply(&backup("second", &wrong)).await.unwrap();
        fails_with(&kit, "second", "403").await;
        kit.try_apply(&store.right_credentials(WRONG_CREDENTIALS))
            .await
            .unwrap();
        let second = complete(&kit, "second").await;

        // away, and back
        store.kill();
        let away = Instant::now();
        load.acknowledge(100).await;
        let failed = brains
            .until_condition("Archiving", "False", &["DestinationFailed"])
            .await;
        kit.number(
            "from the end of the object store to its name in Archiving",
            away.elapsed(),
            Some(NAMED_WITHIN),
        );
        assert!(
            failed.message.contains(NODE) && failed.message.contains("refused"),
            "{}",
            failed.message
        );
        load.acknowledge(100).await;
        store.start(&home).await;
        archived(&brains, revision(&brains).await).await;
        brains.until_condition("Archiving", "True", &["Archiving"]).await;

        credentials_are_rotated(&brains, &load, &mut store).await;
        let acknowledged = load.pause().await;
        acknowledged.check().await;
        let last = revision(&brains).await;
        archived(&brains, last).await;

        // all of it is in the store: another cluster begins with it
        let mut spec = embedded();
        spec["bootstrap"] = json!({"fromBackup": {"destination": store.destination(PREFIX), "end": true}});
        let other = kit.brains("b", spec).await;
        other.until_ready().await;
        let restored = other.until_condition("Bootstrapped", "True", &["Restored"]).await;
        assert_eq!(
            other.count_keys().await,
            brains.count_keys().await,
            "{}",
            restored.message
        );

        damaged_part_is_refused(&kit, &store, &second).await;
        for name in ["first", "second"] {
            kit.api::<KubeBrainBackup>()
                .delete(name, &DeleteParams::default())
                .await
                .unwrap();
            kit.until_gone::<KubeBrainBackup>(name).await;
        }
        let manifests = fs::read_dir(store.objects(PREFIX).join("manifests")).unwrap();
        let left: Vec<String> = manifests
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        assert!(
            left.iter()
                .all(|file| !file.contains(&first) && !file.contains(&second)),
            "{left:?}"
        );
    });
}

/// Waits until the failure of the destination is named, and says how long that took.
async fn named_in_time(brains: &Brains<'_>, load: &Load<'_>, what: &str) -> String {
    let began = Instant::now();
    load.acknowledge(50).await;
    let failed = brains
        .until_condition("Archiving", "False", &["DestinationFailed"])
        .await;
    brains.kit.number(
        &format!("from {what} to its name in Archiving"),
        began.elapsed(),
        Some(NAMED_WITHIN),
    );
    failed.message
}

#[test]
fn object_store_that_is_full_or_answers_nothing_is_named_and_heals() {
    kit::run_troubled("objects-full", async |kit| {
        let mut store = ObjectStore::create(&kit.harness().progress);
        let space = Memory::mount(&store.objects(""), "64m");
        serve(&kit, &mut store).await;
        let brains = archiving(&kit, &store, embedded()).await;
        let watched = Watched::start(&brains).await;
        let load = Load::start(&brains, 1, &watched, None).await;
        load.acknowledge(100).await;
        archived(&brains, revision(&brains).await).await;

        let other = fs::File::create(store.objects("other")).unwrap();
        let full = std::io::copy(&mut std::io::repeat(1), &mut &other).unwrap_err();
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
        let message = named_in_time(&brains, &load, "a full object store").await;
        assert!(message.contains("archive/"), "{message}");
        space.resize("256m");
        brains.until_condition("Archiving", "True", &["Archiving"]).await;

        store.suspend();
        let message = named_in_time(&brains, &load, "an object store that answers nothing").await;
        assert!(message.contains("answer"), "{message}");
        store.resume();
        brains.until_condition("Archiving", "True", &["Archiving"]).await;

        let acknowledged = load.pause().await;
        acknowledged.check().await;
        archived(&brains, revision(&brains).await).await;
        let temporary = TempDir::new().unwrap();
        let into = format!("--data-dir={}", temporary.path().join("restored").display());
        let said = program(&store.objects(PREFIX), &["restore", "--at-end", &into]);
        assert!(said.starts_with("restored revision "), "{said}");
    });
}

/// The pod of the archive, once it has an address.
async fn archive_pod(kit: &Kit) -> Result<Pod, String> {
    let found = kit.api::<Pod>().list(&ListParams::default().labels(ARCHIVE_PODS)).await;
    let mut found = found.map_err(|error| error.to_string())?.items.into_iter();
    found
        .find(|pod| pods::address(pod).is_some())
        .ok_or("no pod".to_owned())
}

/// A metric of a pod of the archive.
async fn figure(pod: &Pod, metric: &str) -> Result<i64, String> {
    let address = pods::address(pod).ok_or("no address")?;
    let page = programs::probe::command(&format!("{address}:2381"), "GET", "/metrics", "").await;
    let page = page.map_err(|error| format!("{error:#}"))?;
    let mut lines = page.lines();
    let value = lines.find_map(|line| line.strip_prefix(metric)?.strip_prefix(' '));
    value.and_then(|value| value.parse().ok()).ok_or(page)
}

/// Waits until the pod of the archive says that everything up to a revision is stored.
async fn stored(kit: &Kit, revision: i64) {
    kit.eventually(&format!("stored up to {revision}"), async || {
        let pod = archive_pod(kit).await?;
        let last = figure(&pod, "kubebrain_archive_last_revision").await?;
        (last >= revision).then_some(()).ok_or_else(|| last.to_string())
    })
    .await;
}

#[test]
fn kills_leave_no_gap_in_the_archive() {
    let rounds = std::env::var(ROUNDS_VARIABLE).map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    kit::run_troubled("archive-kills", async |kit| {
        let home = kit.harness().cluster.home().clone();
        let mut store = ObjectStore::create(&kit.harness().progress);
        serve(&kit, &mut store).await;
        let tikv = Tikv::start(&kit).await;
        let brains = archiving(&kit, &store, on_tikv(&tikv.pd, 2)).await;
        let watched = Watched::start(&brains).await;
        let load = Load::start(&brains, 2, &watched, None).await;
        let kill = DeleteParams::default().grace_period(0);
        let temporary = TempDir::new().unwrap();
        let mut longest = Duration::ZERO;
        for round in 0..rounds {
            load.acknowledge(50).await;
            match round % 4 {
                0 => drop(kit.api::<Pod>().delete(&brains.leader().await, &kill).await.unwrap()),
                1 => {
                    let pods = ListParams::default().labels(ARCHIVE_PODS);
                    kit.api::<Pod>().delete_collection(&kill, &pods).await.unwrap();
                }
                2 => {
                    store.kill();
                    load.acknowledge(50).await;
                    store.start(&home).await;
                }
                _ => kill_operator(&kit).await,
            }
            load.acknowledge(50).await;
            let (last, began) = (revision(&brains).await, Instant::now());
            stored(&kit, last).await;
            longest = longest.max(began.elapsed());
            // a restore refuses a gap, and compares all of it
            let directory = temporary.path().join(round.to_string());
            let into = format!("--data-dir={}", directory.display());
            let said = program(&store.objects(PREFIX), &["restore", "--at-end", &into]);
            let restored = said
                .strip_prefix("restored revision ")
                .and_then(|text| text.split_once(','));
            let restored: i64 = restored.unwrap().0.parse().unwrap();
            assert!(restored >= last, "round {round}: {restored} of {last}: {said}");
            fs::remove_dir_all(directory).unwrap();
        }
        kit.say(format_args!(
            "{rounds} kills; the archive had everything at most {} ms after the load went on",
            longest.as_millis()
        ));
        let acknowledged = load.pause().await;
        acknowledged.check().await;
        stored(&kit, revision(&brains).await).await;
        let mut spec = embedded();
        spec["bootstrap"] = json!({"fromBackup": {"destination": store.destination(PREFIX), "end": true}});
        let other = kit.brains("b", spec).await;
        other.until_ready().await;
        other.until_condition("Bootstrapped", "True", &["Restored"]).await;
        assert_eq!(other.count_keys().await, brains.count_keys().await);
    });
}
