//! One cluster for all tests of this binary, started when the first of them asks for it.
//!
//! It ends when this process does, in whatever way: its host holds the other end of a pipe.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use e2e_cluster::cluster::{self, Cluster};
use e2e_cluster::cluster_dir::ClusterName;
use e2e_cluster::config::{ClusterConfig, StoreProgram};
use e2e_cluster::demo;
use programs::members;
use programs::progress::Progress;
use programs::tools::own::Programs;
use programs::watchdog::Watchdog;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

pub(crate) mod witness;

use witness::Witness;

/// Set to `etcd` to see the tests pass on etcd, to `tikv` to see them pass on three brains.
const STORE_VARIABLE: &str = "KUBEBRAIN_E2E_STORE";

/// For a test that uses a cluster, once that is up; the longest ones take a few minutes.
const CLUSTER_TEST_TIMEOUT: Duration = Duration::from_secs(20 * 60);
/// For a test that does not.
const LOCAL_TEST_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// A cluster that other tests may use at the same time.
pub(crate) struct Shared<'a> {
    harness: &'static Harness,
    _calm: RwLockReadGuard<'a, ()>,
    _deadline: Watchdog,
}

/// A cluster that is ours alone for a while.
pub(crate) struct Exclusive<'a> {
    harness: &'static Harness,
    _calm: RwLockWriteGuard<'a, ()>,
}

/// Ends the process if the test hangs that holds this.
pub(crate) fn deadline() -> Watchdog {
    Watchdog::within(LOCAL_TEST_TIMEOUT)
}

pub(crate) struct Harness {
    pub(crate) cluster: Cluster,
    pub(crate) progress: Progress,
    witness: Witness,
    operator: OnceLock<Result<(), String>>,
}

static CALM: RwLock<()> = RwLock::const_new(());
static SAMPLES: Mutex<()> = Mutex::new(());

/// The namespace of the samples, for one test at a time.
pub(crate) fn sample_namespace() -> MutexGuard<'static, ()> {
    SAMPLES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The cluster, for tests that bear each other's company. For use outside of a runtime.
pub(crate) fn shared_blocking() -> Shared<'static> {
    Shared {
        harness: harness(),
        _calm: CALM.blocking_read(),
        _deadline: Watchdog::within(CLUSTER_TEST_TIMEOUT),
    }
}

/// The cluster, for tests that bear each other's company.
pub(crate) async fn shared() -> Shared<'static> {
    Shared {
        harness: harness(),
        _calm: CALM.read().await,
        _deadline: Watchdog::within(CLUSTER_TEST_TIMEOUT),
    }
}

/// The cluster, for a test that does harm.
pub(crate) async fn exclusive() -> Exclusive<'static> {
    Exclusive {
        harness: harness(),
        _calm: CALM.write().await,
    }
}

/// No other test uses a cluster, for one that has a cluster of its own and looks at the time.
pub(crate) async fn calm() -> RwLockWriteGuard<'static, ()> {
    CALM.write().await
}

impl std::ops::Deref for Shared<'_> {
    type Target = Harness;
    fn deref(&self) -> &Harness {
        self.harness
    }
}

impl std::ops::Deref for Exclusive<'_> {
    type Target = Harness;
    fn deref(&self) -> &Harness {
        self.harness
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        self.harness.check_logs();
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        self.harness.check_logs();
    }
}

impl Harness {
    /// Our programs said nothing that no test expected, neither in this test nor in one beside it.
    fn check_logs(&self) {
        let checked = self.cluster.check_logs();
        if !std::thread::panicking() {
            checked.unwrap();
        }
    }

    /// Has the operator installed, once for all who need it.
    pub(crate) fn operator(&self) {
        let install =
            || demo::install_operator(self.cluster.kubectl(), &self.progress).map_err(|error| format!("{error:#}"));
        let installed = self.operator.get_or_init(install);
        installed.as_ref().unwrap_or_else(|error| panic!("{error}"));
    }

    /// Every key of every resource type, listed at the store, is what a watch since the beginning has accumulated.
    pub(crate) fn watch_agrees_with_list(&self) {
        let compared = self.witness.compare(&self.cluster.store_url().unwrap()).unwrap();
        self.progress.say(format_args!("  list and watch agree: {compared}"));
    }
}

fn harness() -> &'static Harness {
    static HARNESS: OnceLock<Result<Harness, String>> = OnceLock::new();
    let harness = HARNESS.get_or_init(|| start().map_err(|error| format!("{error:#}")));
    harness
        .as_ref()
        .unwrap_or_else(|error| panic!("there is no cluster: {error}"))
}

/// The program that runs clusters.
pub(crate) fn cluster_program() -> anyhow::Result<PathBuf> {
    Programs::find()?.get("kubebrain-e2e")
}

/// A cluster of its own for a test, with an operator that the test installs. Its pods do not end before this process does.
pub(crate) fn own_blocking(name: &str, install: impl FnOnce(&Cluster, &Progress)) -> Shared<'static> {
    let tests = ClusterName::of_tests(Programs::find().unwrap().dir());
    let name = format!("{tests}-{name}").parse().unwrap();
    let harness = start_named(name, StoreProgram::Brain, &Progress::stderr()).unwrap();
    install(&harness.cluster, &harness.progress);
    harness.operator.set(Ok(())).expect("nobody has asked for it");
    Shared {
        harness: Box::leak(Box::new(harness)),
        _calm: CALM.blocking_read(),
        _deadline: Watchdog::within(CLUSTER_TEST_TIMEOUT),
    }
}

fn start() -> anyhow::Result<Harness> {
    let progress = Progress::stderr();
    let store = match std::env::var(STORE_VARIABLE).as_deref() {
        Ok("etcd") => StoreProgram::Etcd,
        Ok("tikv") => StoreProgram::Tikv,
        Err(_) | Ok("brain") => StoreProgram::Brain,
        Ok(other) => anyhow::bail!("{STORE_VARIABLE}={other}: it is brain, etcd or tikv"),
    };
    let name = ClusterName::of_tests(Programs::find()?.dir());
    start_named(name, store, &progress)
}

fn start_named(name: ClusterName, store: StoreProgram, progress: &Progress) -> anyhow::Result<Harness> {
    cluster::down(&name, progress)?;
    let config = ClusterConfig {
        name,
        store,
        through: None,
        product: true,
        test_images: true,
        ports: Default::default(),
    };
    let cluster = Cluster::start(&config, &cluster_program()?, progress)?;
    if config.store == StoreProgram::Tikv {
        for text in members::ELECTION_MESSAGES {
            cluster.expect_log(text)?;
        }
    }
    let witness = Witness::start(&cluster.store_url()?)?;
    Ok(Harness {
        cluster,
        progress: progress.clone(),
        witness,
        operator: OnceLock::new(),
    })
}
