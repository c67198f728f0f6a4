//! Turns a user's spec into the desired state, or into a refusal with its reason.
//!
//! Pure. The API server has already checked the schema and the CEL rules. The checks here need knowledge that only the operator has.

use std::net::IpAddr;
use std::time::Duration;

use crds::KubeBrainCluster;
use crds::cluster::tls::TlsMode;
use crds::cluster::workload::WorkloadType;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::core::DynamicObject;

use crate::certificates::{CertificateRequest, Leaf};
use crate::maintenance::MaintenanceWindows;
use crate::names::Names;

mod flags;
mod held;
mod image;
mod labels;
mod pod_template;
pub mod references;
mod restart;
pub mod secrets;
mod storage;
#[cfg(test)]
mod tests;

pub use image::{
    ImageMove, choose as chosen_image, is_newer as is_newer_image, moves as image_moves, newer_default,
    record as pinned_image, unrecorded as unrecorded_image,
};
pub use restart::RestartRequests;
pub use storage::{DesiredStorage, TikvConnection, accepted as accepted_store, tidb_cluster};

/// Annotation that a cluster has in memory, and only there, if a part of its spec was too large to be read: the reason.
pub const TOO_LARGE_ANNOTATION: &str = "kubebrain.io/too-large";

/// Settings from the operator's flags.
#[derive(Debug, Clone)]
pub struct OperatorSettings {
    /// Image of brains whose spec does not name one.
    pub default_image: String,
    /// DNS domain of the Kubernetes cluster.
    pub cluster_domain: String,
    /// Maximum time until a published bundle has reached all clients.
    pub ca_propagation: Duration,
    /// True if a podTemplate may request rights beyond those of brains.
    pub allow_unsafe_pods: bool,
    /// Keys of labels and annotations that pods may have in addition to the known ones, or prefixes of keys followed by `*`.
    pub allowed_pod_metadata: Vec<String>,
}

/// The desired state according to a spec.
#[derive(Debug, Clone)]
pub struct Desired {
    pub names: Names,
    pub replicas: i32,
    pub image: String,
    pub storage: DesiredStorage,
    /// Id of the store that must exist, once one served; `None` if it was given up. An embedded store must have this id; below a prefix of
    /// TiKV a restored store may have another one.
    pub store: Option<String>,
    /// Reason why a newer default image is not rolled out yet, if any.
    pub image_waits: Option<String>,
    /// Certificates that the operator issues, by their use; `None` if TLS is disabled.
    pub certificates: Option<Vec<(Leaf, CertificateRequest)>>,
    /// Maximum time until a published bundle has reached all clients.
    pub ca_propagation: Duration,
    /// The time before which no running brain may have started, in RFC 3339.
    pub restart: RestartRequests,
    /// A partial PodTemplateSpec, as given.
    pub pod_template: Option<serde_json::Value>,
    /// The times in which outdated members that serve are replaced.
    pub windows: MaintenanceWindows,
    /// Reason why nothing may change for now, if any. Certificates are still renewed and the leader is still labelled.
    pub held: Option<HoldReason>,
}

/// Reason why nothing may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HoldReason {
    /// `spec.paused` is true.
    Paused,
    /// The spec cannot be applied.
    Refused(SpecRefusal),
}

impl HoldReason {
    /// Returns the reason in words for the status.
    pub fn why(&self) -> &'static str {
        match self {
            Self::Paused => "spec.paused is true",
            Self::Refused(_) => "the spec is refused",
        }
    }
}

impl Desired {
    /// Returns the reason why the spec cannot be applied, if any.
    pub fn refusal(&self) -> Option<&SpecRefusal> {
        match &self.held {
            Some(HoldReason::Refused(refusal)) => Some(refusal),
            _ => None,
        }
    }
}

/// A problem that only a change of the spec solves. The reason is part of the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecRefusal {
    pub reason: &'static str,
    pub message: String,
}

fn invalid(message: impl Into<String>) -> SpecRefusal {
    SpecRefusal {
        reason: "InvalidSpec",
        message: message.into(),
    }
}

/// Returns the desired state according to a spec. If the spec cannot be applied, it has only the fields for work that continues anyway.
/// `referenced` is the TiDB operator's cluster that the spec names, if it exists. `running` is the number of members in the live
/// StatefulSet. `named` is an error if the spec may not name the objects that it names. `now` is the wall clock.
pub fn desired(
    cluster: &KubeBrainCluster,
    settings: &OperatorSettings,
    referenced: Option<&DynamicObject>,
    running: Option<i32>,
    named: Result<(), SpecRefusal>,
    now: Timestamp,
) -> Desired {
    let restart = restart::wish(cluster, now);
    read(cluster, settings, referenced)
        .and_then(|desired| named.map(|()| Desired { restart, ..desired }))
        .unwrap_or_else(|refusal| held::desired(cluster, settings, refusal, running))
}

/// Returns true if the user creates the pods of this cluster.
pub fn is_external(cluster: &KubeBrainCluster) -> bool {
    cluster.spec.workload.type_ == WorkloadType::External
}

/// Returns the reason why a part of the spec of a cluster was not read, if any.
pub fn too_large(cluster: &KubeBrainCluster) -> Option<&String> {
    cluster.annotations().get(TOO_LARGE_ANNOTATION)
}

