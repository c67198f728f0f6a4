use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::{Value, json};

use super::*;
use crate::names::Names;
use crate::objects::{ObjectKey, ObjectKind};
use crate::observed::Observed;
use crate::steps::PlanStep;
use crate::testing::{FakeCluster, STORE};

mod copy;

const BACKUP: &str = "20261129T113542.123Z-0000000000000000042";

/// A cluster that begins with the newest backup on a claim; `more` is merged over this.
fn fake(more: Value) -> FakeCluster {
    let from = json!({"destination": {"persistentVolumeClaim": {"claimName": "backups", "path": "of/a"}}});
    let mut fake = FakeCluster::new(json!({"tls": {"mode": "Disabled"}, "bootstrap": {"fromBackup": from}}));
    fake.edit(more);
    found(&mut fake);
    fake
}

/// Lets the operator find the objects that the source needs.
fn found(fake: &mut FakeCluster) {
    let bootstrap = due(&fake.cluster).unwrap();
    let source = match (&bootstrap.from_backup, &bootstrap.from_snapshot) {
        (Some(from), _) => BootstrapSource::Backup(Box::new(BackupSource::of_spec(from).unwrap())),
        (None, Some(from)) => BootstrapSource::Snapshot(from.persistent_volume_claim.clone()),
        (None, None) => BootstrapSource::Etcd(Box::new(bootstrap.from_etcd.clone().unwrap())),
    };
    fake.seen.bootstrap.source = Some(Ok(source));
}

/// Ends the Job with this condition.
fn end(fake: &mut FakeCluster, type_: &str, result: Option<Value>) {
    let job = fake.seen.bootstrap.job.as_mut().unwrap();
    let condition = json!({"type": type_, "status": "True", "lastTransitionTime": crate::testing::BEGIN});
    let status = json!({"conditions": [condition], "completionTime": "2026-11-21T00:05:00Z"});
    job.status = serde_json::from_value(status).unwrap();
    fake.seen.bootstrap.result = result.map(|result| serde_json::from_value(result).unwrap());
}

fn restored() -> Option<Value> {
    Some(json!({"existed": false, "clusterId": STORE, "name": BACKUP, "revision": 42}))
}

fn has_set(fake: &FakeCluster) -> bool {
    is_served(&fake.seen)
}

fn is_served(seen: &Observed) -> bool {
    seen.objects
        .keys()
        .any(|key| key.kind == crate::objects::ObjectKind::StatefulSet)
}

fn phase(fake: &FakeCluster) -> BootstrapPhase {
    fake.cluster.status.as_ref().unwrap().bootstrap.as_ref().unwrap().phase
}

/// Returns the arguments of the Job that a spec leads to.
fn arguments(more: Value) -> Vec<String> {
    let fake = fake(more);
    let steps = fake.plan().steps;
    let job = steps.iter().find_map(|step| match step {
        PlanStep::Bootstrap { job } => Some(job.clone()),
        _ => None,
    });
    let pod = job.unwrap().spec.unwrap().template.spec.unwrap();
    pod.containers[0].args.clone().unwrap()
}

