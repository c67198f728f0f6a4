//! `kubectl kubebrain`, called by kubectl as a person calls it.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use e2e_cluster::inside;
use kube::ResourceExt as _;
use programs::command::output;
use programs::tools::own::Programs;
use serde_json::{Value, json};

use super::brains::{Brains, on_tikv};
use super::kit::{self, Kit};
use super::tikv::Tikv;

/// Runs the plugin in the test's namespace, and gives what it prints.
pub(super) fn run(kit: &Kit, args: &[&str]) -> anyhow::Result<String> {
    let programs = Programs::find()?;
    programs.get("kubectl-kubebrain")?;
    let path = format!("{}:{}", programs.dir().display(), std::env::var("PATH")?);
    let mut command = Command::new(kit.kubectl().program());
    command
        .env("KUBECONFIG", inside::kubeconfig(kit.harness().cluster.home())?)
        .env("PATH", path)
        .args(["kubebrain", "--namespace", &kit.namespace])
        .args(args);
    output(&mut command)
}

fn status(kit: &Kit, name: &str) -> Value {
    serde_json::from_str(&run(kit, &["status", name, "--output", "json"]).unwrap()).unwrap()
}

async fn uids(brains: &Brains<'_>) -> BTreeSet<Option<String>> {
    brains.pods().await.iter().map(|pod| pod.uid()).collect()
}

/// Returns the hour of the day in this many hours, in UTC.
fn hour_of_day_in(hours: u64) -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    (since_1970.as_secs() / 3600 + hours) % 24
}

/// Resumes a paused cluster whose members are outdated, outside of its only window; then it has none.
async fn waits_for_a_window(kit: &Kit, brains: &Brains<'_>) {
    let before = uids(brains).await;
    let windows = json!([{"schedule": format!("0 {} * * *", hour_of_day_in(12)), "duration": "1h"}]);
    brains
        .patch(json!({"updateStrategy": {"maintenanceWindows": windows}}))
        .await;
    run(kit, &["resume", &brains.name]).unwrap();
    brains
        .until_condition("Progressing", "False", &["OutsideMaintenanceWindow"])
        .await;
    brains.until_condition("Ready", "True", &["AsExpected"]).await;
    assert_eq!(
        uids(brains).await,
        before,
        "members were restarted outside of the window"
    );
    brains
        .patch(json!({"updateStrategy": {"maintenanceWindows": null}}))
        .await;
}

#[test]
fn plugin_shows_plans_and_asks() {
    kit::run("plugin", async |kit| {
        let tikv = Tikv::start(&kit).await;
        let brains = kit.brains("a", on_tikv(&tikv.pd, 3)).await;
        brains.until_ready().await;
        let leader = brains.leader().await;

        let shown = status(&kit, "a");
        assert_eq!(shown["leader"]["member"], leader, "{shown}");
        let members = shown["members"].as_array().unwrap();
        assert_eq!(members.len(), 3, "{shown}");
        assert!(members.iter().all(|member| member["lag"].is_u64()), "{shown}");
        assert_eq!(shown["notes"], json!([]));
        let table = run(&kit, &["status", "a"]).unwrap();
        for text in ["plugin/a", "3 of 3 ready", leader.as_str(), "CERTIFICATE", "CONDITION"] {
            assert!(table.contains(text), "no {text:?} in\n{table}");
        }
        let plan = run(&kit, &["plan", "a"]).unwrap();
        assert!(plan.contains("Nothing to do for plugin/a."), "{plan}");

        let moved = run(&kit, &["transfer-leader", "a", "--timeout", "60s"]).unwrap();
        let next = brains.leader().await;
        assert_ne!(next, leader, "{moved}");
        assert!(moved.contains(&next), "{moved}");

        let before = uids(&brains).await;
        run(&kit, &["pause", "a"]).unwrap();
        let waits = run(&kit, &["restart", "a"]).unwrap_err().to_string();
        assert!(waits.contains("a is paused"), "{waits}");
        kit.eventually("planned", async || {
            let plan: Value = serde_json::from_str(&run(&kit, &["plan", "a", "--output", "json"]).unwrap()).unwrap();
            let held = plan["heldBack"].as_array().is_some_and(|held| !held.is_empty());
            held.then_some(()).ok_or(plan.to_string())
        })
        .await;
        assert_eq!(uids(&brains).await, before, "a paused cluster was restarted");
        waits_for_a_window(&kit, &brains).await;
        let waited = run(&kit, &["wait", "rollout", "a", "--timeout", "2m"]).unwrap();
        let after = uids(&brains).await;
        assert!(after.is_disjoint(&before) && after.len() == 3, "{waited}");

        run(&kit, &["rotate-ca", "a", "--yes"]).unwrap();
        kit.eventually("a new key", async || {
            let shown = status(&kit, "a");
            let next = &shown["ca"]["next"]["generation"];
            (next == 2).then_some(()).ok_or(shown["ca"].to_string())
        })
        .await;

        kit.try_apply(&json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "backups"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        }))
        .await
        .unwrap();
        kit.try_apply(&json!({
            "apiVersion": "kubebrain.io/v1alpha1", "kind": "KubeBrainBackupSchedule", "metadata": {"name": "yearly"},
            "spec": {"schedule": "@yearly", "template": {"spec": {
                "clusterName": "a", "destination": {"persistentVolumeClaim": {"claimName": "backups"}},
            }}},
        }))
        .await
        .unwrap();
        let now = ["backup", "now", "a", "--name", "now", "--from-schedule", "yearly"];
        let made = run(&kit, &[&now[..], &["--wait", "--timeout", "5m"]].concat()).unwrap();
        assert!(made.contains(" was made at pvc://backups"), "{made}");
        let verified = run(&kit, &["backup", "verify", "now", "--wait", "--timeout", "5m"]).unwrap();
        assert!(verified.contains("Verified: "), "{verified}");
        let listed = run(&kit, &["backup", "list", "a"]).unwrap();
        assert!(
            listed.contains("pvc://backups") && listed.contains("@yearly Etc/UTC"),
            "{listed}"
        );

        let logs = run(&kit, &["logs", "a", "--all", "--tail", "5"]).unwrap();
        for pod in ["[a-0] ", "[a-1] ", "[a-2] ", "[now-backup-", "[now-backup-verify-"] {
            assert!(logs.contains(pod), "no {pod} in\n{logs}");
        }
        let directory = tempfile::tempdir().unwrap();
        let bundle = directory.path().join("bundle.tar.gz");
        let said = run(&kit, &["support-bundle", "a", "--output", bundle.to_str().unwrap()]).unwrap();
        assert!(said.contains("wrote "), "{said}");
        let mut tar = Command::new("tar");
        let listed = output(tar.arg("--list").arg("--file").arg(&bundle)).unwrap();
        for file in [
            "/index.txt",
            "/logs/a-0/brain.log",
            "/metrics/a-0.metrics.txt",
            "/objects/kubebrainbackups/now.json",
        ] {
            assert!(listed.contains(file), "no {file} in\n{listed}");
        }

        for args in [
            &["status", "nobody"][..],
            &["plan", "nobody"],
            &["restart", "nobody"],
            &["wait", "rollout", "nobody"],
        ] {
            let refused = run(&kit, args).unwrap_err().to_string();
            assert!(refused.contains("nobody"), "{args:?}: {refused}");
        }
        let refused = run(&kit, &["transfer-leader", "a", "--to", "a-7"])
            .unwrap_err()
            .to_string();
        assert!(refused.contains("a-7 is no member of a"), "{refused}");
    });
}
