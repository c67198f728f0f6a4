//! Pods of Deployments: text that repeats from pod to pod, and in each its own names, uids, addresses and times.

use bytes::Bytes;

use super::replica_set::ReplicaSet;

/// The keys of all.
pub(crate) const PREFIX: &str = "/registry/pods/";
/// The status updates after which a new pod runs.
pub(crate) const RUNNING: u64 = 3;
/// Pods of one Deployment, about.
const PODS_PER_DEPLOYMENT: u64 = 50;
/// Deployments have sizes in turn, so their number is a multiple of the number of sizes.
const SIZES: u64 = super::replica_set::SHAPES.len() as u64;
const MAX_DEPLOYMENTS: u64 = 32 * SIZES;

/// One version of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodVersion {
    /// The place of the pod in its Deployment.
    pub(crate) slot: u64,
    /// Pods that were in this place before.
    pub(crate) life: u64,
    /// Updates since it was created: by the scheduler, then by the kubelet.
    pub(crate) step: u64,
}

/// All pods of a cluster.
pub(crate) struct PodGenerator {
    replica_sets: Vec<ReplicaSet>,
}

impl PodGenerator {
    /// Of that many pods.
    pub(crate) fn new(pods: u64) -> Self {
        let count = (pods / PODS_PER_DEPLOYMENT)
            .next_multiple_of(SIZES)
            .clamp(SIZES, MAX_DEPLOYMENTS);
        Self {
            replica_sets: (0..count).map(ReplicaSet::new).collect(),
        }
    }

    /// The key of a pod.
    pub(crate) fn key(&self, version: PodVersion) -> Bytes {
        let of = self.replica_set(version);
        format!("{PREFIX}{}/{}", of.namespace(), of.pod_name(version)).into()
    }

    /// The pod as it is stored.
    pub(crate) fn value(&self, version: PodVersion) -> Bytes {
        super::stored("v1", "Pod", &self.replica_set(version).pod(version))
    }

    pub(super) fn replica_set(&self, version: PodVersion) -> &ReplicaSet {
        &self.replica_sets[version.slot as usize % self.replica_sets.len()]
    }
}
