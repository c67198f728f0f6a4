//! ReplicaSets: the text that their pods have in common, and the parts that each pod has of its own.

use prost::Message as _;

use super::meta::{ManagedFieldsEntry, ObjectMeta, OwnerReference, Time};
use super::pod::Pod;
use super::pods::{PodVersion, RUNNING};
use super::split_mix::SplitMix;

mod fields;
mod status;
mod template;

/// Sizes of the pods of ReplicaSets, in turn.
pub(super) const SHAPES: [PodShape; 16] = [
    PodShape::new(1, 4_500),
    PodShape::new(1, 5_500),
    PodShape::new(1, 6_500),
    PodShape::new(1, 7_500),
    PodShape::new(1, 8_000),
    PodShape::new(1, 9_000),
    PodShape::new(1, 9_500),
    PodShape::new(2, 10_000),
    PodShape::new(2, 11_000),
    PodShape::new(2, 12_000),
    PodShape::new(2, 13_000),
    PodShape::new(3, 14_000),
    PodShape::new(3, 17_000),
    PodShape::new(3, 21_000),
    PodShape::new(3, 26_000),
    PodShape::new(4, 64_000),
];
/// The most environment variables of a container.
const MAX_VARIABLES: usize = 1_000;
/// Smaller pods have neither probes nor volumes.
const LEAST_BYTES_WITH_PROBES: usize = 6_000;

#[derive(Clone, Copy)]
pub(super) struct PodShape {
    containers: usize,
    /// Of a pod that runs, at least: as many variables are added as that takes.
    bytes: usize,
}

impl PodShape {
    const fn new(containers: usize, bytes: usize) -> Self {
        Self { containers, bytes }
    }

    fn has_probes(self) -> bool {
        self.bytes >= LEAST_BYTES_WITH_PROBES
    }
}

/// When the first pod was created.
const EPOCH: i64 = 1_790_000_000;
const SECONDS_PER_STEP: i64 = 4;
const SECONDS_PER_LIFE: i64 = 3_600;
/// Digits of a container's id.
const CONTAINER_ID_DIGITS: usize = 64;

pub(super) struct ReplicaSet {
    name: String,
    /// A pod without anything of its own.
    template: Pod,
    /// The digest of each container's image.
    image_ids: Vec<String>,
}

/// The parts that one pod alone has, the same in all its versions.
struct OwnParts {
    name: String,
    uid: String,
    token_volume: String,
    node_name: String,
    host_ip: String,
    pod_ip: String,
    created: i64,
}

impl ReplicaSet {
    pub(super) fn new(number: u64) -> Self {
        let shape = SHAPES[number as usize % SHAPES.len()];
        let running = PodVersion {
            slot: number,
            life: 0,
            step: RUNNING,
        };
        // the smallest number of variables that gives the size
        let (mut least, mut most) = (0, MAX_VARIABLES);
        while least < most {
            let middle = usize::midpoint(least, most);
            match Self::with(number, shape, middle).pod(running).encoded_len() < shape.bytes {
                true => least = middle + 1,
                false => most = middle,
            }
        }
        Self::with(number, shape, least)
    }

    fn with(number: u64, shape: PodShape, variables: usize) -> Self {
        let mut text = SplitMix::of(&[number]);
        let template = template::pod(number, shape, variables, &mut text);
        let image_ids = template.spec.containers.iter().map(|container| {
            let (name, _) = container.image.rsplit_once(':').unwrap_or((&container.image, ""));
            format!("{name}@sha256:{}", text.hex(CONTAINER_ID_DIGITS))
        });
        Self {
            name: template.metadata.owner_references[0].name.clone(),
            image_ids: image_ids.collect(),
            template,
        }
    }

    pub(super) fn namespace(&self) -> &str {
        &self.template.metadata.namespace
    }

    pub(super) fn pod_name(&self, version: PodVersion) -> String {
        format!("{}-{}", self.name, own_text(version).suffix(5))
    }

    fn own_parts(&self, version: PodVersion) -> OwnParts {
        let mut text = own_text(version);
        let name = format!("{}-{}", self.name, text.suffix(5));
        let [a, b, c, d, e] = [16, 250, 16, 250, 250].map(|end| text.below(end));
        OwnParts {
            name,
            uid: text.uid(),
            token_volume: format!("{}{}", template::TOKEN_VOLUME, text.suffix(5)),
            node_name: format!("ip-10-{a}-7-{b}.eu-central-1.compute.internal"),
            host_ip: format!("10.{a}.7.{b}"),
            pod_ip: format!("10.{}.{d}.{e}", 128 + c),
            created: EPOCH + version.slot as i64 + version.life as i64 * SECONDS_PER_LIFE,
        }
    }

    /// A version of one of its pods.
    pub(super) fn pod(&self, version: PodVersion) -> Pod {
        let own = self.own_parts(version);
        let mut pod = self.template.clone();
        pod.metadata.name.clone_from(&own.name);
        pod.metadata.uid.clone_from(&own.uid);
        pod.metadata.creation_timestamp = Time::at(own.created);
        for entry in &mut pod.metadata.managed_fields {
            entry.time = Some(Time::at(own.created));
        }
        for volume in &mut pod.spec.volumes {
            if volume.name == template::TOKEN_VOLUME {
                volume.name.clone_from(&own.token_volume);
            }
        }
        for mount in pod.spec.containers.iter_mut().flat_map(|of| &mut of.volume_mounts) {
            if mount.name == template::TOKEN_VOLUME {
                mount.name.clone_from(&own.token_volume);
            }
        }
        if version.step > 0 {
            pod.spec.node_name.clone_from(&own.node_name);
        }
        status::set(&mut pod, &own, version, &self.image_ids);
        if version.step > 1 {
            pod.metadata.managed_fields.push(ManagedFieldsEntry {
                subresource: "status".to_owned(),
                ..ManagedFieldsEntry::update(
                    "kubelet",
                    "v1",
                    Time::at(own.at(version.step)),
                    fields::of_status(&pod.status),
                )
            });
        }
        pod
    }
}

impl OwnParts {
    /// The time of a step, in seconds.
    fn at(&self, step: u64) -> i64 {
        self.created + step as i64 * SECONDS_PER_STEP
    }
}

fn own_text(version: PodVersion) -> SplitMix {
    SplitMix::of(&[version.slot, version.life])
}
