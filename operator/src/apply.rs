//! Carries out the steps of a pass, in their order.

use std::collections::BTreeMap;

use crds::KubeBrainCluster;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use kube::core::{DynamicObject, ObjectMeta, Request};
use kube::{Api, Client, Resource, ResourceExt};
use plan::applied::AppliedSteps;
use plan::certificates::Leaf;
use plan::event::ClusterEvent;
use plan::names::{CLUSTER, MANAGER, ROLE};
use plan::objects::{Object, ObjectKey, ObjectKind, Renderer};
use plan::observed::Observed;
use plan::spec::Desired;
use plan::steps::claims::is_terminating;
use plan::steps::{Additions, LiveObject, PlanStep, describe, keep_metadata};
use plan::{issuance, ownership};
use serde_json::{Value, json};
use tracing::info;

use crate::api_error::{self, FailureClass};
use crate::apply_history::ApplyHistory;
use crate::cache::{clusters, list_kept, received};
use crate::events::EventPublisher;
use crate::metrics::Metrics;
use crate::observe;
use crate::probe;

mod bootstrap;
mod resize;

/// Maximum number of pods of a cluster that are read before one of them is deleted.
const MAX_PODS_READ: usize = 256;

/// Reason why a step failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApplyError {
    #[error("the API server refused it")]
    Api(#[source] Box<kube::Error>),
    #[error(transparent)]
    Issuance(#[from] issuance::IssuanceError),
    #[error("it does not serialise")]
    Serialise(#[from] serde_json::Error),
    #[error("{0}")]
    HandOver(String),
}

impl From<kube::Error> for ApplyError {
    fn from(error: kube::Error) -> Self {
        Self::Api(Box::new(error))
    }
}

impl ApplyError {
    /// Returns the class of the error, which decides how a reconcile reacts.
    pub(crate) fn class(&self) -> FailureClass {
        match self {
            Self::Api(error) => FailureClass::of(error),
            _ => FailureClass::Transient,
        }
    }

    /// Returns true if the API server rejects the object itself as invalid, so that a retry does not help.
    pub(crate) fn is_invalid(&self) -> bool {
        self.class() == FailureClass::Invalid
    }

    /// Returns the error in the API server's words, if it has any.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Api(error) => api_error::message(error),
            other => other.to_string(),
        }
    }
}

/// A step that failed.
pub(crate) struct FailedStep {
    /// The step in words.
    pub(crate) step: String,
    pub(crate) error: ApplyError,
}

/// The outcome of the steps.
#[derive(Default)]
pub(crate) struct ApplyOutcome {
    pub(crate) applied: AppliedSteps,
    /// The first step that failed. Steps that do not depend on it were still tried.
    pub(crate) failed: Option<FailedStep>,
}

/// Carries out steps for one cluster.
pub(crate) struct StepApplier<'a> {
    pub(crate) client: &'a Client,
    pub(crate) events: &'a EventPublisher,
    pub(crate) metrics: &'a Metrics,
    pub(crate) apply_history: &'a ApplyHistory,
    pub(crate) cluster: &'a KubeBrainCluster,
    pub(crate) desired: &'a Desired,
    pub(crate) observed: &'a Observed,
}

