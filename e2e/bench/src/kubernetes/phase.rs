//! One phase of a cluster's life, and its numbers.

use std::collections::BTreeMap;

use anyhow::Context as _;
use tokio::time::Instant;

use super::control_plane::{ControlPlane, ControlPlaneUsage};
use super::metrics::{self, Histogram, Scrape};
use super::objectives::{self, Objective, ObjectivesReport};
use super::workload::{ClusterSize, Workload};
use crate::report::{Report, Unit};

const MIB: f64 = 1024.0 * 1024.0;
/// Fewer requests of a verb, or of an operation, have no percentiles.
const MIN_REQUESTS: f64 = 20.0;

/// A part of a cluster's life.
#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    /// Nodes join.
    Join,
    /// Deployments are created.
    Create,
    /// Their templates are changed.
    Roll,
    /// They are deleted.
    Delete,
}

impl Phase {
    /// All, in their order.
    pub(super) const ALL: [Self; 4] = [Self::Join, Self::Create, Self::Roll, Self::Delete];

    /// Its name in tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Join => "join",
            Self::Create => "create",
            Self::Roll => "roll",
            Self::Delete => "delete",
        }
    }

    /// Runs it to its end.
    pub(super) async fn run(self, workload: &Workload<'_>) -> anyhow::Result<()> {
        match self {
            Self::Join => workload.join().await,
            Self::Create => workload.create().await,
            Self::Roll => workload.roll().await,
            Self::Delete => workload.delete().await,
        }
    }

    /// The objects that are counted, and their number.
    fn objects(self, size: ClusterSize) -> (&'static str, u64) {
        match self {
            Self::Join => ("nodes Ready", size.nodes),
            Self::Create => ("pods Running", size.pods),
            Self::Roll => ("pods replaced", size.pods),
            Self::Delete => ("pods deleted", size.pods),
        }
    }
}

/// Counters at the beginning of a phase, or at its end.
pub(super) struct Snapshot {
    at: Instant,
    usage: ControlPlaneUsage,
    /// Bytes that the store's files occupy.
    directory: u64,
    scrape: Scrape,
}

impl Snapshot {
    /// Scrapes before the phase begins, so that it is not charged for it.
    pub(super) async fn before(plane: &ControlPlane) -> anyhow::Result<Self> {
        let scrape = scrape(plane).await?;
        plane.forget_peaks()?;
        Ok(Self {
            scrape,
            directory: plane.directory_bytes()?,
            usage: plane.usage()?,
            at: Instant::now(),
        })
    }

    /// Scrapes after the phase has ended.
    pub(super) async fn after(plane: &ControlPlane) -> anyhow::Result<Self> {
        Ok(Self {
            at: Instant::now(),
            usage: plane.usage()?,
            directory: plane.directory_bytes()?,
            scrape: scrape(plane).await?,
        })
    }
}

async fn scrape(plane: &ControlPlane) -> anyhow::Result<Scrape> {
    let request = http::Request::get("/metrics").body(Vec::new())?;
    let text = plane.client().request_text(request).await;
    Scrape::parse(&text.context("scrape kube-apiserver")?)
}

/// Notes the numbers of phases of one store.
pub(super) struct PhaseReport<'a> {
    pub(super) store: &'static str,
    pub(super) size: ClusterSize,
    pub(super) report: &'a mut Report,
    pub(super) objectives: &'a mut ObjectivesReport,
}

