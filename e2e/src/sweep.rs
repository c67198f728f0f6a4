//! Removes what a cluster leaves on the machine: processes, mounts, network, cgroups, files. Its own things only, all
//! found by its name.
//!
//! The same way ends a cluster in good order and sweeps up after one that was killed, so it is tried at every end.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::Signal;
use tokio::time::Instant;

use crate::home::Home;
use crate::progress::Progress;
use crate::state::{ProcessId, State};
use crate::{cgroups, mounts, namespace};

/// How long a killed process may take to leave.
const PATIENCE: Duration = Duration::from_secs(20);
/// How many clusters' logs are kept.
const LOGS_KEPT: usize = 5;

/// Sweeps every cluster whose lock nobody holds.
///
/// # Errors
///
/// Something cannot be removed.
pub fn abandoned(progress: &Progress) -> anyhow::Result<()> {
    for home in Home::all()? {
        let lock = File::create(home.lock()).with_context(|| format!("open {}", home.lock().display()))?;
        match lock.try_lock() {
            Ok(()) => {
                let what = format!("sweep what a killed run left: cluster {}", home.name());
                progress.during(what, || everything(&home))?;
            }
            Err(TryLockError::WouldBlock) => {} // it is up
            Err(TryLockError::Error(error)) => return Err(error).context("lock a cluster that may be abandoned"),
        }
    }
    Ok(())
}

/// Removes everything but the logs. The caller holds the cluster's lock.
///
/// # Errors
///
/// Something cannot be removed; what comes after it is then still there.
pub fn everything(home: &Home) -> anyhow::Result<()> {
    let state = State::read(home).ok(); // a run that was killed very early has none yet
    let sockets = shim_sockets(home);
    for program in state.iter().flat_map(|state| state.programs.values()) {
        program.signal_group(Signal::KILL);
    }
    kill_all(home)?;
    mounts::end_below(&home.dir())?;
    namespace::delete(home)?;
    let deadline = Instant::now() + PATIENCE;
    while !cgroups::delete(home)? {
        if Instant::now() > deadline {
            bail!("processes do not leave the cgroup {}", home.cgroup());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    for socket in sockets {
        remove_file(&socket)?;
    }
    remove_named("/var/lib/cni/results", |file| {
        file.starts_with(&format!("{}-", home.netns()))
    })?;
    remove_links_into("/var/log/containers", &home.logs())?;
    for (setting, value) in state.iter().flat_map(|state| &state.sysctls) {
        fs::write(setting, value).with_context(|| format!("set {setting} back to {value}"))?;
    }
    fs::remove_dir_all(home.dir()).with_context(|| format!("remove {}", home.dir().display()))?;
    remove_file(&home.lock())?;
    old_logs(home)
}

/// Kills shims, what runs in the pods' cgroups and what runs in the cluster's network, until nothing is left of them.
fn kill_all(home: &Home) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
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
fn shims(home: &Home) -> anyhow::Result<Vec<u32>> {
    let socket = home.containerd_socket();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("list /proc")? {
        let Ok(entry) = entry else { continue };
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(line) = fs::read(entry.path().join("cmdline")) else {
            continue;
        }; // it has ended meanwhile
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

/// Shims listen in a directory that all containerds of a machine share; each container's state names its shim's socket.
fn shim_sockets(home: &Home) -> Vec<PathBuf> {
    let tasks = home.path("node/state/io.containerd.runtime.v2.task/k8s.io");
    let Ok(entries) = fs::read_dir(tasks) else {
        return Vec::new();
    };
    let addresses = entries
        .flatten()
        .filter_map(|entry| fs::read_to_string(entry.path().join("address")).ok());
    addresses
        .filter_map(|address| address.trim().strip_prefix("unix://").map(PathBuf::from))
        .collect()
}

fn remove_file(path: &Path) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

fn remove_named(dir: &str, ours: impl Fn(&str) -> bool) -> anyhow::Result<()> {
    let Ok(entries) = fs::read_dir(dir) else { return Ok(()) };
    entries
        .flatten()
        .filter(|entry| entry.file_name().to_str().is_some_and(&ours))
        .try_for_each(|entry| remove_file(&entry.path()))
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

fn old_logs(home: &Home) -> anyhow::Result<()> {
    let logs = home.logs();
    let Some(Ok(entries)) = logs.parent().map(fs::read_dir) else {
        return Ok(());
    };
    let mut dirs: Vec<_> = entries
        .flatten()
        .filter_map(|e| Some((e.metadata().ok()?.modified().ok()?, e.path())))
        .collect();
    dirs.sort();
    let surplus = dirs.len().saturating_sub(LOGS_KEPT);
    let up: Vec<_> = Home::all()?.iter().map(Home::logs).collect();
    for (_, dir) in dirs
        .iter()
        .take(surplus)
        .filter(|(_, dir)| *dir != logs && !up.contains(dir))
    {
        fs::remove_dir_all(dir).with_context(|| format!("remove the old logs {}", dir.display()))?;
    }
    Ok(())
}