impl StepApplier<'_> {
    /// Carries out `steps`. After a failure only independent steps continue, unless the failed step only concerns monitoring.
    pub(crate) async fn run(&self, steps: &[PlanStep]) -> ApplyOutcome {
        let (mut applied, mut failed) = (AppliedSteps::default(), None);
        let mut is_only_monitoring = false;
        for step in steps {
            if failed.is_some() && !is_only_monitoring && !stands_alone(step) {
                continue;
            }
            let in_vain = |applied: &AppliedSteps| (applied.unchanged, applied.refused_trial.is_some());
            let before = in_vain(&applied);
            match self.step(step, &mut applied).await {
                Ok(_) if in_vain(&applied) != before || applied.stale => {}
                Ok(event) => {
                    applied.done += 1;
                    self.metrics.step(step);
                    if let Some(event) = event {
                        info!(reason = event.reason, "{}", event.note);
                        self.events.publish(self.cluster, event).await;
                    }
                }
                Err(error) => {
                    if let (PlanStep::ChangeClaim { claim, .. }, FailureClass::Denied | FailureClass::Invalid) =
                        (step, error.class())
                    {
                        applied.refused_claims.insert(claim.clone(), error.message());
                        continue;
                    }
                    if let (PlanStep::Resize { pod, .. }, FailureClass::Denied) = (step, error.class()) {
                        let words = error.message();
                        applied.refused_resize = Some(format!(
                            "{pod} keeps its resources: the API server rejected the new ones: {words}"
                        ));
                    }
                    if failed.is_none() || is_only_monitoring {
                        is_only_monitoring = is_monitoring(step);
                        let step = describe(step, self.desired);
                        failed = Some(FailedStep { step, error });
                    }
                }
            }
        }
        ApplyOutcome { applied, failed }
    }

    /// Carries out one step. Returns the event to publish, if any.
    async fn step(&self, step: &PlanStep, applied: &mut AppliedSteps) -> Result<Option<ClusterEvent>, ApplyError> {
        match step {
            PlanStep::WriteAuthority { .. } | PlanStep::DiscardAuthority { .. } | PlanStep::Issue { .. } => {
                self.step_of_certificates(step, applied).await
            }
            PlanStep::Apply { object, uid } => {
                let version = match uid {
                    // Their apply sets few or no fields that another manager has set, so it would take the object over without a conflict.
                    None if matches!(
                        object.key.kind,
                        ObjectKind::ServiceAccount | ObjectKind::ConfigMap | ObjectKind::Lease
                    ) =>
                    {
                        self.create(object).await?
                    }
                    uid => self.write(object, uid.as_deref()).await?,
                };
                let live = self.observed.objects.get(&object.key);
                let unchanged = version.is_some() && live.is_some_and(|live| live.metadata.resource_version == version);
                let namespace = &self.desired.names.namespace;
                self.apply_history.record(namespace, object, live, !unchanged);
                if unchanged {
                    applied.unchanged += 1;
                    return Ok(None);
                }
                let (reason, verb) = if uid.is_some() {
                    ("Updated", "updated")
                } else {
                    ("Created", "created")
                };
                Ok(Some(
                    ClusterEvent::normal(reason, "Apply", format!("{verb} {}", object.key))
                        .about(object.key.reference()),
                ))
            }
            PlanStep::TakeBack { object, uid, additions } => self.take_back((object, uid), additions, applied).await,
            PlanStep::Delete { key, uid } => {
                self.delete(key, uid).await?;
                Ok(Some(
                    ClusterEvent::normal("Deleted", "Delete", format!("deleted {key}")).about(key.reference()),
                ))
            }
            PlanStep::HandOver {
                from,
                address,
                to,
                target,
            } => {
                applied.asked = true;
                self.hand_over((from, address), (to, *target)).await?;
                applied.handed_over = true;
                Ok(Some(ClusterEvent::normal(
                    "LeaderTransferred",
                    "HandOver",
                    format!("transferred leadership from {from} to {to}"),
                )))
            }
            PlanStep::Replace { pod, .. } if !self.is_as_planned(pod).await? => {
                applied.stale = true;
                Ok(None)
            }
            PlanStep::Try { pod, whole } => Box::pin(self.begin_trial(pod, whole, applied)).await,
            PlanStep::CreateClaim { .. }
            | PlanStep::Bootstrap { .. }
            | PlanStep::EndBootstrap { .. }
            | PlanStep::CutOver { .. } => self.step_of_bootstrap(step).await,
            PlanStep::ChangeClaim { .. }
            | PlanStep::EndTrial { .. }
            | PlanStep::RetainClaims { .. }
            | PlanStep::Scale { .. }
            | PlanStep::Label { .. }
            | PlanStep::Resize { .. }
            | PlanStep::Replace { .. } => self.step_below(step).await,
        }
    }

    /// Creates the pod in which a new template is tried. Rules of the namespace may forbid a small pod but allow one of full size.
    async fn begin_trial(
        &self,
        small: &Value,
        whole: &Value,
        applied: &mut AppliedSteps,
    ) -> Result<Option<ClusterEvent>, ApplyError> {
        let is_forbidden = |error: &ApplyError| error.class() == FailureClass::Denied;
        let refusal = match self.create_pod(small).await {
            Err(error) if is_forbidden(&error) => error.message(),
            made => return made.map(|()| Some(self.trial_begun())),
        };
        match self.create_pod(whole).await {
            Err(error) if is_forbidden(&error) => {
                applied.refused_trial = Some(refusal);
                Ok(None)
            }
            made => made.map(|()| Some(self.trial_begun())),
        }
    }

    fn trial_begun(&self) -> ClusterEvent {
        let note = format!("created pod {} to try the new template", self.desired.names.trial());
        ClusterEvent::normal("TrialStarted", "Try", note)
    }

    /// Creates a pod from JSON. Its fields may have wrong types or be unknown to the operator; the API server reports that.
    async fn create_pod(&self, pod: &Value) -> Result<(), ApplyError> {
        let params = PostParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PostParams::default()
        };
        let path = Pod::url_path(&(), Some(&self.desired.names.namespace));
        let request = Request::new(path).create(&params, serde_json::to_vec(pod)?);
        let request = request.map_err(kube::Error::BuildRequest)?;
        self.client.request::<received::ObjectStub>(request).await?;
        Ok(())
    }

    /// Removes fields that another manager added. If admission adds them again, they stay.
    async fn take_back(
        &self,
        (object, uid): (&Object, &str),
        additions: &Additions,
        applied: &mut AppliedSteps,
    ) -> Result<Option<ClusterEvent>, ApplyError> {
        let mut patch = additions.patch.clone();
        patch["metadata"] = json!({"uid": uid});
        let api = self.dynamic(object.key.kind);
        let answer = api.patch(&object.key.name, &merge(), &Patch::Merge(patch)).await?;
        let live = self.observed.objects.get(&object.key);
        let unchanged = live.is_some_and(|live| live.metadata.resource_version == answer.metadata.resource_version);
        self.apply_history
            .record(&self.desired.names.namespace, object, live, !unchanged);
        if unchanged {
            applied.unchanged += 1;
            return Ok(None);
        }
        let note = format!(
            "removed {} from {}: another client had added it",
            additions.fields.join(", "),
            object.key
        );
        Ok(Some(
            ClusterEvent::normal("Updated", "TakeBack", note).about(object.key.reference()),
        ))
    }

    /// Carries out steps on claims and pods, which the StatefulSet created, and on their leadership.
    async fn step_below(&self, step: &PlanStep) -> Result<Option<ClusterEvent>, ApplyError> {
        match step {
            PlanStep::ChangeClaim {
                claim,
                size,
                attributes_class,
            } => {
                let mut spec = json!({"resources": {"requests": {"storage": size.0}}});
                if let Some(class) = attributes_class {
                    spec["volumeAttributesClassName"] = json!(class);
                }
                self.claims()
                    .patch(claim, &merge(), &Patch::Merge(json!({"spec": spec})))
                    .await?;
                Ok(Some(ClusterEvent::normal(
                    "VolumeResized",
                    "ResizeVolume",
                    format!("requested {} for volume claim {claim}", size.0),
                )))
            }
            PlanStep::RetainClaims { set, uid } => {
                let policy = json!({"persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain"}});
                let patch = json!({"metadata": {"uid": uid}, "spec": policy});
                let sets = self.dynamic(ObjectKind::StatefulSet);
                gone_is_fine(sets.patch(set, &merge(), &Patch::Merge(patch)).await)?;
                let note = format!("volumes of {set} are retained when the cluster is deleted");
                Ok(Some(ClusterEvent::normal("VolumesRetained", "RetainVolumes", note)))
            }
            PlanStep::EndTrial { pod, uid } => {
                let params = DeleteParams {
                    preconditions: Some(Preconditions {
                        uid: Some(uid.clone()),
                        resource_version: None,
                    }),
                    ..DeleteParams::default()
                };
                gone_is_fine(self.pods().delete(pod, &params).await)?;
                Ok(None)
            }
            PlanStep::Scale { set, uid, replicas } => {
                let patch = json!({"metadata": {"uid": uid}, "spec": {"replicas": replicas}});
                let sets = self.dynamic(ObjectKind::StatefulSet);
                gone_is_fine(sets.patch(set, &merge(), &Patch::Merge(patch)).await)?;
                let note = format!("reset the replicas of {set} to {replicas}");
                Ok(Some(ClusterEvent::normal("ReplicasHeld", "Scale", note)))
            }
            PlanStep::Label { pod, uid, role } => {
                let patch = json!({"metadata": {"uid": uid, "labels": {ROLE: role}}});
                gone_is_fine(self.pods().patch(pod, &merge(), &Patch::Merge(patch)).await)?;
                Ok(None)
            }
            PlanStep::Resize { .. } => self.resize(step).await,
            PlanStep::Replace { pod, uid, version, why } => {
                let same = Preconditions {
                    uid: Some(uid.clone()),
                    resource_version: Some(version.clone()),
                };
                let params = DeleteParams {
                    preconditions: Some(same),
                    ..DeleteParams::default()
                };
                gone_is_fine(self.pods().delete(pod, &params).await)?;
                Ok(Some(ClusterEvent::normal(
                    "PodReplaced",
                    "ReplacePod",
                    format!("deleted pod {pod}: {why}"),
                )))
            }
            _ => Ok(None),
        }
    }

    /// Reads the StatefulSet and the pods from the API server. Returns true if they are those that the plan was made from, and `name` still
    /// does not lead.
    async fn is_as_planned(&self, name: &str) -> Result<bool, ApplyError> {
        let (names, observed) = (&self.desired.names, self.observed);
        let version = |metadata: &ObjectMeta| (metadata.uid.clone(), metadata.resource_version.clone());
        let set = self.dynamic(ObjectKind::StatefulSet).get_opt(&names.cluster).await?;
        let set = set.map(|set| version(&set.metadata));
        let planned = observed
            .objects
            .get(&ObjectKey::new(ObjectKind::StatefulSet, &names.cluster));
        let Some((uid, _)) = set.clone().filter(|_| set == planned.map(|set| version(&set.metadata))) else {
            return Ok(false);
        };
        let params = ListParams::default().labels(&format!("{CLUSTER}={}", names.cluster));
        let is_own = |pod: &Pod| ownership::controller(pod) == uid.as_deref();
        let live = list_kept(&self.pods(), params, MAX_PODS_READ, is_own).await?;
        let versions = |pod: &Pod| (pod.name_any(), version(&pod.metadata));
        let live: BTreeMap<_, _> = live.iter().map(versions).collect();
        if live != observed.pods.iter().map(versions).collect() {
            return Ok(false);
        }
        // Kubernetes keeps the data of a claim that is being deleted only as long as the pod exists.
        if self.desired.storage.embedded().is_some() {
            let claim = self.claims().get_opt(&format!("data-{name}")).await?;
            if claim.as_ref().is_some_and(is_terminating) {
                return Ok(false);
            }
        }
        // A member that answered that it does not lead may have been elected since.
        let pod = observed.pods.iter().find(|pod| pod.name_any() == name);
        let address = pod.and_then(|pod| pod.status.as_ref()?.pod_ip.as_deref());
        let (Some(Ok(answer)), Some(address)) = (observed.probes.get(name), address) else {
            return Ok(true);
        };
        if answer.is_leader() {
            return Ok(true);
        }
        let identity = observe::identity(self.cluster, self.desired, observed).map_err(ApplyError::HandOver)?;
        let again = Box::pin(probe::ask(address, &names.member_host(name), identity.as_ref())).await;
        Ok(again.is_ok_and(|again| !again.is_leader()))
    }

    fn issued(&self, leaf: Leaf, renewed: bool, why: &str) -> ClusterEvent {
        let name = self.desired.names.leaf(leaf);
        let (reason, verb) = if renewed {
            ("CertificateRenewed", "renewed")
        } else {
            ("CertificateIssued", "issued")
        };
        let event = ClusterEvent::normal(
            reason,
            "IssueCertificate",
            format!("{verb} the certificate {name}: {why}"),
        );
        event.about(ObjectKey::new(ObjectKind::Secret, name).reference())
    }

    /// Carries out steps on the authority and on the certificates it signs.
    async fn step_of_certificates(
        &self,
        step: &PlanStep,
        applied: &mut AppliedSteps,
    ) -> Result<Option<ClusterEvent>, ApplyError> {
        let (renderer, names) = (self.renderer(), &self.desired.names);
        let at = (names, self.observed.now);
        match step {
            PlanStep::WriteAuthority { change, before, live } => {
                let (object, view) = issuance::authority(&renderer, before.as_deref(), change, at)?;
                match live {
                    Some(live) => self.write_over(&object, live).await?,
                    None => self.create(&object).await?,
                };
                applied.authority = Some(view);
                Ok(issuance::event(change, names))
            }
            PlanStep::DiscardAuthority { live } => {
                self.discard_authority(live).await?;
                Ok(None)
            }
            PlanStep::Issue {
                leaf,
                request,
                uid,
                why,
                signer,
                bundle,
            } => {
                let (object, stored) = issuance::leaf(&renderer, (*leaf, request), (signer, bundle), at)?;
                match uid {
                    Some(uid) => self.write(&object, Some(uid)).await?,
                    None => self.create(&object).await?,
                };
                applied.leaves.insert(*leaf, stored);
                Ok(Some(self.issued(*leaf, uid.is_some(), why)))
            }
            _ => Ok(None),
        }
    }

    /// Creates an object that must not exist yet: an apply would take over an object that another manager creates at the same time. Fields
    /// that may change later are applied afterwards, so that only the applying manager owns them.
    async fn create(&self, object: &Object) -> Result<Option<String>, ApplyError> {
        let mut body = object.body.clone();
        body["metadata"]["labels"] = json!(self.desired.names.labels());
        if let Some(metadata) = body["metadata"].as_object_mut() {
            metadata.remove("annotations");
        }
        let params = PostParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PostParams::default()
        };
        let first: DynamicObject = serde_json::from_value(body)?;
        let made = self.dynamic(object.key.kind).create(&params, &first).await?;
        self.write(object, made.metadata.uid.as_deref()).await
    }

    /// Applies an object only if it was not written since it was read.
    async fn write_over(&self, object: &Object, live: &LiveObject) -> Result<Option<String>, ApplyError> {
        let mut object = object.clone();
        object.body["metadata"]["resourceVersion"] = json!(live.version);
        self.write(&object, Some(&live.uid)).await
    }

    /// Deletes an authority that is not recorded, unless the status has recorded it since.
    async fn discard_authority(&self, live: &LiveObject) -> Result<(), ApplyError> {
        let namespace = &self.desired.names.namespace;
        let clusters: Api<received::WholeObject> =
            Api::namespaced_with(self.client.clone(), namespace, &clusters::resource());
        let newest = clusters::read(clusters.get(&self.desired.names.cluster).await?);
        let Some(newest) = newest else { return Ok(()) };
        let recorded = |cluster: &KubeBrainCluster| cluster.status.as_ref().and_then(|status| status.ca.clone());
        if recorded(&newest) != recorded(self.cluster) {
            return Ok(());
        }
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(live.uid.clone()),
                resource_version: Some(live.version.clone()),
            }),
            ..DeleteParams::default()
        };
        let secrets = self.dynamic(ObjectKind::Secret);
        gone_is_fine(secrets.delete(&self.desired.names.authority(), &params).await)
    }

    /// Applies an object by server-side apply. An object that was seen is named by its uid, so that no other object of that name is taken
    /// over. One that was not seen is written without force, so that the write conflicts if another manager has created it since.
    ///
    /// Returns the resource version of the answer. It is that of the live object if nothing changed.
    async fn write(&self, object: &Object, uid: Option<&str>) -> Result<Option<String>, ApplyError> {
        let api = self.dynamic(object.key.kind);
        let mut object = object.clone();
        let live = self.observed.objects.get(&object.key);
        if let Some(live) = live.filter(|_| self.desired.held.is_some()) {
            keep_metadata(&mut object, live);
        }
        let mut params = PatchParams::apply(MANAGER);
        if object.key.kind == ObjectKind::StatefulSet {
            // The template may have fields that the operator does not know; none may be dropped silently.
            params = params.validation_strict();
        }
        let mut body = object.body;
        let params = match uid {
            Some(uid) => {
                body["metadata"]["uid"] = json!(uid);
                params.force()
            }
            None => params,
        };
        let answer = api.patch(&object.key.name, &params, &Patch::Apply(body)).await?;
        Ok(answer.metadata.resource_version)
    }

    /// Asks the leader to hand over. The request completes when the other member leads.
    async fn hand_over(&self, (from, address): (&str, &str), (_, target): (&str, u64)) -> Result<(), ApplyError> {
        let identity = observe::identity(self.cluster, self.desired, self.observed).map_err(ApplyError::HandOver)?;
        let host = self.desired.names.member_host(from);
        let asked = probe::move_leader(address, &host, identity.as_ref(), target);
        Box::pin(asked).await.map_err(ApplyError::HandOver)
    }

    async fn delete(&self, key: &ObjectKey, uid: &str) -> Result<(), ApplyError> {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(uid.to_owned()),
                resource_version: None,
            }),
            propagation_policy: Some(PropagationPolicy::Background),
            ..DeleteParams::default()
        };
        gone_is_fine(self.dynamic(key.kind).delete(&key.name, &params).await)
    }

    fn renderer(&self) -> Renderer<'_> {
        Renderer::new(self.cluster, self.desired)
    }

    fn dynamic(&self, kind: ObjectKind) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.desired.names.namespace, &kind.resource())
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.desired.names.namespace)
    }

    fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), &self.desired.names.namespace)
    }
}

