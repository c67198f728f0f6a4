//! The brains: started, killed, stopped, asked.

use std::fs::{File, OpenOptions};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use pb::maintenance_client::MaintenanceClient;
use programs::server::{Program, spawn};
use programs::tools::debian::FAKETIME_LIBRARY;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, timeout};
use tonic::transport::{Channel, Endpoint};
use wire::etcdserverpb as pb;

use super::network::{Network, address};

const CLIENT_PORT: u16 = 2379;
const PEER_PORT: u16 = 2380;
/// For an answer of a member that may be stopped.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// For SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// All brains of one cluster.
#[derive(Debug)]
pub(crate) struct Members {
    program: Program,
    clock: Option<MemberClock>,
    flags: Vec<String>,
    logs: PathBuf,
    all: Vec<Option<Child>>,
    /// Bytes of each one's log when it was started last.
    said: Vec<u64>,
    channels: Vec<Channel>,
}

/// Gives members another time of day than the machine's.
#[derive(Clone, Debug)]
pub(crate) struct MemberClock {
    dir: PathBuf,
}

impl MemberClock {
    /// `dir` is for the files that tell the time.
    ///
    /// # Errors
    ///
    /// The files cannot be written.
    pub(crate) fn new(dir: &Path, members: usize) -> anyhow::Result<Self> {
        let clock = Self { dir: dir.to_owned() };
        for member in 0..members {
            clock.step(member, 0)?;
        }
        Ok(clock)
    }

    /// Sets a member's time of day to the machine's plus `seconds`.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub(crate) fn step(&self, member: usize, seconds: i64) -> anyhow::Result<()> {
        let (next, file) = (self.dir.join("next"), self.file(member));
        std::fs::write(&next, format!("{seconds:+}\n")).with_context(|| format!("write {}", next.display()))?;
        std::fs::rename(&next, &file).with_context(|| format!("write {}", file.display()))
    }

    fn file(&self, member: usize) -> PathBuf {
        self.dir.join(format!("clock-{member}"))
    }

    fn show(&self, member: usize, command: &mut Command) {
        command
            .env("LD_PRELOAD", FAKETIME_LIBRARY)
            .env("FAKETIME_TIMESTAMP_FILE", self.file(member))
            // looked at in every call: a step is seen at once
            .env("FAKETIME_NO_CACHE", "1")
            // no step of a clock moves the monotonic one
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    }
}

