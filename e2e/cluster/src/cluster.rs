//! A cluster as its users see it: started, reached from outside, ended.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, anyhow, bail};
use programs::progress::Progress;
use programs::tools::cache::ToolCache;
use programs::tools::go;
use programs::watchdog::RunningMark;
use rustix::process::Signal;

use crate::apiserver;
use crate::cleanup;
use crate::cluster_dir::{ClusterDir, ClusterName};
use crate::cluster_process::{ProcessReport, RELEASE_WORD};
use crate::config::ClusterConfig;
use crate::kubectl::Kubectl;
use crate::lock::FileLock;
use crate::log_check::ClusterLogs;
use crate::state::ClusterState;
use crate::store;

/// A cluster that is up. It ends when this is dropped, or the process that holds it ends in whatever way.
#[derive(Debug)]
pub struct Cluster {
    home: ClusterDir,
    kubectl: Kubectl,
    host: Child,
    pipe: Option<ChildStdin>,
    logs: Mutex<ClusterLogs>,
    _running: RunningMark,
}

impl Cluster {
    /// Starts one and waits until it is up. `program` is this crate's `kubebrain-e2e`.
    ///
    /// # Errors
    ///
    /// It does not come up. Then it has been ended again, and the error names the logs.
    pub fn start(config: &ClusterConfig, program: &Path, progress: &Progress) -> anyhow::Result<Self> {
        let home = ClusterDir::of(&config.name);
        let logs = home.logs();
        // a session of its own: the terminal's Ctrl-C is not for it, it learns from the parent pipe
        let mut command = Command::new("setsid");
        command
            .arg(program)
            .args(["cluster", "host"])
            .arg(serde_json::to_string(config)?);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // and none of our own output: a reader of that to its end would wait for the end of a released cluster
        command.stderr(home.open_log("host")?);
        let mut host = command
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        let pipe = host.stdin.take();
        let reports = BufReader::new(host.stdout.take().context("the host has no output")?);
        for line in reports.lines() {
            let line = line.context("read the host's reports")?;
            match serde_json::from_str(&line).with_context(|| format!("not a report of the host: {line}"))? {
                ProcessReport::Line(line) => progress.say(line),
                ProcessReport::Up => {
                    let kubernetes = go::KUBERNETES.build(&ToolCache::open()?, progress)?;
                    let kubectl = Kubectl::new(&kubernetes, home.kubeconfig());
                    let described = format!("cluster {}; its logs: {}", home.name(), logs.display());
                    return Ok(Self {
                        logs: Mutex::new(ClusterLogs::of(&home)),
                        _running: RunningMark::describe(move || described.clone()),
                        home,
                        kubectl,
                        host,
                        pipe,
                    });
                }
                ProcessReport::Failed(why) => {
                    host.wait().context("wait for the host")?;
                    bail!("{why}\n--- all logs: {}", logs.display());
                }
            }
        }
        let status = host.wait().context("wait for the host")?;
        Err(anyhow!(
            "the process that runs the cluster ended early: {status}; logs: {}",
            logs.display()
        ))
    }

    /// Its files.
    pub fn home(&self) -> &ClusterDir {
        &self.home
    }

    /// kubectl as its administrator.
    pub fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// kubectl as the administrator of the tenant.
    pub fn tenant(&self) -> Kubectl {
        self.kubectl.with(self.home.tenant_kubeconfig())
    }

    /// A client as its administrator.
    ///
    /// # Errors
    ///
    /// The kubeconfig is gone.
    pub async fn client(&self) -> anyhow::Result<kube::Client> {
        apiserver::client(&self.home.kubeconfig()).await
    }

    /// Its programs and ports, as they are now.
    ///
    /// # Errors
    ///
    /// They cannot be read.
    pub fn state(&self) -> anyhow::Result<ClusterState> {
        ClusterState::read(&self.home)
    }

    /// The URL of the store, of its first member if it has many, outside of the cluster's network.
    ///
    /// # Errors
    ///
    /// The state cannot be read.
    pub fn store_url(&self) -> anyhow::Result<String> {
        self.member_url(&store::MEMBERS[0])
    }

    /// The URL of one member of the store.
    ///
    /// # Errors
    ///
    /// The state cannot be read, or the store has no such member.
    pub fn member_url(&self, member: &store::StoreMember) -> anyhow::Result<String> {
        Ok(format!("http://127.0.0.1:{}", self.port(member.name)?))
    }

    /// The loopback port that leads to something in the cluster's network.
    ///
    /// # Errors
    ///
    /// The state cannot be read, or there is no such port.
    pub fn port(&self, name: &str) -> anyhow::Result<u16> {
        self.state()?
            .ports
            .get(name)
            .copied()
            .with_context(|| format!("no port leads to {name}"))
    }

    /// Lets it run on when this process ends; [`down`] ends it.
    ///
    /// # Errors
    ///
    /// It has ended already.
    pub fn release(mut self) -> anyhow::Result<()> {
        let mut pipe = self.pipe.take().context("the cluster was released before")?;
        writeln!(pipe, "{RELEASE_WORD}").context("release the cluster: it has ended")
    }

    /// Lets lines with this text pass in the logs of our programs.
    ///
    /// # Errors
    ///
    /// That cannot be written down.
    pub fn expect_log(&self, text: &str) -> anyhow::Result<()> {
        self.logs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .expect_log(text)
    }

    /// Looks for warnings and errors of our programs since the last look.
    ///
    /// # Errors
    ///
    /// There are unexpected ones.
    pub fn check_logs(&self) -> anyhow::Result<()> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner).check()
    }

    /// Ends the cluster and waits for its end.
    ///
    /// # Errors
    ///
    /// Something could not be removed, or one of our programs logged a complaint.
    pub fn stop(mut self) -> anyhow::Result<()> {
        drop(self.pipe.take());
        let status = self.host.wait().context("wait for the cluster's end")?;
        if !status.success() {
            bail!(
                "the cluster did not end well: {status}; see {}",
                self.home.log("host").display()
            );
        }
        self.check_logs()
    }
}

/// Ends a cluster that was released or left, and waits for it; `false` if there is none of that name.
///
/// # Errors
///
/// Something cannot be removed, or the directory of that name is no cluster's.
pub fn down(name: &ClusterName, progress: &Progress) -> anyhow::Result<bool> {
    let home = ClusterDir::of(name);
    home.check()?;
    if !home.dir().exists() && !home.lock().exists() {
        return Ok(false);
    }
    progress.during(format_args!("cluster {name} ended"), || {
        if let Some(holder) = FileLock::holder(&home) {
            holder.signal(Signal::TERM); // false if it was killed before
        }
        let _lock = FileLock::take(&home)?;
        cleanup::everything(&home) // nothing to do if it has swept after itself
    })?;
    Ok(true)
}