/// Returns true for steps that no other step depends on and that depend on no other step.
fn stands_alone(step: &PlanStep) -> bool {
    matches!(
        step,
        PlanStep::ChangeClaim { .. }
            | PlanStep::RetainClaims { .. }
            | PlanStep::Scale { .. }
            | PlanStep::Label { .. }
            | PlanStep::Resize { .. }
            | PlanStep::CutOver { .. }
    )
}

/// Returns true for steps whose failure holds up no other step: brains run as well without them.
fn is_monitoring(step: &PlanStep) -> bool {
    match step {
        PlanStep::Apply { object, .. } => object.key.kind == ObjectKind::PodMonitor,
        PlanStep::Delete { key, .. } => key.kind == ObjectKind::PodMonitor,
        _ => false,
    }
}

fn merge() -> PatchParams {
    PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    }
}

fn gone_is_fine<T>(answer: kube::Result<T>) -> Result<(), ApplyError> {
    match answer {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use fake_api::{FakeApi, ScriptedReply, failure};
    use plan::testing::FakeCluster;

    use super::*;
    use crate::testing::Rig;

    /// Applies an object of this kind, which the API server refuses, and then another. Returns true if the second was created.
    async fn goes_on_behind(kind: ObjectKind) -> bool {
        let refused = format!("/{}/dev", kind.resource().plural);
        let api = FakeApi::scripted(move |asked| {
            if !asked.path.ends_with(&refused) {
                return ScriptedReply::Pass;
            }
            let (code, status) = failure(500, "InternalError", "dev");
            ScriptedReply::With(code, status)
        });
        let fake = FakeCluster::settled(json!({}));
        let apply = |kind: ObjectKind, name: &str| {
            let resource = kind.resource();
            let body = json!({
                "apiVersion": resource.api_version, "kind": resource.kind,
                "metadata": {"name": name, "namespace": "brains"},
            });
            let object = Object::new(kind, name, &body).unwrap();
            PlanStep::Apply { object, uid: None }
        };
        let steps = [apply(kind, "dev"), apply(ObjectKind::Role, "next")];
        let rig = Box::pin(Rig::new(api.clone())).await;
        let (desired, observed) = (fake.desired(), fake.own());
        let applier = StepApplier {
            client: &rig.context.client,
            events: &rig.context.events,
            metrics: &rig.context.metrics,
            apply_history: &rig.context.apply_history,
            cluster: &fake.cluster,
            desired: &desired,
            observed: &observed,
        };
        let outcome = Box::pin(applier.run(&steps)).await;
        let failed = outcome.failed.expect("the API server refuses one");
        assert_eq!(failed.step, format!("apply {} dev", kind.resource().kind));
        api.get("/apis/rbac.authorization.k8s.io/v1/namespaces/brains/roles/next")
            .is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn only_monitoring_that_fails_holds_nothing_up() {
        assert!(goes_on_behind(ObjectKind::PodMonitor).await);
        assert!(!goes_on_behind(ObjectKind::PodDisruptionBudget).await);
    }
}
