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

/// A strategic merge patch that gives the containers of `pod` the resources that `template` has.
///
/// Amounts that the pod has and that are wanted no more are removed one by one: of a map that is replaced as a whole, by a directive, the API
/// server drops the new amounts if the pod has no such map yet.
pub(crate) fn patch(template: &Value, pod: &Value) -> Value {
    let mut spec = Map::new();
    for (list, runs) in lists() {
        let containers = template["spec"][list].as_array().into_iter().flatten();
        let wanted: Vec<Value> = containers
            .filter(|container| runs(container))
            .map(|container| resized(container, named(pod, list, container)))
            .collect();
        if !wanted.is_empty() {
            spec.insert(list.to_owned(), Value::Array(wanted));
        }
    }
    json!({"spec": spec})
}

/// The container of `pod` in this list that has the name of `container`.
fn named<'a>(pod: &'a Value, list: &str, container: &Value) -> Option<&'a Value> {
    let mut containers = pod["spec"][list].as_array().into_iter().flatten();
    containers.find(|other| other["name"] == container["name"])
}

fn resized(container: &Value, present: Option<&Value>) -> Value {
    let mut resources = Map::new();
    for part in PARTS {
        let mut amounts = container["resources"][part].as_object().cloned().unwrap_or_default();
        let present = present.and_then(|present| present["resources"][part].as_object());
        for resource in present.into_iter().flat_map(Map::keys) {
            amounts.entry(resource.clone()).or_insert(Value::Null);
        }
        if !amounts.is_empty() {
            resources.insert(part.to_owned(), Value::Object(amounts));
        }
    }
    json!({"name": container["name"], "resources": resources})
}

/// The first amount of `template` that `pod` does not have: what a patch really did is read back.
///
/// A request that nobody wants may stand there, as the API server derives it from the limit. Another limit may not.
pub(crate) fn missing(template: &Value, pod: &Value) -> Option<String> {
    lists().into_iter().find_map(|(list, runs)| {
        let containers = template["spec"][list].as_array().into_iter().flatten();
        containers.filter(|container| runs(container)).find_map(|container| {
            let present = named(pod, list, container);
            let amount = |of: Option<&Value>, part: &str, resource: &str| {
                let found = of.and_then(|of| of["resources"][part].get(resource))?;
                Some(found.as_str().map_or_else(|| found.to_string(), str::to_owned))
            };
            let differs = |(part, resource): &(&str, &str)| {
                let (wanted, given) = (amount(Some(container), part, resource), amount(present, part, resource));
                match (wanted, given) {
                    (Some(wanted), Some(given)) => !drift::is_within(&json!(wanted), &json!(given)),
                    (Some(_), None) => true,
                    (None, Some(_)) => *part == "limits",
                    (None, None) => false,
                }
            };
            let mut all = PARTS
                .into_iter()
                .flat_map(|part| RESIZABLE.map(|resource| (part, resource)));
            let (part, resource) = all.find(differs)?;
            let name = container["name"].as_str().unwrap_or_default();
            Some(format!("{name} did not get {part}.{resource}"))
        })
    })
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

    fn pod(resources: Value) -> Value {
        json!({"spec": {"containers": [{"name": "brain", "resources": resources}]}})
    }

    #[test]
    fn patch_names_every_amount_that_comes_or_goes() {
        let check = |wanted: Value, present: Value, expected: Value| {
            let patch = patch(&template(wanted), &pod(present));
            let container = json!({"name": "brain", "resources": expected});
            assert_eq!(patch, json!({"spec": {"containers": [container]}}));
        };
        check(
            json!({"limits": {"memory": "1Gi"}}),
            json!({}),
            json!({"limits": {"memory": "1Gi"}}),
        );
        check(
            json!({"limits": {"memory": "1Gi"}}),
            json!({"limits": {"cpu": "1", "memory": "2Gi"}, "requests": {"cpu": "1"}}),
            json!({"limits": {"cpu": null, "memory": "1Gi"}, "requests": {"cpu": null}}),
        );
        check(json!({}), json!({}), json!({}));
    }

    #[test]
    fn missing_amount_is_read_back() {
        let check = |wanted: Value, present: Value, expected: Option<&str>| {
            assert_eq!(missing(&template(wanted), &pod(present)).as_deref(), expected);
        };
        let limit = || json!({"limits": {"memory": "1Gi"}});
        check(limit(), json!({}), Some("brain did not get limits.memory"));
        check(limit(), json!({"limits": {"memory": "1024Mi"}}), None);
        // As the API server fills in.
        check(
            limit(),
            json!({"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi"}}),
            None,
        );
        check(json!({}), limit(), Some("brain did not get limits.memory"));
        check(json!({"requests": {"cpu": 1}}), json!({"requests": {"cpu": "1"}}), None);
    }
}
