//! The chart's values: `values.yaml` and `values.schema.json` have the same ones, with the same meanings.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::files::{objects, text};

fn schema() -> Value {
    serde_json::from_str(&text("helm/kubebrain-operator/values.schema.json")).unwrap()
}

/// Returns the descriptions of values in the schema, by their paths. Every map on the way refuses other names.
fn described(schema: &Value, path: &str, all: &mut BTreeMap<String, String>) {
    if let Some(meaning) = schema["description"].as_str() {
        all.insert(path.to_owned(), meaning.to_owned());
        return;
    }
    assert_eq!(schema["type"], "object", "{path}");
    assert_eq!(schema["additionalProperties"], false, "{path}");
    for (name, inner) in schema["properties"].as_object().unwrap() {
        // Helm adds this value itself.
        if name != "global" {
            described(inner, &format!("{path}.{name}"), all);
        }
    }
}

/// Returns the comments of values in values.yaml, by their paths.
fn commented() -> BTreeMap<String, String> {
    let (mut all, mut comment) = (BTreeMap::new(), None);
    let mut path: Vec<(usize, &str)> = Vec::new();
    let text = text("helm/kubebrain-operator/values.yaml");
    for line in text.lines() {
        let bare = line.trim_start();
        let indent = line.len() - bare.len();
        if let Some(meaning) = bare.strip_prefix("# ") {
            comment = Some(meaning.to_owned());
        } else if let Some((name, _)) = bare.split_once(':') {
            path.retain(|(outer, _)| *outer < indent);
            path.push((indent, name));
            if let Some(meaning) = comment.take() {
                let whole: String = path.iter().map(|(_, name)| format!(".{name}")).collect();
                all.insert(whole, meaning);
            }
        }
    }
    all
}

#[test]
fn comments_and_schema_explain_the_same_values_alike() {
    let mut expected = BTreeMap::new();
    described(&schema(), "", &mut expected);
    assert!(expected.len() > 25, "{}", expected.len());
    assert_eq!(commented(), expected);
}

/// Returns the value at a path of values.yaml.
fn default(path: &str) -> Value {
    let values = &objects("helm/kubebrain-operator/values.yaml")[0];
    values
        .pointer(&path.replace('.', "/"))
        .unwrap_or_else(|| panic!("no default of {path}"))
        .clone()
}

#[test]
fn every_value_has_a_default_of_its_type() {
    let schema = schema();
    for path in commented().keys() {
        let schema = schema.pointer(&path.replace('.', "/properties/")).unwrap();
        let default = default(path);
        let type_of = match &default {
            Value::Array(_) => "array",
            Value::Object(_) => "object",
            Value::String(_) => "string",
            Value::Bool(_) => "boolean",
            Value::Number(_) => "integer",
            Value::Null => "null",
        };
        match schema["enum"].as_array() {
            Some(texts) => assert!(texts.contains(&default), "{path}"),
            None => assert_eq!(schema["type"], type_of, "{path}"),
        }
    }
}

#[test]
fn every_default_is_of_a_value_with_a_meaning() {
    fn leaves(value: &Value, path: &str, known: &BTreeMap<String, String>) {
        if known.contains_key(path) {
            return;
        }
        let inside = value.as_object().unwrap_or_else(|| panic!("{path} has no comment"));
        for (name, value) in inside {
            leaves(value, &format!("{path}.{name}"), known);
        }
    }
    leaves(&objects("helm/kubebrain-operator/values.yaml")[0], "", &commented());
}

/// The chart has the defaults of the plain YAML, whose objects are compared in `chart`, and every template uses values that exist.
#[test]
fn templates_use_every_value_and_no_other() {
    let known = commented();
    let mut used: Vec<String> = Vec::new();
    for name in crate::files::below("helm/kubebrain-operator/templates") {
        for part in text(&name).split(".Values.").skip(1) {
            let end = part.find(|c: char| !c.is_ascii_alphanumeric() && c != '.').unwrap();
            let path = format!(".{}", &part[..end]);
            assert!(known.contains_key(&path), "{name}: there is no value {path}");
            used.push(path);
        }
    }
    for path in known.keys() {
        assert!(used.contains(path), "no template uses {path}");
    }
}
