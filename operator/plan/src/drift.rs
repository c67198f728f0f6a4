//! Detects drift: compares a live object with the rendered one without a write to the API server.
//!
//! There are two checks. A hash of the rendered object in an annotation finds fields that must be removed. A comparison of every rendered
//! field with the live object finds changes by others. Fields that others added, above all defaults of the API server, do not count.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::quantity;

/// Annotation with the hash of the object as it was rendered.
pub const APPLIED_HASH: &str = "kubebrain.io/applied-hash";

/// Annotation of a pod template with the time of the newest restart request, as kubectl sets it.
pub const RESTARTED_AT: &str = "kubectl.kubernetes.io/restartedAt";

/// Puts the hash of `body` into its annotations. It omits data, which the comparison covers and whose keys must not be hashed, and claim
/// templates, which never change whatever the spec says.
pub fn stamp(body: &mut Value) {
    let mut hashed = body.clone();
    if let Some(object) = hashed.as_object_mut() {
        object.remove("data");
    }
    if let Some(spec) = hashed.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("volumeClaimTemplates");
    }
    // Maps of serde_json are ordered by key, so equal objects have equal texts.
    let digest = Sha256::digest(hashed.to_string().as_bytes());
    let text: String = digest.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    body["metadata"]["annotations"][APPLIED_HASH] = Value::String(text);
}

/// Returns a hash over the parts of a pod template whose change needs a restart: all but labels and annotations, plus the annotation that
/// requests a restart. The callers remove parts that reach pods in place.
pub fn restart_hash(template: &Value) -> String {
    let wish = template["metadata"]["annotations"].get(RESTARTED_AT);
    digest(&json!({"spec": template["spec"], "restartedAt": wish}))
}

/// Returns a short hash of a value.
pub fn digest(value: &Value) -> String {
    // Maps of serde_json are ordered by key, so equal values have equal texts.
    let digest = Sha256::digest(value.to_string().as_bytes());
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Returns true if `live` has every field of `rendered`, with the same value.
pub fn is_within(rendered: &Value, live: &Value) -> bool {
    match (rendered, live) {
        (Value::Object(rendered), Value::Object(live)) => rendered.iter().all(|(key, value)| {
            let absent = value.is_null() || is_empty(value);
            live.get(key).map_or(absent, |live| is_within(value, live))
        }),
        (Value::Array(rendered), Value::Array(live)) => is_list_within(rendered, live),
        (Value::String(rendered), Value::String(live)) => rendered == live || same_quantity(rendered, live),
        (rendered, live) => rendered == live,
    }
}

/// Returns the first field of `rendered` that `live` lacks or has with another value: `spec.replicas`.
pub fn difference(rendered: &Value, live: &Value) -> Option<String> {
    let (Value::Object(rendered), Value::Object(live)) = (rendered, live) else {
        return (!is_within(rendered, live)).then(String::new);
    };
    rendered.iter().find_map(|(key, value)| {
        let inner = match live.get(key) {
            None if value.is_null() || is_empty(value) => None,
            None => Some(String::new()),
            Some(live) => difference(value, live),
        }?;
        Some(if inner.is_empty() {
            key.clone()
        } else {
            format!("{key}.{inner}")
        })
    })
}

fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(serde_json::Map::is_empty)
}

/// Entries with a name are matched by it, so that others may add their own; other lists are compared as a whole.
fn is_list_within(rendered: &[Value], live: &[Value]) -> bool {
    let named = |list: &[Value]| list.iter().all(|entry| entry.get("name").is_some_and(Value::is_string));
    if !rendered.is_empty() && named(rendered) && named(live) {
        return rendered.iter().all(|wanted| {
            live.iter()
                .any(|entry| entry.get("name") == wanted.get("name") && is_within(wanted, entry))
        });
    }
    rendered.len() == live.len()
        && rendered
            .iter()
            .zip(live)
            .all(|(wanted, entry)| is_within(wanted, entry))
}

/// The API server writes `1000m` as `1`.
fn same_quantity(one: &str, other: &str) -> bool {
    let parse = |text: &str| quantity::parse(&Quantity(text.to_owned()));
    matches!((parse(one), parse(other)), (Some(one), Some(other)) if one == other)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(rendered: Value, live: Value, within: bool) {
        assert_eq!(is_within(&rendered, &live), within, "{rendered} in {live}");
    }

    #[test]
    fn added_fields_are_no_drift() {
        check(json!({"a": 1}), json!({"a": 1, "b": 2}), true);
        check(
            json!({"c": [{"name": "x", "image": "i"}]}),
            json!({"c": [{"name": "y"}, {"name": "x", "image": "i", "d": 1}]}),
            true,
        );
        check(json!({"a": []}), json!({}), true);
        check(json!({"a": null}), json!({}), true);
    }

    #[test]
    fn changed_or_removed_fields_are_drift() {
        check(json!({"a": 1}), json!({"a": 2}), false);
        check(json!({"a": 1}), json!({}), false);
        check(json!({"a": {"b": 1}}), json!({"a": {}}), false);
        check(json!({"args": ["a", "b"]}), json!({"args": ["a"]}), false);
        check(json!({"args": ["a", "b"]}), json!({"args": ["b", "a"]}), false);
        check(json!({"c": [{"name": "x"}]}), json!({"c": [{"name": "y"}]}), false);
        check(json!({"a": "1"}), json!({"a": 1}), false);
    }

    #[test]
    fn difference_names_the_field() {
        let rendered = json!({"a": 1, "spec": {"list": [1], "none": null, "x": {"y": 1}}});
        let check = |live: Value, expected: Option<&str>| {
            assert_eq!(difference(&rendered, &live).as_deref(), expected, "{live}");
        };
        check(json!({"a": 1, "spec": {"list": [1], "x": {"y": 1, "z": 2}}}), None);
        check(json!({"a": 1, "spec": {"list": [1], "x": {"y": 2}}}), Some("spec.x.y"));
        check(json!({"a": 1, "spec": {"list": [2], "x": {"y": 1}}}), Some("spec.list"));
        check(json!({"a": 1, "spec": {"list": [1]}}), Some("spec.x"));
    }

    #[test]
    fn quantities_are_compared_by_value() {
        check(json!({"cpu": "1000m"}), json!({"cpu": "1"}), true);
        check(json!({"memory": "1024Mi"}), json!({"memory": "1Gi"}), true);
        check(json!({"cpu": "1001m"}), json!({"cpu": "1"}), false);
    }

    #[test]
    fn the_hash_tells_of_fields_that_went_away_but_not_of_data() {
        let hash = |mut body: Value| {
            stamp(&mut body);
            body["metadata"]["annotations"][APPLIED_HASH]
                .as_str()
                .unwrap()
                .to_owned()
        };
        let full = json!({"metadata": {"name": "a", "annotations": {}, "labels": {"x": "y"}}, "data": {"k": "v"}});
        let bare = json!({"metadata": {"name": "a", "annotations": {}, "labels": {}}, "data": {"k": "v"}});
        let other = json!({"metadata": {"name": "a", "annotations": {}, "labels": {"x": "y"}}, "data": {"k": "w"}});
        assert_ne!(hash(full.clone()), hash(bare));
        assert_eq!(hash(full), hash(other));
    }
}
