//! One etcd-like server in a process of its own: a brain, or the etcd that it is compared with.
//!
//! Invariant: the process ends with its [`Server`], and by the kernel's hand if this process is killed.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};

use crate::complaints::ProvokedComplaints;
use crate::progress::Progress;
use crate::tools::cache::ToolCache;
use crate::tools::{go, own};
use crate::watchdog::RunningMark;

mod said;
mod spawn;
mod usage;
use said::ServerOutput;
use spawn::command_alone;
pub use spawn::{command, spawn};
pub use usage::ProcessUsage;

/// The environment variable with the path of the brain to test, if it is not the one that was built beside the tests.
pub const BRAIN_BINARY_VARIABLE: &str = "KUBEBRAIN_BIN";

const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// etcd looks at all keys when it starts: that takes minutes where there are ten millions.
const START_TIMEOUT: Duration = Duration::from_secs(300);
/// Longer than the patience that a server has with its clients and its tasks.
const STOP_TIMEOUT: Duration = Duration::from_secs(90);
/// Etcd's own ports.
const OWN_PORTS: ServerPorts = ServerPorts {
    client: 2379,
    peer: 2380,
};
/// The name of ours.
const KUBEBRAIN: &str = "kubebrain";
/// How the names of all versions of etcd start.
const ETCD: &str = "etcd";

/// The ports of a server on this machine.
#[derive(Clone, Copy, Debug)]
pub struct ServerPorts {
    /// For clients.
    pub client: u16,
    /// For peers.
    pub peer: u16,
}

/// A program that takes etcd's flags.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its name in reports.
    pub name: &'static str,
    /// Its executable.
    pub path: PathBuf,
}

impl Program {
    /// The brain: `$KUBEBRAIN_BIN`, else the one built beside the running program.
    ///
    /// # Errors
    ///
    /// It is not built.
    pub fn kubebrain() -> anyhow::Result<Self> {
        let path = match std::env::var_os(BRAIN_BINARY_VARIABLE).filter(|path| !path.is_empty()) {
            Some(path) => PathBuf::from(path),
            None => own::Programs::find()?.get("kubebrain")?,
        };
        // absolute, because tests start it from other directories
        let path = path
            .canonicalize()
            .with_context(|| format!("find the brain {} ({BRAIN_BINARY_VARIABLE})", path.display()))?;
        Ok(Self { name: KUBEBRAIN, path })
    }

    /// A brain that follows another one: `bin/follower.rs`.
    ///
    /// # Errors
    ///
    /// It is not built.
    pub fn follower() -> anyhow::Result<Self> {
        let path = own::Programs::find()?.get("kubebrain-e2e-follower")?;
        Ok(Self {
            name: "a follower of three kubebrains",
            path,
        })
    }

    /// The pinned etcd, built now if it was not before.
    ///
    /// # Errors
    ///
    /// There is no Go, or the build fails.
    pub fn etcd(progress: &Progress) -> anyhow::Result<Self> {
        let path = go::ETCD.build(&ToolCache::open()?, progress)?.join("etcd");
        Ok(Self { name: "etcd", path })
    }

    /// An etcd 3.5, built now if it was not before.
    ///
    /// # Errors
    ///
    /// As [`Program::etcd`].
    pub fn etcd_3_5(progress: &Progress) -> anyhow::Result<Self> {
        let path = go::ETCD_3_5.build(&ToolCache::open()?, progress)?.join("etcd");
        Ok(Self { name: "etcd 3.5", path })
    }

    /// An etcd 3.4, built now if it was not before.
    ///
    /// # Errors
    ///
    /// As [`Program::etcd`].
    pub fn etcd_3_4(progress: &Progress) -> anyhow::Result<Self> {
        let path = go::ETCD_3_4.build(&ToolCache::open()?, progress)?.join("etcd");
        Ok(Self { name: "etcd 3.4", path })
    }

    /// The pinned etcd of the next minor version, built now if it was not before.
    ///
    /// # Errors
    ///
    /// As [`Program::etcd`].
    pub fn etcd_next(progress: &Progress) -> anyhow::Result<Self> {
        let path = go::ETCD_NEXT.build(&ToolCache::open()?, progress)?.join("etcd");
        Ok(Self { name: "etcd", path })
    }
}

/// A running server. Dropping it kills it.
#[derive(Debug)]
pub struct Server {
    name: &'static str,
    child: Child,
    endpoint: String,
    said: ServerOutput,
    output: Option<JoinHandle<()>>,
    dir: DataDir,
    expected_logs: ProvokedComplaints,
    _running: RunningMark,
}

