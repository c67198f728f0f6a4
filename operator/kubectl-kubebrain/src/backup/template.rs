//! The spec of a new cluster, made of that of another one without what belongs to that one alone.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use crds::cluster::pod::PodSettings;
use crds::cluster::services::Services;
use crds::cluster::storage::{GcOwner, Storage, StorageType, Tikv};
use crds::cluster::tls::{Tls, TlsMode};
use crds::cluster::workload::WorkloadType;
use crds::{KubeBrainCluster, KubeBrainClusterSpec};
use kube::ResourceExt;
use plan::backup::BackupTarget;
use serde::Deserialize as _;
use serde_json::Value;

/// The cluster whose spec is used.
pub(super) struct Template {
    pub(super) cluster: KubeBrainCluster,
    /// True if it describes the new cluster itself, so that everything in it is meant for that.
    pub(super) is_own: bool,
    /// True if the cluster exists.
    pub(super) is_live: bool,
}

/// Values that the user gives for the new cluster.
pub(super) struct Given<'a> {
    pub(super) name: &'a str,
    pub(super) key_prefix: Option<&'a str>,
    pub(super) replicas: Option<i32>,
}

/// The spec of the new cluster, and remarks on it for the user, one line each.
pub(super) struct Copied {
    pub(super) spec: KubeBrainClusterSpec,
    pub(super) notes: Vec<String>,
}

impl Template {
    /// Reads the only KubeBrainCluster of a YAML file, or of standard input if the path is `-`. A file that has the name of the new
    /// cluster, or none, describes that one.
    ///
    /// # Errors
    /// The file cannot be read, has no or several clusters, or has fields that are not known.
    pub(super) fn of_file(path: &Path, new: &str) -> anyhow::Result<Self> {
        let at = || format!("read {}", path.display());
        let text = match path.as_os_str() == "-" {
            true => std::io::read_to_string(std::io::stdin()),
            false => std::fs::read_to_string(path),
        };
        Self::of_text(&text.with_context(at)?, new).with_context(at)
    }

    fn of_text(text: &str, new: &str) -> anyhow::Result<Self> {
        let documents = serde_yaml::Deserializer::from_str(text).map(Value::deserialize);
        let documents: Vec<Value> = documents.collect::<Result<_, _>>()?;
        let mut clusters = documents.into_iter().filter(|it| it["kind"] == "KubeBrainCluster");
        let (Some(mut given), None) = (clusters.next(), clusters.next()) else {
            anyhow::bail!("it must have exactly one KubeBrainCluster");
        };
        let name = given["metadata"]["name"].as_str().map(str::to_owned);
        given["metadata"]["name"] = Value::from(name.as_deref().unwrap_or(new));
        let cluster: KubeBrainCluster = serde_json::from_value(given.clone())?;
        let mut unknown = Vec::new();
        unread(
            &given["spec"],
            &serde_json::to_value(&cluster.spec)?,
            "spec",
            &mut unknown,
        );
        if !unknown.is_empty() {
            anyhow::bail!("these fields are not known: {}", unknown.join(", "));
        }
        Ok(Self {
            is_own: cluster.name_any() == new,
            is_live: false,
            cluster,
        })
    }
}

