//! A script as text: one JSON object a line, which can be read, changed and run again.
//!
//! Long runs of one letter in a value of bytes are written as `<letter>*<times>`.

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost::Message;
use serde_json::{Map, Value, json};

use super::json;
use super::request::{By, Request, Step};

const RUN: usize = 64;

/// All steps, one a line.
///
/// # Errors
///
/// A message does not encode.
pub fn write(steps: &[Step]) -> anyhow::Result<String> {
    let lines: anyhow::Result<Vec<String>> = steps.iter().map(line).collect();
    Ok(lines?.join("\n") + "\n")
}

/// Reads what [`write()`] wrote. Empty lines and those that begin with `#` are left out.
///
/// # Errors
///
/// A line is not a step.
pub fn read(text: &str) -> anyhow::Result<Vec<Step>> {
    let lines = text.lines().enumerate();
    let steps = lines.filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    steps
        .map(|(at, line)| step(line).with_context(|| format!("line {}", at + 1)))
        .collect()
}

/// A step as one line.
///
/// # Errors
///
/// The message does not encode.
pub fn line(step: &Step) -> anyhow::Result<String> {
    let mut line = Map::new();
    if let Some(By { user, header }) = &step.by {
        line.insert("by".to_owned(), json!(user));
        line.insert("header".to_owned(), json!(header));
    }
    if step.gateway {
        line.insert("gateway".to_owned(), json!(true));
    }
    let (call, parts) = parts(&step.request)?;
    line.insert("call".to_owned(), json!(call));
    for (name, value) in parts {
        line.insert(name.to_owned(), value);
    }
    let mut line = Value::Object(line);
    each_text(&mut line, &shorten);
    Ok(line.to_string())
}

