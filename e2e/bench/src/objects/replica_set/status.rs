//! The status of a pod, step by step: created, bound to a node, starting, running; then a container that is not ready, and ready again.

use super::{CONTAINER_ID_DIGITS, OwnParts, PodVersion, RUNNING};
use crate::objects::meta::Time;
use crate::objects::pod::{
    Container, ContainerState, ContainerStateRunning, ContainerStateWaiting, ContainerStatus, IpAddress, Pod,
    PodCondition, VolumeMountStatus,
};
use crate::objects::split_mix::SplitMix;

/// Sets the status of this version.
pub(super) fn set(pod: &mut Pod, own: &OwnParts, version: PodVersion, image_ids: &[String]) {
    let step = version.step;
    pod.status.phase = if step < RUNNING { "Pending" } else { "Running" }.to_owned();
    pod.status.qos_class = "Burstable".to_owned();
    if step == 0 {
        return;
    }
    let generation = pod.metadata.generation;
    let condition = |kind: &str, is_true, step, reason: &str, message: &str| PodCondition {
        kind: kind.to_owned(),
        status: if is_true { "True" } else { "False" }.to_owned(),
        last_transition_time: Time::at(own.at(step)),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: generation,
        ..PodCondition::default()
    };
    let scheduled = condition("PodScheduled", true, 1, "", "");
    if step == 1 {
        pod.status.conditions = vec![scheduled];
        return;
    }
    let unready = unready_container(pod.spec.containers.len(), step);
    let (reason, message) = match unready {
        Unready::None => ("", String::new()),
        Unready::One(n) => (
            "ContainersNotReady",
            format!("containers with unready status: [{}]", pod.spec.containers[n].name),
        ),
        Unready::All => {
            let names: Vec<_> = pod.spec.containers.iter().map(|of| of.name.as_str()).collect();
            (
                "ContainersNotReady",
                format!("containers with unready status: [{}]", names.join(" ")),
            )
        }
    };
    let is_ready = matches!(unready, Unready::None);
    pod.status.conditions = vec![
        condition("PodReadyToStartContainers", step >= RUNNING, step.min(RUNNING), "", ""),
        condition("Initialized", true, 2, "", ""),
        condition("Ready", is_ready, step, reason, &message),
        condition("ContainersReady", is_ready, step, reason, &message),
        scheduled,
    ];
    pod.status.observed_generation = generation;
    pod.status.host_ip.clone_from(&own.host_ip);
    pod.status.host_ips = vec![IpAddress {
        ip: own.host_ip.clone(),
    }];
    pod.status.start_time = Some(Time::at(own.at(2)));
    if step >= RUNNING {
        pod.status.pod_ip.clone_from(&own.pod_ip);
        pod.status.pod_ips = vec![IpAddress { ip: own.pod_ip.clone() }];
    }
    let statuses = pod.spec.containers.iter().zip(image_ids).enumerate();
    let statuses = statuses.map(|(n, (container, image_id))| {
        let is_ready = match unready {
            Unready::None => true,
            Unready::One(other) => other != n,
            Unready::All => false,
        };
        let restarts = restarts(pod.spec.containers.len(), n, step);
        match step >= RUNNING {
            true => running(container, image_id, (own, version, n), restarts, is_ready),
            false => waiting(container),
        }
    });
    pod.status.container_statuses = statuses.collect();
}

#[derive(Clone, Copy)]
enum Unready {
    None,
    One(usize),
    All,
}

/// After the start, each second step finds a container that was restarted, in turn.
fn unready_container(containers: usize, step: u64) -> Unready {
    match step.checked_sub(RUNNING) {
        None => Unready::All,
        Some(since) if since % 2 == 1 => Unready::One((since / 2) as usize % containers),
        Some(_) => Unready::None,
    }
}

/// How often a container was restarted until a step.
fn restarts(containers: usize, container: usize, step: u64) -> u64 {
    let all = step.saturating_sub(RUNNING).div_ceil(2);
    (all + containers as u64 - 1 - container as u64) / containers as u64
}

fn waiting(container: &Container) -> ContainerStatus {
    ContainerStatus {
        name: container.name.clone(),
        state: ContainerState {
            waiting: Some(ContainerStateWaiting {
                reason: "ContainerCreating".to_owned(),
                message: String::new(),
            }),
            running: None,
        },
        image: container.image.clone(),
        started: Some(false),
        ..ContainerStatus::default()
    }
}

fn running(
    container: &Container,
    image_id: &str,
    (own, version, n): (&OwnParts, PodVersion, usize),
    restarts: u64,
    is_ready: bool,
) -> ContainerStatus {
    let mut text = SplitMix::of(&[version.slot, version.life, n as u64, restarts]);
    let started_at = Time::at(own.at(RUNNING) + 2 * restarts as i64);
    let mounts = container.volume_mounts.iter().map(|mount| VolumeMountStatus {
        name: mount.name.clone(),
        mount_path: mount.mount_path.clone(),
        read_only: mount.read_only,
        recursive_read_only: mount.read_only.then(|| "Disabled".to_owned()),
    });
    ContainerStatus {
        name: container.name.clone(),
        state: ContainerState {
            waiting: None,
            running: Some(ContainerStateRunning { started_at }),
        },
        last_state: ContainerState::default(),
        ready: is_ready,
        restart_count: restarts as i32,
        image: container.image.clone(),
        image_id: image_id.to_owned(),
        container_id: format!("containerd://{}", text.hex(CONTAINER_ID_DIGITS)),
        started: Some(true),
        resources: Some(container.resources.clone()),
        volume_mounts: mounts.collect(),
    }
}
