use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::testing::FakeCluster;

fn record(id: &str, events: &Value) -> Value {
    json!({
        "schema_version": "1.6.0", "id": id, "modified": "2026-11-30T00:00:00Z", "summary": "writes are\n lost",
        "affected": [
            {"package": {"ecosystem": "Go", "name": "other"}, "ranges": [{"type": "SEMVER", "events": [{"introduced": "none"}]}]},
            {"package": {"ecosystem": "", "name": "kubebrain"}, "ranges": [
                {"type": "GIT", "repo": "x", "events": [{"introduced": "c0ffee"}]},
                {"type": "SEMVER", "events": events},
            ]},
        ],
    })
}

fn parse(record: &Value) -> Vec<Advisory> {
    let records = Advisory::parse(&record.to_string()).unwrap();
    records.into_iter().map(Result::unwrap).collect()
}

fn affected(advisory: &Advisory, versions: &[&str]) -> Vec<bool> {
    let versions = versions.iter().map(|version| Version::parse(version).unwrap());
    versions.map(|version| advisory.affects(&version)).collect()
}

#[test]
fn ranges_begin_and_end_with_their_events_in_any_order() {
    let versions = [
        "0.1.0",
        "0.2.0-rc.1",
        "0.2.0",
        "0.2.9",
        "0.3.0",
        "0.4.0",
        "0.4.1",
        "1.0.0",
    ];
    let events =
        json!([{"fixed": "0.3.0"}, {"introduced": "0.2.0"}, {"introduced": "0.4.0"}, {"last_affected": "0.4.0"}]);
    let found = parse(&record("A", &events));
    let expected = [false, false, true, true, false, true, false, false];
    assert_eq!(affected(&found[0], &versions), expected);
    let all = parse(&record("A", &json!([{"introduced": "0"}])));
    assert_eq!(affected(&all[0], &versions), [true; 8]);
    let unlimited = json!([{"introduced": "0"}, {"limit": "0.3.0"}, {"limit": "*"}]);
    assert_eq!(affected(&parse(&record("A", &unlimited))[0], &versions), [true; 8]);
    let limited = json!([{"limit": "0.3.0"}, {"limit": "0.2.0"}, {"introduced": "0"}]);
    let limited = parse(&record("A", &limited));
    let expected = [true, true, true, true, false, false, false, false];
    assert_eq!(affected(&limited[0], &versions), expected);
    let none = parse(&record("A", &json!([{"fixed": "0.3.0"}])));
    assert_eq!(affected(&none[0], &versions), [false; 8]);
}

#[test]
fn single_versions_lists_and_withdrawn_records_are_read() {
    let single = json!({"id": "B", "affected": [{"package": {"name": "kubebrain"}, "versions": ["v0.2.0"]}]});
    let mut withdrawn = record("C", &json!([{"introduced": "0"}]));
    withdrawn["withdrawn"] = json!("2026-11-30T00:00:00Z");
    let other = json!({"id": "D", "affected": [{"package": {"name": "etcd"}, "versions": ["0.2.0"]}]});
    let found = parse(&json!([single, withdrawn, other]));
    let ids: Vec<_> = found.iter().map(|advisory| advisory.id.as_str()).collect();
    assert_eq!(ids, ["B"]);
    assert_eq!(affected(&found[0], &["0.2.0", "0.2.1"]), [true, false]);
}

