//! Everything that a pass knows when it plans. Pure: `observe` fills it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crds::cluster::status::LastBackup;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::core::DynamicObject;

use crate::advisory::KnownAdvisories;
use crate::archive::ObservedArchive;
use crate::bootstrap::ObservedBootstrap;
use crate::last_apply::LastApply;
use crate::member::{BrainRefusal, MemberAnswer};
use crate::objects::{Object, ObjectKey};
use crate::spec::Desired;

/// Everything that one pass observes.
#[derive(Default, Clone)]
pub struct Observed {
    /// The wall clock at the beginning of the pass.
    pub now: Timestamp,
    /// Objects under the names that the cluster uses, of any owner.
    pub objects: BTreeMap<ObjectKey, DynamicObject>,
    /// Pods with the cluster's label, of any owner; with an external workload those of its selector.
    pub pods: Vec<Pod>,
    /// The pod in which a new template is tried.
    pub trial: Option<Pod>,
    /// Claims with the cluster's label.
    pub claims: Vec<PersistentVolumeClaim>,
    /// Answers of running brains by pod, or the reasons why there is no answer.
    pub probes: BTreeMap<String, Result<MemberAnswer, String>>,
    /// Outcomes of earlier applies of these objects.
    pub applies: BTreeMap<ObjectKey, LastApply>,
    /// Reasons why running brains do not serve, by pod, as far as they report them.
    pub refusals: BTreeMap<String, BrainRefusal>,
    /// True if the API server has the kind PodMonitor.
    pub pod_monitors: bool,
    /// Secrets of the user that the spec names; `None` for one that does not exist.
    pub given_secrets: BTreeMap<String, Option<Arc<Secret>>>,
    /// Reason why the StatefulSet's controller cannot create pods that have been missing for a while, in its words.
    pub refused_pods: Option<String>,
    /// State of the restore of the first data; empty once that is complete.
    pub bootstrap: ObservedBootstrap,
    /// The archive, as the last pass over it found it.
    pub archive: ObservedArchive,
    /// The newest backup by the operator that was complete, as far as this process knows.
    pub last_backup: Option<LastBackup>,
    /// Advisories about versions of brains.
    pub advisories: Arc<KnownAdvisories>,
}

impl Observed {
    /// Returns true if an apply of `object` is known to leave the live object unchanged, because admission replaces what the operator
    /// wants.
    pub fn is_as_admitted(&self, object: &Object) -> bool {
        let (known, live) = (self.applies.get(&object.key), self.objects.get(&object.key));
        matches!((known, live), (Some(known), Some(live)) if known.is_settled(object, live))
    }

    /// Returns the names of the claims that the present members should have and that are missing here.
    pub fn missing_claims(&self, desired: &Desired) -> Vec<String> {
        if desired.storage.embedded().is_none() {
            return Vec::new();
        }
        let members = self.pods.iter().filter(|pod| pod.name_any() != desired.names.trial());
        let names = members.map(|pod| format!("data-{}", pod.name_any()));
        let is_missing = |name: &String| self.claims.iter().all(|claim| claim.name_any() != *name);
        names.filter(is_missing).collect()
    }
}

/// Returns true if the pod's condition Ready is True.
pub fn is_ready(pod: &Pod) -> bool {
    ready_since(pod).is_some()
}

/// Returns the time since which a pod is ready, in seconds of the wall clock; `None` if it is not.
pub fn ready_since(pod: &Pod) -> Option<i64> {
    readiness(pod).filter(|(is_ready, _)| *is_ready).map(|(_, since)| since)
}

/// Returns the time since which a pod is not ready, in seconds of the wall clock; `None` if it is, or the kubelet has not seen it yet.
pub fn unready_since(pod: &Pod) -> Option<i64> {
    readiness(pod).filter(|(is_ready, _)| !is_ready).map(|(_, since)| since)
}

/// Returns whether a pod is ready, and since when.
fn readiness(pod: &Pod) -> Option<(bool, i64)> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready")?;
    let since = ready.last_transition_time.as_ref().map_or(0, |time| time.0.as_second());
    Some((ready.status == "True", since))
}
