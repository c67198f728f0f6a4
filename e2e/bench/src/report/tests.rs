use super::*;

#[test]
fn medians_stand_side_by_side() {
    let mut report = Report::default();
    for value in [30.0, 10.0, 20.0] {
        report.add("updates", Unit::PerSecond, "kubebrain", value);
    }
    report.add("updates", Unit::PerSecond, "etcd", 8.0);
    report.add("updates", Unit::PerSecond, "etcd", 12.0);
    report.add("idle", Unit::Percent, "kubebrain", 0.5);
    let table = report.table();
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let lines: Vec<_> = table.lines().skip(1).map(words).collect();
    assert_eq!(lines[0], ["updates", "20.00", "10.00", "2.00", "/s"]);
    assert_eq!(lines[1], ["idle", "0.50", "-", "-", "%"]);
    assert_eq!(report.json()[0]["median"]["etcd"], 10.0);
    report.add("updates", Unit::PerSecond, "kine", 5.0);
    let table = report.table();
    let lines: Vec<_> = table.lines().map(words).collect();
    assert_eq!(lines[0], ["kubebrain", "etcd", "ratio", "kine", "ratio", "unit"]);
    assert_eq!(lines[1], ["updates", "20.00", "10.00", "2.00", "5.00", "0.50", "/s"]);
    assert_eq!(lines[2], ["idle", "0.50", "-", "-", "-", "-", "%"]);
}

#[test]
fn reports_of_several_runs_are_one() {
    let mut first = Report::default();
    first.add("updates", Unit::PerSecond, "kubebrain", 1.0);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), first.json().to_string()).unwrap();
    let mut all = Report::default();
    all.add("updates", Unit::PerSecond, "kubebrain", 3.0);
    all.read(file.path()).unwrap();
    assert_eq!(all.0.len(), 1);
    assert_eq!(all.0[0].measured["kubebrain"], [3.0, 1.0]);
    std::fs::write(file.path(), "{}").unwrap();
    assert!(all.read(file.path()).is_err());
}

#[test]
fn units_are_stored_by_their_names() {
    let units = [
        Unit::PerSecond,
        Unit::MicrosEach,
        Unit::BytesEach,
        Unit::Mib,
        Unit::Seconds,
        Unit::Millis,
        Unit::Percent,
        Unit::Share,
        Unit::Times,
    ];
    for unit in units {
        assert_eq!(serde_json::to_value(unit).unwrap(), unit.name());
    }
}
