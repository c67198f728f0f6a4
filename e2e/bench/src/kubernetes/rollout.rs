//! The state of a Deployment's rollout, as `kubectl rollout status` sees it.

use k8s_openapi::api::apps::v1::Deployment;

/// Numbers of pods of a Deployment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RolloutState {
    /// By the spec.
    wanted: u64,
    /// Those that exist and are not being deleted.
    total: u64,
    /// Those of the latest template.
    updated: u64,
    /// Those that are ready, of whatever template.
    ready: u64,
}

impl RolloutState {
    /// Of a status that is older than the spec, only the wanted number counts.
    pub(super) fn of(deployment: &Deployment) -> Self {
        let number = |value: Option<i32>| value.and_then(|value| u64::try_from(value).ok()).unwrap_or(0);
        let (spec, status) = (deployment.spec.as_ref(), deployment.status.as_ref());
        let wanted = number(spec.map(|spec| spec.replicas.unwrap_or(1)));
        let observed = status.and_then(|status| status.observed_generation);
        match status {
            Some(status) if observed >= deployment.metadata.generation => Self {
                wanted,
                total: number(status.replicas),
                updated: number(status.updated_replicas),
                ready: number(status.ready_replicas),
            },
            _ => Self {
                wanted,
                ..Self::default()
            },
        }
    }

    /// Pods of the latest template that are ready, as far as the numbers tell: at least those that neither are old nor wait.
    pub(super) fn pods(self) -> u64 {
        let old = self.total.saturating_sub(self.updated);
        self.ready.saturating_sub(old).min(self.updated)
    }

    /// Returns true if all pods are of the latest template and ready.
    pub(super) fn is_complete(self) -> bool {
        [self.total, self.updated, self.ready] == [self.wanted; 3]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Ten pods are wanted; numbers are all, updated and ready ones.
    fn state(generations: (i64, i64), total: u64, updated: u64, ready: u64) -> RolloutState {
        let status = json!({
            "observedGeneration": generations.1, "replicas": total, "updatedReplicas": updated, "readyReplicas": ready,
        });
        let spec = json!({"replicas": 10, "selector": {}, "template": {}});
        let metadata = json!({"generation": generations.0});
        let deployment = json!({"metadata": metadata, "spec": spec, "status": status});
        RolloutState::of(&serde_json::from_value(deployment).unwrap())
    }

    #[test]
    fn a_rollout_is_complete_when_all_pods_are_new_and_ready() {
        assert!(state((2, 2), 10, 10, 10).is_complete());
        for (total, updated, ready) in [(11, 10, 10), (10, 9, 10), (10, 10, 9), (0, 0, 0)] {
            assert!(!state((2, 2), total, updated, ready).is_complete());
        }
        // the controller has not seen the new template yet
        assert!(!state((2, 1), 10, 10, 10).is_complete());
        let unseen = json!({"metadata": {}, "spec": {"replicas": 10, "selector": {}, "template": {}}});
        assert!(!RolloutState::of(&serde_json::from_value(unseen).unwrap()).is_complete());
    }

    #[test]
    fn old_pods_do_not_count() {
        assert_eq!(state((1, 1), 10, 10, 7).pods(), 7);
        // eight old ones may be ready
        assert_eq!(state((2, 2), 12, 4, 10).pods(), 2);
        assert_eq!(state((2, 2), 12, 4, 5).pods(), 0);
        assert_eq!(state((2, 1), 10, 10, 10).pods(), 0);
    }
}
