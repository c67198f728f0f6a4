//! Controllers, scheduler and kubelet on the store.

use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::wait::{await_condition, conditions};
use serde_json::json;
use tokio::time::timeout;

use crate::harness::shared;

/// For the cluster to reach a state.
const STATE_TIMEOUT: Duration = Duration::from_secs(120);
const CONFIG_MAPS: usize = 500;
/// Requests at a time.
const CONCURRENT_REQUESTS: usize = 16;

async fn namespace(client: &kube::Client, name: &str) -> Api<Namespace> {
    let namespaces = Api::<Namespace>::all(client.clone());
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        ..ObjectMeta::default()
    };
    let namespace = Namespace {
        metadata,
        ..Namespace::default()
    };
    namespaces.create(&PostParams::default(), &namespace).await.unwrap();
    namespaces
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_is_scaled_up_and_down() {
    let it = shared().await;
    let client = it.cluster.client().await.unwrap();
    namespace(&client, "scaled").await;
    let deployments = Api::<Deployment>::namespaced(client.clone(), "scaled");
    let pods = Api::<Pod>::namespaced(client, "scaled");
    let deployment = serde_json::from_value(json!({
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{"name": "web", "image": "kubebrain.io/pod:e2e", "args": ["serve"]}],
                },
            },
        },
    }));
    deployments
        .create(&PostParams::default(), &deployment.unwrap())
        .await
        .unwrap();
    for replicas in [20, 0] {
        let step = it.progress.step(format_args!("Deployment scaled to {replicas}"));
        let scale = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        let scaled = deployments
            .patch_scale("web", &PatchParams::default(), &scale)
            .await
            .unwrap();
        assert_eq!(scaled.spec.unwrap().replicas.unwrap_or(0), replicas);
        let reached = await_condition(deployments.clone(), "web", |deployment: Option<&Deployment>| {
            let status = deployment.and_then(|deployment| deployment.status.as_ref());
            status.is_some_and(|status| {
                status.available_replicas.unwrap_or(0) == replicas && status.replicas.unwrap_or(0) == replicas
            })
        });
        timeout(STATE_TIMEOUT, reached)
            .await
            .expect("the replicas in time")
            .unwrap();
        step.done();
    }
    let gone = async {
        while !pods.list(&ListParams::default()).await.unwrap().items.is_empty() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    timeout(STATE_TIMEOUT, gone).await.expect("no pod is left in time");
    tokio::task::block_in_place(|| it.watch_agrees_with_list());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_takes_its_objects_with_it() {
    let it = shared().await;
    let client = it.cluster.client().await.unwrap();
    let namespaces = namespace(&client, "crowded").await;
    let config_maps = Api::<ConfigMap>::namespaced(client, "crowded");
    let step = it.progress.step(format_args!(
        "{CONFIG_MAPS} ConfigMaps created, listed in pages, deleted with their namespace"
    ));
    let create = |number: usize| {
        let metadata = ObjectMeta {
            name: Some(format!("c-{number:03}")),
            ..ObjectMeta::default()
        };
        let data = [("text".to_owned(), "x".repeat(512))].into();
        let config_map = ConfigMap {
            metadata,
            data: Some(data),
            ..ConfigMap::default()
        };
        let config_maps = &config_maps;
        async move { config_maps.create(&PostParams::default(), &config_map).await }
    };
    let created = futures::stream::iter(0..CONFIG_MAPS)
        .map(create)
        .buffer_unordered(CONCURRENT_REQUESTS);
    created.try_for_each(|_| async { Ok(()) }).await.unwrap();
    let (mut names, mut page) = (Vec::new(), ListParams::default().limit(77));
    loop {
        let list = config_maps.list(&page).await.unwrap();
        names.extend(
            list.items
                .into_iter()
                .filter_map(|item| item.metadata.name)
                .filter(|name| name.starts_with("c-")),
        );
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => break,
        }
    }
    assert_eq!(
        names,
        (0..CONFIG_MAPS)
            .map(|number| format!("c-{number:03}"))
            .collect::<Vec<_>>()
    );
    let uid = namespaces.get("crowded").await.unwrap().metadata.uid.unwrap();
    namespaces.delete("crowded", &DeleteParams::default()).await.unwrap();
    let gone = await_condition(namespaces, "crowded", conditions::is_deleted(&uid));
    timeout(STATE_TIMEOUT, gone)
        .await
        .expect("the namespace is gone in time")
        .unwrap();
    assert!(config_maps.list(&ListParams::default()).await.unwrap().items.is_empty());
    step.done();
    tokio::task::block_in_place(|| it.watch_agrees_with_list());
}
