//! The pod in which a new template is tried before it replaces the only member. It has the same image, flags, files and rules of the
//! cluster, with `--check`, and none of the data.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::{Map, Value, json};

use super::Renderer;
use super::pod::{BRAIN_CONTAINER, DATA_VOLUME, POD_NAME_ENV};
use crate::names::{COMPONENT, ROLE};
use crate::quantity;

/// Rules that keep a pod away from others or near them. A trial could not satisfy them beside the running member.
const AFFINITY_RULES: [&str; 2] = ["podAntiAffinity", "podAffinity"];
/// Requests of a small trial, so that a node that the member fills still has room for it.
const SMALL_TRIAL_REQUESTS: [(&str, &str); 2] = [("cpu", "10m"), ("memory", "32Mi")];

/// The resource of the files of a container.
const FILES_RESOURCE: &str = "ephemeral-storage";

/// Resource requests of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrialSize {
    Small,
    /// The requests of the member, because rules of the namespace may refuse a smaller pod.
    Whole,
}

impl Renderer<'_> {
    /// Builds the pod from the template of a StatefulSet; `live` is the template that the member has.
    pub fn trial(&self, template: &Value, live: &Value, size: TrialSize) -> Value {
        let mut pod = template.clone();
        pod["apiVersion"] = json!("v1");
        pod["kind"] = json!("Pod");
        let owner = OwnerReference {
            block_owner_deletion: None,
            ..self.owner()
        };
        let metadata = &mut pod["metadata"];
        metadata["name"] = json!(self.names().trial());
        metadata["namespace"] = json!(self.names().namespace);
        metadata["ownerReferences"] = json!([owner]);
        if let Some(labels) = metadata["labels"].as_object_mut() {
            // Services and budgets would select the pod by these labels.
            labels.remove(COMPONENT);
            labels.remove(ROLE);
            labels.insert("app.kubernetes.io/name".to_owned(), json!("kubebrain-trial"));
        }
        let spec = &mut pod["spec"];
        spec["restartPolicy"] = json!("Never");
        spec["terminationGracePeriodSeconds"] = json!(1);
        // The pod never becomes ready, so no Service sends clients to it.
        spec["readinessGates"] = json!([{"conditionType": format!("{}/never", crds::GROUP)}]);
        if let Some(spec) = spec.as_object_mut() {
            spec.remove("topologySpreadConstraints");
            if size == TrialSize::Small {
                spec.remove("resources");
            }
            if let Some(affinity) = spec.get_mut("affinity").and_then(Value::as_object_mut) {
                affinity.retain(|rule, _| !AFFINITY_RULES.contains(&rule.as_str()));
            }
        }
        for list in ["initContainers", "containers"] {
            for container in spec[list].as_array_mut().into_iter().flatten() {
                let is_brain = container["name"] == BRAIN_CONTAINER;
                without_network(container);
                if size == TrialSize::Small {
                    let held = live["spec"][list].as_array().into_iter().flatten();
                    let held = held.into_iter().find(|held| held["name"] == container["name"]);
                    container["resources"] = small(&container["resources"], held.map(|held| &held["resources"]));
                }
                if is_brain {
                    check_only(container, &self.names().pod(0));
                }
            }
        }
        self.without_data(&mut pod);
        pod
    }

    /// Replaces the data volume by an empty one, because the member still uses its volume.
    fn without_data(&self, pod: &mut Value) {
        if self.desired.storage.embedded().is_none() {
            return;
        }
        let spec = &mut pod["spec"];
        if !spec["volumes"].is_array() {
            spec["volumes"] = json!([]);
        }
        if let Some(volumes) = spec["volumes"].as_array_mut() {
            volumes.retain(|volume| volume["name"] != DATA_VOLUME);
            volumes.push(json!({"name": DATA_VOLUME, "emptyDir": {}}));
        }
    }
}

/// Removes ports and probes from a container.
fn without_network(container: &mut Value) {
    if let Some(fields) = container.as_object_mut() {
        for field in ["ports", "livenessProbe", "readinessProbe", "startupProbe"] {
            fields.remove(field);
        }
    }
}

/// Returns small requests of CPU and memory with the given limits. Ephemeral storage is as large as the member's. Other resources are kept
/// unless the member has `held` them already, because they may exist only once: a device that no node has would prevent the member's start,
/// too. A request never exceeds its limit, which the API server would refuse.
fn small(given: &Value, held: Option<&Value>) -> Value {
    let (mut limits, mut requests) = (Map::new(), Map::new());
    for (name, least) in SMALL_TRIAL_REQUESTS {
        let (limit, request) = (given["limits"].get(name), given["requests"].get(name));
        limits.extend(limit.map(|limit| (name.to_owned(), limit.clone())));
        let least = json!(least);
        let smallest = [limit, request]
            .into_iter()
            .flatten()
            .chain([&least])
            .min_by_key(|amount| {
                // The API server validates an amount that cannot be read here.
                quantity::of(amount).unwrap_or(i128::MAX)
            });
        if let Some(smallest) = smallest.filter(|_| limit.is_some() || request.is_some()) {
            requests.insert(name.to_owned(), smallest.clone());
        }
    }
    for (part, amounts) in [("limits", &mut limits), ("requests", &mut requests)] {
        let is_held = |name: &str, amount: &Value| held.is_some_and(|held| held[part].get(name) == Some(amount));
        let is_other = |name: &str, amount: &Value| {
            name == FILES_RESOURCE
                || SMALL_TRIAL_REQUESTS.iter().all(|(small, _)| *small != name) && !is_held(name, amount)
        };
        let others = given[part].as_object().into_iter().flatten();
        amounts.extend(
            others
                .filter(|(name, amount)| is_other(name, amount))
                .map(|(name, amount)| (name.clone(), amount.clone())),
        );
    }
    json!({"limits": limits, "requests": requests})
}

/// Makes the container a brain of the member `name` that only checks its flags and files.
fn check_only(container: &mut Value, name: &str) {
    if let Some(args) = container["args"].as_array_mut() {
        args.push(json!("--check"));
    }
    for variable in container["env"].as_array_mut().into_iter().flatten() {
        if variable["name"] == POD_NAME_ENV {
            *variable = json!({"name": POD_NAME_ENV, "value": name});
        }
    }
}
