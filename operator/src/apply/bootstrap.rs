//! The restore of a cluster's first data, or its copy from an etcd.

use crds::wishes::{CUTOVER, CUTOVER_VALUE};
use k8s_openapi::api::batch::v1::Job;
use kube::api::{Patch, PostParams};
use kube::{Api, ResourceExt as _};
use plan::event::ClusterEvent;
use plan::names::MANAGER;
use plan::steps::PlanStep;
use serde_json::json;

use super::{ApplyError, StepApplier, gone_is_fine, merge};
use crate::jobs;

impl StepApplier<'_> {
    /// Creates the Job that restores the first data, or the claim that it fills, or deletes a Job that was created for another spec, or
    /// lets its pod end a copy. If another client has created one since, the next pass looks at it.
    pub(super) async fn step_of_bootstrap(&self, step: &PlanStep) -> Result<Option<ClusterEvent>, ApplyError> {
        let params = PostParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PostParams::default()
        };
        let (what, made) = match step {
            PlanStep::CreateClaim { claim } => {
                let what = format!("PersistentVolumeClaim {}", claim.name_any());
                (what, self.claims().create(&params, claim).await.map(drop))
            }
            PlanStep::Bootstrap { job } => {
                let jobs: Api<Job> = Api::namespaced(self.client.clone(), &self.desired.names.namespace);
                (
                    format!("Job {}", job.name_any()),
                    jobs.create(&params, job).await.map(drop),
                )
            }
            PlanStep::EndBootstrap { job } => {
                let jobs: Api<Job> = Api::namespaced(self.client.clone(), &self.desired.names.namespace);
                jobs::delete_after_dependents(&jobs, job).await?;
                return Ok(None);
            }
            PlanStep::CutOver { pod, uid } => {
                let patch = json!({"metadata": {"uid": uid, "annotations": {CUTOVER: CUTOVER_VALUE}}});
                gone_is_fine(self.pods().patch(pod, &merge(), &Patch::Merge(patch)).await)?;
                return Ok(None);
            }
            _ => return Ok(None),
        };
        match made {
            Err(kube::Error::Api(answer)) if answer.is_already_exists() => Ok(None),
            made => {
                made?;
                Ok(Some(ClusterEvent::normal(
                    "Created",
                    "Bootstrap",
                    format!("created {what}"),
                )))
            }
        }
    }
}
