//! The times of schedules: cron expressions and time zones.

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
