//! The storage of the brains, with defaults filled in.

use crds::KubeBrainCluster;
use crds::cluster::storage::{Embedded, GcOwner, StorageType, TikvTls};
use kube::ResourceExt;
use kube::core::{ApiResource, DynamicObject};
use serde_json::Value;

use super::{SpecRefusal, invalid};
use crate::names::ACCEPT_STORE;
use crate::spec::is_external;

/// A cluster of the TiDB operator.
pub fn tidb_cluster() -> ApiResource {
    ApiResource {
        group: "core.pingcap.com".to_owned(),
        version: "v1alpha1".to_owned(),
        api_version: "core.pingcap.com/v1alpha1".to_owned(),
        kind: "Cluster".to_owned(),
        plural: "clusters".to_owned(),
    }
}

/// Default interval of garbage collection by the leader, and default age at which a version is collected.
const DEFAULT_GC_INTERVAL: &str = "10m";

/// Storage of the brains' data.
#[derive(Debug, Clone, PartialEq)]
pub enum DesiredStorage {
    /// A volume of the single brain.
    Embedded(Embedded),
    /// A TiKV cluster.
    Tikv(TikvConnection),
    /// A directory that the owner of the pods chose.
    Unmanaged,
}

/// Connection of the brains to TiKV.
#[derive(Debug, Clone, PartialEq)]
pub struct TikvConnection {
    /// `host:port` of each placement driver, without a scheme.
    pub pd_endpoints: Vec<String>,
    /// Prefix of every key.
    pub key_prefix: String,
    /// PD's id of the TiKV cluster, once it is known. Brains started with it refuse another cluster.
    pub cluster_id: Option<String>,
    /// The same, according to the present `clusterRef`.
    pub referenced_id: Option<String>,
    pub tls: Option<TikvTls>,
    /// Interval and window of garbage collection, if the leader runs it.
    pub gc: Option<(String, String)>,
}

impl DesiredStorage {
    pub fn embedded(&self) -> Option<&Embedded> {
        match self {
            Self::Embedded(embedded) => Some(embedded),
            Self::Tikv(_) | Self::Unmanaged => None,
        }
    }

    pub fn tikv(&self) -> Option<&TikvConnection> {
        match self {
            Self::Tikv(tikv) => Some(tikv),
            Self::Embedded(_) | Self::Unmanaged => None,
        }
    }
}

/// Reads the storage of a spec; `referenced` is the object that `clusterRef` names, if it exists.
///
/// # Errors
/// The spec contradicts itself or the pinned values, or the referenced object does not exist or is incomplete.
pub(super) fn read(
    cluster: &KubeBrainCluster,
    referenced: Option<&DynamicObject>,
) -> Result<DesiredStorage, SpecRefusal> {
    let spec = &cluster.spec;
    match (spec.storage.type_, &spec.storage.embedded, &spec.storage.tikv) {
        (StorageType::Embedded, ..) if is_external(cluster) => Ok(DesiredStorage::Unmanaged),
        (StorageType::Embedded, Some(embedded), _) => {
            if !(0..=1).contains(&spec.replicas) {
                return Err(invalid("Embedded storage is single-member: set replicas to 0 or 1"));
            }
            if crate::quantity::parse(&embedded.size).is_none_or(|size| size <= 0) {
                return Err(invalid(format!(
                    "storage.embedded.size {:?} is not a size",
                    embedded.size.0
                )));
            }
            Ok(DesiredStorage::Embedded(embedded.clone()))
        }
        (StorageType::TiKV, _, Some(_)) => tikv(cluster, referenced).map(DesiredStorage::Tikv),
        (StorageType::Embedded, None, _) => Err(invalid("storage.embedded is required when type is Embedded")),
        (StorageType::TiKV, _, None) => Err(invalid("storage.tikv is required when type is TiKV")),
    }
}