#[test]
fn members_start_after_the_restore_and_only_on_its_store() {
    let mut fake = fake(json!({}));
    let steps = fake.pass();
    assert!(steps.ends_with(&[
        "create the volume claim data-dev-0".to_owned(),
        "create Job dev-bootstrap".to_owned()
    ]));
    assert!(!has_set(&fake));
    assert_eq!(fake.condition("Bootstrapped"), "False/Bootstrapping");
    for _ in 0..3 {
        fake.wait(3_600);
        assert_eq!(fake.pass(), Vec::<String>::new());
    }
    // However long it takes.
    assert_eq!(fake.condition("Ready"), "False/Bootstrapping");
    assert_eq!(fake.condition("Progressing"), "True/Bootstrapping");
    assert_eq!(fake.condition("Degraded"), "False/AsExpected");
    assert_eq!(fake.condition("Stalled"), "absent");
    end(&mut fake, "Complete", restored());
    assert_eq!(fake.pass(), Vec::<String>::new(), "the status comes first");
    let status = fake.cluster.status.clone().unwrap();
    let bootstrap = status.bootstrap.unwrap();
    assert_eq!(
        (bootstrap.phase, bootstrap.revision),
        (BootstrapPhase::Complete, Some(42))
    );
    assert_eq!(bootstrap.source.as_deref(), Some("newest backup at pvc://backups/of/a"));
    assert_eq!(bootstrap.backup_name.as_deref(), Some(BACKUP));
    assert!(bootstrap.start_time < bootstrap.completion_time);
    assert_eq!(fake.condition("Bootstrapped"), "True/Restored");
    assert_eq!(status.storage.unwrap().store_id.as_deref(), Some(STORE));
    fake.seen.bootstrap = ObservedBootstrap::default();
    fake.settle();
    let pod = fake.pod("dev-0").spec.clone().unwrap();
    let env = pod.containers[0].env.clone().unwrap();
    let pinned = env.iter().find(|it| it.name == "ETCD_EMBEDDED_CLUSTER_ID").unwrap();
    assert_eq!(pinned.value.as_deref(), Some(STORE));
    assert_eq!(fake.condition("Ready"), "True/AsExpected");
    assert_eq!(fake.condition("Bootstrapped"), "True/Restored");
    assert_eq!(fake.seen.claims.len(), 1, "it is adopted");
}

#[test]
fn claim_is_the_one_that_the_stateful_set_would_make() {
    let claims = |mut fake: FakeCluster| -> PersistentVolumeClaim {
        fake.pass();
        fake.seen.claims[0].clone()
    };
    let spec = json!({"storage": {"embedded": {"storageClassName": "fast"}}, "tls": {"mode": "Disabled"}});
    let theirs = claims(FakeCluster::new(spec.clone()));
    let ours = claims(fake(spec));
    assert_eq!(ours.metadata.name, theirs.metadata.name);
    assert_eq!((ours.metadata.labels, ours.spec), (theirs.metadata.labels, theirs.spec));
    assert_eq!(
        ours.metadata.owner_references, None,
        "it outlives the Job and the resource"
    );
}

#[test]
fn store_that_was_there_is_served_as_it_is() {
    let mut existing = fake(json!({}));
    existing.pass();
    end(
        &mut existing,
        "Complete",
        Some(json!({"existed": true, "clusterId": STORE})),
    );
    existing.pass();
    assert_eq!(existing.condition("Bootstrapped"), "True/AlreadyStored");
    let bootstrap = existing.cluster.status.as_ref().unwrap().bootstrap.clone().unwrap();
    assert_eq!((bootstrap.phase, bootstrap.revision), (BootstrapPhase::Complete, None));
    assert!(bootstrap.message.unwrap().contains(STORE));
    existing.settle();
    assert_eq!(existing.condition("Ready"), "True/AsExpected");

    // An attempt that was killed before it said more made it for this very cluster.
    let mut repeated = fake(json!({}));
    repeated.pass();
    let result = json!({"existed": true, "sameRequest": true, "clusterId": STORE});
    end(&mut repeated, "Complete", Some(result));
    repeated.pass();
    assert_eq!(repeated.condition("Bootstrapped"), "True/Restored");
    let bootstrap = repeated.cluster.status.as_ref().unwrap().bootstrap.clone().unwrap();
    let message = bootstrap.message.unwrap();
    assert!(
        message.starts_with(&format!("an earlier attempt made the store {STORE}")),
        "{message}"
    );

    // The status of a cluster that serves is lost.
    let mut served = existing;
    let job = served.seen.bootstrap.job.take();
    for (job, reason) in [(None, "AlreadyStored"), (job, "ResultLost")] {
        served.cluster.status = None;
        served.seen.bootstrap.job = job;
        let steps = served.pass();
        assert!(!steps.iter().any(|step| step.contains("bootstrap")), "{steps:?}");
        assert_eq!(phase(&served), BootstrapPhase::Complete);
        served.seen.bootstrap = ObservedBootstrap::default();
        served.settle();
        assert_eq!(served.condition("Ready"), "True/AsExpected");
        assert_eq!(served.condition("Bootstrapped"), format!("True/{reason}"));
    }
}

