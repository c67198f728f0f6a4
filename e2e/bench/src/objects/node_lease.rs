//! The leases by which nodes say that they are alive.

use bytes::Bytes;
use serde_json::json;

use super::lease::{Lease, LeaseSpec};
use super::meta::{ManagedFieldsEntry, ObjectMeta, OwnerReference, Time};
use super::split_mix::SplitMix;

/// The keys of all.
pub(crate) const PREFIX: &str = "/registry/leases/kube-node-lease/";
/// When the first node came.
const EPOCH: i64 = 1_790_000_000;
/// Seconds between two renewals of one.
const RENEW_SECONDS: i64 = 10;

/// The key of a node's lease.
pub(crate) fn key(node: u64) -> Bytes {
    format!("{PREFIX}node-{node:06}").into()
}

/// The node of a key.
pub(crate) fn node(key: &[u8]) -> Option<u64> {
    let name = str::from_utf8(key).ok()?.strip_prefix(PREFIX)?;
    name.strip_prefix("node-")?.parse().ok()
}

/// The lease after that many renewals, as it is stored.
pub(crate) fn value(node: u64, renewals: u64) -> Bytes {
    super::stored("coordination.k8s.io/v1", "Lease", &lease(node, renewals))
}

pub(super) fn lease(node: u64, renewals: u64) -> Lease {
    let mut own = SplitMix::of(&[node]);
    let (name, uid, node_uid) = (format!("node-{node:06}"), own.uid(), own.uid());
    let created = Time::at(EPOCH + node as i64);
    let renewed = Time {
        seconds: created.seconds + renewals as i64 * RENEW_SECONDS,
        nanos: (SplitMix::of(&[node, renewals]).below(1_000_000) * 1_000) as i32,
    };
    let owner = format!(r#"k:{{"uid":"{node_uid}"}}"#);
    let fields = json!({
        "f:metadata": { "f:ownerReferences": { ".": {}, (owner): {} } },
        "f:spec": { "f:holderIdentity": {}, "f:leaseDurationSeconds": {}, "f:renewTime": {} },
    });
    Lease {
        metadata: ObjectMeta {
            name: name.clone(),
            namespace: "kube-node-lease".to_owned(),
            uid,
            creation_timestamp: created,
            owner_references: vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: name.clone(),
                uid: node_uid,
                ..OwnerReference::default()
            }],
            managed_fields: vec![ManagedFieldsEntry::update(
                "kubelet",
                "coordination.k8s.io/v1",
                Time::at(renewed.seconds),
                fields.to_string(),
            )],
            ..ObjectMeta::default()
        },
        spec: LeaseSpec {
            holder_identity: Some(name),
            lease_duration_seconds: Some(40),
            renew_time: Some(renewed),
        },
    }
}
