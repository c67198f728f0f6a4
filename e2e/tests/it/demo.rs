//! The way of a user.

use e2e_cluster::demo;

use crate::harness::{sample_namespace, shared_blocking};

#[test]
fn an_api_server_runs_on_a_brain_that_the_operator_made() {
    let it = shared_blocking();
    let _alone = sample_namespace();
    it.operator();
    demo::create_brain(&it.cluster, &it.progress).unwrap();
    let tenant = demo::start_tenant(&it.cluster, &it.progress).unwrap();
    demo::use_tenant(&tenant, &it.progress).unwrap();
    let namespaces = it
        .cluster
        .kubectl()
        .run(["get", "namespaces", "--output", "name"])
        .unwrap();
    assert!(
        !namespaces.contains("namespace/shop"),
        "the tenant's objects are in the outer cluster: {namespaces}"
    );
    it.watch_agrees_with_list();
    let delete = ["delete", "namespace", demo::NAMESPACE, "--timeout=120s"];
    it.cluster.kubectl().run(delete).unwrap();
}