#[test]
fn result_that_is_lost_ends_the_restore_all_the_same() {
    let mut fake = fake(json!({}));
    fake.pass();
    // The image of a pod is untrusted.
    for result in [
        None,
        Some(json!({"existed": false, "clusterId": "$(x)", "name": "a", "revision": 1})),
    ] {
        end(&mut fake, "Complete", result);
        fake.cluster.status.as_mut().unwrap().bootstrap = None;
        fake.pass();
        assert_eq!(phase(&fake), BootstrapPhase::Complete);
        let storage = fake.cluster.status.as_ref().unwrap().storage.clone().unwrap();
        assert_eq!(storage.store_id, None);
    }
}

#[test]
fn failed_restore_stalls_the_cluster_until_its_job_is_deleted() {
    let mut fake = fake(json!({}));
    fake.pass();
    fake.seen.bootstrap.trouble = Some("its key is missing".to_owned());
    fake.pass();
    assert_eq!(phase(&fake), BootstrapPhase::Running);
    let message = |fake: &FakeCluster| {
        let status = fake.cluster.status.clone().unwrap();
        status.bootstrap.unwrap().message.unwrap()
    };
    assert_eq!(message(&fake), "Job dev-bootstrap is running: its key is missing");
    end(&mut fake, "Failed", None);
    assert_eq!(fake.pass(), Vec::<String>::new());
    assert_eq!(phase(&fake), BootstrapPhase::Failed);
    assert_eq!(message(&fake), "its key is missing");
    assert_eq!(fake.condition("Bootstrapped"), "False/BootstrapFailed");
    for (type_, status) in [("Ready", "False"), ("Degraded", "True"), ("Stalled", "True")] {
        assert_eq!(fake.condition(type_), format!("{status}/BootstrapFailed"));
    }
    assert!(!has_set(&fake));
    fake.seen.bootstrap = ObservedBootstrap::default();
    found(&mut fake);
    assert_eq!(fake.pass(), ["create Job dev-bootstrap"], "the claim is kept");
    assert_eq!(fake.condition("Stalled"), "absent");
    assert_eq!(phase(&fake), BootstrapPhase::Running);
}

#[test]
fn restore_whose_pod_does_not_start_degrades_the_cluster() {
    use crate::testing::BEGIN;
    let stuck = |status: Value, after: i64, claim: Option<&str>| {
        let mut fake = fake(json!({}));
        fake.pass();
        if let Some(phase) = claim {
            let bound = json!({"phase": phase});
            fake.seen.claims[0].status = serde_json::from_value(bound).unwrap();
        }
        let created = fake.seen.now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let pod = json!({"metadata": {"name": "dev-bootstrap-x", "creationTimestamp": created}, "status": status});
        fake.seen.bootstrap.pods = vec![serde_json::from_value(pod).unwrap()];
        fake.wait(after);
        fake.pass();
        assert_eq!(phase(&fake), BootstrapPhase::Running);
        assert_eq!(fake.condition("Progressing"), "True/Bootstrapping");
        assert_eq!(fake.condition("Stalled"), "absent", "it goes on by itself");
        let status = fake.cluster.status.clone().unwrap();
        let mut conditions = status.conditions.unwrap().into_iter();
        let degraded = conditions.find(|condition| condition.type_ == "Degraded").unwrap();
        format!("{}/{}: {}", degraded.status, degraded.reason, degraded.message)
    };
    let unscheduled = |why: &str| json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}]});
    let fine = "False/AsExpected: nothing is wrong";
    assert_eq!(stuck(unscheduled("no cpu"), 60, None), fine);
    assert_eq!(
        stuck(unscheduled("no cpu"), 61, None),
        "True/Unschedulable: dev-bootstrap-x: no cpu"
    );
    let unbound = stuck(unscheduled("unbound PersistentVolumeClaims"), 61, Some("Pending"));
    assert_eq!(
        unbound,
        "True/PendingVolume: no volume is bound to data-dev-0; dev-bootstrap-x: unbound PersistentVolumeClaims"
    );
    let waiting = json!({"reason": "ErrImagePull", "message": "no such host"});
    let container = json!({"name": "bootstrap", "image": "x", "imageID": "", "ready": false, "restartCount": 0, "state": {"waiting": waiting}});
    let image = json!({"containerStatuses": [container]});
    assert_eq!(stuck(image.clone(), 30, None), fine);
    assert_eq!(
        stuck(image, 31, None),
        "True/ImagePullFailed: dev-bootstrap-x: ErrImagePull: no such host"
    );
    let running = json!({"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": BEGIN}]});
    assert_eq!(stuck(running, 86_400, None), fine, "however long it takes");

    let mut fake = fake(json!({}));
    fake.pass();
    fake.seen.bootstrap.refused_pods = Some("exceeded quota: pods".to_owned());
    fake.pass();
    assert_eq!(fake.condition("Degraded"), "True/QuotaExceeded");
}