#[derive(Debug)]
enum DataDir {
    Own(TempDir),
    Given(PathBuf),
}

impl Server {
    /// Starts one on a free port with a fresh data directory, and waits until it is ready.
    ///
    /// # Errors
    ///
    /// It ended, or was not ready in time: then with its last lines.
    pub fn start(program: &Program, flags: &[&str]) -> anyhow::Result<Self> {
        let dir = data_dir()?;
        Self::launch(command(program), program, flags, free_ports()?, DataDir::Own(dir))
    }

    /// As [`Server::start`], on an existing data directory, which is kept.
    ///
    /// # Errors
    ///
    /// As [`Server::start`].
    pub fn start_in(program: &Program, dir: &Path, flags: &[&str]) -> anyhow::Result<Self> {
        Self::start_at(program, free_ports()?, dir, flags)
    }

    /// As [`Server::start_in`] on these ports for clients and for peers.
    ///
    /// # Errors
    ///
    /// As [`Server::start`].
    pub fn start_at(program: &Program, ports: ServerPorts, dir: &Path, flags: &[&str]) -> anyhow::Result<Self> {
        Self::launch(command(program), program, flags, ports, DataDir::Given(dir.to_owned()))
    }

    /// As [`Server::start_in`] with a variable in its environment.
    ///
    /// # Errors
    ///
    /// As [`Server::start`].
    pub fn start_with(program: &Program, dir: &Path, (name, value): (&str, &str)) -> anyhow::Result<Self> {
        let mut command = command(program);
        command.env(name, value);
        Self::launch(command, program, &[], free_ports()?, DataDir::Given(dir.to_owned()))
    }

    /// As [`Server::start`] in a network of its own, which has loopback only, on etcd's own ports. Programs get there by
    /// [`Server::beside`].
    ///
    /// # Errors
    ///
    /// As [`Server::start`], and without the right to make a network.
    pub fn start_alone(program: &Program, flags: &[&str]) -> anyhow::Result<Self> {
        let dir = data_dir()?;
        Self::launch(command_alone(program), program, flags, OWN_PORTS, DataDir::Own(dir))
    }

    /// A command that runs a program in the network of this server.
    pub fn beside(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/proc/{}/ns/net", self.pid()))
            .arg("--")
            .arg(program);
        command
    }

    fn launch(
        mut command: Command,
        program: &Program,
        flags: &[&str],
        ServerPorts { client, peer }: ServerPorts,
        dir: DataDir,
    ) -> anyhow::Result<Self> {
        let path = match &dir {
            DataDir::Own(dir) => dir.path(),
            DataDir::Given(dir) => dir,
        };
        let (reader, writer) = std::io::pipe().context("make a pipe")?;
        command.args(arguments(path, client, peer)).args(flags);
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        let child = spawn(command).with_context(|| format!("start {}", program.path.display()))?;
        let said = ServerOutput::default();
        let (ready, is_ready) = sync_channel(1);
        let output = {
            let said = said.clone();
            // `ready` ends with the output, which is how a program that ends before it is ready is noticed
            std::thread::spawn(move || said.follow(reader, &ready))
        };
        let endpoint = format!("http://127.0.0.1:{client}");
        let running = {
            let (said, at) = (
                said.clone(),
                format!("{} at {endpoint} in {}", program.name, path.display()),
            );
            RunningMark::describe(move || format!("{at}, {}", said.text()))
        };
        let mut server = Self {
            name: program.name,
            child,
            endpoint,
            said,
            output: Some(output),
            dir,
            expected_logs: ProvokedComplaints::default(),
            _running: running,
        };
        server.wait_ready(&is_ready)?;
        Ok(server)
    }