impl Members {
    /// Brains that are not started yet; `flags` are theirs beside names and addresses, `logs` a directory.
    ///
    /// # Errors
    ///
    /// An address is none.
    pub(crate) fn new(
        count: usize,
        program: Program,
        clock: Option<MemberClock>,
        flags: Vec<String>,
        logs: &Path,
    ) -> anyhow::Result<Self> {
        let channel = |member| {
            let endpoint = Endpoint::new(format!("http://{}:{CLIENT_PORT}", address(member)))?;
            Ok(endpoint.connect_timeout(ANSWER_TIMEOUT).connect_lazy())
        };
        Ok(Self {
            program,
            clock,
            flags,
            logs: logs.to_owned(),
            all: (0..count).map(|_| None).collect(),
            said: vec![0; count],
            channels: (0..count).map(channel).collect::<anyhow::Result<_>>()?,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// The time of day that members see, if it can be changed.
    pub(crate) fn clock(&self) -> Option<&MemberClock> {
        self.clock.as_ref()
    }

    /// A connection of its own, which is made when it is used.
    ///
    /// # Errors
    ///
    /// None that happens: the address was good before.
    pub(crate) fn connect(&self, member: usize) -> anyhow::Result<Channel> {
        let endpoint = Endpoint::new(format!("http://{}:{CLIENT_PORT}", address(member)))?;
        Ok(endpoint.connect_timeout(Duration::from_secs(2)).connect_lazy())
    }

    /// Starts one.
    ///
    /// # Errors
    ///
    /// It cannot be started, or runs.
    pub(crate) fn start(&mut self, member: usize) -> anyhow::Result<()> {
        ensure!(self.all[member].is_none(), "member {member} runs");
        let log = self.log(member);
        let log: File = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("open {}", log.display()))?;
        self.said[member] = log.metadata()?.len();
        let mut command = Network::enter(member, &self.program.path);
        let client = format!("http://{}:{CLIENT_PORT}", address(member));
        let peer = |member| format!("http://{}:{PEER_PORT}", address(member));
        let cluster: Vec<String> = (0..self.len())
            .map(|member| format!("b{member}={}", peer(member)))
            .collect();
        command
            .args(&self.flags)
            .arg(format!("--name=b{member}"))
            .arg(format!("--listen-client-urls={client}"))
            .arg(format!("--advertise-client-urls={client}"))
            .arg(format!("--listen-peer-urls={}", peer(member)))
            .arg(format!("--initial-advertise-peer-urls={}", peer(member)))
            .arg(format!("--initial-cluster={}", cluster.join(",")))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        if let Some(clock) = &self.clock {
            clock.show(member, &mut command);
        }
        self.all[member] = Some(spawn(command)?);
        Ok(())
    }

    /// Sends a signal. A member that does not run gets none.
    ///
    /// # Errors
    ///
    /// Those of the kernel.
    pub(crate) fn signal(&mut self, member: usize, signal: Signal) -> anyhow::Result<()> {
        if let Some(child) = &self.all[member] {
            kill_process(Pid::from_child(child), signal).with_context(|| format!("signal member {member}"))?;
        }
        Ok(())
    }

    /// Sends SIGKILL. Returns true if the member ran.
    ///
    /// # Errors
    ///
    /// It had ended by itself.
    pub(crate) fn kill(&mut self, member: usize) -> anyhow::Result<bool> {
        self.check(member)?;
        let Some(mut child) = self.all[member].take() else {
            return Ok(false);
        };
        child.kill()?;
        child.wait()?;
        Ok(true)
    }

    /// Sends SIGTERM, and waits for the end. Returns true if the member ran.
    ///
    /// # Errors
    ///
    /// It exits with a status other than 0, or not at all. A member that has not logged anything yet may also be ended by the signal.
    pub(crate) async fn terminate(&mut self, member: usize) -> anyhow::Result<bool> {
        self.check(member)?;
        self.signal(member, Signal::TERM)?;
        let Some(mut child) = self.all[member].take() else {
            return Ok(false);
        };
        let deadline = Instant::now() + STOP_TIMEOUT;
        loop {
            match child.try_wait()? {
                Some(status) if status.success() => return Ok(true),
                Some(status) if status.signal() == Some(Signal::TERM.as_raw()) && !self.has_said(member)? => {
                    return Ok(true);
                }
                Some(status) => bail!("member {member} ended with {status} on SIGTERM"),
                None if Instant::now() > deadline => {
                    self.all[member] = Some(child);
                    bail!("member {member} runs {STOP_TIMEOUT:?} after SIGTERM");
                }
                None => tokio::time::sleep(POLL_INTERVAL).await,
            }
        }
    }

    /// Returns true if its log has grown since it was started.
    fn has_said(&self, member: usize) -> anyhow::Result<bool> {
        Ok(std::fs::metadata(self.log(member))?.len() > self.said[member])
    }

    /// Fails if it has ended by itself.
    ///
    /// # Errors
    ///
    /// It has.
    pub(crate) fn check(&mut self, member: usize) -> anyhow::Result<()> {
        if let Some(child) = &mut self.all[member]
            && let Some(status) = child.try_wait()?
        {
            bail!(
                "member {member} exited unexpectedly: {status}; see {}",
                self.log(member).display()
            );
        }
        Ok(())
    }

    /// A member's status: its id, and that of the leader. `None` while it does not answer.
    pub(crate) async fn status(&self, member: usize) -> Option<(u64, u64)> {
        let mut maintenance = MaintenanceClient::new(self.channels[member].clone());
        let status = timeout(ANSWER_TIMEOUT, maintenance.status(pb::StatusRequest {}))
            .await
            .ok()?
            .ok()?;
        let status = status.into_inner();
        Some((status.header?.member_id, status.leader))
    }

    /// One that reports that it leads.
    pub(crate) async fn leader(&self) -> Option<usize> {
        for member in 0..self.len() {
            if self.all[member].is_some()
                && let Some((id, leader)) = self.status(member).await
                && id == leader
            {
                return Some(member);
            }
        }
        None
    }

    /// Asks the leader to hand over to a member. Refusals are no failure: another member may lead by now.
    pub(crate) async fn move_leader(&self, from: usize, to: usize) {
        let Some((target_id, _)) = self.status(to).await else {
            return;
        };
        let mut maintenance = MaintenanceClient::new(self.channels[from].clone());
        let moved = maintenance.move_leader(pb::MoveLeaderRequest { target_id });
        drop(timeout(Duration::from_secs(5), moved).await);
    }

    /// Path of a member's log.
    pub(crate) fn log(&self, member: usize) -> PathBuf {
        self.logs.join(format!("b{member}.log"))
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        for child in self.all.iter_mut().flatten() {
            // both fail only if it has ended already
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// Fails if the log tells of a panic.
///
/// # Errors
///
/// It does, or cannot be read.
pub(crate) fn no_panic(log: &Path) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(log).with_context(|| format!("read {}", log.display()))?;
    match text.lines().find(|line| line.contains(" panicked at ")) {
        Some(line) => bail!("{}: {line}", log.display()),
        None => Ok(()),
    }
}
