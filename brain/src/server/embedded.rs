//! The engine in a data directory.

use std::path::Path;
use std::sync::Arc;

use crate::data_dir::{self, DataDir, DataDirError, Identity, LOG_DIR, ROWS_DIR};
use crate::flags::Config;
use crate::server::disk_space;
use crate::server::quota::DiskSpace;
use crate::server::services as member;
use crate::sizing;
use anyhow::Context as _;
use cluster::forward::Role;
use cluster::lock::{ElectionLock, StorageLock};
use cluster::members::Members;
use election::Config as ElectionConfig;
use engine::LogAndRows;
use engine::cas_register::mem::MemRegister;
use engine::log::{LogId, LogObserver, LogOrigin, Slot};
use engine_local::log::FileLog;
use engine_local::rows::LsmRows;
use net::http::member::{StorageInUse, StoredFormats};
use runtime::own_thread::OwnThread;
use telemetry::metrics::Metrics;
use tokio::sync::watch;

use crate::server::engine::{HeaderIds, OpenEngine, quota};
use crate::server::run::{ClientPorts, Lifecycle, serve};
use crate::server::{first_start, ports};

/// Runs a member with a store in a data directory of its own: no other member can lead.
pub(crate) async fn run(config: &Config, life: Lifecycle) -> anyhow::Result<()> {
    tokio::select! {
    biased;
    () = life.leave.cancelled() => return life.end().await,
    checked = check_first_start(config) => checked?,
    }
    let server = ports::bind_clients(config)?;
    let urls: Vec<String> = config.listen_peer_urls.iter().map(ToString::to_string).collect();
    tracing::info!(
        urls = urls.join(","),
        "not listening for peers: a data directory has one member"
    );
    let mut dir = DataDir::open(&config.data_dir, || Identity {
        format: crate::data_dir::DIR_FORMAT,
        cluster_id: rand::random(),
        member_id: rand::random(),
        log: None,
    })?;
    let metrics = Arc::new(Metrics::new(config.extensive_metrics));
    let quota = quota(config);
    let LogAndRows { log, rows } = open(config, dir.path(), dir.identity().log, quota, &metrics).await?;
    // Opening rows of an earlier format has converted them.
    dir.raise_format()?;
    // Recorded before anything is acknowledged: from now on log and rows must both exist.
    if let Some(id) = log.id() {
        dir.set_log(id)?;
    }
    let ids = HeaderIds {
        cluster: dir.identity().cluster_id,
        member: dir.identity().member_id,
    };
    let engine = OpenEngine {
        log,
        rows,
        // The directory's lock excludes all other processes: the record need not outlive this process, nor be visible to others.
        lock: ElectionLock::Storage(StorageLock::new(Arc::new(MemRegister::new()), "data directory")),
        timing: ElectionConfig::lease(ElectionConfig::unique(&config.name)),
        election_thread: OwnThread::start("election").context("start a thread")?,
        space: Arc::new(DiskSpace::new(dir.path(), quota)?),
        ids,
        storage: StorageInUse {
            kind: "Embedded",
            cluster_id: None,
            reachable: true,
            directory: Some(StoredFormats {
                lowest: crate::data_dir::OLDEST_DIR_FORMAT,
                highest: crate::data_dir::DIR_FORMAT,
                written: dir.identity().format,
            }),
        },
        members: Members::new([member::describe(config, ids.member)]),
        remove: None,
        roles: watch::Sender::new(Role::Nobody),
        peers: None,
    };
    serve(config, ClientPorts::Bound(Box::new(server)), engine, metrics, life).await
}

/// Refuses to begin a store where there must be one, or by flags that do not fit. With a store, these flags do not matter.
async fn check_first_start(config: &Config) -> anyhow::Result<()> {
    if let Some(wanted) = config.embedded_cluster_id {
        data_dir::expect(&config.data_dir, wanted)?;
    }
    if DataDir::holds_store(&config.data_dir)? {
        first_start::ignore(&config.bootstrap);
        return Ok(());
    }
    if config.joins_existing {
        let path = config.data_dir.clone();
        return Err(DataDirError::NoStore { path }.into());
    }
    first_start::check(&config.bootstrap).await
}

/// Opens rows and log. The rows are opened first, because they name the log that must exist.
pub(crate) async fn open(
    config: &Config,
    dir: &Path,
    log: Option<LogId>,
    quota: Option<u64>,
    metrics: &Arc<Metrics>,
) -> anyhow::Result<LogAndRows> {
    let disk = metrics.disk.clone();
    let segment_bytes = disk_space::segment_bytes(dir, quota)?;
    let log_options = engine_local::log::FileLogOptions {
        first_segment_bytes: segment_bytes.min(4 << 20),
        segment_bytes,
        unsafe_no_fsync: config.unsafe_no_fsync,
    };
    let observer = LogObserver::new(move |done| disk_space::count_log(done, &disk));
    let cache_bytes = config
        .embedded_cache_bytes
        .unwrap_or_else(|| sizing::BLOCK_CACHE.of_available() as u64);
    let rows_options = engine_local::rows::LsmOptions {
        cache_bytes,
        memtable_bytes: disk_space::memtable_bytes(dir)?,
        quota_bytes: quota,
        ..engine_local::rows::LsmOptions::default()
    };
    let log_dir = dir.join(LOG_DIR);
    let stored = FileLog::stored_watermark(&log_dir).context("open the log")?;
    let covers = |manifest| Ok(store::replica::check_reach(manifest, stored)?);
    let rows = LsmRows::open_for(&dir.join(ROWS_DIR), rows_options, covers).context("open the rows")?;
    let origin = store::replica::origin(&rows).await.context("open the rows")?;
    // New rows name no log yet.
    let named = log.map(|id| LogOrigin { id, last: Slot(0) });
    let log = FileLog::open_for(&log_dir, log_options, observer, origin.or(named)).context("open the log")?;
    Ok(LogAndRows {
        log: Arc::new(log),
        rows: Arc::new(rows),
    })
}
