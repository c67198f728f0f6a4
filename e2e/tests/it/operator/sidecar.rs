//! The storage sidecar: brains beside the API servers that use them, in pods that the operator does not make.

use e2e_cluster::inside;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, Service};

use super::brains::Brains;
use super::kit::{Kit, STATE_TIMEOUT};
use super::pods;
use super::processes;
use super::samples::{self, NAMESPACE};
use crate::writers;

/// The API servers of the sample on TiKV.
const SERVERS: &str = "hosted-apiserver";

/// A client of the API servers, through their Service.
async fn client(kit: &Kit) -> kube::Client {
    let service = kit.api::<Service>().get(SERVERS).await.unwrap();
    let address = service.spec.unwrap().cluster_ip.unwrap();
    let kubeconfig = kit.harness().cluster.home().path("hosted.kubeconfig");
    let name = format!("{SERVERS}.{NAMESPACE}.svc");
    inside::client_named(&kubeconfig, &format!("https://{address}:443"), Some(&name))
        .await
        .unwrap()
}

/// Returns the status of a container of a pod, by the kubelet.
fn container(pod: &Pod, name: &str) -> ContainerStatus {
    let status = pod.status.as_ref().unwrap();
    let containers = status.container_statuses.iter().flatten();
    let mut all = containers.chain(status.init_container_statuses.iter().flatten());
    all.find(|container| container.name == name).unwrap().clone()
}

/// Returns true if all replicas are of the newest template, and available.
fn rolled_out(set: &StatefulSet) -> bool {
    let (wanted, status) = (set.spec.as_ref().unwrap().replicas, set.status.as_ref());
    status.is_some_and(|status| {
        status.observed_generation == set.metadata.generation
            && status.updated_replicas == wanted
            && status.available_replicas == wanted
            && status.current_revision == status.update_revision
    })
}

#[test]
fn api_servers_beside_their_brains_are_restarted_without_a_failed_write() {
    samples::run(async |kit| {
        samples::pki(&kit, "hosted").await;
        samples::apply(&kit, "storage-sidecar-tikv");
        kit.until::<StatefulSet>(SERVERS, "available", STATE_TIMEOUT, rolled_out)
            .await;
        let brains = Brains::new(&kit, "hosted");
        brains.until_ready().await;
        let client = client(&kit).await;
        kit.eventually("reached by their Service", async || {
            let ready = e2e_cluster::apiserver::ready(&client).await;
            ready.map_err(|error| format!("{error:#}"))
        })
        .await;
        let load = writers::Load::start(&client, "load").await;
        load.acknowledge(50).await;

        let restart = ["rollout", "restart", &format!("statefulset/{SERVERS}")];
        kit.kubectl()
            .run([&["--namespace", NAMESPACE][..], &restart].concat())
            .unwrap();
        let generation = kit.api::<StatefulSet>().get(SERVERS).await.unwrap().metadata.generation;
        kit.until::<StatefulSet>(SERVERS, "restarted", STATE_TIMEOUT * 2, |set| {
            set.metadata.generation >= generation && rolled_out(set)
        })
        .await;
        brains.until_ready().await;
        load.acknowledge(50).await;
        kit.number(
            "longest gap between writes in a restart of the API servers",
            load.longest_gap(),
            None,
        );
        let failed = load.unknown();
        let said = load.end().await;
        assert_eq!(failed, 0, "{said}");
        kit.say(said);

        let pods = kit.api::<Pod>();
        let before = pods.get(&format!("{SERVERS}-0")).await.unwrap();
        processes::kill(&kit, &before, "kubebrain");
        let restarted = |pod: &Pod| container(pod, "brain").restart_count == 1 && pods::serves(pod);
        let after = kit
            .until::<Pod>(
                &format!("{SERVERS}-0"),
                "serving with another brain",
                STATE_TIMEOUT,
                restarted,
            )
            .await;
        let (before, after) = (
            container(&before, "kube-apiserver"),
            container(&after, "kube-apiserver"),
        );
        assert_eq!(
            after.restart_count, before.restart_count,
            "the API server was restarted"
        );
        assert_eq!(after.container_id, before.container_id);
        brains.until_ready().await;
    });
}
