//! The objects that the operator makes, and others who write to them: managers, admission, garbage collection.

use std::collections::BTreeMap;

use e2e_cluster::images::BRAIN_NEXT;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PropagationPolicy};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::brains::{Brains, condition, embedded, is_observed, version};
use super::kit::{self, Kit, STATE_TIMEOUT};
use super::pods;
use super::processes::leading_operator;

/// Names and uids of all objects of a kind.
pub(super) async fn uids<K>(kit: &Kit) -> BTreeMap<String, String>
where
    K: Resource<Scope = NamespaceResourceScope> + Clone + std::fmt::Debug + DeserializeOwned,
    K::DynamicType: Default,
{
    let listed = kit.list::<K>().await;
    let uid = |object: &K| (object.name_any(), object.uid().unwrap());
    listed.iter().map(uid).collect()
}

/// Has the operator pass over the cluster once more, for a change that no object shows.
async fn pass_again(brains: &Brains<'_>, seconds: u32) {
    brains
        .patch(json!({"updateStrategy": {"progressDeadlineSeconds": seconds}}))
        .await;
    brains.until("seen", is_observed).await;
    brains.until_ready().await;
}

#[test]
fn field_of_another_manager_is_taken_back_once() {
    kit::run_troubled("objects-field", async |kit| {
        let brains = kit.brains("a", embedded()).await;
        brains.until_ready().await;
        let services = kit.api::<Service>();
        let meddled = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "a-client"},
            "spec": {"selector": {"kubebrain.io/cluster": "another"}},
        });
        let meddler = PatchParams::apply("meddler").force();
        services
            .patch("a-client", &meddler, &Patch::Apply(meddled))
            .await
            .unwrap();
        let ours = |service: &Service| {
            let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
            selector.and_then(|selector| selector.get("kubebrain.io/cluster").map(String::as_str)) == Some("a")
        };
        let taken = kit
            .until::<Service>("a-client", "taken back", STATE_TIMEOUT, ours)
            .await;

        let sets = kit.api::<StatefulSet>();
        let grace = |set: &StatefulSet| {
            let pod = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
            pod.and_then(|pod| pod.termination_grace_period_seconds)
        };
        let before = grace(&sets.get("a").await.unwrap());
        let longer = json!({"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 99}}}});
        sets.patch("a", &PatchParams::default(), &Patch::Merge(longer))
            .await
            .unwrap();
        kit.until::<StatefulSet>("a", "as it was", STATE_TIMEOUT, |set| grace(set) == before)
            .await;
        brains.until_ready().await;
        let set = sets.get("a").await.unwrap();
        pass_again(&brains, 300).await;
        pass_again(&brains, 301).await;
        let after = services.get("a-client").await.unwrap();
        assert_eq!(after.resource_version(), taken.resource_version(), "written again");
        assert_eq!(
            sets.get("a").await.unwrap().metadata.generation,
            set.metadata.generation
        );
    });
}

/// A policy that writes into pod templates of StatefulSets of one namespace: an injected label and variable, and a field that the
/// operator sets itself.
fn admission(namespace: &str) -> [Value; 2] {
    let name = format!("mutate-{namespace}");
    let mutation = "Object{spec: Object.spec{template: Object.spec.template{\
        metadata: Object.spec.template.metadata{labels: {'injected': 'yes'}}, \
        spec: Object.spec.template.spec{\
            terminationGracePeriodSeconds: 47, \
            containers: [Object.spec.template.spec.containers{name: 'brain', \
                env: [Object.spec.template.spec.containers.env{name: 'INJECTED', value: 'yes'}]}]}}}}";
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1beta1",
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "reinvocationPolicy": "Never",
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{
                "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["statefulsets"],
                "operations": ["CREATE", "UPDATE"],
            }]},
            "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": mutation}}],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1beta1",
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {
            "policyName": name,
            "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}},
        },
    });
    [policy, binding]
}

#[test]
fn admission_that_changes_pod_templates_holds_nothing_up() {
    kit::run_troubled("objects-admission", async |kit| {
        for object in admission(&kit.namespace) {
            kit.try_apply(&object).await.unwrap();
        }
        // a policy works a moment after it was made
        let probe = json!({
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": "probe"},
            "spec": {
                "replicas": 0,
                "serviceName": "probe",
                "selector": {"matchLabels": {"app": "probe"}},
                "template": {
                    "metadata": {"labels": {"app": "probe"}},
                    "spec": {"containers": [{"name": "brain", "image": e2e_cluster::images::POD}]},
                },
            },
        });
        kit.eventually("changed by the policy", async || {
            let made = kit.try_apply(&probe).await.map_err(|error| error.to_string())?;
            kit.api::<StatefulSet>()
                .delete("probe", &DeleteParams::default())
                .await
                .map_err(|error| error.to_string())?;
            let label = &made.data["spec"]["template"]["metadata"]["labels"]["injected"];
            (label == "yes").then_some(()).ok_or(made.data.to_string())
        })
        .await;

        let brains = kit.brains("a", embedded()).await;
        brains.until_ready().await;
        let injected = |pod: &Pod| {
            let spec = pod.spec.as_ref().unwrap();
            let env = spec.containers[0].env.iter().flatten();
            pod.labels().contains_key("injected")
                && spec.termination_grace_period_seconds == Some(47)
                && env.into_iter().any(|variable| variable.name == "INJECTED")
        };
        let pod = kit.api::<Pod>().get("a-0").await.unwrap();
        assert!(injected(&pod), "{:?}", pod.spec);
        let sets = kit.api::<StatefulSet>();
        loop {
            let (_, operator) = leading_operator(&kit).await;
            // one that has just begun writes once
            pass_again(&brains, 301).await;
            let before = sets.get("a").await.unwrap();
            pass_again(&brains, 300).await;
            let after = sets.get("a").await.unwrap();
            if leading_operator(&kit).await.1 == operator {
                assert_eq!(after.metadata.generation, before.metadata.generation, "written again");
                break;
            }
            // another test has killed it
        }
        brains.patch(json!({"version": version(BRAIN_NEXT)})).await;
        brains.until_ready().await;
        let pod = kit.api::<Pod>().get("a-0").await.unwrap();
        assert_eq!(pods::image(&pod), BRAIN_NEXT);
        assert!(injected(&pod), "{:?}", pod.spec);
        let name = format!("mutate-{}", kit.namespace);
        for kind in ["mutatingadmissionpolicybinding", "mutatingadmissionpolicy"] {
            kit.kubectl().run(["delete", kind, &name]).unwrap();
        }
    });
}

