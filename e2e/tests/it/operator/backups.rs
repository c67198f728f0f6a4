//! Backups by the operator: a live cluster is backed up to a volume, restored from it, and the backup goes with its resource. Schedules make
//! backups at their times, and old ones go. A cluster is archived while its leader and the archive's own pod are killed. Clusters begin with
//! the data of a backup.

use std::fs;
use std::path::Path;

use crds::{KubeBrainBackup, KubeBrainBackupSchedule, KubeBrainCluster};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use programs::server::Program;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::brains::{Brains, embedded, on_tikv};
use super::kit::{self, Kit, STATE_TIMEOUT};
use super::load::Load;
use super::plugin;
use super::pods::Watched;
use super::tikv::Tikv;

/// A key that encrypts: 32 bytes in hexadecimal.
const KEY: &str = "1111111111111111111111111111111111111111111111111111111111111111";

fn backup(name: &str, more: &Value) -> Value {
    let mut spec = json!({
        "clusterName": "a",
        "destination": {"persistentVolumeClaim": {"claimName": "backups", "path": "of/a"}},
    });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"apiVersion": "kubebrain.io/v1alpha1", "kind": "KubeBrainBackup", "metadata": {"name": name}, "spec": spec})
}

fn condition<'a>(backup: &'a KubeBrainBackup, type_: &str) -> Option<&'a Condition> {
    let conditions = backup.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == type_)
}

pub(super) fn is(backup: &KubeBrainBackup, type_: &str, reason: &str) -> bool {
    condition(backup, type_).is_some_and(|condition| condition.status == "True" && condition.reason == reason)
}

/// Runs `kubebrain backup` on a directory, and returns what it prints.
pub(super) fn program(directory: &Path, args: &[&str]) -> String {
    let destination = format!("--destination=file://{}", directory.display());
    let output = std::process::Command::new(Program::kubebrain().unwrap().path)
        .arg("backup")
        .args(args)
        .arg(destination)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// A claim for a volume.
pub(super) fn claim(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    })
}

/// Returns the newest revision that the first member of a cluster knows.
pub(super) async fn revision(brains: &Brains<'_>) -> i64 {
    let answer = brains.kit.eventually("answered by a member", async || {
        let pods = brains.pods().await;
        let answer = brains.member(pods.first().ok_or("no pods")?).await?;
        answer["revision"].as_i64().ok_or_else(|| answer.to_string())
    });
    answer.await
}

/// Waits until the status says that everything up to a revision is archived.
pub(super) async fn archived(brains: &Brains<'_>, revision: i64) {
    let stored = |cluster: &KubeBrainCluster| {
        let backup = cluster.status.as_ref().and_then(|status| status.backup.as_ref());
        backup.and_then(|backup| backup.archived_revision) >= Some(revision)
    };
    brains.until(&format!("archived up to {revision}"), stored).await;
}

/// Returns the directory on this machine of the volume that a claim is bound to.
pub(super) async fn volume(kit: &Kit, claim: &str) -> std::path::PathBuf {
    let claim = kit.api::<PersistentVolumeClaim>().get(claim).await.unwrap();
    let name = claim.spec.unwrap().volume_name.unwrap();
    kit.harness().cluster.home().path(format!("volumes/{name}"))
}

/// A backup is verified again when a user asks for it, and damage is found.
async fn damage_is_found_later(kit: &Kit, directory: &Path, name: &str) {
    let ask = async |request: &str| {
        let body = json!({"metadata": {"annotations": {"kubebrain.io/verify": request}}});
        let backups = kit.api::<KubeBrainBackup>();
        let patch = Patch::Merge(body);
        backups.patch("first", &PatchParams::default(), &patch).await.unwrap();
        let handled = |it: &KubeBrainBackup| {
            let verification = it.status.as_ref().and_then(|status| status.verification.as_ref());
            verification.is_some_and(|verification| verification.handled == request)
        };
        let verified = kit
            .until::<KubeBrainBackup>("first", "verified", STATE_TIMEOUT, handled)
            .await;
        condition(&verified, "Verified").unwrap().clone()
    };
    let good = ask("1").await;
    assert_eq!((good.status.as_str(), good.reason.as_str()), ("True", "Verified"));
    let job = kit.api::<Job>().get("first-backup-verify").await.unwrap();
    let args = job
        .spec
        .unwrap()
        .template
        .spec
        .unwrap()
        .containers
        .remove(0)
        .args
        .unwrap();
    assert!(args.contains(&"--restore".to_owned()), "{args:?}");
    let parts = fs::read_dir(directory.join("parts").join(name)).unwrap();
    let part = parts.map(|part| part.unwrap().path()).next().unwrap();
    let whole = fs::read(&part).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    fs::write(&part, flipped).unwrap();
    let bad = ask("2").await;
    assert_eq!(
        (bad.status.as_str(), bad.reason.as_str()),
        ("False", "Damaged"),
        "{}",
        bad.message
    );
    assert!(bad.message.contains(name), "{}", bad.message);
    fs::write(&part, whole).unwrap();
}

