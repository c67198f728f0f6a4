//! The reason why a pod does not serve, in the kubelet's and the scheduler's words.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodCondition};
use kube::ResourceExt;

use super::facts::Blocker;
use crate::archive::ARCHIVE_CONTAINER;
use crate::backup::BACKUP_CONTAINER;
use crate::bootstrap::BOOTSTRAP_CONTAINER;
use crate::member::{BrainRefusal, BrainRole, MemberAnswer};
use crate::names::PEER_PORT;
use crate::objects::pod::BRAIN_CONTAINER;
use crate::observed::is_ready;

/// A younger pod may simply be waiting for its volumes or its image.
const POD_GRACE_SECONDS: i64 = 30;
/// The same for a pod without a node, because an autoscaler may add one first.
const NODE_GRACE_SECONDS: i64 = 60;
/// The same for the volumes and the network of a pod with a node, because a volume may first be detached from another node.
const VOLUME_GRACE_SECONDS: i64 = 90;
/// A container with this many restarts that is not ready counts as crashing repeatedly, whatever its present state.
const CRASHING_RESTARTS: i32 = 2;

/// Message for a pod about which nothing else is known.
pub(super) const NOT_READY: &str = "not ready yet";
/// The scheduler finds no node yet.
pub const UNSCHEDULABLE: &str = "Unschedulable";

const CRASHING: &str = "CrashLoopBackOff";
const NOT_CREATED: &str = "ContainerCreationFailed";

/// Reasons for a container that waits for a user to act, each with those of the kubelet.
const WAITING_REASONS: [(&str, &[&str]); 3] = [
    (
        "ImagePullFailed",
        &[
            "ErrImageNeverPull",
            "ErrImagePull",
            "ImageInspectError",
            "ImagePullBackOff",
            "InvalidImageName",
            "RegistryUnavailable",
            "SignatureValidationFailed",
        ],
    ),
    (
        NOT_CREATED,
        &[
            "CreateContainerConfigError",
            "CreateContainerError",
            "RunContainerError",
        ],
    ),
    (CRASHING, &[CRASHING]),
];

/// Returns the reason why a container of a pod does not start until a user acts, if any. `now` is used for the pod's age, in seconds.
pub fn stuck(pod: &Pod, now: i64) -> Option<Blocker> {
    let age = now - pod.metadata.creation_timestamp.as_ref()?.0.as_second();
    let named = |reason: &'static str, why: String| Blocker {
        reason,
        message: format!("{}: {why}", pod.name_any()),
    };
    if age <= POD_GRACE_SECONDS || is_ready(pod) {
        return None;
    }
    let stuck = containers(pod).find_map(|brain| {
        let own = [
            BRAIN_CONTAINER,
            BOOTSTRAP_CONTAINER,
            "wipe",
            BACKUP_CONTAINER,
            ARCHIVE_CONTAINER,
        ]
        .contains(&brain.name.as_str());
        let named = |reason, why: String| match own {
            true => named(reason, why),
            false => named(reason, format!("container {}: {why}", brain.name)),
        };
        let waiting = brain.state.as_ref().and_then(|state| state.waiting.as_ref());
        let said = waiting
            .and_then(|waiting| waiting.reason.as_deref())
            .unwrap_or_default();
        let found = WAITING_REASONS.into_iter().find(|(_, all)| all.contains(&said));
        let message = waiting.and_then(|waiting| waiting.message.as_deref());
        if let Some((reason, _)) = found.filter(|(reason, _)| *reason != CRASHING) {
            let message = message.unwrap_or("the kubelet gives no reason");
            return Some(named(reason, format!("{said}: {message}")));
        }
        let ended = brain.last_state.as_ref().and_then(|last| last.terminated.as_ref());
        let failed = ended.filter(|ended| ended.exit_code != 0);
        let crashes = found.is_some() || brain.restart_count >= CRASHING_RESTARTS && failed.is_some();
        // Use the same words in each of its states, so that nothing flaps.
        let why = failed.map_or_else(String::new, |ended| format!(": {}", ending("last", ended)));
        crashes.then(|| named(CRASHING, format!("it keeps terminating{why}")))
    });
    let stuck = stuck.or_else(|| {
        const WHY: &str = "the kubelet cannot start its containers yet: a Secret, a ConfigMap, a volume or the network of its node is missing; kubectl describe pod names it";
        let waits = sandbox_awaited_since(pod).is_some_and(|since| now - since > VOLUME_GRACE_SECONDS);
        waits.then(|| named(NOT_CREATED, WHY.to_owned()))
    });
    stuck.or_else(|| {
        let condition = unscheduled(pod).filter(|condition| condition.reason.as_deref() == Some(UNSCHEDULABLE))?;
        let message = condition
            .message
            .clone()
            .unwrap_or("the scheduler gives no reason".to_owned());
        (age > NODE_GRACE_SECONDS).then(|| named(UNSCHEDULABLE, message))
    })
}

