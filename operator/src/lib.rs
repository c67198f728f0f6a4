//! `kubebrain-operator`: turns KubeBrainClusters into running brains, and makes their KubeBrainBackups, also at the times of a
//! KubeBrainBackupSchedule. Only `reference`, which lists flags and metrics, may depend on it.
//!
//! One pass over a cluster is `reconcile`: `observe` the current state, plan the steps (the crate `plan`, pure), `apply` them, publish the
//! status. The current state comes from `cache`, which watches fill, so a pass over a settled cluster sends requests only to brains
//! (`probe`). `expectations` records where the cache lags the operator's own writes. Every request passes `transport`, which sends no
//! write while another replica leads. Two replicas are safe: one holds a Lease and works, and its loss ends the process in the middle of
//! its work. `backup` has passes of its own, and so has `archive`.

use std::io::IsTerminal;
use std::sync::{Arc, PoisonError};

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser};
use crds::{KubeBrainBackup, KubeBrainBackupSchedule};
use kube::client::ClientBuilder;
use kube::runtime::reflector::store::Writer;
use kube::{Api, Client};
use plan::spec::OperatorSettings;
use prometheus::core::Collector;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

mod advisories;
mod api_error;
mod apply;
mod apply_history;
mod archive;
mod backup;
mod backup_schedule;
mod bootstrap;
mod cache;
mod context;
mod controller;
mod desired;
mod events;
mod expectations;
mod finalizer;
mod finalizer_patch;
mod flags;
mod fleet;
mod http;
mod installation;
mod jobs;
mod leader_watch;
mod leadership;
mod metrics;
mod observe;
mod pass;
mod passes;
mod probe;
mod publish;
mod reconcile;
mod refusals;
mod tasks;
#[cfg(test)]
mod testing;
mod transport;
mod work_queue;

use advisories::Advisories;
use apply_history::ApplyHistory;
use archive::BackupReports;
use backup_schedule::ScheduleStores;
use cache::external_pods::ExternalPods;
use cache::user_secrets::UserSecrets;
use context::Context;
use expectations::Expectations;
use flags::{Flags, LogFormat};
use fleet::{ClusterStores, Fleet};
use installation::Installation;
use leader_watch::LeaderWatches;
use leadership::Leadership;
use metrics::Metrics;
use probe::Prober;
use tasks::Tasks;
use transport::LeadershipFence;
use work_queue::WorkQueue;

/// Connect timeout for requests to the API server. A separate idle timeout detects dead watches.
const CONNECT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

/// Returns the command line.
#[must_use]
pub fn command() -> clap::Command {
    Flags::command()
}

/// Returns each metric with its name, labels and help.
#[must_use]
pub fn metrics() -> Vec<Box<dyn Collector>> {
    Metrics::collectors()
}

/// Runs `kubebrain-operator` with the flags of this process. Returns after a signal to stop.
///
/// # Errors
/// Flags contradict each other, the API server cannot be found, or the Lease was lost.
pub fn run_operator() -> anyhow::Result<()> {
    let flags = Flags::parse();
    log_to(&flags).context("set up logging")?;
    // The operator is usually idle: one thread for the work and one for blocking calls are enough.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")?;
    let ended = runtime.block_on(run(flags));
    // Tasks that still run after a failure end here, in the middle of their work.
    runtime.shutdown_background();
    ended
}

fn log_to(flags: &Flags) -> anyhow::Result<()> {
    let mut filter: tracing_subscriber::EnvFilter = flags.log.parse().context("read --log")?;
    if !flags.log.contains("kube_client") {
        // The library logs every failed request as an error. The caller of the request reports what it means.
        filter = filter.add_directive(
            "kube_client::client::builder=off"
                .parse()
                .context("quieten the client")?,
        );
    }
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let set = match flags.log_format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    set.map_err(|error| anyhow::anyhow!("{error}"))
}