#[test]
fn file_without_records_is_refused_with_the_reason() {
    let events = json!([{"introduced": "0.2"}]);
    let good = record("B", &json!([{"introduced": "0"}]));
    let mut found = Advisory::parse(&json!([record("A", &events), good]).to_string())
        .unwrap()
        .into_iter();
    let error = found.next().unwrap().unwrap_err();
    assert!(error.starts_with("A: \"0.2\" is no version: "), "{error}");
    assert_eq!(found.next().unwrap().unwrap().id, "B", "one record hides no other");
    for (text, expected) in [("{}", "missing field `id`"), ("[1]", "invalid type")] {
        let error = Advisory::parse(text).unwrap().remove(0).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
    assert!(Advisory::parse("").unwrap_err().contains("EOF"));
    let nothing = json!({"id": "C", "summary": null, "affected": null});
    assert_eq!(parse(&nothing), []);
    let tags =
        json!({"id": "D", "affected": [{"package": {"name": "kubebrain"}, "versions": ["release-0.2", "0.2.0"]}]});
    assert_eq!(affected(&parse(&tags)[0], &["0.2.0", "0.2.1"]), [true, false]);
    let commits = json!({"id": "E", "affected": [{"package": {"name": "kubebrain"}, "ranges": [{"type": "GIT"}]}]});
    let error = Advisory::parse(&commits.to_string()).unwrap().remove(0).unwrap_err();
    assert_eq!(error, "E: it has neither a range of versions nor versions");
}

fn known(records: &[Value]) -> KnownAdvisories {
    KnownAdvisories {
        advisories: records.iter().flat_map(parse).collect(),
        files: records.len(),
        unreadable: Vec::new(),
    }
}

fn say(known: &KnownAdvisories, versions: &[&str]) -> String {
    said(condition(&[], known, &reported(versions)))
}

fn reported(versions: &[&str]) -> MemberVersions {
    MemberVersions {
        reported: versions.iter().map(|version| (*version).to_owned()).collect(),
        is_partial: false,
    }
}

fn said(condition: Option<ConditionUpdate>) -> String {
    condition.map_or_else(String::new, |it| {
        format!("{} {}: {}", it.status.as_str(), it.reason, it.message)
    })
}

#[test]
fn condition_names_the_advisories_and_what_fixes_them() {
    let events = json!([{"introduced": "0.2.0"}, {"fixed": "0.2.3"}, {"introduced": "0.3.0"}, {"fixed": "0.3.1"}]);
    let one = known(&[record("A", &events)]);
    assert_eq!(
        say(&one, &["0.2.0"]),
        "True KnownAdvisories: A affects 0.2.0 (fixed in 0.2.3): writes are lost"
    );
    // Members differ during a roll-out.
    let both = "True KnownAdvisories: A affects 0.3.0 (fixed in 0.3.1): writes are lost";
    assert_eq!(say(&one, &["0.3.0", "0.3.1"]), both);
    assert_eq!(
        say(&one, &["0.3.1"]),
        "False AsExpected: no advisory is about the version of a member"
    );
    assert_eq!(
        say(&one, &["0.3.1", "\u{1b}[31m"]),
        "Unknown UnknownVersion: a member reports \"\\u{1b}[31m\", which is no version"
    );
    assert!(say(&one, &["0.3.0", "x"]).starts_with("True KnownAdvisories: A affects 0.3.0 "));
    let former = record("A", &json!([{"introduced": "0"}, {"fixed": "0.2.0"}]));
    let twice = known(&[former, record("A", &events), record("A", &events)]);
    assert_eq!(say(&twice, &["0.3.0"]), both);
    assert_eq!(say(&one, &[]), "", "no member has answered");
    assert_eq!(say(&KnownAdvisories::default(), &["0.2.0"]), "");
    let last = known(&[record("A", &json!([{"introduced": "0"}, {"last_affected": "0.2.0"}]))]);
    assert!(say(&last, &["0.2.0+build.7"]).starts_with("True KnownAdvisories: A affects 0.2.0 "));
    let unfixed = known(&[record("A", &json!([{"introduced": "0"}]))]);
    assert_eq!(
        say(&unfixed, &["0.2.0"]),
        "True KnownAdvisories: A affects 0.2.0 (no version fixes it): writes are lost"
    );
}

#[test]
fn condition_stays_while_a_member_that_was_affected_may_be_silent() {
    let one = known(&[record("A", &json!([{"introduced": "0"}, {"fixed": "0.2.1"}]))]);
    let mut members = reported(&["0.2.1"]);
    members.is_partial = true;
    let none = said(condition(&[], &one, &members));
    assert_eq!(none, "False AsExpected: no advisory is about the version of a member");
    let mut former: Condition = serde_json::from_value(json!({
        "type": CONDITION, "status": "True", "reason": "KnownAdvisories", "message": "A affects 0.2.0",
        "lastTransitionTime": "2026-11-30T00:00:00Z",
    }))
    .unwrap();
    let before = std::slice::from_ref(&former);
    assert_eq!(
        said(condition(before, &one, &members)),
        "True KnownAdvisories: A affects 0.2.0"
    );
    members.is_partial = false;
    assert_eq!(said(condition(before, &one, &members)), none);
    members.is_partial = true;
    let other = known(&[record("B", &json!([{"introduced": "0"}, {"fixed": "0.2.1"}]))]);
    assert_eq!(
        said(condition(before, &other, &members)),
        none,
        "the advisory was withdrawn"
    );
    former.reason = "UnknownVersion".to_owned();
    let kept = said(condition(&[former.clone()], &one, &members));
    assert_eq!(kept, "True UnknownVersion: A affects 0.2.0");
    former.reason = "InvalidAdvisories".to_owned();
    assert_eq!(said(condition(&[former], &one, &members)), none);
}

#[test]
fn condition_is_bounded_and_says_what_cannot_be_read() {
    let mut many = known(&Vec::from_iter(
        (0..8).map(|n| record(&format!("A{n}"), &json!([{"introduced": "0"}]))),
    ));
    for advisory in &mut many.advisories {
        advisory.summary = "long ".repeat(1_000);
    }
    let said = say(&many, &["0.2.0"]);
    assert!(
        said.contains("A4 affects") && said.ends_with("; and 3 more") && said.len() < 1_500,
        "{said}"
    );
    let mut damaged = known(&[record("A", &json!([{"introduced": "0.3.0"}]))]);
    damaged.unreadable.push("b.json: EOF".to_owned());
    assert_eq!(
        say(&damaged, &["0.2.0"]),
        "Unknown InvalidAdvisories: the operator cannot read all advisories: b.json: EOF"
    );
    assert!(say(&damaged, &["0.3.0"]).starts_with("True KnownAdvisories: A affects 0.3.0"));
}

#[test]
fn status_has_the_condition_and_keeps_it_while_no_member_answers() {
    let mut fake = FakeCluster::settled(json!({}));
    assert_eq!(fake.condition(CONDITION), "absent");
    fake.seen.advisories = known(&[record("A", &json!([{"introduced": "0"}]))]).into();
    fake.settle();
    assert_eq!(fake.condition(CONDITION), "True/KnownAdvisories");
    assert_eq!(
        fake.condition("Ready"),
        "True/AsExpected",
        "a cluster that is affected serves"
    );
    fake.seen.advisories = Arc::default();
    fake.settle();
    assert_eq!(fake.condition(CONDITION), "absent");
}
