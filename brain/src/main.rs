//! `kubebrain`: reads the flags, opens the store, serves. The only file that names a storage engine.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use brain::api::cluster::Members;
use brain::api::elsewhere::{Elsewhere, Role};
use brain::api::request::Limits;
use brain::api::store::Store;
use brain::cell::mem::MemCell;
use brain::data_dir::{DataDir, Identity};
use brain::flags::{AutoCompaction, Config, Quota};
use brain::log::{FileLog, Log, SyncObserver};
use brain::member::leadership::{self, Office};
use brain::member::lock::StorageLock;
use brain::member::{self, Member};
use brain::metrics::Metrics;
use brain::mvcc::auto_compact::{self, Retention};
use brain::process;
use brain::rows::Rows;
use brain::rows::fjall::FjallRows;
use brain::sequencer::Options as SequencerOptions;
use brain::serve::Server;
use brain::store::{self, DiskSpace};
use brain::tasks::Tasks;
use brain::watch;
use election::{Config as ElectionConfig, Elector};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long requests under way may take after SIGTERM; less than a pod's grace period of 30 s.
const GRACE: Duration = Duration::from_secs(15);

fn main() -> ExitCode {
    process::run(embedded)
}

/// A member whose store is a directory of its own: nobody else can lead.
async fn embedded(config: Config) -> anyhow::Result<()> {
    let server = Server::bind(&config)?;
    let dir = DataDir::open(&config.data_dir, || Identity {
        format: brain::data_dir::FORMAT,
        cluster_id: rand::random(),
        member_id: rand::random(),
    })?;
    let id = dir.identity().member_id;
    let metrics = Arc::new(Metrics::new(config.extensive_metrics));
    let quota = match config.limits.quota {
        Quota::Off => None,
        Quota::Bytes(bytes) => Some(bytes),
    };
    let (log, rows) = open(&config, &dir, quota, &metrics)?;
    let stop = CancellationToken::new();
    let mut tasks = Tasks::new(stop.clone());
    let options = store::Options {
        sequencer: bounds(id),
        watch: watch::Options::default(),
        lease: Duration::ZERO,
    };
    let space = DiskSpace::new(dir.path(), quota)?;
    let (running, leader) = store::open((log.clone(), rows.clone()), options, &metrics, space).await?;
    // The directory's lock shuts out everybody else: the record need not outlive the process, nor be seen by another.
    let lock = StorageLock::new(MemCell::new(), "data directory");
    let timing = ElectionConfig::lease(ElectionConfig::unique(&config.name));
    let renew_deadline = timing.renew_deadline;
    let (elector, election) = Elector::new(lock, timing)?;
    let (roles, mut role) = tokio::sync::watch::channel(Role::Nobody);
    let (moves, moved) = mpsc::channel(1);
    let office = Office {
        election,
        renew_deadline,
        roles,
        cluster: None,
        moves: moved,
    };
    let led = CancellationToken::new();
    tasks.spawn("election", {
        let led = led.clone();
        async move { Ok(elector.run(led).await?) }
    });
    tasks.spawn("leadership", leadership::run(leader, office, stop.clone(), led));
    tasks.spawn("watch hub", running.hub.clone().run(stop.clone()));
    let begun = role
        .wait_for(|role| matches!(role, Role::Leading(_) | Role::Stopped))
        .await;
    if !matches!(begun.as_deref(), Ok(Role::Leading(_))) {
        drop(begun);
        return tasks.join().await;
    }
    drop(begun);
    let api = Store {
        state: running.state.clone(),
        sequencer: running.sequencer.clone(),
        elsewhere: Elsewhere::new(role),
        limits: Limits {
            txn_ops: config.limits.max_txn_ops,
            request_bytes: config.limits.max_request_bytes,
            key_bytes: rows.max_key_len().saturating_sub(64) / 2,
        },
        cluster_id: dir.identity().cluster_id,
        member_id: id,
    };
    let (_leader, has_leader) = tokio::sync::watch::channel(true);
    // Clients leave first, the store ends when they are gone; if it ends before, they leave too.
    let leave = stop.child_token();
    if let Some(retention) = retention(config.auto_compaction) {
        let (state, stop) = (api.state.clone(), stop.clone());
        let compaction = auto_compact::run(retention, api.sequencer.clone(), move || state.view().revision, stop);
        tasks.spawn("automatic compaction", compaction);
    }
    let member = Member {
        store: api,
        hub: running.hub,
        history: running.history,
        has_leader,
        size: Arc::new(move || log.size() + rows.size()),
        members: Members::new([member::describe(&config, id)]),
        moves,
        metrics,
        leave: leave.clone(),
    };
    let services = member::services(&config, member);
    let urls = server.bound()?;
    process::follow_signals(&leave, &stop, &mut tasks)?;
    server.start(services, &leave, &stop, GRACE, &mut tasks);
    process::ready(&urls);
    tasks.join().await
}

/// The engine in a data directory.
fn open(
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
    let log = FileLog::open_observed(&dir.path().join("log"), log_options, on_sync).context("open the log")?;
    let rows =
        FjallRows::open(&dir.path().join("rows"), brain::rows::fjall::Options::default()).context("open the rows")?;
    Ok((log, rows))
}

/// Bounds of the write path.
fn bounds(member: u64) -> SequencerOptions {
    SequencerOptions {
        member,
        in_flight: 2,
        batch_requests: 2_048,
        batch_bytes: 4 << 20,
        flush_bytes: 8 << 20,
        flush_interval: Duration::from_secs(10),
        recent_bytes: 64 << 20,
    }
}

/// What `--auto-compaction-mode` and `--auto-compaction-retention` ask for.
fn retention(flags: AutoCompaction) -> Option<Retention> {
    match flags {
        AutoCompaction::Off => None,
        AutoCompaction::Periodic(age) => Some(Retention::Age(age)),
        AutoCompaction::Revision(kept) => Some(Retention::Revisions(kept)),
    }
}
