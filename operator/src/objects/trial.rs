//! The pod in which a new template is tried before it replaces the only member: the same image, flags, files and rules of the cluster,
//! with `--check`, and none of the data.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::{Value, json};

use super::Renderer;
use super::pod::{CONTAINER, DATA, POD_NAME};
use crate::names::{COMPONENT, ROLE};

/// Rules by which a pod keeps away from others: beside the member that runs, a trial could not keep them.
const APART: [&str; 2] = ["podAntiAffinity", "podAffinity"];
/// What a trial asks of a node: a node that is full with the member must have room for it.
const SMALL: [(&str, &str); 2] = [("cpu", "10m"), ("memory", "32Mi")];

impl Renderer<'_> {
    /// Makes it of the template of a StatefulSet.
    pub(crate) fn trial(&self, template: &Value) -> Value {
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
            spec.remove("resources");
            if let Some(affinity) = spec.get_mut("affinity").and_then(Value::as_object_mut) {
                affinity.retain(|rule, _| !APART.contains(&rule.as_str()));
            }
        }
        for list in ["initContainers", "containers"] {
            for container in spec[list].as_array_mut().into_iter().flatten() {
                let is_brain = container["name"] == CONTAINER;
                reduce(container);
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

/// Takes ports, probes and most resources from a container.
fn reduce(container: &mut Value) {
    if let Some(fields) = container.as_object_mut() {
        for field in ["ports", "livenessProbe", "readinessProbe", "startupProbe"] {
            fields.remove(field);
        }
    }
    let amounts = |given: &Value, amount: &dyn Fn(&str, &Value) -> Value| {
        let small = SMALL.into_iter();
        let kept = small.filter_map(|(name, least)| {
            let given = given.get(name)?;
            Some((name.to_owned(), amount(least, given)))
        });
        kept.collect::<serde_json::Map<String, Value>>()
    };
    let given = container["resources"].clone();
    let limits = amounts(&given["limits"], &|_, given| given.clone());
    let requests: serde_json::Map<String, Value> = SMALL
        .into_iter()
        .filter(|(name, _)| given["limits"].get(name).is_some() || given["requests"].get(name).is_some())
        .map(|(name, least)| (name.to_owned(), json!(least)))
        .collect();
    container["resources"] = json!({"limits": limits, "requests": requests});
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
