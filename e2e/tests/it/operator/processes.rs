//! Processes of pods that end without a warning: the kernel kills them.

use std::fs;
use std::path::Path;

use e2e_cluster::cgroups;
use e2e_cluster::state::ProcessId;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams};
use kube::runtime::wait::await_condition;
use rustix::process::Signal;
use tokio::time::timeout;

use super::kit::{Kit, OPERATOR_NAMESPACE, STATE_TIMEOUT};

/// The operator's program, and the Lease by which its replicas agree.
const PROGRAM: &str = "kubebrain-operator";

/// Kills a program in a pod.
pub(super) fn kill(kit: &Kit, pod: &Pod, program: &str) {
    let uid = pod.uid().unwrap();
    let mut killed = 0;
    for pid in cgroups::processes(kit.harness().cluster.home()).unwrap() {
        let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}"));
        // a process that has ended since is not one of them
        let (Ok(group), Ok(line)) = (read("cgroup"), read("cmdline")) else {
            continue;
        };
        let is_program = line.split('\0').next().is_some_and(|path| {
            let name = Path::new(path).file_name();
            name.is_some_and(|name| name == program)
        });
        if is_program && group.contains(&uid) {
            ProcessId::of(pid).unwrap().signal(Signal::KILL);
            killed += 1;
        }
    }
    assert_eq!(killed, 1, "programs {program} of {}", pod.name_any());
}

fn holder(lease: &Lease) -> Option<&str> {
    let holder = lease.spec.as_ref()?.holder_identity.as_deref();
    holder.filter(|holder| !holder.is_empty())
}

fn leases(kit: &Kit) -> Api<Lease> {
    Api::namespaced(kit.client.clone(), OPERATOR_NAMESPACE)
}

/// The operator's pod that works, and the identity under which it does.
pub(super) async fn leading_operator(kit: &Kit) -> (Pod, String) {
    // the holder may have been killed by another test, and its Lease not have run out yet
    kit.eventually("led by an operator's pod", async || {
        let lease = leases(kit).get(PROGRAM).await.map_err(|error| error.to_string())?;
        let identity = holder(&lease).ok_or("nobody holds the Lease")?.to_owned();
        let pods = kit.operator_pods().list(&ListParams::default()).await;
        let pods = pods.map_err(|error| error.to_string())?;
        let leading = pods.into_iter().find(|pod| identity.starts_with(&pod.name_any()));
        let leading = leading.ok_or(format!("{identity} is gone"))?;
        Ok((leading, identity))
    })
    .await
}

/// Kills the operator that works in the middle of what it does, and waits until another one works.
pub(super) async fn kill_operator(kit: &Kit) {
    let (pod, identity) = leading_operator(kit).await;
    kill(kit, &pod, PROGRAM);
    // its container would be started again later each time
    let now = DeleteParams::default().grace_period(0);
    kit.operator_pods().delete(&pod.name_any(), &now).await.unwrap();
    another_operator_works(kit, &identity).await;
}

/// Deletes the Lease, so that the operator that works is not the only one to think so.
pub(super) async fn take_lease_away(kit: &Kit) {
    let (_, identity) = leading_operator(kit).await;
    leases(kit).delete(PROGRAM, &DeleteParams::default()).await.unwrap();
    another_operator_works(kit, &identity).await;
}

async fn another_operator_works(kit: &Kit, before: &str) {
    let another = await_condition(leases(kit), PROGRAM, |lease: Option<&Lease>| {
        lease.is_some_and(|lease| holder(lease).is_some_and(|holder| holder != before))
    });
    timeout(STATE_TIMEOUT, another)
        .await
        .expect("another operator works in time")
        .unwrap();
}