#[test]
fn backup_is_made_of_a_live_cluster_restored_and_deleted_with_its_resource() {
    kit::run("backups", async |kit| {
        kit.try_apply(&claim("backups")).await.unwrap();
        // it waits for the key, and for the cluster
        let spec = json!({"encryption": {"keySecretRef": {"name": "key"}}, "verify": true, "verificationMode": "Restore", "deletionPolicy": "Delete"});
        kit.try_apply(&backup("first", &spec)).await.unwrap();
        kit.until::<KubeBrainBackup>("first", "waiting", STATE_TIMEOUT, |it| {
            is(it, "Reconciling", "WaitingForCluster")
        })
        .await;
        let brains = kit.brains("a", embedded()).await;
        brains.until_ready().await;
        let watched = Watched::start(&brains).await;
        let load = Load::start(&brains, 1, &watched, None).await;
        load.acknowledge(50).await;
        let key =
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "stringData": {"key": KEY}});
        kit.try_apply(&key).await.unwrap();
        let made = kit
            .until::<KubeBrainBackup>("first", "complete", STATE_TIMEOUT, |it| is(it, "Complete", "Completed"))
            .await;
        let outcome = load.end().await;
        assert!(outcome.failed.is_empty(), "{:#?}", outcome.failed);

        let status = made.status.unwrap();
        let name = status.backup_name.unwrap();
        assert_eq!(status.location.as_deref(), Some("pvc://backups/of/a"));
        assert_eq!(status.verified, Some(true));
        assert!(
            status.revision > Some(50) && status.stored_bytes > Some(0),
            "{:?}",
            status.revision
        );
        assert!(status.encryption_key_id.is_some() && status.sha256.is_some());

        let directory = volume(&kit, "backups").await.join("of/a");
        let temporary = TempDir::new().unwrap();
        let file = temporary.path().join("key");
        fs::write(&file, KEY).unwrap();
        let key = format!("--encryption-key-file={}", file.display());
        let said = program(&directory, &["verify", &name, &key]);
        assert!(
            said.starts_with(&format!("verified {name}: revision {}, ", status.revision.unwrap())),
            "{said}"
        );
        let store = format!("--data-dir={}", temporary.path().join("store").display());
        let said = program(&directory, &["restore", &name, &key, &store]);
        assert!(
            said.starts_with(&format!("restored revision {}, ", status.revision.unwrap())),
            "{said}"
        );

        damage_is_found_later(&kit, &directory, &name).await;

        // a second one, whose pod is killed, is one backup in the end
        kit.try_apply(&backup("second", &json!({}))).await.unwrap();
        kit.until::<Job>("second-backup", "there", STATE_TIMEOUT, |_| true)
            .await;
        let pods = ListParams::default().labels("kubebrain.io/backup=second");
        let kill = DeleteParams::default().grace_period(0);
        kit.api::<Pod>().delete_collection(&kill, &pods).await.unwrap();
        kit.until::<KubeBrainBackup>("second", "complete", STATE_TIMEOUT, |it| {
            is(it, "Complete", "Completed")
        })
        .await;
        let listed: Value = serde_json::from_str(&program(&directory, &["list", "--output=json"])).unwrap();
        assert_eq!(listed.as_array().unwrap().len(), 2, "{listed}");

        let backups = kit.api::<KubeBrainBackup>();
        for name in ["first", "second"] {
            backups.delete(name, &DeleteParams::default()).await.unwrap();
            kit.until_gone::<KubeBrainBackup>(name).await;
        }
        let listed: Value = serde_json::from_str(&program(&directory, &["list", "--output=json"])).unwrap();
        let left: Vec<&str> = listed
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it["name"].as_str().unwrap())
            .collect();
        assert_eq!(left.len(), 1, "{left:?}");
        assert_ne!(left[0], name, "the first one was to be deleted, the second one kept");
    });
}

