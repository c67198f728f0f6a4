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

mod times {
    use super::*;

    #[track_caller]
    fn runs(schedule: &str, zone: &str, after: &str, expected: &[&str]) {
        let cron = Cron::parse(schedule, zone).unwrap();
        let mut last = at(after);
        for (index, expected) in expected.iter().enumerate() {
            last = cron.next(last).unwrap();
            assert_eq!(last, at(expected), "{index}: {schedule} {zone}");
        }
    }

    #[test]
    fn every_form_of_a_schedule_has_its_times() {
        let runs = |schedule, expected: &[&str]| runs(schedule, "Etc/UTC", "2026-11-29T12:00:00Z", expected);
        runs("0 3 * * *", &["2026-11-30T03:00:00Z", "2026-12-01T03:00:00Z"]);
        runs(
            "*/20 * * * *",
            &["2026-11-29T12:20:00Z", "2026-11-29T12:40:00Z", "2026-11-29T13:00:00Z"],
        );
        runs("30 2 1,15 * *", &["2026-12-01T02:30:00Z", "2026-12-15T02:30:00Z"]);
        runs("0 0 * jan-mar mon", &["2027-01-04T00:00:00Z"]);
        // The first of a month, or a Friday.
        runs("0 0 1 * 5", &["2026-12-01T00:00:00Z", "2026-12-04T00:00:00Z"]);
        runs("0 0 29 2 *", &["2028-02-29T00:00:00Z"]);
        runs("0 0 * * 7", &["2026-12-06T00:00:00Z"]);
        runs("@hourly", &["2026-11-29T13:00:00Z", "2026-11-29T14:00:00Z"]);
        runs("@daily", &["2026-11-30T00:00:00Z"]);
        runs("@midnight", &["2026-11-30T00:00:00Z"]);
        runs("@weekly", &["2026-12-06T00:00:00Z"]);
        runs("@monthly", &["2026-12-01T00:00:00Z"]);
        runs("@yearly", &["2027-01-01T00:00:00Z"]);
        runs("@annually", &["2027-01-01T00:00:00Z"]);
    }

    #[test]
    fn time_that_is_skipped_runs_at_the_change() {
        let spring = ["2027-03-27T01:30:00Z", "2027-03-28T01:00:00Z", "2027-03-29T00:30:00Z"];
        runs("30 2 * * *", "Europe/Berlin", "2027-03-27T00:30:00Z", &spring);
        // Both the time that is skipped and the one after it, which is the same moment, run once.
        let both = ["2027-03-28T01:00:00Z", "2027-03-29T00:00:00Z", "2027-03-29T01:00:00Z"];
        runs("0 2,3 * * *", "Europe/Berlin", "2027-03-27T23:30:00Z", &both);
        // Lord Howe Island sets its clocks by half an hour.
        runs(
            "15 2 * * *",
            "Australia/Lord_Howe",
            "2026-10-03T12:00:00Z",
            &["2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"],
        );
    }

