//! Keeps a cluster's programs running: starts them again when they end, and ends them in good order.
//!
//! Every program leads a process group of its own, writes to a log of its own and is written down in the cluster's
//! state before anything waits for it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use runtime::backoff::Backoff;
use rustix::process::Signal;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::cluster_dir::ClusterDir;
use crate::state::{ClusterState, ProcessId};

/// Time that a program may take to end after SIGTERM before it is killed.
const STOP_GRACE_PERIOD: Duration = Duration::from_secs(5);
/// Delay before a program that ended early is started again.
const RESTART_BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
/// Delay before a program that ran well is started again.
const RESTART_DELAY: Duration = Duration::from_millis(100);
/// A program that ran this long ran well.
const RAN_WELL_TIME: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Number of lines of a log that an error shows.
const SHOWN_LOG_LINES: usize = 12;

/// A program to run.
#[derive(Clone, Debug)]
pub struct SupervisedProgram {
    /// Names its log.
    pub name: String,
    /// The executable.
    pub path: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
}

/// Runs programs. Dropped without [`Supervisor::stop`], it leaves them to the next sweep.
pub struct Supervisor {
    home: ClusterDir,
    state: Arc<Mutex<ClusterState>>,
    tasks: JoinSet<anyhow::Result<()>>,
    running: BTreeMap<String, ProgramHandle>,
}

struct ProgramHandle {
    stop: CancellationToken,
    /// Number of times that it has ended.
    ended: watch::Receiver<u64>,
    gone: CancellationToken,
}

impl Supervisor {
    /// One that writes down what it does in `state`.
    pub fn new(home: &ClusterDir, state: ClusterState) -> Self {
        let state = Arc::new(Mutex::new(state));
        Self {
            home: home.clone(),
            state,
            tasks: JoinSet::new(),
            running: BTreeMap::new(),
        }
    }

    /// Starts a program, and again whenever it ends.
    pub fn start(&mut self, program: SupervisedProgram) {
        let (stop, gone) = (CancellationToken::new(), CancellationToken::new());
        let (count, ended) = watch::channel(0);
        self.running.insert(
            program.name.clone(),
            ProgramHandle {
                stop: stop.clone(),
                ended,
                gone: gone.clone(),
            },
        );
        let keeper = ProgramKeeper {
            home: self.home.clone(),
            state: self.state.clone(),
            program,
            stop,
            count,
        };
        self.tasks.spawn(async move {
            let _gone = gone.drop_guard();
            let name = keeper.program.name.clone();
            keeper
                .run()
                .await
                .inspect_err(|error| error!(name, error = format!("{error:#}"), "cannot be kept running"))
        });
    }

    /// Waits until `check` succeeds, while a cluster is brought up. If it does not in time, its last error is reported.
    ///
    /// # Errors
    ///
    /// The program cannot be kept running, has ended before or ends now, or the time is up. The error contains the end of its log.
    pub async fn until<T>(
        &self,
        program: &str,
        what: &str,
        within: Duration,
        check: impl AsyncFn() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let handle = self
            .running
            .get(program)
            .with_context(|| format!("{program} was not started"))?;
        let deadline = Instant::now() + within;
        let mut poll = tokio::time::interval(POLL_INTERVAL);
        loop {
            poll.tick().await;
            if handle.gone.is_cancelled() {
                let error = anyhow!("{program} cannot be kept running: the log of the cluster's host says why");
                return Err(self.complaint(program, error));
            }
            if *handle.ended.borrow() > 0 {
                return Err(self.complaint(program, anyhow!("{program} ended before {what}")));
            }
            match tokio::time::timeout_at(deadline, check()).await {
                Ok(Ok(found)) => return Ok(found),
                Ok(Err(_)) if Instant::now() < deadline => {}
                Ok(Err(error)) => {
                    return Err(self.complaint(program, error.context(format!("not {what} after {within:?}"))));
                }
                Err(_) => return Err(self.complaint(program, anyhow!("not {what} after {within:?}"))),
            }
        }
    }

    /// Adds the end of a program's log to an error.
    fn complaint(&self, program: &str, error: anyhow::Error) -> anyhow::Error {
        let log = self.home.log(program);
        anyhow!("{error:#}\n--- the end of {}\n{}", log.display(), tail(&log))
    }

