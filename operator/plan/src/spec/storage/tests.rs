use serde_json::json;

use super::*;
use crate::testing::cluster;

fn on_tikv(tikv: Value) -> KubeBrainCluster {
    cluster(json!({"replicas": 3, "storage": {"type": "TiKV", "embedded": null, "tikv": tikv}}))
}

fn tikv_of(cluster: &KubeBrainCluster, referenced: Option<&DynamicObject>) -> Result<TikvConnection, String> {
    match read(cluster, referenced) {
        Ok(DesiredStorage::Tikv(tikv)) => Ok(tikv),
        Ok(other) => panic!("{other:?}"),
        Err(refusal) => Err(format!("{}: {}", refusal.reason, refusal.message)),
    }
}

fn pinned(mut cluster: KubeBrainCluster, storage: Value) -> KubeBrainCluster {
    cluster.status = Some(serde_json::from_value(json!({"storage": storage})).unwrap());
    cluster
}

fn tidb(status: Value) -> DynamicObject {
    serde_json::from_value(json!({"apiVersion": "core.pingcap.com/v1alpha1", "kind": "Cluster", "metadata": {"name": "t"}, "status": status}))
        .unwrap()
}

#[test]
fn defaults_follow_from_the_clusters_name() {
    let tikv = tikv_of(
        &on_tikv(json!({"pdEndpoints": ["http://pd-0:2379/", "pd-1:2379"]})),
        None,
    )
    .unwrap();
    assert_eq!(tikv.pd_endpoints, ["pd-0:2379", "pd-1:2379"]);
    assert_eq!(tikv.key_prefix, "brains/dev");
    assert_eq!((tikv.cluster_id, tikv.gc), (None, None));
}

#[test]
fn the_leader_collects_garbage_only_where_the_spec_says_so() {
    let gc = |gc: Value| {
        tikv_of(&on_tikv(json!({"pdEndpoints": ["pd:1"], "gc": gc})), None)
            .unwrap()
            .gc
    };
    assert_eq!(gc(json!({})), None);
    assert_eq!(
        gc(json!({"owner": "Brain"})),
        Some(("10m".to_owned(), "10m".to_owned()))
    );
    let set = gc(json!({"owner": "Brain", "interval": "5m", "window": "1h"}));
    assert_eq!(set, Some(("5m".to_owned(), "1h".to_owned())));
}

#[test]
fn where_the_data_lies_is_pinned() {
    let spec = on_tikv(json!({"pdEndpoints": ["pd:1"]}));
    let known = tikv_of(
        &pinned(
            spec.clone(),
            json!({"type": "TiKV", "clusterID": "7", "keyPrefix": "brains/dev"}),
        ),
        None,
    );
    assert_eq!(known.unwrap().cluster_id.as_deref(), Some("7"));
    let moved = tikv_of(&pinned(spec, json!({"type": "TiKV", "keyPrefix": "other"})), None).unwrap_err();
    assert!(moved.starts_with("KeyPrefixChanged: "), "{moved}");
    let spec = on_tikv(json!({"pdEndpoints": ["pd:1"], "clusterID": "8"}));
    let other = tikv_of(&pinned(spec, json!({"type": "TiKV", "clusterID": "7"})), None).unwrap_err();
    assert!(other.starts_with("ClusterIDChanged: "), "{other}");
}

#[test]
fn a_reference_gives_placement_drivers_and_the_clusters_id() {
    let spec = on_tikv(json!({"clusterRef": {"name": "t"}}));
    let found = tikv_of(
        &spec,
        Some(&tidb(json!({"pd": "https://t-pd.brains:2379", "id": "7401"}))),
    )
    .unwrap();
    assert_eq!(
        (found.pd_endpoints, found.cluster_id),
        (vec!["t-pd.brains:2379".to_owned()], Some("7401".to_owned()))
    );
    for status in [json!({}), json!({"pd": ""}), json!({"pd": 5})] {
        let refused = tikv_of(&spec, Some(&tidb(status))).unwrap_err();
        assert!(
            refused.starts_with("ClusterRefNotFound: ") && refused.contains("status.pd"),
            "{refused}"
        );
    }
    let refused = tikv_of(&spec, None).unwrap_err();
    assert!(
        refused.starts_with("ClusterRefNotFound: ") && refused.contains("there is no Cluster t"),
        "{refused}"
    );
    // Running brains are not stopped because it was deleted.
    let known = pinned(spec, json!({"type": "TiKV", "pdEndpoints": ["pd:1"]}));
    assert_eq!(tikv_of(&known, None).unwrap().pd_endpoints, ["pd:1"]);
}
