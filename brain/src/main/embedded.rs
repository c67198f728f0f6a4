//! The engine in a data directory.

use std::sync::Arc;

use anyhow::Context as _;
use brain::api::cluster::Members;
use brain::api::elsewhere::Role;
use brain::cell::mem::MemCell;
use brain::data_dir::{DataDir, Identity, LOG, ROWS};
use brain::flags::Config;
use brain::http::member::StorageInUse;
use brain::log::{FileLog, Log as _, Origin, Slot, SyncObserver};
use brain::member;
use brain::member::lock::{AnyLock, StorageLock};
use brain::memory;
use brain::metrics::Metrics;
use brain::rows::fjall::FjallRows;
use brain::serve::Server;
use brain::store::{self, DiskSpace};
use election::Config as ElectionConfig;
use tokio::sync::watch;

use crate::engine::{Engine, Ids, quota};
use crate::run::{Life, Ports, serve};

/// A member whose store is a directory of its own: nobody else can lead.
pub(crate) async fn run(config: &Config, life: Life) -> anyhow::Result<()> {
    let server = Server::bind(config)?;
    let mut dir = DataDir::open(&config.data_dir, || Identity {
        format: brain::data_dir::FORMAT,
        cluster_id: rand::random(),
        member_id: rand::random(),
        log: None,
    })?;
    let metrics = Arc::new(Metrics::new(config.extensive_metrics));
    let quota = quota(config);
    let (log, rows) = open(config, &dir, quota, &metrics).await?;
    // Before anything is acknowledged: from now on neither may be missing.
    if let Some(id) = log.id() {
        dir.set_log(id)?;
    }
    let ids = Ids {
        cluster: dir.identity().cluster_id,
        member: dir.identity().member_id,
    };
    let engine = Engine {
        log,
        rows,
        // The directory's lock shuts out everybody else: the record need not outlive the process, nor be seen by another.
        lock: AnyLock::Storage(StorageLock::new(MemCell::new(), "data directory")),
        timing: ElectionConfig::lease(ElectionConfig::unique(&config.name)),
        space: DiskSpace::new(dir.path(), quota)?,
        ids,
        storage: StorageInUse {
            kind: "Embedded",
            cluster_id: None,
            reachable: true,
        },
        members: Members::new([member::describe(config, ids.member)]),
        roles: watch::Sender::new(Role::Nobody),
        peers: None,
    };
    serve(config, Ports::Bound(Box::new(server)), engine, metrics, life).await
}

/// Opens rows and log. The rows first: they tell which log must be there.
async fn open(
    config: &Config,
    dir: &DataDir,
    quota: Option<u64>,
    metrics: &Arc<Metrics>,
) -> anyhow::Result<(FileLog, FjallRows)> {
    let fsync = metrics.disk.wal_fsync.clone();
    let segment_bytes = store::segment_bytes(dir.path(), quota)?;
    let log_options = brain::log::Options {
        first_segment_bytes: segment_bytes.min(4 << 20),
        segment_bytes,
        unsafe_no_fsync: config.unsafe_no_fsync,
    };
    let on_sync = SyncObserver::new(move |took| fsync.observe(took.as_secs_f64()));
    let cache_bytes = config
        .embedded_cache_bytes
        .unwrap_or_else(|| memory::cache_share(memory::available()));
    let rows_options = brain::rows::fjall::Options {
        cache_bytes,
        memtable_bytes: store::memtable_bytes(dir.path())?,
        ..brain::rows::fjall::Options::default()
    };
    let log_dir = dir.path().join(LOG);
    let stored = FileLog::stored_watermark(&log_dir).context("open the log")?;
    let covers = |fence| Ok(brain::replica::check_reach(fence, stored)?);
    let rows = FjallRows::open_for(&dir.path().join(ROWS), rows_options, covers).context("open the rows")?;
    let origin = brain::replica::origin(&rows).await.context("open the rows")?;
    // Young rows name no log yet.
    let named = dir.identity().log.map(|id| Origin { id, last: Slot(0) });
    let log = FileLog::open_for(&log_dir, log_options, on_sync, origin.or(named)).context("open the log")?;
    Ok((log, rows))
}
