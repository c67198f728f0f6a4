//! Figures of a copy that runs, from the metrics of its pod.
//!
//! They change all the time, and are written at most once a minute, or with the phase.

use crds::KubeBrainCluster;
use crds::cluster::status::{BootstrapPhase, BootstrapStatus, CopyProgress};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use super::{ObservedBootstrap, due, followed};
use crate::archive::metric;
use crate::observed::{Observed, is_ready};
use crate::status::whole_seconds;

/// Seconds for which the figures in the status stay as they are.
const KEPT_SECONDS: i64 = 60;

/// The figures of a running copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyFigures {
    /// The revision of the copy; 0 before the first snapshot is restored.
    pub revision: i64,
    /// The newest known revision of the etcd.
    pub source_revision: i64,
}

impl CopyFigures {
    /// Parses metrics in the text format of Prometheus; `None` if they are not those of a copy. They are untrusted.
    pub fn parse(text: &str) -> Option<Self> {
        Some(Self {
            revision: metric(text, "kubebrain_import_revision")?.max(0),
            source_revision: metric(text, "kubebrain_import_source_revision")?.max(0),
        })
    }
}

/// Returns true if a pass asks the pod of a copy for figures, because those in the status are old or of another phase.
pub fn are_figures_due(cluster: &KubeBrainCluster, seen: &ObservedBootstrap, now: Timestamp) -> bool {
    let Some(bootstrap) = due(cluster).filter(|bootstrap| bootstrap.from_etcd.is_some()) else {
        return false;
    };
    let follows = followed(bootstrap).is_some() && seen.pods.iter().any(is_ready);
    let phase = if follows {
        BootstrapPhase::Following
    } else {
        BootstrapPhase::Running
    };
    !is_kept(before(cluster), phase, now)
}

/// Returns the progress to write for a bootstrap in this phase.
pub(super) fn progress(cluster: &KubeBrainCluster, observed: &Observed, phase: BootstrapPhase) -> Option<CopyProgress> {
    due(cluster)?.from_etcd.as_ref()?;
    if phase == BootstrapPhase::Complete {
        return None;
    }
    let before = before(cluster);
    let written = before.and_then(|before| before.progress.as_deref().cloned());
    let figures = observed.bootstrap.figures.as_deref();
    let Some(figures) = figures.filter(|_| !is_kept(before, phase, observed.now)) else {
        return written;
    };
    let lag = figures.source_revision.saturating_sub(figures.revision);
    Some(CopyProgress {
        revision: figures.revision,
        source_revision: figures.source_revision,
        lag_revisions: lag.max(0),
        seen_at: Time(whole_seconds(observed.now)),
    })
}

fn before(cluster: &KubeBrainCluster) -> Option<&BootstrapStatus> {
    cluster.status.as_ref()?.bootstrap.as_deref()
}

/// Returns true if the figures that were written stay.
fn is_kept(before: Option<&BootstrapStatus>, phase: BootstrapPhase, now: Timestamp) -> bool {
    let before = before.filter(|before| before.phase == phase);
    let Some(written) = before.and_then(|before| before.progress.as_ref()) else {
        return false;
    };
    let age = now.as_second() - written.seen_at.0.as_second();
    (0..KEPT_SECONDS).contains(&age)
}
