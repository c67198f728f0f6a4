//! A Lease as leader lock: its holder leads, and only its members have a token.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use serde_json::json;

use super::brains::{self, Brains, on_tikv, patient};
use super::kit::{self, STATE_TIMEOUT};
use super::pods::serves;
use super::tikv::Tikv;

const MEMBERS: usize = 3;
/// Name that operator and members give the lock of the cluster `a`.
const LOCK: &str = "a-leader";

#[test]
fn lease_and_status_agree_on_the_leader() {
    kit::run_troubled("lease-lock", async |kit| {
        let tikv = Tikv::start(&kit).await;
        let mut spec = on_tikv(&tikv.pd, MEMBERS);
        // a Lease counts whole seconds
        spec["leaderElection"] =
            json!({"backend": "Lease", "leaseDuration": "6s", "renewDeadline": "4s", "retryPeriod": "1s"});
        let brains = kit.brains("a", spec).await;
        brains.until_ready().await;
        let first = agreed(&brains).await;
        assert_eq!(tokens(&brains).await, MEMBERS);

        // it goes, and another one takes the lock
        let gone = kit.api::<Pod>().get(&first).await.unwrap().uid();
        kit.api::<Pod>().delete(&first, &DeleteParams::default()).await.unwrap();
        let moved = |cluster: &_| brains::leader(cluster).is_some_and(|leader| leader != first);
        brains.until("led by another member", moved).await;
        kit.until::<Pod>(&first, "back", STATE_TIMEOUT, |pod| pod.uid() != gone && serves(pod))
            .await;
        brains.until_ready().await;
        let second = agreed(&brains).await;
        assert_ne!(second, first);

        // members may not make it, so the operator does
        let lost = kit.api::<Lease>().get(LOCK).await.unwrap().uid();
        kit.api::<Lease>().delete(LOCK, &DeleteParams::default()).await.unwrap();
        kit.until::<Lease>(LOCK, "made anew", STATE_TIMEOUT, |lease| lease.uid() != lost)
            .await;
        agreed(&brains).await;

        // another lock: the right to this one ends with the last member that needs it
        let mut storage = patient();
        (storage["backend"], storage["retryPeriod"]) = (json!("Storage"), json!(null));
        brains.patch(json!({"leaderElection": storage})).await;
        brains.until_ready().await;
        kit.until_gone::<Lease>(LOCK).await;
        kit.until_gone::<RoleBinding>(LOCK).await;
        kit.until_gone::<Role>(LOCK).await;
        assert_eq!(tokens(&brains).await, 0);
        brains.until_ready().await;
    });
}

/// The leader, as soon as status, `kubectl get lease` and the leader's label name the same one.
async fn agreed(brains: &Brains<'_>) -> String {
    let kit = brains.kit;
    let what = ["get", "lease", LOCK, "--namespace", &kit.namespace];
    let holder = "--output=jsonpath={.spec.holderIdentity}";
    kit.eventually("of one mind about the leader", async || {
        let leader = brains.leader().await;
        let identity = kit.kubectl().run(what.into_iter().chain([holder]));
        let identity = identity.map_err(|error| format!("{error:#}"))?;
        let held = identity.trim().rsplit_once('_').map(|(member, _)| member);
        let labelled: Vec<String> = brains
            .pods()
            .await
            .iter()
            .filter(|pod| {
                pod.labels()
                    .get("kubebrain.io/role")
                    .is_some_and(|role| role == "leader")
            })
            .map(|pod| pod.name_any())
            .collect();
        if held == Some(leader.as_str()) && labelled == [leader.clone()] {
            Ok(leader)
        } else {
            Err(format!(
                "{leader} leads, {identity} holds the Lease, {labelled:?} are labelled"
            ))
        }
    })
    .await
}

/// Number of pods with a token of the API server.
async fn tokens(brains: &Brains<'_>) -> usize {
    let pods = brains.pods().await;
    let has_token = |pod: &&Pod| {
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let mut sources = volumes
            .filter_map(|volume| volume.projected.as_ref())
            .flat_map(|projected| projected.sources.iter().flatten());
        sources.any(|source| source.service_account_token.is_some())
    };
    pods.iter().filter(has_token).count()
}