    /// Changes what is written down.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn note(&self, change: impl FnOnce(&mut ClusterState)) -> anyhow::Result<()> {
        note(&self.home, &self.state, change)
    }

    /// Waits for a failure of the supervision itself; programs that end are no such thing.
    ///
    /// # Errors
    ///
    /// Always, when it returns.
    pub async fn failed(&mut self) -> anyhow::Result<()> {
        loop {
            match self.tasks.join_next().await {
                Some(Ok(Ok(()))) => {}
                Some(Ok(Err(error))) => return Err(error),
                Some(Err(error)) => bail!("a supervising task failed: {error}"),
                None => std::future::pending().await,
            }
        }
    }

    /// Ends these programs, all at once, and waits for it. Names of programs that do not run are passed over.
    pub async fn stop(&mut self, programs: &[&str]) {
        let handles: Vec<_> = programs.iter().filter_map(|name| self.running.remove(*name)).collect();
        handles.iter().for_each(|handle| handle.stop.cancel());
        for handle in handles {
            handle.gone.cancelled().await;
        }
    }

    /// Ends the programs that are left.
    pub async fn stop_all(&mut self) {
        let names: Vec<_> = self.running.keys().cloned().collect();
        self.stop(&names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    }
}

/// One program's owner.
struct ProgramKeeper {
    home: ClusterDir,
    state: Arc<Mutex<ClusterState>>,
    program: SupervisedProgram,
    stop: CancellationToken,
    count: watch::Sender<u64>,
}

impl ProgramKeeper {
    async fn run(self) -> anyhow::Result<()> {
        let name = self.program.name.as_str();
        let mut backoff = RESTART_BACKOFF;
        loop {
            let began = Instant::now();
            let (mut child, id) = self.spawn()?;
            let status = tokio::select! {
                status = child.wait() => status.with_context(|| format!("wait for {name}"))?,
                () = self.stop.cancelled() => return end(name, child, id).await,
            };
            warn!(name, %status, "exited unexpectedly");
            self.count.send_modify(|count| *count += 1);
            let delay = if began.elapsed() > RAN_WELL_TIME {
                backoff.reset();
                RESTART_DELAY
            } else {
                backoff.next_delay()
            };
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = self.stop.cancelled() => return Ok(()),
            }
        }
    }

    fn spawn(&self) -> anyhow::Result<(Child, ProcessId)> {
        let SupervisedProgram { name, path, args } = &self.program;
        let log = self.home.open_log(name)?;
        let mut command = Command::new(path);
        command.args(args).process_group(0).current_dir(self.home.dir());
        command
            .stdin(Stdio::null())
            .stderr(log.try_clone().context("share a log file")?)
            .stdout(log);
        let child = command
            .spawn()
            .with_context(|| format!("start {name}: {}", path.display()))?;
        let pid = child.id().with_context(|| format!("{name} exited immediately"))?;
        let id = ProcessId::of(pid)?;
        let restarts = *self.count.borrow();
        note(&self.home, &self.state, |state| {
            state.programs.insert(name.clone(), id);
            state.restarts.insert(name.clone(), restarts);
        })?;
        info!(name, pid, restarts, "started");
        Ok((child, id))
    }
}

async fn end(name: &str, mut child: Child, id: ProcessId) -> anyhow::Result<()> {
    id.signal_group(Signal::TERM);
    let status: ExitStatus = match tokio::time::timeout(STOP_GRACE_PERIOD, child.wait()).await {
        Ok(status) => status,
        Err(_) => {
            warn!(name, "does not end in time: killed");
            id.signal_group(Signal::KILL);
            child.wait().await
        }
    }
    .with_context(|| format!("wait for {name}"))?;
    info!(name, %status, "ended");
    Ok(())
}

fn note(home: &ClusterDir, state: &Mutex<ClusterState>, change: impl FnOnce(&mut ClusterState)) -> anyhow::Result<()> {
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    change(&mut state);
    state.write(home)
}

/// The last lines of a file.
pub fn tail(path: &Path) -> String {
    match fs::read(path) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            let lines: Vec<_> = text.lines().collect();
            lines[lines.len().saturating_sub(SHOWN_LOG_LINES)..].join("\n")
        }
        Err(error) => format!("(it cannot be read: {error})"),
    }
}