    #[test]
    fn time_that_is_shown_twice_runs_once() {
        let autumn = ["2026-10-24T00:30:00Z", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"];
        runs("30 2 * * *", "Europe/Berlin", "2026-10-23T12:00:00Z", &autumn);
        // Between both showings.
        runs(
            "30 2 * * *",
            "Europe/Berlin",
            "2026-10-25T00:45:00Z",
            &["2026-10-26T01:30:00Z"],
        );
        runs(
            "0 1-3 * * *",
            "America/New_York",
            "2026-11-01T05:30:00Z",
            &["2026-11-01T07:00:00Z", "2026-11-01T08:00:00Z"],
        );
    }

    #[test]
    fn hours_that_pass_are_neither_skipped_nor_repeated() {
        let hourly = [
            "2026-10-24T23:10:00Z",
            "2026-10-25T00:10:00Z",
            "2026-10-25T01:10:00Z",
            "2026-10-25T02:10:00Z",
        ];
        runs("10 * * * *", "Europe/Berlin", "2026-10-24T22:30:00Z", &hourly);
        let hourly = ["2027-03-28T00:10:00Z", "2027-03-28T01:10:00Z", "2027-03-28T02:10:00Z"];
        runs("10 * * * *", "Europe/Berlin", "2027-03-27T23:30:00Z", &hourly);
        let zones = [
            "Europe/Berlin",
            "America/New_York",
            "Australia/Lord_Howe",
            "America/St_Johns",
            "Etc/UTC",
        ];
        for zone in zones {
            let cron = Cron::parse("* * * * *", zone).unwrap();
            for around in [
                "2026-10-24T20:00:00Z",
                "2026-10-31T20:00:00Z",
                "2027-03-13T20:00:00Z",
                "2027-03-27T20:00:00Z",
                "2027-04-03T10:00:00Z",
            ] {
                let mut last = at(around);
                for _ in 0..12 * 60 {
                    let next = cron.next(last).unwrap();
                    assert_eq!(next, last + SignedDuration::from_mins(1), "{zone}");
                    last = next;
                }
            }
        }
    }

    #[test]
    fn schedules_that_cannot_work_are_refused_by_name() {
        for (schedule, zone, text) in [
            (
                "0 3 * * *",
                "Europe/Atlantis",
                "timeZone \"Europe/Atlantis\" is not a time zone",
            ),
            ("0 3 * *", "Etc/UTC", "expected five fields"),
            ("@every 1h", "Etc/UTC", "expected five fields"),
            ("60 3 * * *", "Etc/UTC", "schedule \"60 3 * * *\": "),
            ("0 3 31 2 *", "Etc/UTC", "there is no such day"),
            ("0 3 L * *", "Etc/UTC", "\"L\" is neither a number nor the name"),
            ("0 3 * * 1L", "Etc/UTC", "\"1L\" is neither"),
            ("0 3 5-1 * *", "Etc/UTC", "schedule \"0 3 5-1 * *\": "),
            ("*/0 3 * * *", "Etc/UTC", "schedule \"*/0 3 * * *\": "),
        ] {
            let error = Cron::parse(schedule, zone).unwrap_err();
            assert!(error.contains(text) && !error.contains('\n'), "{schedule}: {error:?}");
        }
    }

    #[test]
    fn every_time_zone_is_compiled_in() {
        for zone in [
            "Etc/UTC",
            "UTC",
            "Europe/Berlin",
            "Asia/Kolkata",
            "America/Argentina/Buenos_Aires",
        ] {
            assert!(Cron::parse("@daily", zone).is_ok(), "{zone}");
        }
    }

    proptest! {
        /// The model: walks from time to time.
        #[test]
        fn newest_time_is_the_last_one_of_all(
            choice in 0..6_usize, zone in 0..3_usize, begin in 1_790_000_000..1_810_000_000_i64, length in 0..900_000_i64
        ) {
            let schedule = ["0 3 * * *", "*/7 * * * *", "30 2 * * 0", "@hourly", "0 0 1 * *", "15 1-3 * * *"][choice];
            let cron = Cron::parse(schedule, ["Etc/UTC", "Europe/Berlin", "America/New_York"][zone]).unwrap();
            let (after, until) = (Timestamp::from_second(begin).unwrap(), Timestamp::from_second(begin + length).unwrap());
            let mut expected = None;
            let mut next = cron.next(after).unwrap();
            while next <= until {
                expected = Some(next);
                let later = cron.next(next).unwrap();
                prop_assert!(later > next);
                next = later;
            }
            prop_assert_eq!(cron.newest(after, until), expected);
        }
    }
}

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

mod verifications {
    use super::*;

    const NOW: &str = "2026-11-24T12:00:00Z";

    fn weekly() -> KubeBrainBackupSchedule {
        schedule(&json!({"verify": "Weekly"}))
    }