/// The value of the annotation that has the authority of a former cluster adopted, as the status says it.
fn fingerprint_to_adopt(cluster: &crds::KubeBrainCluster) -> Option<String> {
    let said = &condition(cluster, "Stalled")?.message;
    let (_, value) = said.split_once("the annotation kubebrain.io/adopt-ca to ")?;
    Some(value.to_owned())
}

#[test]
fn orphans_are_adopted_and_nothing_is_restarted() {
    kit::run_troubled("objects-orphans", async |kit| {
        let brains = kit.brains("a", embedded()).await;
        brains.until_ready().await;
        let (pods, sets, secrets) = (
            uids::<Pod>(&kit).await,
            uids::<StatefulSet>(&kit).await,
            uids::<Secret>(&kit).await,
        );
        let orphan = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Orphan),
            ..DeleteParams::default()
        };
        let clusters = kit.api::<crds::KubeBrainCluster>();
        clusters.delete("a", &orphan).await.unwrap();
        kit.until_gone::<crds::KubeBrainCluster>("a").await;
        let brains = kit.brains("a", embedded()).await;
        // a key that others may know is adopted only on explicit request
        let named = |cluster: &crds::KubeBrainCluster| fingerprint_to_adopt(cluster).is_some();
        let cluster = brains.until("naming the authority to adopt", named).await;
        brains
            .annotate("kubebrain.io/adopt-ca", &fingerprint_to_adopt(&cluster).unwrap())
            .await;
        brains.until_ready().await;
        assert_eq!(uids::<Pod>(&kit).await, pods, "pods by their uid");
        assert_eq!(uids::<StatefulSet>(&kit).await, sets);
        assert_eq!(uids::<Secret>(&kit).await, secrets);
        let uid = brains.get().await.uid();
        let set = kit.api::<StatefulSet>().get("a").await.unwrap();
        assert_eq!(
            set.owner_references().first().map(|owner| owner.uid.clone()),
            uid,
            "adopted by the new one"
        );
    });
}

#[test]
fn service_of_the_leader_is_there_while_it_is_wanted() {
    kit::run_troubled("objects-leader", async |kit| {
        let brains = kit.brains("a", embedded()).await;
        brains.until_ready().await;
        kit.until::<Service>("a-leader", "there", STATE_TIMEOUT, |_| true).await;
        brains.patch(json!({"services": {"leader": {"enabled": false}}})).await;
        kit.until_gone::<Service>("a-leader").await;
        brains.patch(json!({"services": {"leader": {"enabled": true}}})).await;
        kit.until::<Service>("a-leader", "there again", STATE_TIMEOUT, |_| true)
            .await;
        brains.until_ready().await;
    });
}

#[test]
fn pod_monitor_is_there_while_it_is_asked_for() {
    kit::run_troubled("objects-monitor", async |kit| {
        let mut spec = embedded();
        spec["monitoring"] = json!({"podMonitor": {"enabled": true, "labels": {"release": "prometheus"}}});
        let brains = kit.brains("a", spec).await;
        brains.until_ready().await;
        // a cluster does not need the kind, and finds it when it comes
        kit.define("monitoring.coreos.com", "v1", "PodMonitor").await;
        let kind = GroupVersionKind::gvk("monitoring.coreos.com", "v1", "PodMonitor");
        let monitors: Api<DynamicObject> =
            Api::namespaced_with(kit.client.clone(), &kit.namespace, &ApiResource::from_gvk(&kind));
        let there = async || monitors.get_opt("a").await.map_err(|error| error.to_string());
        let monitor = kit
            .eventually("monitored", async || there().await?.ok_or("no PodMonitor".to_owned()))
            .await;
        assert_eq!(monitor.labels().get("release").map(String::as_str), Some("prometheus"));
        let endpoints = &monitor.data["spec"]["podMetricsEndpoints"];
        let selector = &monitor.data["spec"]["selector"]["matchLabels"];
        assert_eq!(selector["kubebrain.io/cluster"], "a", "{selector}");
        assert!(endpoints[0]["port"].is_string(), "{endpoints}");
        brains
            .patch(json!({"monitoring": {"podMonitor": {"enabled": false}}}))
            .await;
        kit.eventually("monitored no more", async || match there().await? {
            None => Ok(()),
            Some(_) => Err("there is a PodMonitor".to_owned()),
        })
        .await;
        brains.until_ready().await;
    });
}
