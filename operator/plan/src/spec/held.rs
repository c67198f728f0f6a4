//! The desired state under a spec that cannot be applied, for the work that continues anyway: querying the members, labelling the leader,
//! renewing certificates, reporting. It comes from the values that were accepted before, in the status and the live objects; nothing of the
//! refused spec is rendered.

use crds::KubeBrainCluster;
use crds::cluster::storage::StorageType;
use crds::cluster::tls::{DEFAULT_RENEW_BEFORE, DEFAULT_VALIDITY, TlsMode};

use super::storage::{DesiredStorage, TikvConnection};
use super::{Desired, HoldReason, OperatorSettings, RestartRequests, SpecRefusal, chosen_image, names};
use crate::certificates::{CertificateRequest, Leaf};
use crate::maintenance::MaintenanceWindows;
use crate::names::Names;
use crate::spec::is_external;

pub(super) fn desired(
    cluster: &KubeBrainCluster,
    settings: &OperatorSettings,
    refusal: SpecRefusal,
    running: Option<i32>,
) -> Desired {
    let spec = &cluster.spec;
    let names = names(cluster, settings);
    let storage = storage(cluster);
    let pinned = cluster.status.as_ref().and_then(|status| status.pinned_replicas);
    let replicas = pinned.or(running).unwrap_or(spec.replicas);
    Desired {
        replicas: if storage.embedded().is_some() {
            replicas.min(1)
        } else {
            replicas
        },
        store: super::storage::pinned_store(cluster).filter(|_| !is_external(cluster)),
        image: chosen_image(cluster, &settings.default_image),
        image_waits: None,
        storage,
        certificates: certificates(cluster, &names),
        ca_propagation: settings.ca_propagation,
        restart: RestartRequests::default(),
        pod_template: None,
        windows: MaintenanceWindows::default(),
        held: Some(HoldReason::Refused(refusal)),
        names,
    }
}

/// Returns the storage according to the status, or to the spec if the status has none: its kind cannot be changed.
fn storage(cluster: &KubeBrainCluster) -> DesiredStorage {
    let spec = &cluster.spec.storage;
    let pinned = cluster.status.as_ref().and_then(|status| status.storage.clone());
    match (spec.type_, &spec.embedded, &spec.tikv) {
        (StorageType::Embedded, Some(embedded), _) if !is_external(cluster) => {
            DesiredStorage::Embedded(embedded.clone())
        }
        (StorageType::TiKV, _, Some(tikv)) => DesiredStorage::Tikv(TikvConnection {
            pd_endpoints: pinned
                .as_ref()
                .and_then(|pinned| pinned.pd_endpoints.clone())
                .or(tikv.pd_endpoints.clone())
                .unwrap_or_default(),
            key_prefix: pinned
                .as_ref()
                .and_then(|pinned| pinned.key_prefix.clone())
                .or(tikv.key_prefix.clone())
                .unwrap_or_default(),
            cluster_id: pinned.and_then(|pinned| pinned.cluster_id),
            referenced_id: None,
            tls: tikv.tls.clone(),
            gc: None,
        }),
        _ => DesiredStorage::Unmanaged,
    }
}

/// Stored certificates are renewed without changes, so only the uses of these requests count.
fn certificates(cluster: &KubeBrainCluster, names: &Names) -> Option<Vec<(Leaf, CertificateRequest)>> {
    if let Ok(readable) = super::certificates(cluster, names) {
        return readable;
    }
    if cluster.spec.tls.mode != TlsMode::Operator {
        return Some(Vec::new());
    }
    let duration = |text| crds::duration::parse(text).unwrap_or_default();
    let (validity, before) = (duration(DEFAULT_VALIDITY), duration(DEFAULT_RENEW_BEFORE));
    let request = |leaf| (leaf, CertificateRequest::new(leaf, names, &[], validity, before));
    Some(Leaf::ALL.map(request).to_vec())
}