#[test]
fn archive_of_a_cluster_goes_on_after_its_leader_and_its_own_pod_are_killed() {
    kit::run_troubled("archive", async |kit| {
        let tikv = Tikv::start(&kit).await;
        let mut spec = on_tikv(&tikv.pd, 2);
        spec["backup"] = json!({
            "destination": {"persistentVolumeClaim": {"claimName": "archive", "path": "of/a"}},
            "archive": {"interval": "1s"},
        });
        let brains = kit.brains("a", spec).await;
        brains.until_ready().await;
        // it waits for the claim, and the cluster does not
        brains
            .until_condition("Archiving", "False", &["WaitingForObject"])
            .await;
        kit.try_apply(&claim("archive")).await.unwrap();
        brains.until_condition("Archiving", "True", &["Archiving"]).await;
        let watched = Watched::start(&brains).await;
        let load = Load::start(&brains, 1, &watched, None).await;
        load.acknowledge(100).await;
        archived(&brains, revision(&brains).await).await;

        let kill = DeleteParams::default().grace_period(0);
        let leader = brains.leader().await;
        kit.api::<Pod>().delete(&leader, &kill).await.unwrap();
        load.acknowledge(100).await;
        let pods = ListParams::default().labels("kubebrain.io/archive=a");
        kit.api::<Pod>().delete_collection(&kill, &pods).await.unwrap();
        load.acknowledge(100).await;
        let acknowledged = load.pause().await;
        acknowledged.check().await;
        let last = revision(&brains).await;
        archived(&brains, last).await;
        let condition = brains.until_condition("Archiving", "True", &[]).await;
        assert_eq!(condition.reason, "Archiving", "{}", condition.message);

        // the program agrees, and restores all of it
        let directory = volume(&kit, "archive").await.join("of/a");
        let temporary = TempDir::new().unwrap();
        let store = format!("--data-dir={}", temporary.path().join("store").display());
        let said = program(&directory, &["restore", "--at-end", &store]);
        assert!(said.contains(&format!("revision {last}")), "not up to {last}: {said}");

        // without the archive the cluster stays as it is
        brains.patch(json!({"backup": null})).await;
        kit.until_gone::<Deployment>("a-archive").await;
        let gone = |cluster: &KubeBrainCluster| {
            super::brains::condition(cluster, "Archiving").is_none() && super::brains::is_ready(cluster)
        };
        brains.until("without an archive", gone).await;
    });
}

/// Returns the backups of the schedule, the oldest one first.
async fn of_schedule(kit: &Kit) -> Vec<KubeBrainBackup> {
    let params = ListParams::default().labels("kubebrain.io/schedule=nightly");
    let mut all = kit.api::<KubeBrainBackup>().list(&params).await.unwrap().items;
    all.sort_by_key(|it| it.name_any());
    all
}

#[test]
fn schedule_makes_backups_and_deletes_old_ones() {
    kit::run("backup-schedules", async |kit| {
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "backups"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        });
        kit.try_apply(&claim).await.unwrap();
        let brains = kit.brains("a", embedded()).await;
        brains.until_ready().await;
        let template = backup("", &json!({"deletionPolicy": "Delete"}))["spec"].clone();
        let schedule = |more: &Value| {
            let mut spec = json!({
                "schedule": "* * * * *", "timeZone": "Europe/Berlin", "immediate": true, "retention": {"keepLast": 1},
                "template": {"metadata": {"labels": {"team": "a"}}, "spec": template},
            });
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({"apiVersion": "kubebrain.io/v1alpha1", "kind": "KubeBrainBackupSchedule", "metadata": {"name": "nightly"}, "spec": spec})
        };
        kit.try_apply(&schedule(&json!({}))).await.unwrap();
        let succeeded = |it: &KubeBrainBackupSchedule| it.status.as_ref()?.last_successful_backup.clone();
        let first = kit
            .until::<KubeBrainBackupSchedule>("nightly", "successful", STATE_TIMEOUT, |it| succeeded(it).is_some())
            .await;
        let first = succeeded(&first).unwrap();
        // the next one displaces it, with its objects
        let second = kit
            .until::<KubeBrainBackupSchedule>("nightly", "successful again", STATE_TIMEOUT, |it| {
                succeeded(it).is_some_and(|name| name > first)
            })
            .await;
        let status = second.status.unwrap();
        assert!(status.last_schedule_time <= status.next_schedule_time, "{status:?}");
        let ready = status.conditions.unwrap().remove(0);
        assert_eq!(
            (ready.type_.as_str(), ready.status.as_str()),
            ("Ready", "True"),
            "{}",
            ready.message
        );

        // suspended, it lets the running ones end
        kit.try_apply(&schedule(&json!({"suspend": true}))).await.unwrap();
        kit.until::<KubeBrainBackupSchedule>("nightly", "at rest", STATE_TIMEOUT, |it| {
            let status = it.status.clone().unwrap_or_default();
            status.observed_generation == it.metadata.generation && status.active.is_empty()
        })
        .await;
        kit.until_gone::<KubeBrainBackup>(&first).await;
        let left = of_schedule(&kit).await;
        let complete: Vec<&KubeBrainBackup> = left.iter().filter(|it| is(it, "Complete", "Completed")).collect();
        let present = complete.iter().filter(|it| it.metadata.deletion_timestamp.is_none());
        assert!((1..=2).contains(&present.count()), "{left:#?}");
        assert!(
            left.iter()
                .all(|it| it.labels()["team"] == "a" && it.owner_references().is_empty())
        );
        let newest = complete.last().unwrap().status.clone().unwrap().backup_name.unwrap();
        let directory = volume(&kit, "backups").await.join("of/a");
        let listed = program(&directory, &["list", "--output=json"]);
        assert!(listed.contains(&newest), "{listed}");
        let said = program(&directory, &["verify", &newest]);
        assert!(said.starts_with(&format!("verified {newest}: ")), "{said}");

        // backups outlive their schedule
        let schedules = kit.api::<KubeBrainBackupSchedule>();
        schedules.delete("nightly", &DeleteParams::default()).await.unwrap();
        kit.until_gone::<KubeBrainBackupSchedule>("nightly").await;
        let newest = complete.last().unwrap().name_any();
        kit.until::<KubeBrainBackup>(&newest, "there", STATE_TIMEOUT, |it| {
            it.metadata.deletion_timestamp.is_none()
        })
        .await;
    });
}