async fn run(flags: Flags) -> anyhow::Result<()> {
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        anyhow::bail!("another TLS provider was installed first");
    }
    let mut config = kube::Config::infer()
        .await
        .context("find the API server: no kubeconfig, and not in a pod")?;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    let listener = http::bind(flags.listen).await?;
    let metrics = Metrics::new();
    let (elector, leadership) = if flags.leader_elect {
        let (namespace, name) = (&flags.leader_elect_namespace, &flags.leader_elect_name);
        let (elector, leadership) = leadership::candidate(config.clone(), namespace, name, &flags.identity)?;
        (Some(elector), leadership)
    } else {
        (None, Leadership::Alone)
    };
    let expectations = Expectations::default();
    let fence = LeadershipFence {
        leadership: leadership.clone(),
        metrics: metrics.clone(),
        expectations: expectations.clone(),
    };
    let client = ClientBuilder::try_from(config)
        .context("make a client for the API server")?
        .with_layer(&fence)
        .build();
    let clusters = ClusterStores::default();
    let schedules = ScheduleStores::default();
    let stop = CancellationToken::new();
    let mut tasks = Tasks::new(stop.clone());
    tasks.spawn("signals", until_told(stop.clone()));
    // The Lease is released and the endpoints are closed only after the last pass has ended.
    let worked = CancellationToken::new();
    if let Some(elector) = elector {
        tasks.spawn("election", leadership::run(elector, worked.clone()));
    }
    let health = http::HealthState {
        metrics: metrics.clone(),
        leadership: leadership.clone(),
        clusters: clusters.clone(),
        schedules: schedules.clone(),
        stop: stop.clone(),
    };
    tasks.spawn("http", http::serve(listener, health, worked.clone()));
    info!(version = env!("CARGO_PKG_VERSION"), listen = %flags.listen, leader_elect = flags.leader_elect, "started");
    let advisories = Advisories::default();
    if let Some(directory) = flags.advisories_dir {
        if !directory.is_dir() {
            warn!(directory = %directory.display(), "there is no directory of advisories (--advisories-dir)");
        }
        // Before the first pass.
        advisories.read(&directory).await;
        tasks.spawn("advisories", advisories.clone().follow(directory, stop.clone()));
    }
    let own = flags
        .leader_elect
        .then(|| format!("{}/{}", flags.leader_elect_namespace, flags.leader_elect_name));
    let worker = NamespaceWorker {
        installation: Installation::new(client.clone(), own),
        fleet: Fleet::new(
            flags.default_image.clone(),
            flags.max_clusters_updating,
            &flags.namespace,
            clusters,
        ),
        client: client.clone(),
        settings: OperatorSettings {
            default_image: flags.default_image,
            cluster_domain: flags.cluster_domain,
            ca_propagation: flags.ca_propagation,
            allow_unsafe_pods: flags.allow_unsafe_pods,
            allowed_pod_metadata: flags.allowed_pod_metadata,
        },
        events: events::EventPublisher::new(client, flags.identity),
        metrics,
        expectations,
        prober: Prober::default(),
        schedules,
        leadership,
        advisories,
    };
    let all = flags.namespace.is_empty().then_some(None);
    let working = Arc::new(worked.drop_guard());
    for namespace in all.into_iter().chain(flags.namespace.into_iter().map(Some)) {
        let (worker, stop, working) = (worker.clone(), stop.clone(), working.clone());
        tasks.spawn("controller", async move {
            let _working = working;
            Box::pin(worker.work(namespace, stop)).await
        });
    }
    drop(working);
    tasks.join().await
}

/// Manages clusters; one per namespace.
#[derive(Clone)]
struct NamespaceWorker {
    client: Client,
    settings: OperatorSettings,
    events: events::EventPublisher,
    metrics: Metrics,
    expectations: Expectations,
    prober: Prober,
    leadership: Leadership,
    fleet: Fleet,
    installation: Installation,
    schedules: ScheduleStores,
    advisories: Advisories,
}

impl NamespaceWorker {
    /// Works in `namespace`, or in all namespaces, from the time this replica leads until `stop`.
    async fn work(self, namespace: Option<String>, stop: CancellationToken) -> anyhow::Result<()> {
        if !self.leadership.won(&stop).await {
            return Ok(());
        }
        let all = namespace.as_deref().map_or_else(
            || Api::all(self.client.clone()),
            |namespace| Api::namespaced(self.client.clone(), namespace),
        );
        let defined = controller::wait_for_definition(&all, &stop).await;
        if defined.context("list the clusters")?.is_none() {
            return Ok(());
        }
        info!(namespace = namespace.as_deref().unwrap_or("all"), "working");
        let queue = Arc::<WorkQueue>::default();
        let (cache, feeds) = cache::open(&self.client, namespace.as_deref(), &queue);
        let external_pods = ExternalPods::new(self.client.clone(), cache.clusters.clone(), queue.clone());
        let user_secrets = UserSecrets::new(self.client.clone(), cache.clusters.clone(), queue.clone());
        let context = Context {
            external_pods,
            user_secrets,
            client: self.client,
            settings: self.settings,
            events: self.events,
            leader_watches: LeaderWatches::new(cache.clusters.clone(), queue.clone()),
            backups: BackupReports::new(cache.clusters.clone(), queue.clone(), self.metrics.clone()),
            metrics: self.metrics,
            cache,
            expectations: self.expectations,
            apply_history: ApplyHistory::default(),
            prober: self.prober,
            fleet: self.fleet.of(namespace.as_deref()),
            installation: self.installation,
            advisories: self.advisories,
        };
        let backups = Writer::<KubeBrainBackup>::default();
        let backups = Box::pin(passes::run(context.clone(), namespace.clone(), backups, stop.clone()));
        let schedules = Writer::<KubeBrainBackupSchedule>::default();
        self.schedules
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(schedules.as_reader());
        let schedules = Box::pin(passes::run(context.clone(), namespace, schedules, stop.clone()));
        let archives = archive::run(context.clone(), stop.clone());
        let archives = async {
            archives.await;
            Ok(())
        };
        let scope = controller::ReconcileScope { context, queue, feeds };
        tokio::try_join!(controller::run(scope, stop), backups, schedules, archives)?;
        Ok(())
    }
}

/// Cancels `stop` at SIGTERM or SIGINT.
async fn until_told(stop: CancellationToken) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    tokio::select! {
    _ = terminate.recv() => info!("SIGTERM: shutting down"),
    _ = interrupt.recv() => info!("SIGINT: shutting down"),
    () = stop.cancelled() => {}
    }
    stop.cancel();
    Ok(())
}