impl PhaseReport<'_> {
    /// Notes those of one phase, which began and ended with these counters.
    pub(super) fn add(&mut self, phase: Phase, before: &Snapshot, after: &Snapshot) {
        let mut row = |name: &str, unit, value| {
            self.report
                .add(&format!("{}: {name}", phase.name()), unit, self.store, value);
        };
        let seconds = (after.at - before.at).as_secs_f64();
        let (objects, count) = phase.objects(self.size);
        row("time", Unit::Seconds, seconds);
        row(objects, Unit::PerSecond, count as f64 / seconds);

        let cpu = |of: fn(&ControlPlaneUsage) -> std::time::Duration| {
            of(&after.usage).saturating_sub(of(&before.usage)).as_secs_f64()
        };
        row("store: processor time", Unit::Seconds, cpu(|usage| usage.store.cpu));
        row("store: peak RSS", Unit::Mib, after.usage.store.peak_rss as f64 / MIB);
        let size = after.scrape.sum("apiserver_storage_size_bytes");
        row("store: size of the database", Unit::Mib, size / MIB);
        row("store: directory", Unit::Mib, after.directory as f64 / MIB);
        row(
            "kube-apiserver: processor time",
            Unit::Seconds,
            cpu(|usage| usage.apiserver.cpu),
        );
        row(
            "kube-apiserver: peak RSS",
            Unit::Mib,
            after.usage.apiserver.peak_rss as f64 / MIB,
        );
        row(
            "controllers, scheduler, kwok: processor time",
            Unit::Seconds,
            cpu(|usage| usage.controllers),
        );

        let grown = |name: &str| after.scrape.sum(name) - before.scrape.sum(name);
        row(
            "watch cache: lists repeated",
            Unit::Times,
            grown("apiserver_watch_cache_initializations_total"),
        );
        row(
            "watches ended for being slow",
            Unit::Times,
            grown("apiserver_terminated_watchers_total"),
        );
        row(
            "lists from the store",
            Unit::Times,
            grown("apiserver_storage_list_total"),
        );

        let slowest = objectives::slowest(&before.scrape, &after.scrape);
        for objective in Objective::ALL {
            if let Some(slowest) = slowest.iter().find(|slowest| slowest.objective == objective) {
                let name = format!("slowest p99 of {}", objective.name());
                row(&name, Unit::Millis, slowest.p99 * 1e3);
            }
        }
        let grown = |name: &str, key: fn(&BTreeMap<String, String>) -> Option<String>| {
            metrics::growth(&before.scrape, &after.scrape, name, key)
        };
        latencies(
            "API",
            &grown("apiserver_request_duration_seconds", verb),
            seconds,
            &mut row,
        );
        latencies(
            "store",
            &grown("etcd_request_duration_seconds", operation),
            seconds,
            &mut row,
        );
        self.objectives.add(phase.name(), self.store, slowest);
    }
}

/// Notes rates, means and percentiles of what was requested often enough.
fn latencies(of: &str, requests: &BTreeMap<String, Histogram>, seconds: f64, row: &mut impl FnMut(&str, Unit, f64)) {
    for (what, histogram) in requests {
        if histogram.count() < MIN_REQUESTS {
            continue;
        }
        row(&format!("{of} {what}"), Unit::PerSecond, histogram.count() / seconds);
        let values = [
            ("mean", histogram.mean()),
            ("p50", histogram.quantile(0.5)),
            ("p99", histogram.quantile(0.99)),
        ];
        for (name, value) in values {
            row(
                &format!("{of} {what}: {name}"),
                Unit::Millis,
                value.unwrap_or_default() * 1e3,
            );
        }
    }
}

/// The verb of a request for an object, unless it lasts as long as its client wants.
fn verb(labels: &BTreeMap<String, String>) -> Option<String> {
    let verb = labels
        .get("verb")
        .filter(|verb| !["WATCH", "CONNECT"].contains(&verb.as_str()))?;
    labels.get("resource").filter(|resource| !resource.is_empty())?;
    Some(verb.clone())
}

fn operation(labels: &BTreeMap<String, String>) -> Option<String> {
    labels.get("operation").cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_have_percentiles_from_a_number_of_requests_on() {
        let text = |operation: &str, count: u32| {
            let labels = format!("operation=\"{operation}\"");
            let name = "etcd_request_duration_seconds";
            format!("{name}_bucket{{{labels},le=\"0.1\"}} {count}\n{name}_bucket{{{labels},le=\"+Inf\"}} {count}\n")
                + &format!("{name}_sum{{{labels}}} 2\n")
        };
        let scrape = Scrape::parse(&(text("create", 40) + &text("delete", 19))).unwrap();
        let requests = scrape.histograms("etcd_request_duration_seconds", operation);
        let mut rows = Vec::new();
        latencies("store", &requests, 10.0, &mut |name: &str, unit, value: f64| {
            rows.push((name.to_owned(), unit, value.round()));
        });
        let row = |name: &str, unit, value| (format!("store create{name}"), unit, value);
        let expected = [
            row("", Unit::PerSecond, 4.0),
            row(": mean", Unit::Millis, 50.0),
            row(": p50", Unit::Millis, 50.0),
            row(": p99", Unit::Millis, 99.0),
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn watches_and_pages_have_no_verb() {
        let labels = |verb: &str, resource: &str| {
            let all = [("verb", verb), ("resource", resource)];
            all.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
        };
        assert_eq!(verb(&labels("POST", "pods")).as_deref(), Some("POST"));
        assert_eq!(verb(&labels("WATCH", "pods")), None);
        assert_eq!(verb(&labels("GET", "")), None);
    }
}
