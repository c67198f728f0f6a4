//! The part of a pod that can change while it runs: processors and memory of its containers.

use serde_json::{Map, Value, json};

use crate::drift;

/// Resources that Kubernetes gives and takes in place.
const RESIZABLE: [&str; 2] = ["cpu", "memory"];
const PARTS: [&str; 2] = ["requests", "limits"];

/// Returns true if a container runs as long as the pod.
type Runs = fn(&Value) -> bool;

/// Lists of containers whose resources may change.
fn lists() -> [(&'static str, Runs); 2] {
    [
        ("containers", |_| true),
        ("initContainers", |container| container["restartPolicy"] == "Always"),
    ]
}

/// A pod template without what can change in place.
pub(crate) fn strip(template: &Value) -> Value {
    let mut stripped = template.clone();
    for (list, runs) in lists() {
        let containers = stripped.pointer_mut(&format!("/spec/{list}"));
        let containers = containers.and_then(Value::as_array_mut).into_iter().flatten();
        for container in containers.filter(|container| runs(container)) {
            let Some(resources) = container.get_mut("resources").and_then(Value::as_object_mut) else {
                continue;
            };
            for part in PARTS {
                if let Some(amounts) = resources.get_mut(part).and_then(Value::as_object_mut) {
                    amounts.retain(|resource, _| !RESIZABLE.contains(&resource.as_str()));
                }
            }
            resources.retain(|_, part| part.as_object().is_none_or(|part| !part.is_empty()));
            if resources.is_empty()
                && let Some(container) = container.as_object_mut()
            {
                container.remove("resources");
            }
        }
    }
    stripped
}

/// A hash over what can change in place.
pub(crate) fn hash(template: &Value) -> String {
    let mut amounts = Map::new();
    for (list, runs) in lists() {
        for container in template["spec"][list]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|each| runs(each))
        {
            for (part, resource) in PARTS
                .into_iter()
                .flat_map(|part| RESIZABLE.map(|resource| (part, resource)))
            {
                if let Some(amount) = container["resources"][part].get(resource) {
                    let name = container["name"].as_str().unwrap_or_default();
                    amounts.insert(format!("{list}/{name}/{part}/{resource}"), amount.clone());
                }
            }
        }
    }
    drift::digest(&Value::Object(amounts))
}

/// A strategic merge patch that gives the containers of a pod the resources that `template` has.
pub(crate) fn patch(template: &Value) -> Value {
    let mut spec = Map::new();
    for (list, runs) in lists() {
        let containers = template["spec"][list].as_array().into_iter().flatten();
        let wanted: Vec<Value> = containers.filter(|container| runs(container)).map(resized).collect();
        if !wanted.is_empty() {
            spec.insert(list.to_owned(), Value::Array(wanted));
        }
    }
    json!({"spec": spec})
}

/// Replaced as a whole, so that amounts that are wanted no more go away.
fn resized(container: &Value) -> Value {
    let mut resources = Map::new();
    for part in PARTS {
        let mut amounts = container["resources"][part].as_object().cloned().unwrap_or_default();
        amounts.insert("$patch".to_owned(), json!("replace"));
        resources.insert(part.to_owned(), Value::Object(amounts));
    }
    json!({"name": container["name"], "resources": resources})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(resources: Value) -> Value {
        json!({"spec": {
            "containers": [{"name": "brain", "image": "i", "resources": resources}],
            "initContainers": [{"name": "once", "resources": {"limits": {"cpu": "1"}}}],
        }})
    }

    #[test]
    fn processors_and_memory_are_left_out() {
        let stripped = strip(&template(
            json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}),
        ));
        let expected = json!({"spec": {
            "containers": [{"name": "brain", "image": "i"}],
            "initContainers": [{"name": "once", "resources": {"limits": {"cpu": "1"}}}],
        }});
        assert_eq!(stripped, expected);
        let other = json!({"requests": {"cpu": "1", "example.com/device": "1"}, "claims": [{"name": "x"}]});
        let kept = json!({"requests": {"example.com/device": "1"}, "claims": [{"name": "x"}]});
        assert_eq!(strip(&template(other))["spec"]["containers"][0]["resources"], kept);
        assert_eq!(
            strip(&json!({"spec": {"containers": []}})),
            json!({"spec": {"containers": []}})
        );
    }

    #[test]
    fn hash_is_over_processors_and_memory_alone() {
        let of = |resources: Value| hash(&template(resources));
        assert_ne!(
            of(json!({"requests": {"cpu": "1"}})),
            of(json!({"requests": {"cpu": "2"}}))
        );
        assert_ne!(
            of(json!({"requests": {"cpu": "1"}})),
            of(json!({"limits": {"cpu": "1"}}))
        );
        assert_eq!(of(json!({"requests": {"example.com/device": "1"}})), of(json!({})));
        let mut sidecar = template(json!({}));
        let once = hash(&sidecar);
        sidecar["spec"]["initContainers"][0]["restartPolicy"] = json!("Always");
        assert_ne!(hash(&sidecar), once);
    }

    #[test]
    fn patch_replaces_what_containers_that_run_have() {
        let patch = patch(&template(json!({"limits": {"memory": "1Gi"}})));
        let expected = json!({"spec": {"containers": [{"name": "brain", "resources": {
            "requests": {"$patch": "replace"},
            "limits": {"$patch": "replace", "memory": "1Gi"},
        }}]}});
        assert_eq!(patch, expected);
    }
}