fn tikv(cluster: &KubeBrainCluster, referenced: Option<&DynamicObject>) -> Result<TikvConnection, SpecRefusal> {
    let Some(wanted) = &cluster.spec.storage.tikv else {
        return Err(invalid("storage.tikv is required when type is TiKV"));
    };
    let pinned = cluster.status.as_ref().and_then(|status| status.storage.as_ref());
    let (pd_endpoints, referenced_id) = match (&wanted.pd_endpoints, &wanted.cluster_ref) {
        (Some(endpoints), _) if !endpoints.is_empty() => (endpoints.iter().map(|each| bare(each)).collect(), None),
        (_, Some(reference)) => {
            let known = pinned.and_then(|pinned| pinned.pd_endpoints.clone());
            match referenced.map(placement_drivers) {
                Some(Ok(found)) => found,
                // The object existed before: running brains continue with the values known then.
                _ if known.is_some() => (known.unwrap_or_default(), None),
                Some(Err(why)) => return Err(not_found(format!("Cluster {}: {why}", reference.name))),
                None => {
                    return Err(not_found(format!(
                        "there is no Cluster {} of core.pingcap.com in this namespace: create it, or set pdEndpoints",
                        reference.name
                    )));
                }
            }
        }
        _ => return Err(invalid("storage.tikv: set exactly one of clusterRef and pdEndpoints")),
    };
    let key_prefix = wanted.key_prefix.clone().unwrap_or_else(|| {
        let namespace = cluster.namespace().unwrap_or_default();
        format!("{namespace}/{}", cluster.name_any())
    });
    if let Some(before) = pinned.and_then(|pinned| pinned.key_prefix.as_ref())
        && *before != key_prefix
    {
        return Err(SpecRefusal {
            reason: "KeyPrefixChanged",
            message: format!(
                "the data is below the key prefix {before:?}, but the spec requests {key_prefix:?}: revert the change, or create a new cluster"
            ),
        });
    }
    let pinned_id = pinned.and_then(|pinned| pinned.cluster_id.clone());
    if let (Some(before), Some(wanted)) = (&pinned_id, &wanted.cluster_id)
        && before != wanted
    {
        return Err(SpecRefusal {
            reason: "ClusterIDChanged",
            message: format!(
                "the data is in the TiKV cluster {before}, but the spec requests {wanted}: revert the change"
            ),
        });
    }
    let gc = wanted.gc.as_ref().filter(|gc| gc.owner == GcOwner::Brain);
    let or_default = |set: &Option<String>| set.clone().unwrap_or_else(|| DEFAULT_GC_INTERVAL.to_owned());
    Ok(TikvConnection {
        pd_endpoints,
        key_prefix,
        cluster_id: wanted.cluster_id.clone().or(pinned_id).or(referenced_id.clone()),
        referenced_id,
        tls: wanted.tls.clone(),
        gc: gc.map(|gc| (or_default(&gc.interval), or_default(&gc.window))),
    })
}

/// Returns the id of the store that the status has pinned, unless the annotation gives that store up.
pub(super) fn pinned_store(cluster: &KubeBrainCluster) -> Option<String> {
    let storage = cluster.status.as_ref()?.storage.as_ref()?;
    let pinned = storage.store_id.clone()?;
    let given_up = accepted(cluster).filter(|given_up| storage.accepted_store_id.as_ref() != Some(*given_up));
    (given_up != Some(&pinned)).then_some(pinned)
}

/// Returns the store that the annotation gives up, or gave up before.
pub fn accepted(cluster: &KubeBrainCluster) -> Option<&String> {
    cluster.annotations().get(ACCEPT_STORE)
}

fn not_found(message: String) -> SpecRefusal {
    SpecRefusal {
        reason: "ClusterRefNotFound",
        message: format!("storage.tikv.clusterRef: {message}"),
    }
}

/// Removes the scheme: TLS follows from `tls`.
fn bare(endpoint: &str) -> String {
    let rest = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
    rest.trim_end_matches('/').to_owned()
}

/// Returns the placement drivers of a `Cluster` of core.pingcap.com, and its id in PD: `status.pd` is their URL, `status.id` the id.
///
/// # Errors
/// The field that is missing in its status.
fn placement_drivers(cluster: &DynamicObject) -> Result<(Vec<String>, Option<String>), String> {
    let status = &cluster.data["status"];
    let text = |field: &str| status[field].as_str().map(str::trim).filter(|text| !text.is_empty());
    let pd = text("pd").ok_or("its status.pd names no placement driver yet")?;
    let endpoints: Vec<String> = pd.split(',').map(bare).filter(|each| !each.is_empty()).collect();
    if endpoints.is_empty() {
        return Err(format!("its status.pd {pd:?} names no placement driver"));
    }
    let id = match &status["id"] {
        Value::String(id) => Some(id.clone()),
        Value::Number(id) => Some(id.to_string()),
        _ => None,
    };
    let digits = |id: &String| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
    Ok((endpoints, id.filter(digits)))
}

#[cfg(test)]
mod tests;
