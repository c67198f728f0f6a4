//! The Lease that is the leader lock, and the right to it. They exist only if the spec selects that lock.
//!
//! The brains write the Lease's spec. The operator creates it empty and keeps its metadata: a right to create Leases cannot be limited to
//! one name, so brains do not have it.

use crds::cluster::election::ElectionBackend;
use crds::cluster::workload::WorkloadType;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    ConfigMapProjection, DownwardAPIProjection, DownwardAPIVolumeFile, KeyToPath, ObjectFieldSelector, PodSpec,
    ProjectedVolumeSource, ServiceAccountTokenProjection, Volume, VolumeProjection,
};
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};

use super::{Object, ObjectKind, Renderer};

/// Volume and mount of the token, where every client of the API server looks for it.
pub const TOKEN_VOLUME: &str = "kube-api-access";
pub(super) const TOKEN_MOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The flag by which a brain competes for a Lease.
const ELECTION_LEASE_FLAG: &str = "--election=lease";
/// Validity of a service account token. The kubelet renews it in time.
const TOKEN_EXPIRATION_SECONDS: i64 = 3600;

impl Renderer<'_> {
    /// Returns true if the brains compete for a Lease. It is false for an external workload, whose flags the operator does not set.
    pub fn competes_by_lease(&self) -> bool {
        let spec = &self.cluster.spec;
        spec.election().backend == ElectionBackend::Lease
            && spec.workload.type_ == WorkloadType::StatefulSet
            && self.desired.storage.tikv().is_some()
    }

    /// Renders the right to the Lease, and the Lease.
    pub fn leader_lock(&self) -> Result<Vec<Object>, serde_json::Error> {
        if !self.competes_by_lease() {
            return Ok(Vec::new());
        }
        let name = self.names().lease();
        let strings = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let role = Role {
            metadata: self.metadata(&name),
            rules: Some(vec![PolicyRule {
                api_groups: Some(strings(&["coordination.k8s.io"])),
                resources: Some(strings(&["leases"])),
                resource_names: Some(vec![name.clone()]),
                verbs: strings(&["get", "update"]),
                ..PolicyRule::default()
            }]),
        };
        let binding = RoleBinding {
            metadata: self.metadata(&name),
            role_ref: RoleRef {
                api_group: "rbac.authorization.k8s.io".to_owned(),
                kind: "Role".to_owned(),
                name: name.clone(),
            },
            subjects: Some(vec![Subject {
                kind: "ServiceAccount".to_owned(),
                name: self.account().to_owned(),
                namespace: Some(self.names().namespace.clone()),
                ..Subject::default()
            }]),
        };
        let lease = Lease {
            metadata: self.metadata(&name),
            spec: None,
        };
        Ok(vec![
            Object::new(ObjectKind::Role, &name, &role)?,
            Object::new(ObjectKind::RoleBinding, &name, &binding)?,
            Object::new(ObjectKind::Lease, &name, &lease)?,
        ])
    }
}

/// Returns true if the brain of this pod competes for a Lease.
pub fn competes_by_lease(pod: &PodSpec) -> bool {
    let mut arguments = pod
        .containers
        .iter()
        .flat_map(|container| container.args.iter().flatten());
    arguments.any(|argument| argument == ELECTION_LEASE_FLAG)
}

/// Returns the projected volume with token, CA and namespace for a client of the API server, as Kubernetes itself would mount it. No other
/// container of the pod gets it.
pub(super) fn token_volume() -> Volume {
    let token = VolumeProjection {
        service_account_token: Some(ServiceAccountTokenProjection {
            path: "token".to_owned(),
            expiration_seconds: Some(TOKEN_EXPIRATION_SECONDS),
            ..ServiceAccountTokenProjection::default()
        }),
        ..VolumeProjection::default()
    };
    let trust = VolumeProjection {
        config_map: Some(ConfigMapProjection {
            name: "kube-root-ca.crt".to_owned(),
            items: Some(vec![KeyToPath {
                key: "ca.crt".to_owned(),
                path: "ca.crt".to_owned(),
                ..KeyToPath::default()
            }]),
            ..ConfigMapProjection::default()
        }),
        ..VolumeProjection::default()
    };
    let namespace = VolumeProjection {
        downward_api: Some(DownwardAPIProjection {
            items: Some(vec![DownwardAPIVolumeFile {
                path: "namespace".to_owned(),
                field_ref: Some(ObjectFieldSelector {
                    field_path: "metadata.namespace".to_owned(),
                    ..ObjectFieldSelector::default()
                }),
                ..DownwardAPIVolumeFile::default()
            }]),
        }),
        ..VolumeProjection::default()
    };
    Volume {
        name: TOKEN_VOLUME.to_owned(),
        projected: Some(ProjectedVolumeSource {
            default_mode: Some(0o440),
            sources: Some(vec![token, trust, namespace]),
        }),
        ..Volume::default()
    }
}