#[test]
fn damaged_backup_that_is_named_is_read_once() {
    let rules = |more: Value| {
        let mut fake = fake(more);
        fake.pass();
        let job = serde_json::to_value(fake.seen.bootstrap.job.clone().unwrap()).unwrap();
        job["spec"]["podFailurePolicy"]["rules"].as_array().unwrap().clone()
    };
    let damage = json!({"containerName": "bootstrap", "operator": "In", "values": [3]});
    let fails = json!({"action": "FailJob", "onExitCodes": damage});
    assert_eq!(rules(json!({"bootstrap": {"fromBackup": {"name": BACKUP}}}))[1], fails);
    // The newest one may be another by then.
    assert!(!rules(json!({})).contains(&fails));
}

#[test]
fn restore_waits_for_what_it_needs() {
    let waits = |change: &dyn Fn(&mut FakeCluster)| {
        let mut fake = fake(json!({}));
        change(&mut fake);
        let steps = fake.pass();
        assert!(!steps.iter().any(|step| step.contains("bootstrap")), "{steps:?}");
        assert!(!has_set(&fake));
        assert_eq!(phase(&fake), BootstrapPhase::Pending);
        (
            fake.condition("Bootstrapped"),
            fake.condition("Ready"),
            fake.condition("Stalled"),
        )
    };
    let say = |bootstrapped: &str, ready: &str, stalled: &str| {
        (bootstrapped.to_owned(), ready.to_owned(), stalled.to_owned())
    };
    let obstacle = |reason| {
        move |fake: &mut FakeCluster| {
            let message = "why".to_owned();
            fake.seen.bootstrap.source = Some(Err(BootstrapObstacle { reason, message }));
        }
    };
    let bootstrapping = "False/Bootstrapping";
    assert_eq!(
        waits(&obstacle("WaitingForObject")),
        say("False/WaitingForObject", bootstrapping, "absent")
    );
    assert_eq!(
        waits(&obstacle("InvalidSpec")),
        say("False/InvalidSpec", "False/InvalidSpec", "True/InvalidSpec")
    );
    assert_eq!(
        waits(&|fake| fake.edit(json!({"replicas": 0}))),
        say("False/Suspended", "False/Suspended", "absent")
    );
    assert_eq!(
        waits(&|fake| fake.edit(json!({"paused": true}))),
        say("False/Paused", "False/Paused", "absent")
    );
    let foreign = |fake: &mut FakeCluster| {
        let job = json!({"metadata": {"name": "dev-bootstrap"}});
        fake.seen.bootstrap.job = Some(serde_json::from_value(job).unwrap());
    };
    assert_eq!(
        waits(&foreign),
        say(
            "False/OwnershipConflict",
            "False/OwnershipConflict",
            "True/OwnershipConflict"
        )
    );
    let leaving = |fake: &mut FakeCluster| {
        let labels = json!({"kubebrain.io/cluster": "dev"});
        let claim = json!({"metadata": {
            "name": "data-dev-0", "labels": labels, "deletionTimestamp": crate::testing::BEGIN,
        }});
        fake.seen.claims.push(serde_json::from_value(claim).unwrap());
    };
    assert_eq!(waits(&leaving), say("False/WaitingForObject", bootstrapping, "absent"));
}

