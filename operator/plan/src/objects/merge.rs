//! Strategic merge on JSON: a partial PodTemplateSpec over a rendered one.
//!
//! Maps merge by field, and null removes a field. Lists whose entries have a key merge by it, as Kubernetes defines for patches; all other
//! lists are replaced. The types are not known here, so fields of any Kubernetes version pass, and the API server validates them.

use serde_json::{Map, Value};

/// Returns the fields that identify the entries of a list; empty for a list that is replaced as a whole.
fn keys(list: &str) -> &'static [&'static str] {
    match list {
        "containers"
        | "initContainers"
        | "ephemeralContainers"
        | "volumes"
        | "env"
        | "imagePullSecrets"
        | "resourceClaims"
        | "claims"
        | "schedulingGates" => &["name"],
        "volumeMounts" => &["mountPath"],
        "volumeDevices" => &["devicePath"],
        "ports" => &["containerPort", "protocol"],
        "hostAliases" => &["ip"],
        "topologySpreadConstraints" => &["topologyKey"],
        _ => &[],
    }
}

/// Merges `more` over `base`.
pub(super) fn merge(base: &mut Value, more: &Value) {
    match (base, more) {
        (Value::Object(base), Value::Object(more)) => merge_maps(base, more),
        (base, more) => *base = more.clone(),
    }
}

fn merge_maps(base: &mut Map<String, Value>, more: &Map<String, Value>) {
    for (field, value) in more {
        if value.is_null() {
            base.remove(field);
            continue;
        }
        let keys = keys(field);
        match (base.get_mut(field), value) {
            (Some(Value::Array(present)), Value::Array(wanted)) if !keys.is_empty() => {
                merge_lists(present, wanted, keys);
            }
            (Some(present @ Value::Object(_)), Value::Object(_)) => merge(present, value),
            _ => {
                base.insert(field.clone(), without_nulls(value));
            }
        }
    }
}

/// Merges existing entries in place, and appends the others.
fn merge_lists(present: &mut Vec<Value>, wanted: &[Value], keys: &[&str]) {
    for entry in wanted {
        match present.iter_mut().find(|other| is_same(other, entry, keys)) {
            Some(same) => merge(same, entry),
            None => present.push(without_nulls(entry)),
        }
    }
}

fn is_same(one: &Value, other: &Value, keys: &[&str]) -> bool {
    keys.iter().all(|key| {
        let of = |entry: &Value| match entry.get(*key) {
            None if *key == "protocol" => Some(Value::from("TCP")),
            found => found.cloned(),
        };
        of(one).is_some() && of(one) == of(other)
    })
}

/// Removes nulls from a new value, in which they have no field to remove.
fn without_nulls(value: &Value) -> Value {
    let mut value = value.clone();
    super::drop_nulls(&mut value);
    value
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(base: Value, more: Value, expected: Value) {
        let mut merged = base;
        merge(&mut merged, &more);
        assert_eq!(merged, expected, "after {more}");
    }

    #[test]
    fn maps_merge_by_field_and_nulls_remove() {
        check(
            json!({"a": {"b": 1, "c": 2}}),
            json!({"a": {"c": 3, "d": 4}}),
            json!({"a": {"b": 1, "c": 3, "d": 4}}),
        );
        check(json!({"a": {"b": 1}, "c": 2}), json!({"a": null}), json!({"c": 2}));
        check(json!({}), json!({"a": {"b": null, "c": 1}}), json!({"a": {"c": 1}}));
        check(
            json!({"probe": {"httpGet": {"path": "/"}}}),
            json!({"probe": {"httpGet": null, "exec": {}}}),
            json!({"probe": {"exec": {}}}),
        );
    }

    #[test]
    fn lists_merge_by_their_keys() {
        for (list, key) in [
            ("containers", "name"),
            ("initContainers", "name"),
            ("ephemeralContainers", "name"),
            ("volumes", "name"),
            ("env", "name"),
            ("imagePullSecrets", "name"),
            ("resourceClaims", "name"),
            ("schedulingGates", "name"),
            ("volumeMounts", "mountPath"),
            ("volumeDevices", "devicePath"),
            ("hostAliases", "ip"),
            ("topologySpreadConstraints", "topologyKey"),
        ] {
            check(
                json!({list: [{key: "x", "a": 1, "b": 1}, {key: "y"}]}),
                json!({list: [{key: "z"}, {key: "x", "b": 2}]}),
                json!({list: [{key: "x", "a": 1, "b": 2}, {key: "y"}, {key: "z"}]}),
            );
        }
    }

    #[test]
    fn ports_are_told_apart_by_their_protocol_too() {
        check(
            json!({"ports": [{"containerPort": 1, "protocol": "TCP"}]}),
            json!({"ports": [{"containerPort": 1, "name": "a"}, {"containerPort": 1, "protocol": "UDP"}]}),
            json!({"ports": [{"containerPort": 1, "protocol": "TCP", "name": "a"}, {"containerPort": 1, "protocol": "UDP"}]}),
        );
    }

    #[test]
    fn other_lists_are_replaced() {
        for list in [
            "args",
            "command",
            "tolerations",
            "envFrom",
            "sources",
            "items",
            "supplementalGroups",
        ] {
            check(json!({list: ["a", "b"]}), json!({list: ["c"]}), json!({list: ["c"]}));
        }
        check(
            json!({"containers": [{"name": "a"}]}),
            json!({"containers": 1}),
            json!({"containers": 1}),
        );
        check(
            json!({"env": [{"x": 1}]}),
            json!({"env": [{"x": 1}]}),
            json!({"env": [{"x": 1}, {"x": 1}]}),
        );
    }

    #[test]
    fn fields_that_nobody_knows_yet_go_through() {
        check(
            json!({"containers": [{"name": "brain", "image": "i"}]}),
            json!({"containers": [{"name": "brain", "fieldOfTomorrow": [{"x": 1}]}], "podField": "y"}),
            json!({"containers": [{"name": "brain", "image": "i", "fieldOfTomorrow": [{"x": 1}]}], "podField": "y"}),
        );
    }
}
