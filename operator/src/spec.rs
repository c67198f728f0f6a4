//! From what a user wrote to what the operator can do, or a refusal that says why not.
//!
//! Pure. The API server has checked the schema and the CEL rules; what is checked here is what only the operator knows.

use std::net::IpAddr;
use std::time::Duration;

use crds::KubeBrainCluster;
use crds::cluster::election::ElectionBackend;
use crds::cluster::tls::TlsMode;
use crds::cluster::workload::WorkloadType;
use crds::cluster::{OWN_FLAGS, TYPED_FLAGS};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use kube::ResourceExt;
use kube::core::DynamicObject;

use crate::certificates::{Leaf, Request};
use crate::drift;
use crate::names::Names;

mod image;
mod pod_template;
mod restart;
mod storage;
#[cfg(test)]
mod tests;

pub(crate) use image::resolve as resolve_image;
pub(crate) use storage::{Storage, Tikv};

/// What the operator was told by its flags.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Image of brains whose spec names none.
    pub(crate) default_image: String,
    /// DNS domain of the Kubernetes cluster.
    pub(crate) cluster_domain: String,
    /// How long a published bundle takes at most to reach those who follow it.
    pub(crate) ca_propagation: Duration,
    /// Whether a podTemplate may ask for rights beyond those of brains.
    pub(crate) allow_unsafe_pods: bool,
}

/// A spec that can be acted on.
#[derive(Debug, Clone)]
pub(crate) struct Desired {
    pub(crate) names: Names,
    pub(crate) replicas: i32,
    pub(crate) image: String,
    pub(crate) storage: Storage,
    /// Certificates that the operator issues, by their use; none if TLS is disabled.
    pub(crate) certificates: Option<Vec<(Leaf, Request)>>,
    /// How long a published bundle takes at most to reach those who follow it.
    pub(crate) ca_propagation: Duration,
    /// Since when all brains shall have been restarted, as RFC 3339 has it.
    pub(crate) restarted_at: Option<String>,
    pub(crate) overrides: Option<PodTemplateSpec>,
}

/// Why only a change of the spec helps. The reason is part of the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

fn invalid(message: impl Into<String>) -> Refusal {
    Refusal {
        reason: "InvalidSpec",
        message: message.into(),
    }
}

/// Reads a spec; `referenced` is the TiDB operator's cluster that it names, if that exists.
///
/// # Errors
/// It asks for what is not supported, or contradicts itself.
pub(crate) fn read(
    cluster: &KubeBrainCluster,
    settings: &Settings,
    referenced: Option<&DynamicObject>,
) -> Result<Desired, Refusal> {
    let spec = &cluster.spec;
    let names = Names {
        cluster: cluster.name_any(),
        namespace: cluster.namespace().unwrap_or_default(),
        domain: settings.cluster_domain.clone(),
    };
    let storage = storage::read(cluster, referenced)?;
    spec.election()
        .timings()
        .map_err(|error| invalid(format!("leaderElection: {error}")))?;
    if spec.election().backend == ElectionBackend::Lease {
        return Err(Refusal {
            reason: "LeaseNotSupported",
            message: "leaderElection.backend Lease is not supported by this version of the operator: use Storage"
                .to_owned(),
        });
    }
    check_flags(cluster)?;
    check_workload(cluster)?;
    Ok(Desired {
        replicas: spec.replicas,
        image: resolve_image(spec.image.as_ref(), &spec.version, &settings.default_image),
        storage,
        certificates: certificates(cluster, &names)?,
        ca_propagation: settings.ca_propagation,
        restarted_at: restart::wish(cluster),
        overrides: overrides(cluster, &names, settings)?,
        names,
    })
}

fn certificates(cluster: &KubeBrainCluster, names: &Names) -> Result<Option<Vec<(Leaf, Request)>>, Refusal> {
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
            Request::new(leaf, names, &tls.server_alt_names, validity, renew_before),
        )
    };
    Ok(Some(Leaf::ALL.map(request).to_vec()))
}

/// A DNS name, perhaps with a wildcard in front, or an IP address.
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

/// Services select pods by labels alone.
fn check_workload(cluster: &KubeBrainCluster) -> Result<(), Refusal> {
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
            "workload.selector: set matchLabels, and no matchExpressions: Services select pods by labels alone",
        ));
    }
    Ok(())
}

fn check_flags(cluster: &KubeBrainCluster) -> Result<(), Refusal> {
    let spec = &cluster.spec;
    for (flag, value) in &spec.flags {
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if flag.is_empty() || !flag.starts_with(|c: char| c.is_ascii_lowercase()) || !flag.chars().all(good) {
            return Err(invalid(format!(
                "flags: {flag:?} is no flag; write it without dashes in front"
            )));
        }
        if let Some((_, field)) = TYPED_FLAGS.iter().find(|(name, _)| name == flag) {
            return Err(invalid(format!("flags: set spec.{field} instead of {flag:?}")));
        }
        if OWN_FLAGS.contains(&flag.as_str()) {
            return Err(invalid(format!("flags: the operator itself sets {flag:?}")));
        }
        if value.contains(['\0', '\n']) {
            return Err(invalid(format!(
                "flags: the value of {flag:?} has a line break or a zero byte"
            )));
        }
    }
    Ok(())
}

fn overrides(
    cluster: &KubeBrainCluster,
    names: &Names,
    settings: &Settings,
) -> Result<Option<PodTemplateSpec>, Refusal> {
    let account = cluster
        .spec
        .pod
        .as_ref()
        .and_then(|pod| pod.service_account_name.as_ref());
    if let Some(account) = account.filter(|account| **account != names.cluster && !settings.allow_unsafe_pods) {
        return Err(invalid(format!(
            "pod.serviceAccountName {account:?}: brains have no other identity than their own; or have the operator started with --allow-unsafe-pods"
        )));
    }
    let Some(given) = &cluster.spec.pod_template else {
        return Ok(None);
    };
    let template: PodTemplateSpec = serde_json::from_value(given.clone())
        .map_err(|error| invalid(format!("podTemplate is no partial PodTemplateSpec: {error}")))?;
    let known = serde_json::to_value(&template).map_err(|error| invalid(format!("podTemplate: {error}")))?;
    if let Some(path) = first_lost(given, &known, "podTemplate") {
        return Err(invalid(format!("{path} is no field of a PodTemplateSpec")));
    }
    if let Some(why) = pod_template::taken(given) {
        return Err(invalid(why));
    }
    if let Some(why) = pod_template::excess(cluster, names, given).filter(|_| !settings.allow_unsafe_pods) {
        return Err(invalid(format!(
            "{why}; or have the operator started with --allow-unsafe-pods"
        )));
    }
    Ok(Some(template))
}

/// The first field that the type did not take up: a misspelt one.
fn first_lost(given: &serde_json::Value, known: &serde_json::Value, path: &str) -> Option<String> {
    use serde_json::Value;
    match (given, known) {
        (Value::Object(given), Value::Object(known)) => given.iter().find_map(|(key, value)| {
            let path = format!("{path}.{key}");
            match known.get(key) {
                Some(known) => first_lost(value, known, &path),
                None => (!drift::is_within(
                    &Value::Object([(key.clone(), value.clone())].into_iter().collect()),
                    &Value::Object(serde_json::Map::new()),
                ))
                .then_some(path),
            }
        }),
        (Value::Array(given), Value::Array(known)) => {
            let mut pairs = given.iter().zip(known).enumerate();
            pairs.find_map(|(i, (given, known))| first_lost(given, known, &format!("{path}[{i}]")))
        }
        _ => None,
    }
}
