//! Changes the resources of a running pod.

use kube::api::Patch;
use plan::event::ClusterEvent;
use plan::names::{MEMORY_RESIZED, RESIZE_REFUSED, RESOURCES_HASH};
use plan::objects::resources;
use plan::steps::PlanStep;
use serde_json::json;

use super::{ApplyError, StepApplier, merge};
use crate::api_error;

impl StepApplier<'_> {
    /// Resizes a pod, and records the outcome on it. API servers before 1.33 have no such subresource, and not every change can be made in
    /// place. In these cases the roll-out replaces the pod.
    pub(super) async fn resize(&self, step: &PlanStep) -> Result<Option<ClusterEvent>, ApplyError> {
        let PlanStep::Resize {
            pod,
            uid,
            patch,
            template,
            former,
            restarts,
            hash,
        } = step
        else {
            return Ok(None);
        };
        let mut patch = patch.clone();
        patch["metadata"] = json!({"uid": uid});
        let refusal = match self.pods().patch_resize(pod, &merge(), &Patch::Strategic(patch)).await {
            // An API server may report success without any change.
            Ok(live) => resources::missing(template, &serde_json::to_value(live)?, former),
            Err(error) if is_refusal(&error) => Some(api_error::message(&error)),
            Err(error) => return Err(error.into()),
        };
        let (annotations, event) = match refusal {
            None => {
                let note = format!("changed the resources of pod {pod} in place");
                (
                    json!({RESOURCES_HASH: hash, RESIZE_REFUSED: null, MEMORY_RESIZED: restarts.then_some(hash)}),
                    ClusterEvent::normal("PodResized", "ResizePod", note),
                )
            }
            Some(why) => {
                let note = format!("the resources of pod {pod} cannot change in place, so it will be replaced: {why}");
                (
                    json!({RESIZE_REFUSED: hash}),
                    ClusterEvent::warning("ResizeRefused", "ResizePod", note),
                )
            }
        };
        let record = json!({"metadata": {"uid": uid, "annotations": annotations}});
        match self.pods().patch(pod, &merge(), &Patch::Merge(record)).await {
            Ok(_) => Ok(Some(event)),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns true if the API server does not support resizing, or rejects this change as impossible.
fn is_refusal(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 404 | 405 | 422))
}

#[cfg(test)]
mod tests {
    use fake_api::{FakeApi, ScriptedReply, failure};
    use plan::testing::FakeCluster;

    use super::*;
    use crate::apply::ApplyOutcome;
    use crate::testing::Rig;

    const POD: &str = "/api/v1/namespaces/brains/pods/dev-0";

    /// Resizes a pod that has the container `brain` and another one.
    async fn resized(api: FakeApi) -> (FakeApi, ApplyOutcome) {
        let mut fake = FakeCluster::settled(json!({}));
        api.load(&fake);
        let pod = api.put(
            POD,
            json!({
                "kind": "Pod", "apiVersion": "v1",
                "metadata": {"name": "dev-0", "namespace": "brains"},
                "spec": {"containers": [{"name": "other"}, {"name": "brain", "resources": {"limits": {"cpu": "1"}}}]},
            }),
        );
        let rig = Box::pin(Rig::new(api.clone())).await;
        fake.edit(json!({"pod": {"resources": {"limits": {"cpu": "2"}}}}));
        fake.pass();
        let desired = fake.desired();
        let steps = fake.plan().steps;
        let steps: Vec<PlanStep> = steps
            .into_iter()
            .map(|step| match step {
                PlanStep::Resize {
                    pod: name,
                    patch,
                    template,
                    former,
                    restarts,
                    hash,
                    ..
                } => PlanStep::Resize {
                    pod: name,
                    uid: pod["metadata"]["uid"].as_str().unwrap().to_owned(),
                    patch,
                    template,
                    former,
                    restarts,
                    hash,
                },
                other => other,
            })
            .collect();
        assert!(matches!(steps[..], [PlanStep::Resize { .. }]));
        let observed = fake.own();
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
        (api, outcome)
    }

    fn annotation(api: &FakeApi, key: &str) -> bool {
        api.get(POD).unwrap()["metadata"]["annotations"][key].is_string()
    }

    #[tokio::test(start_paused = true)]
    async fn pod_is_resized_in_place_and_says_so() {
        let (api, outcome) = resized(FakeApi::new()).await;
        assert!(outcome.failed.is_none() && outcome.applied.done == 1);
        let containers = api.get(POD).unwrap()["spec"]["containers"].clone();
        assert_eq!(containers[0], json!({"name": "other"}));
        assert_eq!(containers[1]["resources"], json!({"limits": {"cpu": "2"}}));
        assert!(annotation(&api, RESOURCES_HASH) && !annotation(&api, RESIZE_REFUSED));
    }

    /// Behaves like an API server that drops what it cannot merge.
    #[tokio::test(start_paused = true)]
    async fn resize_that_changed_nothing_is_no_resize() {
        let (api, outcome) = resized(FakeApi::scripted(|asked| {
            if asked.path.ends_with("/resize") {
                let containers = json!([{"name": "brain", "resources": {"limits": {"cpu": "1"}}}]);
                let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "dev-0"}, "spec": {"containers": containers}});
                return ScriptedReply::With(200, pod);
            }
            ScriptedReply::Pass
        }))
        .await;
        assert!(outcome.failed.is_none());
        assert!(annotation(&api, RESIZE_REFUSED) && !annotation(&api, RESOURCES_HASH));
        assert_eq!(api.events(), ["ResizeRefused"]);
    }

    #[tokio::test(start_paused = true)]
    async fn resize_that_cannot_be_is_recorded_on_the_pod() {
        for code in [404, 405, 422] {
            let (api, outcome) = resized(FakeApi::scripted(move |asked| {
                if asked.path.ends_with("/resize") {
                    let (code, status) = failure(code, "Invalid", "dev-0");
                    return ScriptedReply::With(code, status);
                }
                ScriptedReply::Pass
            }))
            .await;
            assert!(outcome.failed.is_none() && outcome.applied.done == 1, "{code}");
            assert!(
                annotation(&api, RESIZE_REFUSED) && !annotation(&api, RESOURCES_HASH),
                "{code}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn resize_that_is_denied_is_tried_again() {
        let (api, outcome) = resized(FakeApi::scripted(|asked| {
            if asked.path.ends_with("/resize") {
                let (code, status) = failure(403, "Forbidden", "dev-0");
                return ScriptedReply::With(code, status);
            }
            ScriptedReply::Pass
        }))
        .await;
        assert_eq!(outcome.failed.unwrap().step, "resize pod dev-0");
        assert!(
            outcome
                .applied
                .refused_resize
                .unwrap()
                .starts_with("dev-0 keeps its resources")
        );
        assert!(!annotation(&api, RESIZE_REFUSED) && !annotation(&api, RESOURCES_HASH));
    }
}
