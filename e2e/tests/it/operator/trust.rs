//! A user who may create a `KubeBrainCluster` is a tenant, and no administrator.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::ResourceExt as _;
use kube::api::PostParams;
use serde_json::{Value, json};

use super::brains::{condition, embedded, is_observed};
use super::kit::{self, Kit, STATE_TIMEOUT};
use super::pods;

#[test]
fn pod_template_with_rights_beyond_its_own_is_refused() {
    kit::run_troubled("trust-template", async |kit| {
        let privileged = json!({"containers": [{"name": "brain", "securityContext": {"privileged": true}}]});
        let host_path = json!({"volumes": [{"name": "host", "hostPath": {"path": "/"}}]});
        for (name, wish, spec) in [
            ("network", "hostNetwork", json!({"hostNetwork": true})),
            ("privileged", "privileged", privileged),
            ("path", "hostPath", host_path),
        ] {
            refused(&kit, name, wish, &spec).await;
        }
        assert!(
            kit.list::<StatefulSet>().await.is_empty(),
            "nothing is made of a refused spec"
        );
        assert!(kit.list::<Pod>().await.is_empty());
    });
}

/// The API server refuses it, or the operator does and reports it; either names the field.
async fn refused(kit: &Kit, name: &str, wish: &str, pod: &Value) {
    let mut spec = embedded();
    spec["podTemplate"] = json!({"spec": pod});
    match kit.try_brains(name, spec).await {
        Err(error) => assert!(error.to_string().contains(wish), "{error}"),
        Ok(brains) => {
            let stalled = brains.until_condition("Stalled", "True", &[]).await;
            assert!(
                stalled.message.contains(wish),
                "{}: {}",
                stalled.reason,
                stalled.message
            );
        }
    }
}

#[test]
fn foreign_pod_with_our_labels_is_not_touched() {
    kit::run_troubled("trust-pod", async |kit| {
        let labels = json!({
            "kubebrain.io/cluster": "a",
            "app.kubernetes.io/component": "brain",
            "app.kubernetes.io/name": "kubebrain",
            "app.kubernetes.io/part-of": "kubebrain",
            "app.kubernetes.io/managed-by": "kubebrain-operator",
            "kubebrain.io/role": "leader",
        });
        let foreign = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            // of no name that a StatefulSet takes for its own
            "metadata": {"name": "stranger", "labels": labels},
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "brain", "image": e2e_cluster::images::POD, "args": ["serve"]}],
            },
        });
        let foreign: Pod = serde_json::from_value(foreign).unwrap();
        kit.api::<Pod>().create(&PostParams::default(), &foreign).await.unwrap();
        let before = kit
            .until::<Pod>("stranger", "serving", STATE_TIMEOUT, pods::serves)
            .await;
        let brains = kit.brains("a", embedded()).await;
        brains.until("seen", is_observed).await;
        kit.until::<Pod>("a-0", "serving", STATE_TIMEOUT, pods::serves).await;
        brains.until_condition("Available", "True", &[]).await;
        brains.patch(json!({"logLevel": "Debug"})).await; // a roll-out beside it
        let rolled = |set: &StatefulSet| {
            let updated = set.status.as_ref().and_then(|status| status.updated_replicas);
            updated == Some(1)
                && set.status.as_ref().and_then(|status| status.observed_generation) == set.metadata.generation
        };
        kit.until::<StatefulSet>("a", "rolled out", STATE_TIMEOUT, rolled).await;
        brains.until_condition("Available", "True", &[]).await;
        let after = kit.api::<Pod>().get("stranger").await.unwrap();
        assert_eq!(after.uid(), before.uid(), "the foreign pod was deleted");
        assert_eq!(after.labels(), before.labels(), "the foreign pod was patched");
        let cluster = brains.get().await;
        let members = cluster.status.and_then(|status| status.members).unwrap_or_default();
        let names: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
        assert_eq!(names, ["a-0"], "the foreign pod counts as a member");
    });
}

#[test]
fn planted_authority_is_not_trusted() {
    kit::run_troubled("trust-authority", async |kit| {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let planted = params.self_signed(&key).unwrap().pem();
        let secret = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "a-ca"},
            "stringData": {"ca.crt": planted, "ca.key": key.serialize_pem()},
        });
        kit.try_apply(&secret).await.unwrap();
        let before = kit.api::<Secret>().get("a-ca").await.unwrap();
        let brains = kit.brains("a", embedded()).await;
        let named = brains.until("naming the foreign Secret", |cluster| {
            let conditions = ["Ready", "CertificatesReady", "Stalled"];
            let conditions = conditions.iter().filter_map(|type_| condition(cluster, type_));
            conditions
                .into_iter()
                .any(|condition| condition.message.contains("a-ca"))
        });
        named.await;
        let bundle = kit.api::<ConfigMap>().get_opt("a-ca-bundle").await.unwrap();
        let published = bundle.and_then(|bundle| bundle.data).unwrap_or_default();
        assert!(
            published.values().all(|pem| !pem.contains(planted.trim())),
            "the planted authority is published"
        );
        let after = kit.api::<Secret>().get("a-ca").await.unwrap();
        assert_eq!(after.metadata.resource_version, before.metadata.resource_version);
        kit.api::<Secret>()
            .delete("a-ca", &kube::api::DeleteParams::default())
            .await
            .unwrap();
        brains.until_ready().await;
    });
}