/// Adds the fields that were lost when a value was read.
fn unread(given: &Value, read: &Value, path: &str, found: &mut Vec<String>) {
    match (given, read) {
        (Value::Object(given), Value::Object(read)) => {
            for (key, value) in given {
                let path = format!("{path}.{key}");
                match read.get(key) {
                    Some(read) => unread(value, read, &path, found),
                    None if is_empty(value) => {}
                    None => found.push(path),
                }
            }
        }
        (Value::Array(given), Value::Array(read)) => {
            for (index, (given, read)) in given.iter().zip(read).enumerate() {
                unread(given, read, &format!("{path}[{index}]"), found);
            }
        }
        _ => {}
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// Returns the spec of the new cluster, without `bootstrap`.
///
/// # Errors
/// A value belongs to the other cluster alone, and there is no other one that could be used instead.
pub(super) fn copy(template: &Template, given: &Given<'_>) -> anyhow::Result<Copied> {
    let cluster = template.cluster.name_any();
    if template.cluster.spec.workload.type_ == WorkloadType::External {
        anyhow::bail!(
            "workload.type of {cluster} is External: the operator restores nothing there; run kubebrain backup restore where its pods are made, or choose another spec with --like or -f"
        );
    }
    let mut copied = match template.is_own {
        true => as_written(template.cluster.spec.clone()),
        false => without_own(template, &cluster, given)?,
    };
    let spec = &mut copied.spec;
    if let Some(prefix) = given.key_prefix {
        let Some(tikv) = &mut spec.storage.tikv else {
            anyhow::bail!("--prefix is for storage in TiKV, and that of {cluster} is Embedded");
        };
        tikv.key_prefix = Some(prefix.to_owned());
    }
    match given.replicas {
        Some(replicas) => spec.replicas = replicas,
        None if spec.replicas > 0 => {}
        None if spec.storage.type_ == StorageType::Embedded => spec.replicas = 1,
        None => anyhow::bail!(
            "replicas of {cluster} is 0, and nothing is restored without members: set their number with --replicas"
        ),
    }
    Ok(copied)
}

/// A spec that describes the new cluster itself.
fn as_written(spec: KubeBrainClusterSpec) -> Copied {
    let mut notes = Vec::new();
    if spec.bootstrap.is_some() {
        notes.push("not copied: spec.bootstrap: it is the backup".to_owned());
    }
    if spec.paused {
        notes.push("spec.paused is true: nothing is restored until it is false".to_owned());
    }
    let spec = KubeBrainClusterSpec {
        bootstrap: None,
        ..spec
    };
    Copied { spec, notes }
}

/// A copy of the spec of another cluster. Each field is named, so that a new one is decided upon.
fn without_own(template: &Template, cluster: &str, given: &Given<'_>) -> anyhow::Result<Copied> {
    let KubeBrainClusterSpec {
        replicas,
        version,
        image,
        image_pull_secrets,
        paused,
        restarted_at,
        workload,
        bootstrap,
        storage,
        tls,
        leader_election,
        update_strategy,
        services,
        pod_disruption_budget,
        monitoring,
        inherited_metadata,
        pod,
        pod_template,
        quota,
        auto_compaction,
        log_level,
        jwt_secret_ref,
        flags,
        backup,
    } = template.cluster.spec.clone();
    let mut left = Vec::new();
    let mut leave = |is_set: bool, field: &str, why: String| {
        if is_set {
            left.push(format!("not copied: spec.{field}: {why}"));
        }
    };
    leave(paused, "paused", "a paused cluster is not restored".to_owned());
    leave(restarted_at.is_some(), "restartedAt", format!("a request to {cluster}"));
    leave(bootstrap.is_some(), "bootstrap", format!("the first data of {cluster}"));
    leave(
        backup.is_some(),
        "backup",
        format!("the place of the archive of {cluster}: give {} another one", given.name),
    );
    let storage = storage_of(storage, (template, cluster), given, &mut leave)?;
    let tls = tls_of(tls, cluster, &mut leave)?;
    let services = services_of(services, cluster, &mut leave);
    let pod = pod.map(|pod| pod_of(pod, cluster, &mut leave));
    let spec = KubeBrainClusterSpec {
        replicas,
        version,
        image,
        image_pull_secrets,
        paused: false,
        restarted_at: None,
        workload,
        bootstrap: None,
        storage,
        tls,
        leader_election,
        update_strategy,
        services,
        pod_disruption_budget,
        monitoring,
        inherited_metadata,
        pod: pod.filter(|pod| *pod != PodSettings::default()),
        pod_template,
        quota,
        auto_compaction,
        log_level,
        jwt_secret_ref,
        flags,
        backup: None,
    };
    let mut notes = left;
    naming(&serde_json::to_value(&spec)?, cluster, "spec", &mut notes);
    Ok(Copied { spec, notes })
}

fn storage_of(
    mut storage: Storage,
    (template, cluster): (&Template, &str),
    given: &Given<'_>,
    leave: &mut impl FnMut(bool, &str, String),
) -> anyhow::Result<Storage> {
    if let Some(embedded) = &mut storage.embedded {
        let seen = template
            .cluster
            .status
            .as_ref()
            .and_then(|status| status.storage.as_ref());
        let capacity = seen.and_then(|seen| seen.capacity.clone());
        if let Some(grown) =
            capacity.filter(|grown| plan::quantity::parse(grown) > plan::quantity::parse(&embedded.size))
        {
            let why = format!(
                "the volume of {cluster} has grown to {}, and the new one gets that size",
                grown.0
            );
            leave(true, "storage.embedded.size", why);
            embedded.size = grown;
        }
    }
    let Some(tikv) = &mut storage.tikv else {
        return Ok(storage);
    };
    if let Some(prefix) = tikv.key_prefix.take() {
        // A user who sets a prefix has reasons why the default one will not do.
        if given.key_prefix.is_none() {
            anyhow::bail!(
                "the keys of {cluster} are below the prefix {prefix}, which no other cluster may use: choose one with --prefix"
            );
        }
        leave(true, "storage.tikv.keyPrefix", format!("the prefix of {cluster}"));
    }
    let collects = tikv.gc.as_ref().is_some_and(|gc| gc.owner == GcOwner::Brain);
    if collects && template.is_live {
        tikv.gc = None;
        let why = format!("{cluster} advances the GC safe point, and only one cluster may");
        leave(true, "storage.tikv.gc", why);
    }
    Ok(storage)
}

fn tls_of(mut tls: Tls, cluster: &str, leave: &mut impl FnMut(bool, &str, String)) -> anyhow::Result<Tls> {
    if tls.mode == TlsMode::Secret {
        anyhow::bail!(
            "tls.secrets of {cluster} has certificates for the names of {cluster}: write the new cluster into a file, with Secrets of its own, and use -f"
        );
    }
    let names = std::mem::take(&mut tls.server_alt_names);
    leave(
        !names.is_empty(),
        "tls.serverAltNames",
        format!("the names of {cluster}: {}", names.join(", ")),
    );
    let generation = tls.ca_generation.take();
    leave(
        generation.is_some(),
        "tls.caGeneration",
        format!("that of the key of {cluster}"),
    );
    Ok(tls)
}

fn services_of(mut services: Services, cluster: &str, leave: &mut impl FnMut(bool, &str, String)) -> Services {
    let annotations = std::mem::take(&mut services.client.annotations);
    let keys: Vec<String> = annotations.into_keys().collect();
    leave(
        !keys.is_empty(),
        "services.client.annotations",
        format!("they may have addresses or names of {cluster}: {}", keys.join(", ")),
    );
    services
}

fn pod_of(mut pod: PodSettings, cluster: &str, leave: &mut impl FnMut(bool, &str, String)) -> PodSettings {
    // The new cluster has its own, of its own name.
    let own = pod.service_account_name.take_if(|name| name == cluster);
    leave(
        own.is_some(),
        "pod.serviceAccountName",
        format!("the ServiceAccount of {cluster}"),
    );
    pod
}

/// Adds a note on each value that has the name of the cluster: it may be an object of that cluster.
fn naming(value: &Value, cluster: &str, path: &str, notes: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields
            .iter()
            .for_each(|(key, value)| naming(value, cluster, &format!("{path}.{key}"), notes)),
        Value::Array(items) => (0..).zip(items).for_each(|(index, item)| {
            let index: usize = index;
            naming(item, cluster, &format!("{path}[{index}]"), notes);
        }),
        Value::String(text) => {
            let is_name = |char: char| char.is_ascii_alphanumeric() || char == '-';
            let mut words = text.split(|char| !is_name(char));
            let is_of = |word: &str| {
                let rest = word.strip_prefix(cluster);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
            };
            if words.any(is_of) {
                notes.push(format!("copied, but it may be of {cluster} alone: {path}: {text}"));
            }
        }
        _ => {}
    }
}

/// Returns the labels or annotations of a file, without those of the operator, and of kubectl, which would take the new cluster for another one.
pub(super) fn own_metadata(found: &BTreeMap<String, String>) -> Option<BTreeMap<String, String>> {
    let is_own = |key: &str| !plan::names::is_reserved(key) && !key.starts_with("kubectl.kubernetes.io/");
    let kept = found.iter().filter(|(key, _)| is_own(key));
    let kept: BTreeMap<String, String> = kept.map(|(key, value)| (key.clone(), value.clone())).collect();
    (!kept.is_empty()).then_some(kept)
}

/// Refuses a spec with which two clusters would write to one place. `other` is a cluster that exists.
///
/// # Errors
/// They would.
pub(super) fn check_apart(new: &KubeBrainCluster, other: &KubeBrainCluster) -> anyhow::Result<()> {
    let name = other.name_any();
    if let (Some(tikv), Some(others)) = (&new.spec.storage.tikv, &other.spec.storage.tikv) {
        let is_same_tikv = (&tikv.cluster_ref, &tikv.pd_endpoints) == (&others.cluster_ref, &others.pd_endpoints);
        let prefix = key_prefix(new);
        if is_same_tikv && prefix == key_prefix(other) {
            anyhow::bail!(
                "the keys of {name} are below the prefix {prefix}, which no other cluster may use: choose one with --prefix"
            );
        }
        let collects = |tikv: &Tikv| tikv.gc.as_ref().is_some_and(|gc| gc.owner == GcOwner::Brain);
        if is_same_tikv && collects(tikv) && collects(others) {
            anyhow::bail!("storage.tikv.gc: {name} advances the GC safe point, and only one cluster may: remove it");
        }
    }
    if let (Some(backup), Some(others)) = (&new.spec.backup, &other.spec.backup)
        && let place = BackupTarget::from(backup)
        && place.is_same_place(&BackupTarget::from(others))
    {
        anyhow::bail!(
            "spec.backup would store the archive at {}, where that of {name} is: change it, or remove it",
            place.location()
        );
    }
    Ok(())
}

fn key_prefix(cluster: &KubeBrainCluster) -> String {
    let storage = cluster.status.as_ref().and_then(|status| status.storage.as_ref());
    let pinned = storage.and_then(|storage| storage.key_prefix.clone());
    let set = || cluster.spec.storage.tikv.as_ref()?.key_prefix.clone();
    let default = || format!("{}/{}", cluster.namespace().unwrap_or_default(), cluster.name_any());
    pinned.or_else(set).unwrap_or_else(default)
}