#[test]
fn cluster_without_members_waits_in_peace() {
    let mut fake = fake(json!({"replicas": 0}));
    fake.settle();
    assert_eq!(fake.condition("Progressing"), "False/Reconciled");
    assert!(!has_set(&fake));
    fake.edit(json!({"replicas": 1}));
    found(&mut fake);
    fake.pass();
    assert_eq!(phase(&fake), BootstrapPhase::Running);
    // It is not interrupted, and no member starts after it.
    fake.edit(json!({"replicas": 0}));
    end(&mut fake, "Complete", restored());
    fake.pass();
    assert_eq!(phase(&fake), BootstrapPhase::Complete);
    fake.settle();
    assert!(has_set(&fake) && fake.seen.pods.is_empty());
    assert_eq!(fake.condition("Ready"), "False/Suspended");
}

#[test]
fn program_gets_the_point_and_the_place_of_the_store() {
    let embedded = "--data-dir=/var/lib/kubebrain/data";
    let all = [
        "--once",
        "--request-id=cluster-uid",
        "--result-file=/dev/termination-log",
        embedded,
    ];
    for (more, expected) in [
        (json!({}), &["latest"][..]),
        (json!({"name": BACKUP}), &[BACKUP]),
        (json!({"name": BACKUP, "end": true}), &[BACKUP, "--at-end"]),
        (json!({"end": true}), &["--at-end"]),
        (json!({"revision": 7}), &["--at-revision=7"]),
        (
            json!({"time": "2026-11-29T16:45:00Z"}),
            &["--at-time=2026-11-29T16:45:00Z"],
        ),
        (
            json!({"end": true, "bumpRevision": 1000, "markCompacted": true}),
            &["--at-end", "--bump-revision=1000", "--mark-compacted"],
        ),
    ] {
        let found = arguments(json!({"bootstrap": {"fromBackup": more}}));
        let destination = "--destination=file:///backups/of/a";
        assert_eq!(found, [&["backup", "restore", destination], expected, &all].concat());
    }
    let file = json!({"persistentVolumeClaim": {"claimName": "old", "path": "etcd/backup.db"}, "bumpRevision": 5, "markCompacted": true});
    let found = arguments(json!({"bootstrap": {"fromBackup": null, "fromSnapshot": file}}));
    let bump = ["--bump-revision=5", "--mark-compacted"];
    assert_eq!(
        found,
        [&["snapshot", "restore", "/backups/etcd/backup.db"], &bump[..], &all].concat()
    );
    let tikv = json!({"type": "TiKV", "embedded": null, "tikv": {"pdEndpoints": ["pd:2379"], "keyPrefix": "/a", "clusterID": "7"}});
    let encryption = json!({"keySecretRef": {"name": "k"}});
    let found =
        arguments(json!({"storage": tikv, "replicas": 3, "bootstrap": {"fromBackup": {"encryption": encryption}}}));
    assert_eq!(
        found,
        [
            "backup",
            "restore",
            "--destination=file:///backups/of/a",
            "--encryption-key-file=/etc/kubebrain/encryption/key",
            "latest",
            "--once",
            "--request-id=cluster-uid",
            "--result-file=/dev/termination-log",
            "--storage=tikv",
            "--tikv-pd-endpoints=pd:2379",
            "--tikv-key-prefix=/a",
            "--tikv-cluster-id=7",
            "--initial-cluster-token=brains/dev",
        ]
    );
}

