//! A step with less in it.

use serde_json::Value;

use crate::request::Step;
use crate::text;

/// Fields of a step that say what it is.
const KEPT_FIELDS: &[&str] = &["call", "name", "stream", "fresh", "known", "id", "revision"];

/// Steps that are simpler by one thing each: sent over gRPC, without a user, without a field, an element of a list, or a part of a value.
pub(super) fn simpler(step: &Step) -> anyhow::Result<Vec<Step>> {
    let mut simpler = Vec::new();
    if step.gateway {
        simpler.push(Step {
            gateway: false,
            ..step.clone()
        });
    }
    if step.by.is_some() {
        simpler.push(Step {
            by: None,
            ..step.clone()
        });
    }
    let whole: Value = serde_json::from_str(&text::line(step)?)?;
    let Value::Object(parts) = &whole else {
        return Ok(simpler);
    };
    for (name, part) in parts.iter().filter(|(name, _)| !KEPT_FIELDS.contains(&name.as_str())) {
        for less in less(part) {
            let mut line = parts.clone();
            line.insert(name.clone(), less);
            let changed = text::read(&Value::Object(line).to_string());
            // Not everything that is left is a message.
            simpler.extend(
                changed
                    .unwrap_or_default()
                    .into_iter()
                    .filter(|changed| changed != step),
            );
        }
    }
    Ok(simpler)
}

/// The values that have one thing less. Large parts are removed first.
fn less(value: &Value) -> Vec<Value> {
    let mut found = Vec::new();
    match value {
        Value::Object(fields) => {
            for name in fields.keys() {
                let mut rest = fields.clone();
                rest.remove(name);
                found.push(Value::Object(rest));
            }
            for (name, field) in fields {
                found.extend(less(field).into_iter().map(|field| {
                    let mut changed = fields.clone();
                    changed.insert(name.clone(), field);
                    Value::Object(changed)
                }));
            }
        }
        Value::Array(items) => {
            for half in [&items[..items.len() / 2], &items[items.len() / 2..]] {
                if items.len() > 3 {
                    found.push(Value::Array(half.to_vec()));
                }
            }
            for at in 0..items.len() {
                let mut rest = items.clone();
                rest.remove(at);
                found.push(Value::Array(rest));
            }
            for (at, item) in items.iter().enumerate() {
                found.extend(less(item).into_iter().map(|item| {
                    let mut changed = items.clone();
                    changed[at] = item;
                    Value::Array(changed)
                }));
            }
        }
        _ => {}
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_has_one_thing_less() {
        let value = json!({"a": [1, 2], "b": {"c": "d"}});
        let expected = [
            json!({"b": {"c": "d"}}),
            json!({"a": [1, 2]}),
            json!({"a": [2], "b": {"c": "d"}}),
            json!({"a": [1], "b": {"c": "d"}}),
            json!({"a": [1, 2], "b": {}}),
        ];
        assert_eq!(less(&value), expected);
        assert_eq!(less(&json!("text")), Vec::<Value>::new());
        assert!(less(&json!([1, 2, 3, 4, 5, 6])).contains(&json!([4, 5, 6])));
    }

    #[test]
    fn a_step_over_the_gateway_by_somebody_is_sent_plainly() {
        let text = r#"{"by":"u","header":"token","gateway":true,"call":"etcdserverpb.KV/Put","request":{"key":"YQ==","prevKv":true}}"#;
        let step = text::read(text).unwrap().remove(0);
        let simpler = simpler(&step).unwrap();
        assert_eq!(simpler.len(), 4, "{simpler:?}");
        assert!(!simpler[0].gateway && simpler[1].by.is_none());
        assert!(simpler.iter().all(|simpler| *simpler != step));
        let settle = text::read(r#"{"call":"settle","stream":1,"revision":9}"#)
            .unwrap()
            .remove(0);
        assert_eq!(super::simpler(&settle).unwrap(), []);
    }
}