/// Returns true if the scheduler finds no node because of a volume, according to its message.
pub(super) fn waits_for_volume(stuck: &Blocker) -> bool {
    let words = ["PersistentVolume", "persistentvolume", "volume"];
    stuck.reason == UNSCHEDULABLE && words.iter().any(|word| stuck.message.contains(word))
}

/// Returns the containers, the brain's first.
fn containers(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let all = || {
        let inits = status.and_then(|status| status.init_container_statuses.as_ref());
        let others = status.and_then(|status| status.container_statuses.as_ref());
        inits.into_iter().chain(others).flatten()
    };
    let brains = all().filter(|container| container.name == BRAIN_CONTAINER);
    brains.chain(all().filter(|container| container.name != BRAIN_CONTAINER))
}

/// Returns the time, in seconds since 1970, since which a pod waits for its node to mount its volumes or to set up its network; `None` if
/// it does not wait.
pub fn sandbox_awaited_since(pod: &Pod) -> Option<i64> {
    pod.spec.as_ref()?.node_name.as_ref()?;
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let awaited = conditions
        .iter()
        .find(|condition| condition.type_ == "PodReadyToStartContainers" && condition.status == "False")?;
    Some(awaited.last_transition_time.as_ref()?.0.as_second())
}

/// Returns the condition of a pod without a node.
fn unscheduled(pod: &Pod) -> Option<&PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
}

/// Returns the reason why a pod does not serve, if any, in the kubelet's and the scheduler's words.
pub(super) fn trouble(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let containers = status
        .container_statuses
        .iter()
        .flatten()
        .chain(status.init_container_statuses.iter().flatten());
    for container in containers {
        let state = container.state.as_ref()?;
        if let Some(waiting) = &state.waiting {
            let reason = waiting.reason.clone().unwrap_or_default();
            let last = container.last_state.as_ref().and_then(|last| last.terminated.as_ref());
            return Some(last.map_or(reason.clone(), |last| ending(&reason, last)));
        }
        if let Some(ended) = &state.terminated {
            return Some(ending(ended.reason.as_deref().unwrap_or_default(), ended));
        }
    }
    if let Some(condition) = unscheduled(pod) {
        return Some(
            condition
                .message
                .clone()
                .or_else(|| condition.reason.clone())
                .unwrap_or("not scheduled".to_owned()),
        );
    }
    (!is_ready(pod)).then(|| NOT_READY.to_owned())
}

/// Returns the reason why a brain that answers is not ready, as far as it is known; `lead` is the pod that leads.
pub(super) fn lacks(answer: &MemberAnswer, lead: Option<&str>) -> Option<String> {
    match (answer.role, lead) {
        _ if answer.ready => None,
        _ if !answer.storage.reachable => Some("it does not reach its storage".to_owned()),
        (BrainRole::None, Some(lead)) => Some(format!(
            "it does not follow {lead}: check that DNS resolves the name of {lead}, and that it reaches port {PEER_PORT} there"
        )),
        (BrainRole::None, None) => Some("it knows no leader".to_owned()),
        (BrainRole::Leader | BrainRole::Follower, _) => None,
    }
}

