//! The part of a pod that can change while it runs: CPU and memory of its containers.

use std::collections::BTreeSet;

use kube::ResourceExt;
use kube::core::DynamicObject;
use serde_json::{Map, Value, json};

use crate::drift;
use crate::names::FORMER_RESOURCES;

/// Names of amounts, with those of their containers.
pub type ResourceNames = BTreeSet<String>;

/// Resources that Kubernetes can change in place.
const RESIZABLE_RESOURCES: [&str; 2] = ["cpu", "memory"];
const RESOURCE_PARTS: [&str; 2] = ["requests", "limits"];

/// Returns true if a container runs as long as the pod.
type RunsWithPod = fn(&Value) -> bool;

/// Lists of containers whose resources may change.
fn lists() -> [(&'static str, RunsWithPod); 2] {
    [
        ("containers", |_| true),
        ("initContainers", |container| container["restartPolicy"] == "Always"),
    ]
}

/// Returns a pod template without the parts that can change in place.
pub fn strip(template: &Value) -> Value {
    let mut stripped = template.clone();
    for (list, runs) in lists() {
        let containers = stripped.pointer_mut(&format!("/spec/{list}"));
        let containers = containers.and_then(Value::as_array_mut).into_iter().flatten();
        for container in containers.filter(|container| runs(container)) {
            let Some(resources) = container.get_mut("resources").and_then(Value::as_object_mut) else {
                continue;
            };
            for part in RESOURCE_PARTS {
                if let Some(amounts) = resources.get_mut(part).and_then(Value::as_object_mut) {
                    amounts.retain(|resource, _| !RESIZABLE_RESOURCES.contains(&resource.as_str()));
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

/// Returns a hash over the parts that can change in place.
pub fn hash(template: &Value) -> String {
    let mut amounts = Map::new();
    for (list, runs) in lists() {
        for container in template["spec"][list]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|each| runs(each))
        {
            for (part, resource) in RESOURCE_PARTS
                .into_iter()
                .flat_map(|part| RESIZABLE_RESOURCES.map(|resource| (part, resource)))
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

/// Returns the names of the amounts that a template sets, such as `containers/brain/limits/cpu`.
pub fn names(template: &Value) -> ResourceNames {
    let mut names = ResourceNames::new();
    for (list, runs) in lists() {
        let containers = template["spec"][list].as_array().into_iter().flatten();
        for container in containers.filter(|container| runs(container)) {
            let is_set = |(part, resource): &(&str, &str)| container["resources"][part].get(resource).is_some();
            let set = amounts().filter(is_set);
            names.extend(set.map(|(part, resource)| name(list, container, part, resource)));
        }
    }
    names
}

fn amounts() -> impl Iterator<Item = (&'static str, &'static str)> {
    let amounts = |part| RESIZABLE_RESOURCES.map(|resource| (part, resource));
    RESOURCE_PARTS.into_iter().flat_map(amounts)
}

fn name(list: &str, container: &Value, part: &str, resource: &str) -> String {
    let container = container["name"].as_str().unwrap_or_default();
    format!("{list}/{container}/{part}/{resource}")
}

/// Returns the amounts that the templates before the present one set, as recorded on the live StatefulSet.
pub fn former(set: &DynamicObject) -> ResourceNames {
    let record = set.annotations().get(FORMER_RESOURCES);
    let names = record.into_iter().flat_map(|record| record.split(','));
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Records on a rendered StatefulSet the amounts that the live template sets, if they change. A pod may have further amounts from the
/// defaults of its namespace, which the operator does not manage. `lag` is true if pods do not have the amounts of the live template yet.
pub fn record(set: &mut Value, live: &DynamicObject, lag: bool) {
    let mut names = former(live);
    let present = &live.data["spec"]["template"];
    if hash(&set["spec"]["template"]) != hash(present) {
        names.retain(|_| lag);
        names.append(&mut self::names(present));
    }
    if !names.is_empty() {
        let record: Vec<String> = names.into_iter().collect();
        set["metadata"]["annotations"][FORMER_RESOURCES] = json!(record.join(","));
    }
}

/// Returns a strategic merge patch that gives the containers of `pod` the resources of `template`.
///
/// Amounts that `former` templates set and that are no longer wanted are removed one by one. A directive would replace a map as a whole,
/// but with it the API server drops the new amounts if the pod has no such map yet.
pub fn patch(template: &Value, pod: &Value, former: &ResourceNames) -> Value {
    let mut spec = Map::new();
    for (list, runs) in lists() {
        let containers = template["spec"][list].as_array().into_iter().flatten();
        let wanted: Vec<Value> = containers
            .filter(|container| runs(container))
            .map(|container| resized((list, container), named(pod, list, container), former))
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

fn resized((list, container): (&str, &Value), present: Option<&Value>, former: &ResourceNames) -> Value {
    let mut resources = Map::new();
    for part in RESOURCE_PARTS {
        let mut amounts = container["resources"][part].as_object().cloned().unwrap_or_default();
        for resource in RESIZABLE_RESOURCES {
            let is_present = present.is_some_and(|present| present["resources"][part].get(resource).is_some());
            if is_present && former.contains(&name(list, container, part, resource)) {
                amounts.entry(resource).or_insert(Value::Null);
            }
        }
        if !amounts.is_empty() {
            resources.insert(part.to_owned(), Value::Object(amounts));
        }
    }
    json!({"name": container["name"], "resources": resources})
}

/// Returns the first amount of `template` that `pod` does not have. The result of a patch is checked by reading it back.
///
/// A pod may have a request that the template does not set, because the API server derives it from the limit, and a limit that no `former`
/// template set.
pub fn missing(template: &Value, pod: &Value, former: &ResourceNames) -> Option<String> {
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
                    (None, Some(_)) => *part == "limits" && former.contains(&name(list, container, part, resource)),
                    (None, None) => false,
                }
            };
            let (part, resource) = amounts().find(differs)?;
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
        let former = names(&template(
            json!({"limits": {"cpu": "1", "memory": "1"}, "requests": {"cpu": "1"}}),
        ));
        let check = |wanted: Value, present: Value, expected: Value| {
            let patch = patch(&template(wanted), &pod(present), &former);
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
        // These are values that a LimitRange fills in.
        check(
            json!({"limits": {"memory": "1Gi"}}),
            json!({"limits": {"memory": "2Gi", "ephemeral-storage": "1Gi"}, "requests": {"memory": "1Gi"}}),
            json!({"limits": {"memory": "1Gi"}}),
        );
    }

    #[test]
    fn limit_that_no_template_set_stays() {
        let (wanted, present) = (
            json!({"limits": {"memory": "1Gi"}}),
            json!({"limits": {"memory": "1Gi", "cpu": "2"}}),
        );
        let former = names(&template(json!({"limits": {"memory": "2Gi"}})));
        assert_eq!(missing(&template(wanted.clone()), &pod(present.clone()), &former), None);
        let patch = patch(&template(wanted.clone()), &pod(present), &former);
        assert_eq!(patch["spec"]["containers"][0]["resources"], wanted);
    }

    #[test]
    fn amounts_of_former_templates_are_recorded() {
        let live = json!({
            "metadata": {"annotations": {FORMER_RESOURCES: "containers/brain/limits/memory"}},
            "spec": {"template": template(json!({"limits": {"cpu": "1"}}))},
        });
        let live: DynamicObject = serde_json::from_value(live).unwrap();
        let recorded = |wanted: Value, lag: bool| {
            let mut wanted = json!({"metadata": {"annotations": {}}, "spec": {"template": template(wanted)}});
            record(&mut wanted, &live, lag);
            let written: DynamicObject = serde_json::from_value(wanted).unwrap();
            former(&written).into_iter().collect::<Vec<_>>().join(" ")
        };
        let (cpu, memory) = ("containers/brain/limits/cpu", "containers/brain/limits/memory");
        assert_eq!(recorded(json!({"limits": {"cpu": "1"}}), false), memory);
        assert_eq!(recorded(json!({}), false), cpu);
        assert_eq!(recorded(json!({}), true), format!("{cpu} {memory}"));
    }

    #[test]
    fn missing_amount_is_read_back() {
        let check = |wanted: Value, present: Value, expected: Option<&str>| {
            let former = names(&template(json!({"limits": {"memory": "1Gi"}})));
            assert_eq!(missing(&template(wanted), &pod(present), &former).as_deref(), expected);
        };
        let limit = || json!({"limits": {"memory": "1Gi"}});
        check(limit(), json!({}), Some("brain did not get limits.memory"));
        check(limit(), json!({"limits": {"memory": "1024Mi"}}), None);
        // These are values that the API server fills in.
        check(
            limit(),
            json!({"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi"}}),
            None,
        );
        check(json!({}), limit(), Some("brain did not get limits.memory"));
        check(json!({"requests": {"cpu": 1}}), json!({"requests": {"cpu": "1"}}), None);
    }
}
