//! When a schedule has a backup verified.

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
fn verification_that_waits_holds_up_others_for_a_day() {
    let asked = |time: &str, request: &str, reason: &str| {
        let mut backup = complete(time, None);
        let request = ("kubebrain.io/verify".to_owned(), request.to_owned());
        backup.annotations_mut().extend([request]);
        let mut status = serde_json::to_value(backup.status.take().unwrap()).unwrap();
        let condition = json!({"type": "Verified", "status": "Unknown", "reason": reason, "message": "", "lastTransitionTime": time});
        status["conditions"].as_array_mut().unwrap().push(condition);
        backup.status = Some(serde_json::from_value(status).unwrap());
        backup
    };
    let (old, new) = ("2026-11-22T03:00:00Z", "2026-11-23T03:00:00Z");
    let (recent, day_ago) = ("2026-11-23T12:00:01Z", "2026-11-23T12:00:00Z");
    let newest = Some("nightly-20261123030000");
    for (request, reason, expected) in [
        (recent, "WaitingForObject", None),
        (day_ago, "WaitingForObject", newest),
        (day_ago, "OwnershipConflict", newest),
        ("now", "WaitingForObject", newest),
        (day_ago, "Verifying", None),
        (day_ago, "VerificationFailed", None),
    ] {
        check(&weekly(), &[asked(old, request, reason), complete(new, None)], expected);
    }
    // It is not asked for again each time.
    check(
        &weekly(),
        &[complete(old, None), asked(new, day_ago, "WaitingForObject")],
        None,
    );
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
