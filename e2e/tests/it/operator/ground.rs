//! The ground of the other tests: pods that are reached by their addresses, a load through them, and TiKV as a pod.

use k8s_openapi::api::core::v1::Pod;

use super::brains::embedded;
use super::kit;
use super::load::Load;
use super::pods::{self, Watched};
use super::tikv::Tikv;

#[test]
fn writes_through_a_pod_are_acknowledged_and_there() {
    kit::run("ground-load", async |kit| {
        let brains = kit.brains("one", embedded()).await;
        brains.until_ready().await;
        let watched = Watched::start(&brains).await;
        let load = Load::start(&brains, 1, &watched, Some(20)).await;
        load.acknowledge(100).await;
        let outcome = load.end().await;
        assert!(outcome.failed.is_empty(), "{:#?}", outcome.failed);
        assert!(outcome.through_own[0] >= 100);
        assert_eq!(watched.history().changes, []);
    });
}

#[test]
fn tikv_serves_as_a_pod() {
    kit::run("ground-tikv", async |kit| {
        let tikv = Tikv::start(&kit).await;
        assert!(!tikv.pd.is_empty());
        if tikv.is_mock() {
            let pod = kit.api::<Pod>().get("pd").await.unwrap();
            let address = pods::address(&pod).unwrap();
            let status = programs::probe::command(&format!("{address}:12380"), "GET", "/status", "").await;
            status.unwrap();
        }
    });
}
