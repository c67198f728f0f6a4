//! Strategic merge patches as the API server applies them (`k8s.io/apimachinery/pkg/util/strategicpatch`), as far as pods need.
//!
//! The operator sends such patches only for `pods/resize`. They use four rules: maps merge field by field, null removes a field, null in a
//! new map has no effect, and containers are matched by name. `fixtures/merges.json` has cases for the rules of maps and for the directive
//! that the API server drops; an end-to-end test sends the same cases to a real API server. Other directives are an error here.

use serde_json::{Map, Value};

/// Returns the key that identifies entries of a list of a pod; `None` for a list that is replaced.
fn key(list: &str) -> Option<&'static str> {
    match list {
        "containers" | "initContainers" | "ephemeralContainers" | "volumes" | "env" => Some("name"),
        "volumeMounts" => Some("mountPath"),
        _ => None,
    }
}

/// Merges `patch` into `base`.
pub(crate) fn merge(base: &mut Value, patch: &Value) {
    if let (Value::Object(base), Value::Object(patch)) = (&mut *base, patch) {
        merge_maps(base, patch);
    } else {
        *base = patch.clone();
    }
}

fn merge_maps(base: &mut Map<String, Value>, patch: &Map<String, Value>) {
    let directives = patch.iter().filter(|(field, _)| field.starts_with('$'));
    for (field, value) in directives {
        assert!(
            field == "$patch" && value == "replace",
            "a directive without a rule: {field}: {value}"
        );
    }
    if patch.contains_key("$patch") {
        base.clear();
        base.extend(patch.clone());
        base.remove("$patch");
        return;
    }
    for (field, value) in patch {
        if value.is_null() {
            base.remove(field);
            continue;
        }
        match (base.get_mut(field), value, key(field)) {
            (Some(Value::Object(present)), Value::Object(wanted), _) => merge_maps(present, wanted),
            (Some(Value::Array(present)), Value::Array(wanted), Some(key)) => {
                for entry in wanted {
                    match present.iter_mut().find(|other| other[key] == entry[key]) {
                        Some(same) => merge(same, entry),
                        None => present.extend(added(entry)),
                    }
                }
            }
            _ => base.extend(added(value).map(|value| (field.clone(), value))),
        }
    }
}

/// Returns a value that did not exist before. A map with a directive is dropped with all its other content, and nulls remove nothing.
fn added(value: &Value) -> Option<Value> {
    match value {
        Value::Object(fields) if fields.contains_key("$patch") => None,
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(_, value)| !value.is_null());
            let fields = fields.filter_map(|(field, value)| Some((field.clone(), added(value)?)));
            Some(Value::Object(fields.collect()))
        }
        Value::Array(entries) => Some(Value::Array(entries.iter().filter_map(added).collect())),
        other => Some(other.clone()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn containers_of_each_list_are_told_apart_by_their_names() {
        let mut pod = json!({"spec": {
            "initContainers": [{"name": "once"}, {"name": "brain", "restartPolicy": "Always"}],
            "containers": [{"name": "brain", "image": "i"}],
        }});
        let resources = json!({"limits": {"cpu": "2"}});
        let resized = json!([{"name": "brain", "resources": resources}]);
        merge(&mut pod, &json!({"spec": {"initContainers": resized}}));
        let expected = json!({"spec": {
            "initContainers": [{"name": "once"}, {"name": "brain", "restartPolicy": "Always", "resources": resources}],
            "containers": [{"name": "brain", "image": "i"}],
        }});
        assert_eq!(pod, expected);
    }

    /// The end-to-end tests check the same cases against a real API server.
    #[test]
    fn merges_are_those_of_the_api_server() {
        let cases: Vec<Value> = serde_json::from_str(include_str!("../fixtures/merges.json")).unwrap();
        assert!(cases.len() >= 6);
        for case in cases {
            let pod = |resources: &Value| {
                let mut container = json!({"name": "brain", "image": "i"});
                if !resources.is_null() {
                    container["resources"] = resources.clone();
                }
                json!({"spec": {"containers": [{"name": "other"}, container]}})
            };
            let mut merged = pod(&case["before"]);
            merge(
                &mut merged,
                &json!({"spec": {"containers": [{"name": "brain", "resources": case["patch"]}]}}),
            );
            assert_eq!(merged, pod(&case["after"]), "{case}");
        }
    }
}