    /// A complete backup, which was verified at this time with this result, if any.
    fn complete(time: &str, verified: Option<(&str, &str)>) -> KubeBrainBackup {
        let mut backup = backup(time, "Complete");
        let mut status = serde_json::to_value(backup.status.take().unwrap()).unwrap();
        status["backupName"] = json!(time);
        if let Some((time, result)) = verified {
            status["verification"] = json!({"handled": "x", "time": time, "result": result, "message": ""});
            backup
                .annotations_mut()
                .insert("kubebrain.io/verify".to_owned(), "x".to_owned());
        }
        backup.status = Some(serde_json::from_value(status).unwrap());
        backup
    }

    #[track_caller]
    fn check(schedule: &KubeBrainBackupSchedule, backups: &[KubeBrainBackup], expected: Option<&str>) {
        let plan = decide(schedule, backups, NOW);
        assert_eq!(plan.verify.as_ref().map(|wanted| wanted.name.as_str()), expected);
        if let Some(wanted) = plan.verify {
            assert_eq!(wanted.request, NOW);
            assert_eq!(wanted.uid, Some(format!("uid-{}", wanted.name)));
        }
    }

    #[test]
    fn newest_complete_backup_is_verified_once_the_last_verification_is_old() {
        let (old, new) = ("2026-11-22T03:00:00Z", "2026-11-23T03:00:00Z");
        let newest = Some("nightly-20261123030000");
        check(&weekly(), &[], None);
        check(&weekly(), &[backup(new, "Failed"), backup(old, "")], None);
        check(
            &weekly(),
            &[
                complete(old, None),
                complete(new, None),
                backup("2026-11-24T03:00:00Z", ""),
            ],
            newest,
        );
        let verified = |time: &str, result: &str| complete(old, Some((time, result)));
        for result in ["Verified", "Damaged"] {
            check(
                &weekly(),
                &[verified("2026-11-17T12:00:01Z", result), complete(new, None)],
                None,
            );
            check(
                &weekly(),
                &[verified("2026-11-17T12:00:00Z", result), complete(new, None)],
                newest,
            );
        }
        check(
            &schedule(&json!({"verify": "Daily"})),
            &[complete(new, Some(("2026-11-23T12:00:01Z", "Verified")))],
            None,
        );
        check(
            &schedule(&json!({"verify": "Monthly"})),
            &[verified("2026-11-10T12:00:00Z", "Verified")],
            None,
        );
        check(&schedule(&json!({})), &[complete(new, None)], None);
        check(
            &schedule(&json!({"verify": "Weekly", "suspend": true})),
            &[complete(new, None)],
            None,
        );
    }

    #[test]
    fn backup_that_could_not_be_read_is_tried_again_the_next_day() {
        let failed = |time: &str| complete("2026-11-23T03:00:00Z", Some((time, "Failed")));
        check(&weekly(), &[failed("2026-11-23T12:00:01Z")], None);
        check(
            &weekly(),
            &[failed("2026-11-23T12:00:00Z")],
            Some("nightly-20261123030000"),
        );
    }

    #[test]
    fn one_verification_is_asked_for_at_a_time() {
        let mut pending = complete("2026-11-22T03:00:00Z", None);
        pending
            .annotations_mut()
            .insert("kubebrain.io/verify".to_owned(), "now".to_owned());
        check(&weekly(), &[pending, complete("2026-11-23T03:00:00Z", None)], None);
    }

    #[test]
    fn backup_that_was_read_when_it_was_made_counts() {
        let mut read = complete("2026-11-22T03:00:00Z", None);
        read.spec.verify = true;
        check(&weekly(), &[read], None);
    }

    #[test]
    fn last_verification_outlives_its_backup() {
        let mut schedule = weekly();
        let plan = decide(
            &schedule,
            &[complete(
                "2026-11-20T03:00:00Z",
                Some(("2026-11-20T05:00:00Z", "Verified")),
            )],
            NOW,
        );
        carry_out(&mut schedule, plan, NOW);
        let last = schedule.status.clone().unwrap().last_verification_time;
        assert_eq!(last, Some(Time(at("2026-11-20T05:00:00Z"))));
        check(&schedule, &[complete("2026-11-23T03:00:00Z", None)], None);
    }
}
