//! The store of a Kubernetes: a brain, etcd, or kine with SQLite.

use std::time::Duration;

use anyhow::{Context as _, bail};
use programs::members;
use programs::progress::Progress;
use programs::server::{self, ProcessUsage, Program, Server};
use programs::tools::cache::ToolCache;
use programs::tools::go;

use super::component::Component;
use crate::disk::ServerDir;

/// etcd's own limit of 2 GiB is less than large runs write between two compactions.
const QUOTA: &str = "--quota-backend-bytes=8589934592";
/// Kine's own options for SQLite but one: it does not sync commits to its write-ahead log (`_synchronous=NORMAL`) unless it is asked to.
const SQLITE_OPTIONS: &str =
    "_journal_mode=WAL&_busy_timeout=30000&_synchronous=FULL&_txlock=immediate&_stmt_cache_size=20&cache=shared";
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// A kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum StoreKind {
    /// The brain, on an embedded store.
    Kubebrain,
    /// The pinned etcd.
    Etcd,
    /// The pinned kine, on SQLite.
    Kine,
}

impl StoreKind {
    /// The program, built now if it was not before.
    ///
    /// # Errors
    ///
    /// It is not built, or cannot be built.
    pub(super) fn program(self, progress: &Progress) -> anyhow::Result<Program> {
        match self {
            Self::Kubebrain => Program::kubebrain(),
            Self::Etcd => Program::etcd(progress),
            Self::Kine => Ok(Program {
                name: "kine",
                path: go::KINE.build(&ToolCache::open()?, progress)?.join("kine"),
            }),
        }
    }
}

/// A running store. Dropping it kills it.
#[derive(Debug)]
pub(super) enum Store {
    /// One that takes etcd's flags.
    Server(Server),
    /// Kine, and its URL.
    Kine(Component, String),
}

impl Store {
    /// Starts one on an empty directory, and waits until it is ready.
    ///
    /// # Errors
    ///
    /// It ended, or was not ready in time: then with its last lines.
    pub(super) async fn start(kind: StoreKind, program: &Program, place: &ServerDir) -> anyhow::Result<Self> {
        match kind {
            StoreKind::Kubebrain | StoreKind::Etcd => {
                Ok(Self::Server(Server::start_in(program, &place.data(), &[QUOTA])?))
            }
            StoreKind::Kine => kine(program, place).await,
        }
    }

    /// Its URL.
    pub(super) fn endpoint(&self) -> &str {
        match self {
            Self::Server(server) => server.endpoint(),
            Self::Kine(_, endpoint) => endpoint,
        }
    }

    /// Its process id.
    pub(super) fn pid(&self) -> u32 {
        match self {
            Self::Server(server) => server.pid(),
            Self::Kine(kine, _) => kine.pid(),
        }
    }

    /// Processor time and memory so far.
    ///
    /// # Errors
    ///
    /// It has ended.
    pub(super) fn usage(&self) -> anyhow::Result<ProcessUsage> {
        match self {
            Self::Server(server) => server.usage(),
            Self::Kine(kine, _) => kine.usage(),
        }
    }

    /// Checks that it is still running.
    ///
    /// # Errors
    ///
    /// It has ended: then with its last lines.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Server(server) => match server.ended()? {
                None => Ok(()),
                Some(status) => bail!("{} ended: {status}\n{}", server.name(), server.last_lines()),
            },
            Self::Kine(kine, _) => kine.check(),
        }
    }

    /// Ends it.
    ///
    /// # Errors
    ///
    /// It does not end in order, or is a brain that logged a warning or an error.
    pub(super) fn stop(self) -> anyhow::Result<()> {
        match self {
            Self::Server(server) => server.stop(),
            Self::Kine(..) => Ok(()),
        }
    }
}

async fn kine(program: &Program, place: &ServerDir) -> anyhow::Result<Store> {
    let (data, port) = (place.data(), server::free_ports()?.client);
    std::fs::create_dir_all(&data).with_context(|| format!("create {}", data.display()))?;
    let args = [
        format!("--listen-address=127.0.0.1:{port}"),
        format!("--endpoint=sqlite://{}/state.db?{SQLITE_OPTIONS}", data.display()),
        "--metrics-bind-address=0".to_owned(),
    ];
    let mut kine = Component::start(program, &args, place.file("kine.log"))?;
    let endpoint = format!("http://127.0.0.1:{port}");
    let ready = async || members::status(&endpoint).await.map(drop);
    kine.until(READY_TIMEOUT, ready).await?;
    Ok(Store::Kine(kine, endpoint))
}