/// Reads a spec.
///
/// # Errors
/// It requests something unsupported, or contradicts itself.
fn read(
    cluster: &KubeBrainCluster,
    settings: &OperatorSettings,
    referenced: Option<&DynamicObject>,
) -> Result<Desired, SpecRefusal> {
    if let Some(why) = too_large(cluster) {
        return Err(SpecRefusal {
            reason: "SpecTooLarge",
            message: why.clone(),
        });
    }
    let spec = &cluster.spec;
    let names = names(cluster, settings);
    let storage = storage::read(cluster, referenced)?;
    spec.election()
        .timings()
        .map_err(|error| invalid(format!("leaderElection: {error}")))?;
    flags::check(&cluster.spec.flags)?;
    check_workload(cluster)?;
    Ok(Desired {
        replicas: spec.replicas,
        image: chosen_image(cluster, &settings.default_image),
        store: storage::pinned_store(cluster).filter(|_| !is_external(cluster)),
        storage,
        certificates: certificates(cluster, &names)?,
        ca_propagation: settings.ca_propagation,
        image_waits: None,
        restart: RestartRequests::default(),
        pod_template: pod_template(cluster, &names, settings)?,
        windows: MaintenanceWindows::parse(&spec.strategy().maintenance_windows).map_err(invalid)?,
        held: spec.paused.then_some(HoldReason::Paused),
        names,
    })
}

fn names(cluster: &KubeBrainCluster, settings: &OperatorSettings) -> Names {
    Names {
        cluster: cluster.name_any(),
        namespace: cluster.namespace().unwrap_or_default(),
        domain: settings.cluster_domain.clone(),
    }
}

fn certificates(
    cluster: &KubeBrainCluster,
    names: &Names,
) -> Result<Option<Vec<(Leaf, CertificateRequest)>>, SpecRefusal> {
    let tls = &cluster.spec.tls;
    match tls.mode {
        TlsMode::Operator => {}
        TlsMode::Disabled => return Ok(None),
        TlsMode::Secret if tls.secrets.is_some() => return Ok(Some(Vec::new())),
        TlsMode::Secret => return Err(invalid("tls.secrets is required when mode is Secret")),
    }
    let (validity, renew_before) = tls.durations();
    let duration =
        |field: &str, text: &str| crds::duration::parse(text).map_err(|error| invalid(format!("tls.{field}: {error}")));
    let validity = duration("validity", &validity)?;
    let renew_before = duration("renewBefore", &renew_before)?;
    if renew_before >= validity {
        return Err(invalid("tls.renewBefore must be shorter than tls.validity"));
    }
    if !(Duration::from_secs(60)..=Duration::from_secs(8760 * 3600)).contains(&validity) {
        return Err(invalid("tls.validity must be between 1m and 8760h"));
    }
    if let Some(bad) = tls.server_alt_names.iter().find(|san| !is_host(san)) {
        return Err(invalid(format!(
            "tls.serverAltNames: {bad:?} is neither a DNS name nor an IP address"
        )));
    }
    let request = |leaf| {
        (
            leaf,
            CertificateRequest::new(leaf, names, &tls.server_alt_names, validity, renew_before),
        )
    };
    Ok(Some(Leaf::ALL.map(request).to_vec()))
}

/// Returns true for a DNS name, with or without a leading wildcard, or an IP address.
fn is_host(text: &str) -> bool {
    let label = |label: &str| {
        let good = |c: char| c.is_ascii_alphanumeric() || c == '-';
        !label.is_empty()
            && label.len() <= 63
            && label.chars().all(good)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let name = text.strip_prefix("*.").unwrap_or(text);
    text.parse::<IpAddr>().is_ok() || (text.len() <= 253 && name.split('.').all(label))
}

/// Rejects other selectors than labels, because Services select pods only by labels.
fn check_workload(cluster: &KubeBrainCluster) -> Result<(), SpecRefusal> {
    let workload = &cluster.spec.workload;
    let Some(selector) = workload
        .selector
        .as_ref()
        .filter(|_| workload.type_ == WorkloadType::External)
    else {
        return Ok(());
    };
    let labels = selector.match_labels.as_ref().is_some_and(|labels| !labels.is_empty());
    let expressions = selector.match_expressions.as_ref().is_some_and(|all| !all.is_empty());
    if !labels || expressions {
        return Err(invalid(
            "workload.selector: set matchLabels and no matchExpressions: Services select pods only by labels",
        ));
    }
    Ok(())
}

fn pod_template(
    cluster: &KubeBrainCluster,
    names: &Names,
    settings: &OperatorSettings,
) -> Result<Option<serde_json::Value>, SpecRefusal> {
    let account = cluster
        .spec
        .pod
        .as_ref()
        .and_then(|pod| pod.service_account_name.as_ref());
    if let Some(account) = account.filter(|account| **account != names.cluster && !settings.allow_unsafe_pods) {
        return Err(invalid(format!(
            "pod.serviceAccountName {account:?}: brains may not use another service account; to allow it, start the operator with --allow-unsafe-pods"
        )));
    }
    if let Some(why) = labels::malformed(cluster) {
        return Err(invalid(why));
    }
    let allowed = &settings.allowed_pod_metadata;
    if let Some(why) = pod_template::metadata::inherited(cluster, allowed).filter(|_| !settings.allow_unsafe_pods) {
        return Err(invalid(format!(
            "{why}; to allow it, start the operator with --allow-unsafe-pods"
        )));
    }
    let Some(template) = &cluster.spec.pod_template else {
        return Ok(None);
    };
    if let Some(why) = pod_template::malformed(template).or_else(|| pod_template::taken(template)) {
        return Err(invalid(why));
    }
    if let Some(why) = pod_template::excess(cluster, names, template, allowed).filter(|_| !settings.allow_unsafe_pods) {
        return Err(invalid(format!(
            "{why}; to allow it, start the operator with --allow-unsafe-pods"
        )));
    }
    Ok(Some(template.clone()))
}
