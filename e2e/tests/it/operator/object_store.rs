//! Backups and the archive of a cluster in an object store that is reached over TLS with credentials from a Secret, while it fails.

use std::fs;

use crds::KubeBrainBackup;
use e2e_cluster::namespace::NODE;
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::backups::{archived, is, revision};
use super::brains::embedded;
use super::kit::{self, Kit, STATE_TIMEOUT};
use super::load::Load;
use super::pods::Watched;
use crate::object_store::{ObjectStore, WRONG_CREDENTIALS};

/// The prefix of all objects of the test.
const PREFIX: &str = "of/a";
/// For a condition to name the failure of a destination.
const NAMED_WITHIN: std::time::Duration = std::time::Duration::from_secs(60);

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

#[test]
fn object_store_that_fails_is_named_and_nothing_is_lost() {
    kit::run_troubled("objects", async |kit| {
        let home = kit.harness().cluster.home().clone();
        let mut store = ObjectStore::create(&kit.harness().progress);
        store.start(&home).await;
        for object in store.named() {
            kit.try_apply(&object).await.unwrap();
        }
        let mut spec = embedded();
        spec["backup"] = json!({"destination": store.destination(PREFIX), "archive": {"interval": "1s"}});
        let brains = kit.brains("a", spec).await;
        brains.until_ready().await;
        brains.until_condition("Archiving", "True", &["Archiving"]).await;
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
        kit.try_apply(&ObjectStore::right_credentials(WRONG_CREDENTIALS))
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
        let acknowledged = load.pause().await;
        acknowledged.check().await;
        let last = revision(&brains).await;
        archived(&brains, last).await;
        brains.until_condition("Archiving", "True", &["Archiving"]).await;

        // all of it is in the store: another cluster begins with it
        let mut spec = embedded();
        spec["bootstrap"] = json!({"fromBackup": {"destination": store.destination(PREFIX), "end": true}});
        let other = kit.brains("b", spec.clone()).await;
        other.until_ready().await;
        let restored = other.until_condition("Bootstrapped", "True", &["Restored"]).await;
        assert_eq!(
            other.count_keys().await,
            brains.count_keys().await,
            "{}",
            restored.message
        );

        // a damaged part is refused by its name, and nothing else is touched
        let part = fs::read_dir(store.objects(PREFIX).join("parts").join(&second)).unwrap();
        let part = part.map(|part| part.unwrap().path()).next().unwrap();
        let whole = fs::read(&part).unwrap();
        let mut flipped = whole.clone();
        flipped[whole.len() / 2] ^= 1;
        fs::write(&part, flipped).unwrap();
        spec["bootstrap"] = json!({"fromBackup": {"destination": store.destination(PREFIX), "name": second}});
        let damaged = kit.brains("c", spec).await;
        let failed = damaged
            .until_condition("Bootstrapped", "False", &["BootstrapFailed"])
            .await;
        assert!(
            failed.message.contains(&second) && failed.message.contains("damaged"),
            "{}",
            failed.message
        );

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
