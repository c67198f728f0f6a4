//! Removes what a cluster leaves on the machine: processes, mounts, network, cgroups, files. Its own things only, all
//! found by its name.
//!
//! The same way ends a cluster in good order and sweeps up after one that was killed, so it is tried at every end.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use programs::progress::Progress;
use rustix::process::Signal;
use tokio::time::Instant;

use crate::cluster_dir::ClusterDir;
use crate::lock::FileLock;
use crate::state::{ClusterState, ProcessId};
use crate::{cgroups, mounts, namespace};

/// Time that a killed process may take to leave.
const EXIT_TIMEOUT: Duration = Duration::from_secs(20);
/// Number of clusters whose logs are kept.
const KEPT_LOGS: usize = 5;

/// Removes every cluster whose lock no process holds.
///
/// # Errors
///
/// Something cannot be removed.
pub fn abandoned(progress: &Progress) -> anyhow::Result<()> {
    for home in ClusterDir::all()? {
        let Some(_lock) = FileLock::try_take(&home)? else {
            continue;
        }; // it is up
        progress.during(
            format_args!("removed the remains of a killed run: cluster {}", home.name()),
            || everything(&home),
        )?;
    }
    Ok(())
}

/// Removes everything but the logs. The caller holds the cluster's lock.
///
/// # Errors
///
/// There is a directory under its name that is not its own, and nothing is done; or something cannot be removed, and what comes
/// after it is still there.
pub fn everything(home: &ClusterDir) -> anyhow::Result<()> {
    home.check()?;
    let state = ClusterState::read(home).ok(); // a run that was killed very early has none yet
    let sandboxes = containers(home);
    for program in state.iter().flat_map(|state| state.programs.values()) {
        program.signal_group(Signal::KILL);
    }
    kill_all(home)?;
    mounts::end_below(&home.dir())?;
    namespace::delete(home)?;
    let deadline = Instant::now() + EXIT_TIMEOUT;
    while !cgroups::delete(home)? {
        if Instant::now() > deadline {
            bail!("processes do not leave the cgroup {}", home.cgroup());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    sandboxes
        .iter()
        .filter_map(|container| container.socket.as_deref())
        .try_for_each(remove_file)?;
    remove_results("/var/lib/cni/results", &home.netns(), &sandboxes)?;
    remove_links_into("/var/log/containers", &home.logs())?;
    for (setting, value) in state.iter().flat_map(|state| &state.sysctls) {
        fs::write(setting, value).with_context(|| format!("set {setting} back to {value}"))?;
    }
    home.remove()?;
    remove_file(&home.lock())?;
    old_logs(home)
}

/// Kills what runs in pods, so that a server with open watches from there can end.
///
/// # Errors
///
/// The tree of cgroups cannot be read.
pub fn pods(home: &ClusterDir) -> anyhow::Result<()> {
    let processes = cgroups::processes(home)?;
    processes
        .into_iter()
        .filter_map(|pid| ProcessId::of(pid).ok())
        .for_each(|process| {
            process.signal(Signal::KILL);
        });
    Ok(())
}

/// Kills shims, what runs in the pods' cgroups and what runs in the cluster's network, until nothing is left of them.
fn kill_all(home: &ClusterDir) -> anyhow::Result<()> {
    let deadline = Instant::now() + EXIT_TIMEOUT;
    loop {
        let mut found: BTreeSet<u32> = cgroups::processes(home)?.into_iter().collect();
        found.extend(namespace::processes(home)?);
        found.extend(shims(home)?);
        found.remove(&std::process::id());
        if found.is_empty() {
            return Ok(());
        }
        let running = found.iter().filter_map(|pid| ProcessId::of(*pid).ok());
        let killed = running.filter(|process| process.signal(Signal::KILL)).count();
        if Instant::now() > deadline {
            bail!(
                "{killed} of {} processes do not end although killed: {found:?}",
                found.len()
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The shims that serve this cluster's containerd: they outlive it on purpose.
fn shims(home: &ClusterDir) -> anyhow::Result<Vec<u32>> {
    let socket = home.containerd_socket();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("list /proc")? {
        let Ok(entry) = entry else { continue };
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(line) = fs::read(entry.path().join("cmdline")) else {
            continue;
        }; // the process has ended since
        let mut words = line.split(|byte| *byte == 0);
        let shim = words
            .next()
            .is_some_and(|program| program.ends_with(b"containerd-shim-runc-v2"));
        if shim && words.any(|word| word == socket.as_os_str().as_encoded_bytes()) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// A container that containerd knew when it ended.
struct LeftContainer {
    id: String,
    /// Shims listen in a directory that all containerds of a machine share.
    socket: Option<PathBuf>,
}

fn containers(home: &ClusterDir) -> Vec<LeftContainer> {
    let tasks = home.path("node/state/io.containerd.runtime.v2.task/k8s.io");
    let Ok(entries) = fs::read_dir(tasks) else {
        return Vec::new();
    };
    let socket = |dir: PathBuf| {
        let address = fs::read_to_string(dir.join("address")).ok()?;
        address.trim().strip_prefix("unix://").map(PathBuf::from)
    };
    let of = |entry: fs::DirEntry| {
        Some(LeftContainer {
            id: entry.file_name().into_string().ok()?,
            socket: socket(entry.path()),
        })
    };
    entries.flatten().filter_map(of).collect()
}

fn remove_file(path: &Path) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// CNI keeps its results by network and sandbox in a directory that all networks of a machine share. The network of
/// pods carries the cluster's name; the loopback's results are known by the sandboxes.
fn remove_results(dir: &str, network: &str, containers: &[LeftContainer]) -> anyhow::Result<()> {
    let Ok(entries) = fs::read_dir(dir) else { return Ok(()) };
    let files: Vec<_> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    // Another network's name may begin with this one's: what follows must be a sandbox's id.
    let sandbox = |file: &str| {
        let id = file.strip_prefix(network)?.strip_prefix('-')?.split('-').next()?;
        (id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| id.to_owned())
    };
    let mut sandboxes: BTreeSet<_> = files.iter().filter_map(|file| sandbox(file)).collect();
    sandboxes.extend(containers.iter().map(|container| container.id.clone()));
    let ours = |file: &&String| sandboxes.iter().any(|id| file.contains(id.as_str()));
    files
        .iter()
        .filter(ours)
        .try_for_each(|file| remove_file(&Path::new(dir).join(file)))
}

/// The kubelet keeps links to its pods' logs in a directory of its own choice.
fn remove_links_into(dir: &str, logs: &Path) -> anyhow::Result<()> {
    let Ok(entries) = fs::read_dir(dir) else { return Ok(()) };
    for entry in entries.flatten() {
        if fs::read_link(entry.path()).is_ok_and(|target| target.starts_with(logs)) {
            remove_file(&entry.path())?;
        }
    }
    Ok(())
}

fn old_logs(home: &ClusterDir) -> anyhow::Result<()> {
    let logged = ClusterDir::all_with_logs()?;
    let surplus = logged.len().saturating_sub(KEPT_LOGS);
    let up: Vec<_> = ClusterDir::all()?.iter().map(|home| home.name().clone()).collect();
    let old = logged.iter().take(surplus);
    old.filter(|old| old.name() != home.name() && !up.contains(old.name()))
        .try_for_each(ClusterDir::remove_logs)
}