#[test]
fn pods_run_where_brains_do_and_are_no_brains() {
    let mut fake = fake(json!({
        "pod": {"nodeSelector": {"disk": "fast"}, "priorityClassName": "high", "resources": {"limits": {"memory": "1Gi"}}},
        "podTemplate": {"spec": {
            "schedulerName": "mine", "containers": [{"name": "brain", "imagePullPolicy": "Always"}, {"name": "side", "image": "x"}],
        }},
        "inheritedMetadata": {"labels": {"team": "a"}},
    }));
    fake.pass();
    let job = fake.seen.bootstrap.job.clone().unwrap();
    assert_eq!(job.owner_references()[0].uid, "cluster-uid");
    let spec = job.spec.clone().unwrap();
    let template = serde_json::to_value(spec.template).unwrap();
    let pod = &template["spec"];
    assert_eq!(
        (&pod["schedulerName"], &pod["nodeSelector"]["disk"]),
        (&json!("mine"), &json!("fast"))
    );
    assert_eq!(
        (&pod["restartPolicy"], &pod["priorityClassName"]),
        (&json!("Never"), &json!("high"))
    );
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(
        (&pod["serviceAccountName"], &pod["serviceAccount"]),
        (&Value::Null, &Value::Null)
    );
    let containers = pod["containers"].as_array().unwrap();
    assert_eq!(containers.len(), 1);
    assert_eq!(containers[0]["imagePullPolicy"], "Always");
    assert_eq!(containers[0]["resources"]["limits"]["memory"], "1Gi");
    assert_eq!(containers[0]["securityContext"]["readOnlyRootFilesystem"], true);
    assert_eq!(pod["securityContext"]["fsGroup"], 65532);
    for part in ["livenessProbe", "readinessProbe", "startupProbe", "ports"] {
        assert!(containers[0][part].is_null(), "{part}");
    }
    let claims: Vec<&Value> = pod["volumes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["persistentVolumeClaim"])
        .collect();
    let names: Vec<&str> = claims.iter().filter_map(|claim| claim["claimName"].as_str()).collect();
    assert_eq!(names, ["backups", "data-dev-0"]);
    let labels = &template["metadata"]["labels"];
    assert_eq!(
        (&labels["team"], &labels["kubebrain.io/bootstrap"]),
        (&json!("a"), &json!("dev"))
    );
    let names = Names {
        cluster: "dev".to_owned(),
        namespace: String::new(),
        domain: String::new(),
    };
    for key in names.selector().keys() {
        assert!(labels[key].is_null(), "Services would select it by {key}");
    }
}

#[test]
fn backup_of_a_resource_is_used_once_it_is_complete() {
    let backup = |status: Value| -> KubeBrainBackup {
        serde_json::from_value(json!({
            "apiVersion": "kubebrain.io/v1alpha1", "kind": "KubeBrainBackup", "metadata": {"name": "nightly"},
            "spec": {"clusterName": "old", "destination": {"persistentVolumeClaim": {"claimName": "c"}}},
            "status": status,
        }))
        .unwrap()
    };
    let ended = |type_: &str| {
        let condition = json!({
            "type": type_, "status": "True", "reason": "Completed", "message": "", "lastTransitionTime": crate::testing::BEGIN,
        });
        json!({"conditions": [condition], "completionTime": crate::testing::BEGIN, "backupName": BACKUP})
    };
    let refused = |found: Option<&KubeBrainBackup>| BackupSource::of_backup("nightly", found).unwrap_err().message;
    assert_eq!(refused(None), "KubeBrainBackup nightly does not exist");
    assert_eq!(
        refused(Some(&backup(json!({})))),
        "KubeBrainBackup nightly is not complete"
    );
    assert_eq!(
        refused(Some(&backup(ended("Failed")))),
        "KubeBrainBackup nightly failed"
    );
    let mut nameless = ended("Complete");
    nameless["backupName"] = Value::Null;
    assert!(refused(Some(&backup(nameless))).contains("its result was lost"));
    let mut complete = backup(ended("Complete"));
    let source = BackupSource::of_backup("nightly", Some(&complete)).unwrap();
    assert_eq!(
        (source.name.as_deref(), source.target().location()),
        (Some(BACKUP), "pvc://c".to_owned())
    );
    complete.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
        crate::testing::BEGIN.parse().unwrap(),
    ));
    assert_eq!(refused(Some(&complete)), "KubeBrainBackup nightly is being deleted");
}

