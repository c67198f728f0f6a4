//! Versions older than the running one. Only the running image shows which formats it can read. So a version that may be too old for the
//! stored data is not tried unless the user allows it by name.

use crds::KubeBrainCluster;
use crds::cluster::workload::WorkloadType;
use kube::ResourceExt;

use crate::names::ALLOW_DOWNGRADE;
use crate::observed::Observed;
use crate::spec::SpecRefusal;

/// Refuses to roll out the version of the spec if its major or minor part is lower than that of the running version.
pub(super) fn refused(cluster: &KubeBrainCluster, observed: &Observed) -> Option<SpecRefusal> {
    if cluster.spec.workload.type_ == WorkloadType::External {
        return None;
    }
    let wanted = &cluster.spec.version;
    let runs = cluster.status.as_ref()?.version.as_ref()?;
    let is_allowed = cluster.annotations().get(ALLOW_DOWNGRADE) == Some(wanted);
    if is_allowed || line(wanted)? >= line(runs)? {
        return None;
    }
    let written = written(observed).map_or_else(String::new, |formats| format!(", which writes {formats}"));
    Some(SpecRefusal {
        reason: "DowngradeRefused",
        message: format!(
            "{runs} runs{written}, and {wanted} may not be able to read the stored data: set spec.version to {runs}, or annotate the cluster with {ALLOW_DOWNGRADE}={wanted}"
        ),
    })
}

/// Returns the newest formats that members write, in words.
fn written(observed: &Observed) -> Option<String> {
    let answers = || observed.probes.values().filter_map(|answer| answer.as_ref().ok());
    // The status alone does not show it.
    let rows = answers()
        .map(|answer| answer.formats.written)
        .max()
        .filter(|format| *format > 0)?;
    let directories = answers().filter_map(|answer| answer.storage.directory);
    Some(match directories.map(|formats| formats.written).max() {
        Some(directory) => format!("format {rows} in a data directory of format {directory}"),
        None => format!("format {rows}"),
    })
}

/// Returns major and minor part; patches of one minor version share their formats.
fn line(version: &str) -> Option<(u64, u64)> {
    let mut parts = version.split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}