type Parts = Vec<(&'static str, Value)>;

fn parts(request: &Request) -> anyhow::Result<(&'static str, Parts)> {
    if let Some((rpc, bytes)) = request.unary() {
        return Ok((
            rpc.method,
            vec![("request", json::of_bytes(&json::input(rpc.method)?, &bytes)?)],
        ));
    }
    Ok(match request {
        Request::Grant(grant, name) => {
            let grant = form("etcdserverpb.LeaseGrantRequest", grant)?;
            ("grant", vec![("request", grant), ("name", json!(name))])
        }
        Request::GrantShort(grant) => (
            "grant short",
            vec![("request", form("etcdserverpb.LeaseGrantRequest", grant)?)],
        ),
        Request::KeepAlive(keep) => (
            "keep alive",
            vec![("request", form("etcdserverpb.LeaseKeepAliveRequest", keep)?)],
        ),
        Request::Watch { stream, fresh, create } => {
            let create = form("etcdserverpb.WatchCreateRequest", create)?;
            (
                "watch",
                vec![("stream", json!(stream)), ("fresh", json!(fresh)), ("request", create)],
            )
        }
        Request::Cancel { stream, id, known } => (
            "cancel",
            vec![("stream", json!(stream)), ("id", json!(id)), ("known", json!(known))],
        ),
        Request::Settle { stream, revision } => {
            ("settle", vec![("stream", json!(stream)), ("revision", json!(revision))])
        }
        Request::LockBehind(lock, unlock) => {
            let unlock = form("v3lockpb.UnlockRequest", unlock)?;
            (
                "lock behind",
                vec![("request", form("v3lockpb.LockRequest", lock)?), ("ahead", unlock)],
            )
        }
        Request::CampaignBehind(campaign, resign) => {
            let campaign = form("v3electionpb.CampaignRequest", campaign)?;
            (
                "campaign behind",
                vec![
                    ("request", campaign),
                    ("ahead", form("v3electionpb.ResignRequest", resign)?),
                ],
            )
        }
        Request::Observe(observe) => (
            "observe",
            vec![("request", form("v3electionpb.LeaderRequest", observe)?)],
        ),
        Request::Snapshot => ("snapshot", vec![]),
        other => bail!("no form of {}", other.method()),
    })
}

fn form(name: &str, message: &impl Message) -> anyhow::Result<Value> {
    json::of_bytes(&json::message(name)?, &message.encode_to_vec())
}

fn step(line: &str) -> anyhow::Result<Step> {
    let mut line: Value = serde_json::from_str(line)?;
    each_text(&mut line, &lengthen);
    let text = |name: &str| line[name].as_str().map(str::to_owned);
    let by = match (text("by"), text("header")) {
        (Some(user), Some(header)) => Some(By { user, header }),
        (None, None) => None,
        _ => bail!("one of \"by\" and \"header\" is missing"),
    };
    Ok(Step {
        request: request(&line)?,
        by,
        gateway: line["gateway"].as_bool().unwrap_or(false),
    })
}

fn request(line: &Value) -> anyhow::Result<Request> {
    let number = |name: &str| line[name].as_i64().with_context(|| format!("{name:?} is not a number"));
    let flag = |name: &str| {
        line[name]
            .as_bool()
            .with_context(|| format!("{name:?} is not true or false"))
    };
    let stream = || anyhow::Ok(usize::try_from(number("stream")?)?);
    let call = line["call"].as_str().context("no \"call\"")?;
    Ok(match call {
        "grant" => Request::Grant(
            part(line, "request", "etcdserverpb.LeaseGrantRequest")?,
            number("name")?,
        ),
        "grant short" => Request::GrantShort(part(line, "request", "etcdserverpb.LeaseGrantRequest")?),
        "keep alive" => Request::KeepAlive(part(line, "request", "etcdserverpb.LeaseKeepAliveRequest")?),
        "watch" => Request::Watch {
            stream: stream()?,
            fresh: flag("fresh")?,
            create: part(line, "request", "etcdserverpb.WatchCreateRequest")?,
        },
        "cancel" => Request::Cancel {
            stream: stream()?,
            id: number("id")?,
            known: flag("known")?,
        },
        "settle" => Request::Settle {
            stream: stream()?,
            revision: number("revision")?,
        },
        "lock behind" => Request::LockBehind(
            part(line, "request", "v3lockpb.LockRequest")?,
            part(line, "ahead", "v3lockpb.UnlockRequest")?,
        ),
        "campaign behind" => Request::CampaignBehind(
            part(line, "request", "v3electionpb.CampaignRequest")?,
            part(line, "ahead", "v3electionpb.ResignRequest")?,
        ),
        "observe" => Request::Observe(part(line, "request", "v3electionpb.LeaderRequest")?),
        "snapshot" => Request::Snapshot,
        method => Request::of_unary(method, &line["request"])?,
    })
}

fn part<M: Message + Default>(line: &Value, part: &str, name: &str) -> anyhow::Result<M> {
    Ok(M::decode(
        json::to_bytes(&json::message(name)?, &line[part])?.as_slice(),
    )?)
}

fn each_text(value: &mut Value, change: &impl Fn(&str) -> Option<String>) {
    match value {
        Value::String(text) => {
            if let Some(changed) = change(text) {
                *text = changed;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| each_text(item, change)),
        Value::Object(fields) => fields.values_mut().for_each(|field| each_text(field, change)),
        _ => {}
    }
}

fn shorten(text: &str) -> Option<String> {
    if text.len() < RUN {
        return None;
    }
    let bytes = STANDARD.decode(text).ok()?;
    let first = *bytes.first().filter(|byte| byte.is_ascii_lowercase())?;
    let is_run = bytes.iter().all(|byte| *byte == first);
    is_run.then(|| format!("{}*{}", char::from(first), bytes.len()))
}

fn lengthen(text: &str) -> Option<String> {
    let (letter, times) = text.split_once('*')?;
    let letter = *letter.as_bytes().first()?;
    Some(STANDARD.encode(vec![letter; times.parse().ok()?]))
}

#[cfg(test)]
mod tests {
    use super::super::script::Script;
    use super::*;

    #[test]
    fn script_is_read_as_it_was_written() {
        let mut calls = std::collections::BTreeSet::new();
        for seed in 0..30 {
            let mut script = Script::new(seed);
            let steps: Vec<Step> = (0..1_000).filter_map(|n| script.next(n > 900)).collect();
            calls.extend(steps.iter().map(|step| step.request.method()));
            let text = write(&steps).unwrap();
            let again = read(&format!("# a comment\n\n{text}")).unwrap();
            for (step, again) in steps.iter().zip(&again) {
                assert_eq!(again, step);
            }
            assert_eq!(again.len(), steps.len());
        }
        assert!(calls.len() > 40, "{calls:?}");
    }

    #[test]
    fn lines_that_are_no_steps_are_named() {
        for (text, wanted) in [
            ("{", "line 1"),
            (r#"{"call":"etcdserverpb.KV/Nothing","request":{}}"#, "no method"),
            (r#"{"call":"settle","stream":0}"#, "revision"),
            (r#"{"call":"etcdserverpb.KV/Range","request":{},"by":"u"}"#, "header"),
        ] {
            let error = format!("{:#}", read(text).unwrap_err());
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
