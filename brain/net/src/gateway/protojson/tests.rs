use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost::Message as _;

use super::*;
use crate::gateway::methods::{MethodLookup, find};
use crate::gateway::syntax;

/// Results of etcd's gateway for JSON: a line with the kind of message and the JSON, in which `␤` is a line end, and a line with the
/// encoded message or the error. They were written by Go's `encoding/json` and `protojson`.
const ANSWERS: &str = include_str!("answers.txt");

fn input(path: &str) -> MessageDescriptor {
    let MethodLookup::Method(method) = find(path) else {
        panic!("no method {path}")
    };
    method.input.clone()
}

fn read(json: &str, kind: &MessageDescriptor) -> Result<DynamicMessage, String> {
    let value = syntax::check(json.as_bytes())?;
    decode(&json.as_bytes()[..value.len], kind)
}

#[test]
fn json_is_read_as_by_go() {
    let lines: Vec<&str> = ANSWERS.lines().collect();
    assert!(lines.len() > 100);
    for pair in lines.chunks(2) {
        let (kind, json) = pair[0].split_once(' ').unwrap();
        let json = json.replace('\u{2424}', "\n");
        let path = match kind {
            "range" => "/v3/kv/range",
            "put" => "/v3/kv/put",
            _ => "/v3/kv/txn",
        };
        let answer = match read(&json, &input(path)) {
            Ok(message) => format!("OK {}", STANDARD.encode(message.encode_to_vec())),
            Err(error) => format!("ERR {error}"),
        };
        assert_eq!(answer, pair[1].trim_start(), "{json}");
    }
}

#[test]
fn nesting_ends_where_messages_cannot_be_decoded_any_more() {
    let nested = |depth: usize| {
        let (begin, end) = (r#"{"success":[{"requestTxn":"#, "}]}");
        format!("{}{{}}{}", begin.repeat(depth), end.repeat(depth))
    };
    let txn = input("/v3/kv/txn");
    let message = read(&nested(MAX_DEPTH / 2), &txn).unwrap();
    DynamicMessage::decode(txn.clone(), message.encode_to_vec().as_slice()).unwrap();
    let error = read(&nested(MAX_DEPTH / 2 + 1), &txn).unwrap_err();
    assert_eq!(error, "proto: exceeded max recursion depth");
    // Unknown fields may be deeper.
    let deep = format!(r#"{{"x":{}{}}}"#, "[".repeat(9_000), "]".repeat(9_000));
    read(&deep, &txn).unwrap();
}

#[test]
fn invalid_text_is_refused() {
    for (json, error) in [
        (
            &b"{\"key\":\"\xff\"}"[..],
            "proto: syntax error (line 1:8): invalid UTF-8 in string",
        ),
        (
            b"{\"x\":\"\xff\"}",
            "proto: syntax error (line 1:6): invalid UTF-8 in string",
        ),
    ] {
        assert_eq!(decode(json, &input("/v3/kv/range")).unwrap_err(), error);
    }
    // The decoder is never called with text that the syntax check refuses, but it must end for it, too.
    for json in [
        "",
        "{",
        "{\"key\"",
        "{\"key\":",
        "{\"success\":[",
        "{\"x\":[",
        "]",
        "{\"key\":\"\\",
    ] {
        assert!(decode(json.as_bytes(), &input("/v3/kv/txn")).is_err(), "{json}");
    }
}

#[test]
fn errors_repeat_the_beginning_of_what_they_refuse() {
    let long = "\u{e4}".repeat(MAX_ECHO_BYTES);
    for json in [
        format!(r#"{{"limit":"{long}"}}"#),
        format!("{{\"limit\":{}.5}}", "1".repeat(2 * MAX_ECHO_BYTES)),
    ] {
        let error = read(&json, &input("/v3/kv/range")).unwrap_err();
        assert!(error.len() < MAX_ECHO_BYTES + 100, "{error}");
    }
}
