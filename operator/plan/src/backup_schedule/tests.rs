use std::collections::BTreeSet;

use crds::KubeBrainBackupScheduleStatus;
use kube::Resource;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::names::MANAGED_BY;
use crate::testing::settings;

/// The schedule `nightly` of the cluster `dev`, created at one; `more` is merged over its spec.
fn schedule(more: &Value) -> KubeBrainBackupSchedule {
    let mut spec = json!({
        "schedule": "0 3 * * *",
        "template": {"spec": {
            "clusterName": "dev", "deletionPolicy": "Delete", "destination": {"persistentVolumeClaim": {"claimName": "backups"}},
        }},
    });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let object = json!({
        "apiVersion": "kubebrain.io/v1alpha1",
        "kind": "KubeBrainBackupSchedule",
        "metadata": {"name": "nightly", "namespace": "brains", "generation": 1, "creationTimestamp": "2026-11-20T01:00:00Z"},
        "spec": spec,
    });
    serde_json::from_value(object).unwrap()
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// A backup of the schedule that ended half an hour after its time, with this condition; none if it is empty.
fn backup(time: &str, condition: &str) -> KubeBrainBackup {
    let mut backup = backup_of(&schedule(&json!({})), at(time));
    let end = at(time) + SignedDuration::from_mins(30);
    let conditions: Vec<Value> = [condition]
        .into_iter()
        .filter(|type_| !type_.is_empty())
        .map(|type_| json!({"type": type_, "status": "True", "reason": "R", "message": "no space", "lastTransitionTime": end}))
        .collect();
    let mut status = json!({"conditions": conditions, "clusterID": "c1", "startTime": at(time)});
    if condition == "Complete" {
        status["completionTime"] = json!(end);
    }
    backup.status = serde_json::from_value(status).unwrap();
    backup.metadata.uid = Some(format!("uid-{}", backup.name_any()));
    backup
}

fn decide(schedule: &KubeBrainBackupSchedule, backups: &[KubeBrainBackup], now: &str) -> SchedulePlan {
    plan(schedule, backups, &settings(), at(now))
}

fn creates(plan: &SchedulePlan) -> Option<String> {
    plan.create.as_ref().map(|backup| backup.name_any())
}

fn deletes(plan: &SchedulePlan) -> Vec<&str> {
    plan.delete.iter().map(|deleted| deleted.name.as_str()).collect()
}

/// Carries a plan out, and returns the conditions as `Type=Status/Reason` and the reasons of the Events.
fn carry_out(
    schedule: &mut KubeBrainBackupSchedule,
    mut plan: SchedulePlan,
    now: &str,
) -> (Vec<String>, Vec<&'static str>) {
    if let Some(backup) = &plan.create {
        plan.progress.add(backup);
    }
    let status = status_of(schedule, &plan.progress, at(now));
    let told = events(schedule, &status).iter().map(|event| event.reason).collect();
    let conditions = status.conditions.iter().flatten();
    let conditions = conditions
        .map(|it| format!("{}={}/{}", it.type_, it.status, it.reason))
        .collect();
    schedule.status = Some(status);
    (conditions, told)
}

mod times;

#[test]
fn backup_of_a_time_is_made_once_and_named_after_it() {
    let template = json!({
        "metadata": {"labels": {"team": "a", "kubebrain.io/schedule": "other"}, "annotations": {"kubebrain.io/x": "1", "note": "n"}},
        "spec": {"clusterName": "dev", "verify": true, "destination": {"persistentVolumeClaim": {"claimName": "backups"}}},
    });
    let mut it = schedule(&json!({"template": template}));
    let plan = decide(&it, &[], "2026-11-20T02:59:59Z");
    assert_eq!((creates(&plan), plan.again), (None, Some(Duration::from_secs(1))));
    let plan = decide(&it, &[], "2026-11-20T03:00:00Z");
    let made = plan.create.clone().unwrap();
    assert_eq!(made.name_any(), "nightly-20261120030000");
    assert_eq!(made.spec, it.spec.template.spec);
    let metadata = serde_json::to_value(made.meta()).unwrap();
    let expected = json!({
        "name": "nightly-20261120030000", "namespace": "brains",
        "labels": {"team": "a", "kubebrain.io/schedule": "nightly"}, "annotations": {"note": "n"},
    });
    assert_eq!(metadata, expected, "it must have no owner");
    assert!(!made.labels().contains_key(MANAGED_BY));
    assert_eq!(plan.again, Some(PROGRESS_INTERVAL));
    // A second operator, or this one if it ends here, plans the same.
    assert_eq!(creates(&decide(&it, &[], "2026-11-20T03:10:00Z")), creates(&plan));
    let (conditions, told) = carry_out(&mut it, plan, "2026-11-20T03:00:00Z");
    assert_eq!(conditions, ["Ready=True/Scheduled", "Reconciling=False/Scheduled"]);
    assert_eq!(told, Vec::<&str>::new());
    let status = it.status.clone().unwrap();
    assert_eq!(status.active, ["nightly-20261120030000"]);
    assert_eq!(status.last_schedule_time.unwrap().0, at("2026-11-20T03:00:00Z"));
    assert_eq!(status.next_schedule_time.unwrap().0, at("2026-11-21T03:00:00Z"));
    // It is gone before the status shows it, or was deleted.
    assert_eq!(creates(&decide(&it, &[], "2026-11-20T03:20:00Z")), None);
    // The status is lost, and the backup exists.
    it.status = None;
    let there = [backup("2026-11-20T03:00:00Z", "Complete")];
    let plan = decide(&it, &there, "2026-11-20T03:20:00Z");
    assert_eq!((creates(&plan), plan.again), (None, Some(LONGEST_INTERVAL)));
    carry_out(&mut it, plan, "2026-11-20T03:20:00Z");
    let status = it.status.unwrap();
    assert_eq!(status.last_schedule_time.unwrap().0, at("2026-11-20T03:00:00Z"));
    assert_eq!(status.last_successful_time.unwrap().0, at("2026-11-20T03:30:00Z"));
    assert_eq!(status.last_successful_backup.as_deref(), Some("nightly-20261120030000"));
}

#[test]
fn one_backup_is_made_for_all_times_that_were_missed() {
    let mut it = schedule(&json!({}));
    // Nine nights.
    assert_eq!(
        creates(&decide(&it, &[], "2026-11-29T12:00:00Z")).as_deref(),
        Some("nightly-20261129030000")
    );
    it.spec.starting_deadline_seconds = Some(3600);
    let plan = decide(&it, &[], "2026-11-29T12:00:00Z");
    assert_eq!(creates(&plan), None, "it is nine hours late");
    let (_, told) = carry_out(&mut it, plan, "2026-11-29T12:00:00Z");
    assert_eq!(told, ["BackupMissed"]);
    assert_eq!(
        it.status.as_ref().unwrap().last_missed_time.as_ref().unwrap().0,
        at("2026-11-29T03:00:00Z")
    );
    let plan = decide(&it, &[], "2026-11-29T12:00:10Z");
    assert_eq!(
        carry_out(&mut it, plan, "2026-11-29T12:00:10Z").1,
        Vec::<&str>::new(),
        "it is told again"
    );
    assert_eq!(
        creates(&decide(&it, &[], "2026-11-30T04:00:00Z")).as_deref(),
        Some("nightly-20261130030000")
    );
    // The clock was set back.
    assert_eq!(creates(&decide(&it, &[], "2026-11-28T12:00:00Z")), None);
}

#[test]
fn suspended_schedule_does_nothing_and_then_makes_up_for_one() {
    let mut it = schedule(&json!({"suspend": true, "retention": {"keepLast": 1}, "failedBackupsHistoryLimit": 0}));
    let backups = [
        backup("2026-11-20T03:00:00Z", "Complete"),
        backup("2026-11-21T03:00:00Z", "Complete"),
        backup("2026-11-22T03:00:00Z", "Failed"),
    ];
    let plan = decide(&it, &backups, "2026-11-29T12:00:00Z");
    assert_eq!((creates(&plan), deletes(&plan), plan.again), (None, vec![], None));
    let (conditions, _) = carry_out(&mut it, plan, "2026-11-29T12:00:00Z");
    assert_eq!(conditions, ["Ready=False/Suspended", "Reconciling=False/Suspended"]);
    assert_eq!(it.status.as_ref().unwrap().next_schedule_time, None);
    assert_eq!(due_after_success(&it), None);
    it.spec.suspend = false;
    let plan = decide(&it, &backups, "2026-11-29T12:00:00Z");
    assert_eq!(creates(&plan).as_deref(), Some("nightly-20261129030000"));
    assert_eq!(deletes(&plan), ["nightly-20261122030000", "nightly-20261120030000"]);
}

#[test]
fn immediate_backup_is_made_once() {
    let mut it = schedule(&json!({"immediate": true}));
    let plan = decide(&it, &[], "2026-11-20T01:00:05Z");
    assert_eq!(creates(&plan).as_deref(), Some("nightly-20261120010000"));
    carry_out(&mut it, plan, "2026-11-20T01:00:05Z");
    assert_eq!(creates(&decide(&it, &[], "2026-11-20T01:00:15Z")), None);
    let first = backup("2026-11-20T01:00:00Z", "Complete");
    assert_eq!(
        creates(&decide(&it, &[first], "2026-11-20T03:00:00Z")).as_deref(),
        Some("nightly-20261120030000")
    );
    // An operator that comes later makes one backup, not two.
    it.status = None;
    assert_eq!(
        creates(&decide(&it, &[], "2026-11-20T04:00:00Z")).as_deref(),
        Some("nightly-20261120030000")
    );
}

#[test]
fn backup_waits_for_the_one_before_unless_both_are_allowed() {
    let mut it = schedule(&json!({}));
    let running = [backup("2026-11-20T03:00:00Z", "")];
    let plan = decide(&it, &running, "2026-11-21T03:00:00Z");
    assert_eq!((creates(&plan), plan.again), (None, Some(PROGRESS_INTERVAL)));
    let ended = [backup("2026-11-20T03:00:00Z", "Failed")];
    assert_eq!(
        creates(&decide(&it, &ended, "2026-11-21T03:05:00Z")).as_deref(),
        Some("nightly-20261121030000")
    );
    // One that is being deleted does not count.
    let mut leaving = running.clone();
    leaving[0].metadata.deletion_timestamp = Some(Time(at("2026-11-21T02:00:00Z")));
    assert!(creates(&decide(&it, &leaving, "2026-11-21T03:05:00Z")).is_some());
    it.spec.concurrency_policy = ConcurrencyPolicy::Allow;
    let plan = decide(&it, &running, "2026-11-21T03:00:00Z");
    assert!(creates(&plan).is_some());
    carry_out(&mut it, plan, "2026-11-21T03:00:00Z");
    assert_eq!(
        it.status.unwrap().active,
        ["nightly-20261120030000", "nightly-20261121030000"]
    );
}

#[test]
fn backup_that_waits_is_replaced_by_the_next_one() {
    for policy in ["Forbid", "Allow"] {
        let schedule = schedule(&json!({"concurrencyPolicy": policy}));
        let mut waiting = backup("2026-11-21T03:00:00Z", "");
        waiting.status.as_mut().unwrap().start_time = None;
        waiting.metadata.resource_version = Some("7".to_owned());
        let before = decide(&schedule, &[waiting.clone()], "2026-11-22T02:59:00Z");
        assert_eq!((creates(&before), deletes(&before)), (None, vec![]));
        let plan = decide(&schedule, &[waiting.clone()], "2026-11-22T03:00:00Z");
        assert_eq!(creates(&plan).unwrap(), "nightly-20261122030000");
        assert_eq!(deletes(&plan), ["nightly-20261121030000"]);
        assert_eq!(plan.delete[0].resource_version.as_deref(), Some("7"), "it may begin");
        assert!(plan.progress.active.is_empty());
    }
}

#[test]
fn clock_that_was_ahead_displaces_no_backup_and_stops_no_schedule() {
    let mut schedule = schedule(&json!({"retention": {"keepWithin": "14d"}}));
    let mut early = backup("2031-01-01T03:00:00Z", "Complete");
    early.metadata.creation_timestamp = Some(Time(at("2026-11-21T12:00:00Z")));
    let real = backup("2026-11-21T03:00:00Z", "Complete");
    schedule.status = Some(KubeBrainBackupScheduleStatus {
        last_schedule_time: Some(Time(at("2031-01-01T03:00:00Z"))),
        ..KubeBrainBackupScheduleStatus::default()
    });
    let now = "2026-11-22T03:00:00Z";
    let plan = decide(&schedule, &[early, real], now);
    assert_eq!(creates(&plan).unwrap(), "nightly-20261122030000");
    assert_eq!(deletes(&plan), Vec::<&str>::new());
    carry_out(&mut schedule, plan, now);
    assert_eq!(schedule.status.unwrap().last_schedule_time, Some(Time(at(now))));
}

#[test]
fn few_backups_are_deleted_at_a_time() {
    let schedule = schedule(&json!({"retention": {"keepLast": 1}}));
    let mut all: Vec<_> = (10..30)
        .map(|minute| backup(&format!("2026-11-21T03:{minute}:00Z"), "Complete"))
        .collect();
    let plan = decide(&schedule, &all, "2026-11-21T05:00:00Z");
    assert_eq!(deletes(&plan).len(), 10);
    assert_eq!(plan.again, Some(PROGRESS_INTERVAL));
    for backup in &mut all[..7] {
        backup.metadata.deletion_timestamp = Some(Time(at("2026-11-21T05:00:00Z")));
    }
    let plan = decide(&schedule, &all, "2026-11-21T05:00:00Z");
    assert_eq!(deletes(&plan).len(), 3);
    assert_eq!(plan.delete[0].name, "nightly-20261121031700");
}

#[test]
fn ready_follows_the_last_backup() {
    let mut it = schedule(&json!({}));
    let mut backups = vec![backup("2026-11-20T03:00:00Z", "Failed")];
    let plan = decide(&it, &backups, "2026-11-20T03:40:00Z");
    let (conditions, told) = carry_out(&mut it, plan, "2026-11-20T03:40:00Z");
    assert_eq!(
        conditions,
        ["Ready=False/BackupFailed", "Reconciling=False/BackupFailed"]
    );
    assert_eq!(told, ["BackupFailed"]);
    let message = |it: &KubeBrainBackupSchedule| {
        it.status.as_ref().unwrap().conditions.as_ref().unwrap()[0]
            .message
            .clone()
    };
    assert_eq!(message(&it), "KubeBrainBackup nightly-20261120030000: no space");
    // Also if it is deleted.
    let plan = decide(&it, &[], "2026-11-20T03:50:00Z");
    let (conditions, told) = carry_out(&mut it, plan, "2026-11-20T03:50:00Z");
    assert_eq!((conditions[0].as_str(), told), ("Ready=False/BackupFailed", vec![]));
    assert_eq!(message(&it), "KubeBrainBackup nightly-20261120030000: no space");
    backups.push(backup("2026-11-21T03:00:00Z", "Complete"));
    let plan = decide(&it, &backups, "2026-11-21T03:40:00Z");
    let (conditions, _) = carry_out(&mut it, plan, "2026-11-21T03:40:00Z");
    assert_eq!(conditions[0], "Ready=True/Scheduled");
    assert_eq!(message(&it), "backups are made at 0 3 * * *, Etc/UTC");
    assert_eq!(due_after_success(&it), Some(at("2026-11-22T03:00:00Z")));
    it.status = None;
    assert_eq!(
        due_after_success(&it),
        Some(at("2026-11-20T03:00:00Z")),
        "it counts from the creation"
    );
}

#[test]
fn spec_that_cannot_work_stalls() {
    let strict = OperatorSettings {
        allow_unsafe_pods: false,
        ..settings()
    };
    let account = json!({"clusterName": "dev", "serviceAccountName": "admin", "destination": {"s3": {"bucket": "b"}}});
    for (more, text) in [
        (json!({"schedule": "61 * * * *"}), "schedule \"61 * * * *\""),
        (json!({"timeZone": "Mars/Olympus"}), "timeZone \"Mars/Olympus\""),
        (
            json!({"retention": {"keepWithin": "99999999999d"}}),
            "retention.keepWithin: ",
        ),
        (
            json!({"template": {"spec": account}}),
            "template.spec: serviceAccountName",
        ),
    ] {
        let mut it = schedule(&more);
        let plan = plan(&it, &[], &strict, at("2026-11-29T12:00:00Z"));
        assert_eq!((creates(&plan), plan.again), (None, None));
        let (conditions, told) = carry_out(&mut it, plan, "2026-11-29T12:00:00Z");
        let expected = [
            "Ready=False/InvalidSpec",
            "Reconciling=False/InvalidSpec",
            "Stalled=True/InvalidSpec",
        ];
        assert_eq!(conditions, expected);
        assert_eq!(told, ["Stalled"]);
        let message = &it.status.as_ref().unwrap().conditions.as_ref().unwrap()[0].message;
        assert!(message.starts_with(text), "{message}");
    }
}

#[test]
fn passes_that_fail_are_reported_and_forget_nothing() {
    let mut it = schedule(&json!({}));
    let plan = decide(
        &it,
        &[backup("2026-11-20T03:00:00Z", "Complete")],
        "2026-11-20T04:00:00Z",
    );
    carry_out(&mut it, plan, "2026-11-20T04:00:00Z");
    let before = it.status.clone().unwrap();
    let failing = ScheduleProgress::failing("ReconcileError", "forbidden".to_owned());
    let status = status_of(&it, &failing, at("2026-11-20T05:00:00Z"));
    assert_eq!(events(&it, &status)[0].reason, "BackupNotScheduled");
    let conditions = status.conditions.clone().unwrap();
    assert_eq!(
        (conditions[0].reason.as_str(), conditions[1].reason.as_str()),
        ("Scheduled", "ReconcileError")
    );
    assert_eq!(
        KubeBrainBackupScheduleStatus {
            conditions: before.conditions.clone(),
            ..status
        },
        before
    );
    // A backup that could not be created stays due.
    let mut plan = decide(&it, &[], "2026-11-21T03:00:00Z");
    assert!(creates(&plan).is_some());
    plan.progress.trouble = Some(("OwnershipConflict", "taken".to_owned()));
    it.status = Some(status_of(&it, &plan.progress, at("2026-11-21T03:00:00Z")));
    assert!(creates(&decide(&it, &[], "2026-11-21T03:00:10Z")).is_some());
}

#[test]
fn backups_of_others_are_left_alone() {
    let it = schedule(&json!({"retention": {"keepLast": 1}, "failedBackupsHistoryLimit": 0}));
    let mut others = Vec::new();
    for name in [
        "nightly-20261120030000",
        "nightly-by-hand",
        "nightly-2026112003000",
        "other-20261120030000",
        "nightly-99991399999999",
    ] {
        let mut backup = backup("2026-11-20T03:00:00Z", "Failed");
        backup.metadata.name = Some(name.to_owned());
        others.push(backup);
    }
    others[0]
        .labels_mut()
        .insert(SCHEDULE.to_owned(), "nightly-2".to_owned());
    assert!(others.iter().all(|backup| !is_of(&it, backup)));
    let plan = decide(&it, &others, "2026-11-20T02:00:00Z");
    assert_eq!((deletes(&plan), plan.progress.active.len()), (vec![], 0));
    assert!(is_of(&it, &backup("2026-11-20T03:00:00Z", "")));
}

#[test]
fn retention_deletes_what_no_rule_keeps() {
    let it = schedule(&json!({"retention": {"keepLast": 1, "keepWithin": "2d"}, "failedBackupsHistoryLimit": 1}));
    let mut backups: Vec<_> = (20..26)
        .map(|day| backup(&format!("2026-11-{day}T03:00:00Z"), "Complete"))
        .collect();
    backups.extend((26..29).map(|day| backup(&format!("2026-11-{day}T03:00:00Z"), "Failed")));
    // Pinned by its user; of a store that was replaced.
    backups[0].spec.deletion_policy = DeletionPolicy::Keep;
    backups[1].status.as_mut().unwrap().cluster_id = Some("c0".to_owned());
    let plan = decide(&it, &backups, "2026-11-28T04:00:00Z");
    let expected = [
        "nightly-20261126030000",
        "nightly-20261127030000",
        "nightly-20261122030000",
    ];
    assert_eq!(deletes(&plan), expected);
    assert_eq!(plan.delete[0].uid.as_deref(), Some("uid-nightly-20261126030000"));
    let all_kept = schedule(&json!({"failedBackupsHistoryLimit": 100}));
    assert_eq!(
        deletes(&decide(&all_kept, &backups, "2026-11-28T04:00:00Z")),
        Vec::<&str>::new()
    );
}

fn retention() -> impl Strategy<Value = Value> {
    let count = || proptest::option::of(1..4_i32);
    let counts = (count(), count(), count(), count(), count(), count());
    (counts, proptest::option::of(0..40_u32)).prop_map(|((last, hourly, daily, weekly, monthly, yearly), within)| {
        let rules = json!({
            "keepLast": last, "keepHourly": hourly, "keepDaily": daily, "keepWeekly": weekly, "keepMonthly": monthly, "keepYearly": yearly,
            "keepWithin": within.map(|hours| format!("{hours}h")),
        });
        rules.as_object().unwrap().iter().filter(|(_, value)| !value.is_null()).map(|(key, value)| (key.clone(), value.clone())).collect()
    })
}

/// Backups of two stores in every state: 0 runs, 1 is complete, 2 has failed, 3 is being deleted, 4 is of another schedule, 5 is pinned.
fn backups() -> impl Strategy<Value = Vec<(KubeBrainBackup, u8)>> {
    proptest::collection::btree_map(0..24 * 400_i64, (0..6_u8, 0..2_u8), 0..40).prop_map(|all| {
        let begin = at("2026-01-01T00:00:00Z");
        let made = all.into_iter().map(|(hour, (state, store))| {
            let time = (begin + SignedDuration::from_hours(hour)).to_string();
            let mut backup = backup(
                &time,
                match state {
                    0 => "",
                    2 => "Failed",
                    _ => "Complete",
                },
            );
            backup.status.as_mut().unwrap().cluster_id = Some(format!("c{store}"));
            match state {
                3 => backup.metadata.deletion_timestamp = Some(Time(begin)),
                4 => backup.labels_mut().extend([(SCHEDULE.to_owned(), "other".to_owned())]),
                5 => backup.spec.deletion_policy = DeletionPolicy::Keep,
                _ => {}
            }
            (backup, state)
        });
        made.collect()
    })
}

proptest! {
    /// The model is that of `retention`; here, only complete backups of the schedule are counted, and only those are deleted.
    #[test]
    fn only_complete_backups_that_no_rule_keeps_are_deleted(retention in retention(), all in backups()) {
        let mut it = schedule(&json!({"failedBackupsHistoryLimit": 100}));
        it.spec.retention = Some(serde_json::from_value(retention).unwrap());
        let backups: Vec<_> = all.iter().map(|(backup, _)| backup.clone()).collect();
        let now = "2027-06-01T00:00:00Z";
        let (mut left, mut deleted) = (backups, BTreeSet::new());
        loop {
            let plan = decide(&it, &left, now);
            let gone: BTreeSet<String> = deletes(&plan).into_iter().map(str::to_owned).collect();
            prop_assert!(gone.len() <= MAX_LEAVING);
            if gone.is_empty() {
                break;
            }
            left.retain(|backup| !gone.contains(&backup.name_any()));
            deleted.extend(gone);
        }
        for store in ["c0", "c1"] {
            let of_store: Vec<_> = all.iter().filter(|(backup, state)| {
                [1, 5].contains(state) && backup.status.as_ref().unwrap().cluster_id.as_deref() == Some(store)
            }).collect();
            if let Some((newest, _)) = of_store.last() {
                prop_assert!(!deleted.contains(&newest.name_any()));
            }
            let last = it.spec.retention.as_ref().unwrap().keep_last.unwrap_or_default();
            for (backup, _) in of_store.iter().rev().take(usize::try_from(last).unwrap()) {
                prop_assert!(!deleted.contains(&backup.name_any()));
            }
        }
        for (backup, state) in &all {
            prop_assert!(*state == 1 || !deleted.contains(&backup.name_any()), "{}: {}", backup.name_any(), state);
        }
        // Without rules, everything is kept.
        it.spec.retention = None;
        prop_assert!(decide(&it, &left, now).delete.is_empty());
    }
}

mod verifications;
