//! Answers of brains that are correct, and false ones.

use serde_json::{Value, json};

use super::*;
use crate::testing::full;

fn parse(value: &Value) -> Result<MemberAnswer, String> {
    MemberAnswer::parse(value.to_string().as_bytes())
}

fn with(change: impl FnOnce(&mut Value)) -> Value {
    let mut value = full();
    change(&mut value);
    value
}

#[test]
fn answer_is_read_whole() {
    let digest = "0123456789abcdef".repeat(4);
    let until = |text: &str| CertificateInUse {
        fingerprint: digest.clone(),
        not_after: text.parse().unwrap(),
    };
    let expected = MemberAnswer {
        name: "dev-0".to_owned(),
        member: 0x8e9e_05c5_2164_694d,
        cluster: Some("00000000000000ff".to_owned()),
        role: BrainRole::Follower,
        leader: Some(KnownLeader {
            name: "dev-1".to_owned(),
            member: 16,
        }),
        epoch: 7,
        ready: true,
        version: "0.1.0".to_owned(),
        formats: StoredFormats {
            lowest: 1,
            highest: 3,
            written: 2,
        },
        revision: 1234,
        alarms: vec!["NOSPACE".to_owned()],
        storage: MemberStorage {
            type_: "TiKV".to_owned(),
            cluster_id: Some("7401234567890123456".to_owned()),
            reachable: true,
            directory: None,
        },
        space: Some(MemberSpace {
            bytes: 5,
            quota_bytes: Some(7),
            disk: Some(DiskSpace {
                bytes: 11,
                available_bytes: 3,
                needed_bytes: 2,
            }),
        }),
        tls: Some(LoadedCertificates {
            trust_bundle: digest.clone(),
            server: until("2027-01-01T00:00:00Z"),
            peer: Some(until("2027-01-02T00:00:00Z")),
            peer_trust_bundle: Some(digest.clone()),
        }),
    };
    assert_eq!(parse(&full()).unwrap(), expected);
    assert!(!expected.is_leader());
    let plain = with(|value| {
        value["tls"] = json!(null);
        value["leader"] = json!(null);
        value["role"] = json!("None");
        value["storage"] = json!({"type": "Embedded", "clusterID": null, "reachable": true});
    });
    let plain = parse(&plain).unwrap();
    assert_eq!((plain.tls, plain.leader, plain.storage.cluster_id), (None, None, None));
    let trusting_nobody = parse(&with(|value| value["tls"]["trustBundle"] = json!(""))).unwrap();
    assert_eq!(trusting_nobody.tls.unwrap().trust_bundle, "");
}

#[test]
fn malformed_answer_is_refused() {
    let deep = format!("{{\"name\":{}{}}}", "[".repeat(20_000), "]".repeat(20_000));
    for body in ["", "{", "null", "\u{0}\u{1}", "[1,2]", &deep] {
        let error = MemberAnswer::parse(body.as_bytes()).unwrap_err();
        assert!(error.starts_with("its answer cannot be decoded"), "{error}");
        assert!(error.len() < 400, "{error}");
    }
    let changes: [fn(&mut Value); 11] = [
        |value| value["memberID"] = json!("+1"),
        |value| value["memberID"] = json!(""),
        |value| value["memberID"] = json!("0123456789abcdef0"),
        |value| value["memberID"] = json!(5),
        |value| value["leader"]["memberID"] = json!("x"),
        |value| value["role"] = json!("King"),
        |value| value["epoch"] = json!(1.5),
        |value| value["storage"]["clusterID"] = json!("12a"),
        |value| value["tls"]["trustBundle"] = json!("12"),
        |value| value["tls"]["server"]["notAfter"] = json!("tomorrow"),
        |value| drop(value.as_object_mut().unwrap().remove("ready")),
    ];
    for change in changes {
        let error = parse(&with(change)).unwrap_err();
        assert!(error.starts_with("its answer cannot be decoded"), "{error}");
    }
}

#[test]
fn unknown_fields_are_skipped_however_deep() {
    let nested = format!("{{\"later\": {}{}, ", "[".repeat(20_000), "]".repeat(20_000));
    let body = full().to_string().replacen('{', &nested, 1);
    assert_eq!(MemberAnswer::parse(body.as_bytes()), parse(&full()));
}

#[test]
fn contradictory_answer_is_refused() {
    let other = with(|value| value["role"] = json!("Leader"));
    assert!(parse(&other).unwrap_err().contains("contradicts itself"));
    let itself = with(|value| value["leader"]["memberID"] = value["memberID"].clone());
    assert!(parse(&itself).unwrap_err().contains("contradicts itself"));
    let leads = with(|value| {
        value["role"] = json!("Leader");
        value["leader"]["memberID"] = value["memberID"].clone();
    });
    assert!(parse(&leads).unwrap().is_leader());
}

#[test]
fn texts_are_cut_and_cleaned() {
    let long = "ü".repeat(1000);
    let answer = parse(&with(|value| {
        value["name"] = json!(long);
        value["version"] = json!(format!("1\n2\u{1b}[31m{long}"));
        value["leader"]["name"] = json!(long);
        value["alarms"] = json!(vec![format!("\r{long}"); 1000]);
        value["epoch"] = json!(-5);
        value["revision"] = json!(-5);
    }))
    .unwrap();
    assert_eq!((answer.name.len(), answer.leader.unwrap().name.len()), (252, 252));
    assert_eq!((&answer.version[..6], answer.version.len()), ("12[31m", 64));
    assert_eq!((answer.alarms.len(), answer.alarms[0].len()), (64, 256));
    assert_eq!((answer.epoch, answer.revision), (0, 0));
}