#[test]
fn former_cluster_is_gone_before_anything_is_restored() {
    let key = ObjectKey::new(ObjectKind::StatefulSet, "dev");
    let mut former = FakeCluster::new(json!({"tls": {"mode": "Disabled"}}));
    former.settle();
    let mut set = former.seen.objects[&key].clone();
    let mut claim = former.seen.claims[0].clone();
    let owner = json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "dev", "uid": "former-set"}]);
    claim.metadata.owner_references = serde_json::from_value(owner).unwrap();
    let begins = |fake: &mut FakeCluster| fake.pass().contains(&"create Job dev-bootstrap".to_owned());

    let mut fake = fake(json!({}));
    let owners = set.metadata.owner_references.as_mut().unwrap();
    owners[0].uid = "former".to_owned();
    fake.seen.objects.insert(key.clone(), set.clone());
    fake.seen.claims.push(claim);
    assert!(!begins(&mut fake));
    assert_eq!(phase(&fake), BootstrapPhase::Pending);
    assert_eq!(fake.condition("Bootstrapped"), "False/WaitingForObject");
    // The claim that goes with the StatefulSet is no place for a restore either.
    fake.seen.objects.remove(&key);
    assert!(!begins(&mut fake));
    assert_eq!(fake.condition("Bootstrapped"), "False/WaitingForObject");
    fake.seen.claims.clear();
    assert!(begins(&mut fake));
    assert_eq!(fake.seen.claims.len(), 1);

    // That of another owner is neither waited for nor taken for a store.
    let mut fake = self::fake(json!({}));
    set.metadata.owner_references.as_mut().unwrap()[0].kind = "Other".to_owned();
    fake.seen.objects.insert(key, set);
    assert!(!begins(&mut fake));
    assert_eq!(fake.condition("Bootstrapped"), "False/OwnershipConflict");
}

#[test]
fn claim_that_is_lost_before_its_pod_runs_is_created_again() {
    let mut fake = fake(json!({}));
    fake.pass();
    fake.seen.claims.clear();
    assert_eq!(fake.pass(), ["create the volume claim data-dev-0"]);
    assert_eq!(fake.pass(), Vec::<String>::new());
}

#[test]
fn job_follows_the_spec_until_it_has_ended_well() {
    let mut fake = fake(json!({}));
    fake.pass();
    for failed in [false, true] {
        if failed {
            end(&mut fake, "Failed", None);
            assert_eq!(fake.pass(), Vec::<String>::new());
        }
        let memory = if failed { "3Gi" } else { "2Gi" };
        fake.edit(json!({"pod": {"resources": {"limits": {"memory": memory}}}}));
        assert_eq!(fake.pass(), ["delete Job dev-bootstrap: the spec changed"]);
        assert_eq!(fake.pass(), ["create Job dev-bootstrap"]);
        let job = fake.seen.bootstrap.job.clone().unwrap();
        let container = job.spec.unwrap().template.spec.unwrap().containers.remove(0);
        let limits = container.resources.unwrap().limits.unwrap();
        assert_eq!(limits["memory"].0, memory);
    }
    end(&mut fake, "Complete", restored());
    fake.edit(json!({"pod": {"resources": {"limits": {"memory": "4Gi"}}}}));
    assert!(!fake.pass().iter().any(|step| step.contains("Job")));
}

#[test]
fn annotation_starts_members_without_a_restore() {
    let mut fake = fake(json!({}));
    fake.seen.bootstrap.source = None;
    let annotations = [("kubebrain.io/skip-bootstrap".to_owned(), "true".to_owned())];
    fake.cluster.metadata.annotations = Some(annotations.into());
    fake.settle();
    assert!(has_set(&fake));
    assert_eq!(fake.condition("Bootstrapped"), "absent");
    // It is not made up for later.
    fake.cluster.metadata.annotations = None;
    found(&mut fake);
    fake.settle();
    assert!(fake.seen.bootstrap.job.is_none());
    assert_eq!(fake.condition("Bootstrapped"), "True/AlreadyStored");
}
