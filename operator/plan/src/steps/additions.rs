//! Fields that other managers add to an owned object. Most are harmless, such as defaults of the API server. Those that change what a
//! Service or a pod does are removed.
//!
//! An apply cannot remove fields that another manager owns; a merge patch can.

use serde_json::{Map, Value, json};

use crate::drift::RESTARTED_AT;
use crate::objects::{Object, ObjectKind};

/// Fields of a Service that redirect clients, with the API server's defaults. Fields of a load balancer stay, because the spec has no
/// fields for them.
const SERVICE_FIELDS: [(&str, Option<&str>); 6] = [
    ("externalIPs", None),
    ("externalName", None),
    ("internalTrafficPolicy", Some("Cluster")),
    ("publishNotReadyAddresses", None),
    ("sessionAffinity", Some("None")),
    ("sessionAffinityConfig", None),
];
/// Fields of a pod template that the API server fills in.
const POD_FIELDS: [&str; 6] = [
    "dnsPolicy",
    "restartPolicy",
    "schedulerName",
    "securityContext",
    "serviceAccount",
    "terminationGracePeriodSeconds",
];
/// Fields of a container that the API server fills in.
const CONTAINER_FIELDS: [&str; 6] = [
    "imagePullPolicy",
    "ports",
    "resources",
    "securityContext",
    "terminationMessagePath",
    "terminationMessagePolicy",
];
/// Lists of a container whose entries are identified by a key.
const KEYED_LISTS: [(&str, &str); 2] = [("env", "name"), ("volumeMounts", "mountPath")];

/// A merge patch that removes the additions, and their names.
#[derive(Debug, Clone, PartialEq)]
pub struct Additions {
    pub patch: Value,
    pub fields: Vec<String>,
}

/// Returns the additions to the live object that change what it does, if any.
pub(super) fn find(object: &Object, live: &Value) -> Option<Additions> {
    let (rendered, live) = (&object.body, live);
    let mut fields = Vec::new();
    let spec = match object.key.kind {
        ObjectKind::Service => service(&rendered["spec"], &live["spec"], &mut fields),
        ObjectKind::StatefulSet => stateful_set(&rendered["spec"], &live["spec"], &mut fields),
        _ => return None,
    };
    (!fields.is_empty()).then(|| Additions {
        patch: json!({"spec": spec}),
        fields,
    })
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(entries) => entries.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

fn service(rendered: &Value, live: &Value, fields: &mut Vec<String>) -> Value {
    let mut patch = Map::new();
    for (field, default) in SERVICE_FIELDS {
        let (wanted, present) = (&rendered[field], &live[field]);
        if wanted.is_null() && !is_empty(present) && (default.is_none() || present.as_str() != default) {
            patch.insert(field.to_owned(), json!(default));
            fields.push(field.to_owned());
        }
    }
    let added = added_keys(&rendered["selector"], &live["selector"], &[]);
    fields.extend(added.iter().map(|key| format!("selector.{key}")));
    if !added.is_empty() {
        patch.insert("selector".to_owned(), nulls(&added));
    }
    Value::Object(patch)
}

fn stateful_set(rendered: &Value, live: &Value, fields: &mut Vec<String>) -> Value {
    let mut patch = json!({});
    if rendered["ordinals"].is_null() && !is_empty(&live["ordinals"]) {
        patch["ordinals"] = Value::Null;
        fields.push("ordinals".to_owned());
    }
    let annotations = |of: &Value| of["template"]["metadata"]["annotations"][RESTARTED_AT].clone();
    if annotations(rendered).is_null() && !annotations(live).is_null() {
        patch["template"]["metadata"]["annotations"][RESTARTED_AT] = Value::Null;
        fields.push(format!("template.metadata.annotations[{RESTARTED_AT}]"));
    }
    let (wanted, present) = (&rendered["template"]["spec"], &live["template"]["spec"]);
    for key in added_keys(wanted, present, &POD_FIELDS) {
        patch["template"]["spec"][key] = Value::Null;
        fields.push(format!("template.spec.{key}"));
    }
    for list in ["containers", "initContainers", "volumes"] {
        let at = format!("template.spec.{list}");
        let before = fields.len();
        let kept = entries(&wanted[list], &present[list], "name", &at, fields);
        let kept: Vec<Value> = kept
            .into_iter()
            .map(|(wanted, entry)| match list {
                "volumes" => entry.clone(),
                _ => container(wanted, entry, &at, fields),
            })
            .collect();
        // A merge patch cannot address entries of a list, so it replaces this list by the live entries that are wanted.
        if fields.len() > before && !wanted[list].is_null() {
            patch["template"]["spec"][list] = Value::Array(kept);
        }
    }
    patch
}

/// Returns a container without what was added to it.
fn container(wanted: &Value, present: &Value, at: &str, fields: &mut Vec<String>) -> Value {
    let mut kept = present.clone();
    let at = format!("{at}[{}]", present["name"].as_str().unwrap_or_default());
    for key in added_keys(wanted, present, &CONTAINER_FIELDS) {
        fields.push(format!("{at}.{key}"));
        if let Some(kept) = kept.as_object_mut() {
            kept.remove(key);
        }
    }
    for (list, key) in KEYED_LISTS {
        if !wanted[list].is_null() {
            let entries = entries(&wanted[list], &present[list], key, &format!("{at}.{list}"), fields);
            kept[list] = entries.into_iter().map(|(_, entry)| entry.clone()).collect();
        }
    }
    kept
}

/// Returns the live entries of a list that are wanted, each with the rendered one. Adds the names of the others to `fields`.
fn entries<'a>(
    wanted: &'a Value,
    present: &'a Value,
    key: &str,
    at: &str,
    fields: &mut Vec<String>,
) -> Vec<(&'a Value, &'a Value)> {
    let Some(all) = wanted.as_array() else {
        return Vec::new();
    };
    let mut kept = Vec::new();
    for entry in present.as_array().into_iter().flatten() {
        match all.iter().find(|wanted| wanted[key] == entry[key]) {
            Some(wanted) => kept.push((wanted, entry)),
            None => fields.push(format!("{at}[{}]", entry[key].as_str().unwrap_or_default())),
        }
    }
    kept
}

/// Returns the fields of a live map that are not rendered, except those that the API server fills in.
fn added_keys<'a>(wanted: &Value, present: &'a Value, filled: &[&str]) -> Vec<&'a str> {
    let present = present.as_object().into_iter().flatten();
    let added = present
        .filter(|(key, value)| wanted[key.as_str()].is_null() && !is_empty(value) && !filled.contains(&key.as_str()));
    added.map(|(key, _)| key.as_str()).collect()
}

fn nulls(keys: &[&str]) -> Value {
    keys.iter().map(|key| ((*key).to_owned(), Value::Null)).collect()
}