/// Describes the end of a container: its exit code, the kubelet's reason if that says more, and the brain's reason if it reported one.
fn ending(reason: &str, ended: &ContainerStateTerminated) -> String {
    let why = BrainRefusal::of_container(ended).map_or_else(String::new, |why| format!(": {}", why.message));
    let word = ended.reason.as_deref().unwrap_or_default();
    let word = match word {
        "" | "Error" | "Completed" => String::new(),
        word if word == reason => String::new(),
        word => format!(" ({word})"),
    };
    format!("{reason}: exit code {}{word}{why}", ended.exit_code)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;
    use crate::status::documented_reasons;

    fn pod(status: Value) -> Pod {
        let metadata = json!({"name": "dev-0", "creationTimestamp": crate::testing::BEGIN});
        serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap()
    }

    /// Returns a pod whose only container waits.
    fn waits(reason: &str, message: Option<&str>) -> Pod {
        let state = json!({"waiting": {"reason": reason, "message": message}});
        pod(json!({"containerStatuses": [
            {"name": "brain", "ready": false, "restartCount": 0, "image": "", "imageID": "", "state": state},
        ]}))
    }

    #[track_caller]
    fn check(pod: &Pod, expected: Option<(&str, &str)>) {
        let created = pod.metadata.creation_timestamp.as_ref().unwrap().0.as_second();
        assert_eq!(stuck(pod, created + POD_GRACE_SECONDS), None, "too young");
        let stuck = stuck(pod, created + NODE_GRACE_SECONDS + 1);
        let seen = stuck.as_ref().map(|stuck| (stuck.reason, stuck.message.as_str()));
        assert_eq!(seen, expected);
        if let Some((reason, _)) = seen {
            documented_reasons::check(reason);
        }
    }

    #[test]
    fn waiting_container_is_stuck_if_only_somebody_can_help() {
        let pull = "dev-0: ErrImagePull: no such host";
        check(
            &waits("ErrImagePull", Some("no such host")),
            Some(("ImagePullFailed", pull)),
        );
        let crash = "dev-0: it keeps terminating";
        check(&waits("CrashLoopBackOff", None), Some(("CrashLoopBackOff", crash)));
        let config = "dev-0: CreateContainerConfigError: secret \"x\" not found";
        check(
            &waits("CreateContainerConfigError", Some("secret \"x\" not found")),
            Some(("ContainerCreationFailed", config)),
        );
        for passing in ["ContainerCreating", "PodInitializing"] {
            check(&waits(passing, None), None);
        }
        check(&pod(json!({})), None);
    }

    #[test]
    fn container_that_ends_again_and_again_is_stuck_in_each_of_its_states() {
        let container = |state: Value, restarts: i32, ready: bool| {
            let ended = json!({"terminated": {"exitCode": 3, "reason": "Error"}});
            pod(json!({
                "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
                "containerStatuses": [{
                    "name": "brain", "ready": ready, "restartCount": restarts, "image": "", "imageID": "",
                    "state": state, "lastState": ended,
                }],
            }))
        };
        let crash = Some(("CrashLoopBackOff", "dev-0: it keeps terminating: last: exit code 3"));
        let running = json!({"running": {}});
        check(
            &container(json!({"waiting": {"reason": "CrashLoopBackOff"}}), 2, false),
            crash,
        );
        check(&container(running.clone(), 2, false), crash);
        check(&container(running.clone(), 1, false), None);
        check(&container(running, 9, true), None);
    }

    #[test]
    fn kubelets_word_for_an_end_is_kept() {
        let ended = |reason: &str| serde_json::from_value(json!({"exitCode": 137, "reason": reason})).unwrap();
        assert_eq!(ending("last", &ended("OOMKilled")), "last: exit code 137 (OOMKilled)");
        assert_eq!(ending("OOMKilled", &ended("OOMKilled")), "OOMKilled: exit code 137");
        assert_eq!(ending("last", &ended("Error")), "last: exit code 137");
    }

    #[test]
    fn pod_whose_volumes_are_not_there_is_stuck() {
        let mounting = |ready: &str, node: Option<&str>, age: i64| {
            let mut pod = waits("ContainerCreating", None);
            pod.spec = serde_json::from_value(json!({"nodeName": node, "containers": []})).unwrap();
            // The pod is an hour old: its node was restarted.
            let created = pod.metadata.creation_timestamp.as_ref().unwrap().0.as_second();
            let since = Timestamp::from_second(created + 3600).unwrap();
            let conditions =
                json!([{"type": "PodReadyToStartContainers", "status": ready, "lastTransitionTime": since}]);
            pod.status.as_mut().unwrap().conditions = serde_json::from_value(conditions).unwrap();
            stuck(&pod, created + 3600 + age).map(|stuck| stuck.reason)
        };
        assert_eq!(
            mounting("False", Some("node1"), VOLUME_GRACE_SECONDS),
            None,
            "a volume may come yet"
        );
        assert_eq!(
            mounting("False", Some("node1"), VOLUME_GRACE_SECONDS + 1),
            Some(NOT_CREATED)
        );
        assert_eq!(
            mounting("True", Some("node1"), VOLUME_GRACE_SECONDS + 1),
            None,
            "it pulls an image"
        );
        assert_eq!(mounting("False", None, VOLUME_GRACE_SECONDS + 1), None);
    }

    #[test]
    fn pod_without_a_node_is_stuck_if_the_scheduler_looked() {
        let unscheduled = |reason: &str| {
            pod(
                json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": reason, "message": "no cpu"}]}),
            )
        };
        check(&unscheduled("Unschedulable"), Some(("Unschedulable", "dev-0: no cpu")));
        check(&unscheduled("SchedulingGated"), None);
    }
}