#[test]
fn cluster_begins_with_the_data_of_a_lost_one() {
    kit::run("bootstrap", async |kit| {
        let tikv = Tikv::start(&kit).await;
        kit.try_apply(&claim("backups")).await.unwrap();
        let brains = kit.brains("a", embedded()).await;
        brains.until_ready().await;
        let watched = Watched::start(&brains).await;
        let load = Load::start(&brains, 1, &watched, None).await;
        load.acknowledge(50).await;
        let acknowledged = load.pause().await;
        let keys = brains.count_keys().await;
        kit.try_apply(&backup("first", &json!({}))).await.unwrap();
        let made = kit
            .until::<KubeBrainBackup>("first", "complete", STATE_TIMEOUT, |it| is(it, "Complete", "Completed"))
            .await;
        let status = made.status.unwrap();
        let (name, revision) = (status.backup_name.unwrap(), status.revision.unwrap());
        let clusters = kit.api::<KubeBrainCluster>();
        clusters.delete("a", &DeleteParams::default()).await.unwrap();
        kit.until_gone::<KubeBrainCluster>("a").await;
        kit.until_gone::<PersistentVolumeClaim>("data-a-0").await;

        // a cluster of the same name, from the resource
        let mut spec = embedded();
        spec["bootstrap"] = json!({"fromBackup": {"backup": {"name": "first"}}});
        let brains = kit.brains("a", spec).await;
        brains.until_ready().await;
        let said = brains.until_condition("Bootstrapped", "True", &["Restored"]).await;
        assert!(said.message.contains(&name), "{}", said.message);
        let bootstrap = brains.get().await.status.unwrap().bootstrap.unwrap();
        assert_eq!(bootstrap.revision, Some(revision));
        assert_eq!(bootstrap.backup_name.as_deref(), Some(name.as_str()));
        acknowledged.follow_certificates(&brains).await;
        acknowledged.check().await;
        assert_eq!(brains.count_keys().await, keys);
        let claim = kit.api::<PersistentVolumeClaim>().get("data-a-0").await.unwrap();
        assert!(
            !claim.owner_references().is_empty(),
            "the StatefulSet has not adopted the claim"
        );

        // another one beside it, by the plugin
        let words = [
            "backup",
            "restore",
            "first",
            "--to",
            "c",
            "--yes",
            "--wait",
            "--timeout",
            "2m",
        ];
        let printed = plugin::run(&kit, &words).unwrap();
        assert!(printed.contains("created KubeBrainCluster c"), "{printed}");
        let beside = Brains::new(&kit, "c");
        beside.until_condition("Bootstrapped", "True", &["Restored"]).await;
        assert_eq!(beside.count_keys().await, keys, "{printed}");

        // one on TiKV, from the destination, although the first pod is killed
        let mut spec = on_tikv(&tikv.pd, 2);
        let from = json!({
            "destination": {"persistentVolumeClaim": {"claimName": "backups", "path": "of/a"}},
            "bumpRevision": 1000, "markCompacted": true,
        });
        spec["bootstrap"] = json!({"fromBackup": from});
        let other = kit.brains("b", spec).await;
        kit.until::<Job>("b-bootstrap", "there", STATE_TIMEOUT, |_| true).await;
        let pods = ListParams::default().labels("kubebrain.io/bootstrap=b");
        let kill = DeleteParams::default().grace_period(0);
        kit.api::<Pod>().delete_collection(&kill, &pods).await.unwrap();
        other.until_ready().await;
        other.until_condition("Bootstrapped", "True", &["Restored"]).await;
        assert_eq!(other.count_keys().await, keys);
        assert!(self::revision(&other).await >= revision + 1000);
    });
}
