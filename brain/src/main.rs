//! `kubebrain`: reads the flags, opens the store, serves. The only file that names a storage engine.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use brain::api::cluster::ClusterService;
use brain::api::kv::KvService;
use brain::api::lease::LeaseService;
use brain::api::maintenance::MaintenanceService;
use brain::api::request::Limits;
use brain::api::store::Store;
use brain::api::watch::{Options as WatchServiceOptions, WatchService};
use brain::data_dir::{DataDir, Identity};
use brain::flags::{self, Asked, Config, Quota};
use brain::log::{FileLog, Log};
use brain::pb::etcdserverpb as pb;
use brain::rows::Rows;
use brain::rows::fjall::FjallRows;
use brain::sequencer::Options as SequencerOptions;
use brain::store::{self, DiskSpace};
use brain::tasks::Tasks;
use brain::watch;
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let asked = match flags::parse(std::env::args_os().skip(1), std::env::vars_os()) {
        Ok(asked) => asked,
        Err(error) => {
            eprintln!("kubebrain: {error}");
            return ExitCode::from(2);
        }
    };
    let (config, warnings) = match asked {
        Asked::Print(text) => {
            print!("{text}");
            return ExitCode::SUCCESS;
        }
        Asked::Serve(config, warnings) => (config, warnings),
    };
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("kubebrain: cannot start threads: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(*config)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kubebrain: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(config: Config) -> anyhow::Result<()> {
    let dir = DataDir::open(&config.data_dir, || Identity {
        format: brain::data_dir::FORMAT,
        cluster_id: rand::random(),
        member_id: rand::random(),
    })?;
    let log = FileLog::open(&dir.path().join("log"), brain::log::Options::default()).context("open the log")?;
    let rows =
        FjallRows::open(&dir.path().join("rows"), brain::rows::fjall::Options::default()).context("open the rows")?;
    let stop = CancellationToken::new();
    let mut tasks = Tasks::new(stop.clone());
    let quota = match config.limits.quota {
        Quota::Off => None,
        Quota::Bytes(bytes) => Some(bytes),
    };
    let options = store::Options {
        sequencer: SequencerOptions {
            member: dir.identity().member_id,
            in_flight: 2,
            batch_requests: 2_048,
            batch_bytes: 4 << 20,
            flush_bytes: 8 << 20,
            flush_interval: Duration::from_secs(10),
            recent_bytes: 64 << 20,
        },
        watch: watch::Options::default(),
        lease: Duration::ZERO,
    };
    let space = DiskSpace::new(dir.path(), quota)?;
    let running = store::start((log.clone(), rows.clone()), options.clone(), space, &mut tasks, &stop).await?;
    let api = Store {
        state: running.state.clone(),
        sequencer: running.sequencer.clone(),
        limits: Limits {
            txn_ops: config.limits.max_txn_ops,
            request_bytes: config.limits.max_request_bytes,
            key_bytes: rows.max_key_len().saturating_sub(64) / 2,
        },
        cluster_id: dir.identity().cluster_id,
        member_id: dir.identity().member_id,
    };
    let (_leader, has_leader) = tokio::sync::watch::channel(true);
    let watches = WatchService::new(
        running.hub.clone(),
        running.history,
        options.watch,
        WatchServiceOptions {
            max_request_bytes: config.limits.max_request_bytes,
            progress_notify_interval: config.watch_progress_notify_interval,
            cluster_id: api.cluster_id,
            member_id: api.member_id,
            raft_term: api.state.epoch_cell(),
            has_leader,
            stop: stop.clone(),
        },
    );
    let member = pb::Member {
        id: api.member_id,
        name: config.name.clone(),
        peer_ur_ls: config
            .initial_advertise_peer_urls
            .iter()
            .map(ToString::to_string)
            .collect(),
        client_ur_ls: config.advertise_client_urls.iter().map(ToString::to_string).collect(),
        is_learner: false,
    };
    let max = config.limits.max_receive_bytes();
    let size: Arc<dyn Fn() -> u64 + Send + Sync> = Arc::new(move || log.size() + rows.size());
    let maintenance = MaintenanceService {
        store: api.clone(),
        size,
        quota: quota.unwrap_or(0),
    };
    let leases = LeaseService {
        store: api.clone(),
        min_ttl: config.min_lease_ttl(),
    };
    let cluster = ClusterService {
        member,
        cluster_id: api.cluster_id,
        epoch: api.state.epoch_cell(),
    };
    let (_reporter, health) = tonic_health::server::health_reporter();
    let url = config.listen_client_urls.first().context("no client URL")?.to_string();
    let addr: std::net::SocketAddr = url
        .trim_start_matches("http://")
        .replace("localhost", "127.0.0.1")
        .parse()?;
    let server = tonic::transport::Server::builder()
        .tcp_nodelay(true)
        .add_service(pb::kv_server::KvServer::new(KvService(api.clone())).max_decoding_message_size(max))
        .add_service(pb::lease_server::LeaseServer::new(leases))
        .add_service(pb::maintenance_server::MaintenanceServer::new(maintenance))
        .add_service(pb::cluster_server::ClusterServer::new(cluster))
        .add_service(watches.into_server())
        .add_service(health);
    let stopping = stop.clone();
    tracing::info!(%addr, "ready to serve client requests");
    tasks.spawn("server", async move {
        server
            .serve_with_shutdown(addr, async move { stopping.cancelled().await })
            .await?;
        Ok(())
    });
    let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tasks.spawn("signals", {
        let stop = stop.clone();
        async move {
            tokio::select! {
                _ = term.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
                () = stop.cancelled() => {}
            }
            stop.cancel();
            Ok(())
        }
    });
    tasks.join().await
}
