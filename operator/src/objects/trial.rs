//! The pod in which a new template is tried before it replaces the only member: the same image, flags, files and rules of the cluster,
//! with `--check`, and none of the data.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::{Map, Value, json};

use super::Renderer;
use super::pod::{CONTAINER, DATA, POD_NAME};
use crate::names::{COMPONENT, ROLE};
use crate::quantity;

/// Rules by which a pod keeps away from others: beside the member that runs, a trial could not keep them.
const APART: [&str; 2] = ["podAntiAffinity", "podAffinity"];
/// What a small trial asks of a node: a node that is full with the member must have room for it.
const SMALL: [(&str, &str); 2] = [("cpu", "10m"), ("memory", "32Mi")];

/// The resource of the files of a container.
const FILES: &str = "ephemeral-storage";

/// What a trial asks of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    Small,
    /// As much as the member would: rules of the namespace may refuse a smaller pod.
    Whole,
}

impl Renderer<'_> {
    /// Makes it of the template of a StatefulSet; `live` is the one that the member has.
    pub(crate) fn trial(&self, template: &Value, live: &Value, size: Size) -> Value {
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
            // By which Services and budgets would find it.
            labels.remove(COMPONENT);
            labels.remove(ROLE);
            labels.insert("app.kubernetes.io/name".to_owned(), json!("kubebrain-trial"));
        }
        let spec = &mut pod["spec"];
        spec["restartPolicy"] = json!("Never");
        spec["terminationGracePeriodSeconds"] = json!(1);
        // It never is ready, so that no Service of anybody sends it clients.
        spec["readinessGates"] = json!([{"conditionType": format!("{}/never", crds::GROUP)}]);
        if let Some(spec) = spec.as_object_mut() {
            spec.remove("topologySpreadConstraints");
            if size == Size::Small {
                spec.remove("resources");
            }
            if let Some(affinity) = spec.get_mut("affinity").and_then(Value::as_object_mut) {
                affinity.retain(|rule, _| !APART.contains(&rule.as_str()));
            }
        }
        for list in ["initContainers", "containers"] {
            for container in spec[list].as_array_mut().into_iter().flatten() {
                let is_brain = container["name"] == CONTAINER;
                without_network(container);
                if size == Size::Small {
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

    /// The volume of the data stays with the member.
    fn without_data(&self, pod: &mut Value) {
        if self.desired.storage.embedded().is_none() {
            return;
        }
        let spec = &mut pod["spec"];
        if !spec["volumes"].is_array() {
            spec["volumes"] = json!([]);
        }
        if let Some(volumes) = spec["volumes"].as_array_mut() {
            volumes.retain(|volume| volume["name"] != DATA);
            volumes.push(json!({"name": DATA, "emptyDir": {}}));
        }
    }
}

/// Takes ports and probes from a container.
fn without_network(container: &mut Value) {
    if let Some(fields) = container.as_object_mut() {
        for field in ["ports", "livenessProbe", "readinessProbe", "startupProbe"] {
            fields.remove(field);
        }
    }
}

/// Small requests of processors and memory, with the limits that are given. Files are as large as those of the member. What else the member
/// does not hold yet is kept, as a device that no node has keeps it from starting, too; what it `held` may be there only once. A request is never above its limit, which the API server would refuse.
fn small(given: &Value, held: Option<&Value>) -> Value {
    let (mut limits, mut requests) = (Map::new(), Map::new());
    for (name, least) in SMALL {
        let (limit, request) = (given["limits"].get(name), given["requests"].get(name));
        limits.extend(limit.map(|limit| (name.to_owned(), limit.clone())));
        let least = json!(least);
        let smallest = [limit, request]
            .into_iter()
            .flatten()
            .chain([&least])
            .min_by_key(|amount| {
                // One that cannot be read is left to the API server.
                quantity::of(amount).unwrap_or(i128::MAX)
            });
        if let Some(smallest) = smallest.filter(|_| limit.is_some() || request.is_some()) {
            requests.insert(name.to_owned(), smallest.clone());
        }
    }
    for (part, amounts) in [("limits", &mut limits), ("requests", &mut requests)] {
        let is_held = |name: &str, amount: &Value| held.is_some_and(|held| held[part].get(name) == Some(amount));
        let is_other = |name: &str, amount: &Value| {
            name == FILES || SMALL.iter().all(|(small, _)| *small != name) && !is_held(name, amount)
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

/// The brain of the member `name`, which only checks its flags and files.
fn check_only(container: &mut Value, name: &str) {
    if let Some(args) = container["args"].as_array_mut() {
        args.push(json!("--check"));
    }
    for variable in container["env"].as_array_mut().into_iter().flatten() {
        if variable["name"] == POD_NAME {
            *variable = json!({"name": POD_NAME, "value": name});
        }
    }
}