    fn wait_ready(&mut self, is_ready: &Receiver<()>) -> anyhow::Result<()> {
        match is_ready.recv_timeout(START_TIMEOUT) {
            Ok(()) => Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                bail!(
                    "{} was not ready within {START_TIMEOUT:?}\n{}",
                    self.name,
                    self.said.text()
                )
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait()?;
                bail!(
                    "{} ended before it was ready: {status}\n{}",
                    self.name,
                    self.said.text()
                )
            }
        }
    }

    /// Returns its name in reports.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// `http://127.0.0.1:<port>`.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Its data directory.
    pub fn dir(&self) -> &Path {
        match &self.dir {
            DataDir::Own(dir) => dir.path(),
            DataDir::Given(dir) => dir,
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A new connection of its own.
    ///
    /// # Errors
    ///
    /// No process listens there.
    pub async fn connect(&self) -> anyhow::Result<Channel> {
        let endpoint = Endpoint::new(self.endpoint.clone())?.connect_timeout(Duration::from_secs(10));
        endpoint
            .connect()
            .await
            .with_context(|| format!("connect to {} at {}", self.name, self.endpoint))
    }

    /// Processor time and memory so far.
    ///
    /// # Errors
    ///
    /// The process is gone.
    pub fn usage(&self) -> anyhow::Result<ProcessUsage> {
        ProcessUsage::of(self.pid()).with_context(|| format!("inspect {}\n{}", self.name, self.said.text()))
    }

    /// Its last lines.
    pub fn last_lines(&self) -> String {
        self.said.text()
    }

    /// Checks that it is still running; if not, the error describes its end.
    ///
    /// # Errors
    ///
    /// Those of the system call.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Expects a warning or an error with this text in it.
    #[must_use]
    pub fn expected_logs(mut self, text: &str) -> Self {
        self.expected_logs.add(text);
        self
    }

    /// Ends it by SIGTERM and waits for it. An etcd that hangs in its shutdown is killed: its log has all that it acknowledged, and how it
    /// ends is not what is tested.
    ///
    /// # Errors
    ///
    /// It did not end with 0, or a brain not in time, or it had complained.
    pub fn stop(mut self) -> anyhow::Result<()> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).context("send SIGTERM")?;
        let deadline = Instant::now() + STOP_TIMEOUT;
        let status = loop {
            match self.child.try_wait()? {
                Some(status) => break status,
                None if Instant::now() <= deadline => std::thread::sleep(POLL_INTERVAL),
                None => {
                    let late = format!("{} runs {STOP_TIMEOUT:?} after SIGTERM", self.name);
                    if !self.name.starts_with(ETCD) {
                        bail!("{late}\n{}", self.said.text());
                    }
                    eprintln!("{late}, so it is killed\n{}", self.said.text());
                    self.child.kill()?;
                    self.child.wait()?;
                    return Ok(());
                }
            }
        };
        // etcd passes the signal on to itself when it is done
        if !status.success() && status.signal() != Some(Signal::TERM.as_raw()) {
            bail!("{} ended with {status} on SIGTERM\n{}", self.name, self.said.text());
        }
        self.check_complaints()
    }

    /// Ends it by SIGKILL and waits for it.
    ///
    /// # Errors
    ///
    /// It had ended before, or had complained.
    pub fn kill(mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} had exited unexpectedly: {status}\n{}", self.name, self.said.text());
        }
        self.child.kill()?;
        self.child.wait()?;
        self.check_complaints()
    }

    /// Fails if a brain that has ended logged something unexpected.
    fn check_complaints(&mut self) -> anyhow::Result<()> {
        if let Some(output) = self.output.take() {
            output.join().ok().context("the thread that reads a log panicked")?;
        }
        if self.name == KUBEBRAIN {
            self.expected_logs.check(self.name, &self.said.complaints())?;
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // both fail only if it has ended already
        drop(self.child.kill());
        drop(self.child.wait());
        if let Some(output) = self.output.take() {
            drop(output.join()); // it only keeps lines
        }
    }
}

fn data_dir() -> anyhow::Result<TempDir> {
    let mut dir = tempfile::Builder::new();
    dir.prefix("store-").permissions(fs::Permissions::from_mode(0o700));
    dir.tempdir().context("make a data directory")
}

/// The flags of one member on these ports.
pub fn arguments(dir: &Path, client: u16, peer: u16) -> Vec<String> {
    let (client, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
    vec![
        "--name=one".to_owned(),
        format!("--data-dir={}", dir.display()),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=one={peer}"),
    ]
}

/// Two ports that no other test of this machine gets.
///
/// # Errors
///
/// No port is free.
pub fn free_ports() -> anyhow::Result<ServerPorts> {
    let reserve = || testkit::ports::reserve().context("find a free port");
    Ok(ServerPorts {
        client: reserve()?,
        peer: reserve()?,
    })
}

/// Bytes of all files below a directory.
///
/// # Errors
///
/// It cannot be read.
pub fn bytes_below(dir: &Path) -> anyhow::Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))? {
        let entry = entry?;
        let meta = entry.metadata()?;
        sum += if meta.is_dir() {
            bytes_below(&entry.path())?
        } else {
            meta.len()
        };
    }
    Ok(sum)
}
