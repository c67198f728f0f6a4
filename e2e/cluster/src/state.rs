//! The processes of a cluster, written down so that others can find it: tests that kill the store, and a later run that
//! sweeps what a killed one left.

use std::collections::BTreeMap;
use std::fs;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process};
use serde::{Deserialize, Serialize};

use crate::cluster_dir::ClusterDir;

/// A process. Its start time distinguishes it from a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    pid: i32,
    /// In clock ticks since boot.
    started: u64,
}

impl ProcessId {
    /// The running process with this number.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn of(pid: u32) -> anyhow::Result<Self> {
        let pid = i32::try_from(pid).context("a process number is out of range")?;
        let started = started(pid).with_context(|| format!("process {pid} is gone"))?;
        Ok(Self { pid, started })
    }

    /// The number.
    pub fn number(self) -> i32 {
        self.pid
    }

    /// The process, if it still runs.
    pub fn alive(self) -> Option<Pid> {
        Pid::from_raw(self.pid).filter(|pid| test_kill_process(*pid).is_ok() && started(self.pid) == Some(self.started))
    }

    /// Sends a signal to the process alone; `false` if it has ended.
    pub fn signal(self, signal: Signal) -> bool {
        self.alive().is_some_and(|pid| kill_process(pid, signal).is_ok())
    }

    /// Sends a signal to the process group that it leads; `false` if it has ended.
    pub fn signal_group(self, signal: Signal) -> bool {
        self.alive().is_some_and(|pid| kill_process_group(pid, signal).is_ok())
    }
}

/// The 22nd field of `/proc/PID/stat`; the second may hold spaces and brackets. A zombie counts as ended.
fn started(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    (state != "Z").then(|| fields.nth(18)?.parse().ok()).flatten()
}

/// Everything another process needs to know about a cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClusterState {
    /// By program name.
    pub programs: BTreeMap<String, ProcessId>,
    /// Number of restarts of each program, by name.
    pub restarts: BTreeMap<String, u64>,
    /// Loopback ports outside of the cluster's network, by name of what they lead to.
    pub ports: BTreeMap<String, u16>,
    /// Kernel settings that a kubelet changes, as they were before.
    pub sysctls: BTreeMap<String, String>,
}

impl ClusterState {
    /// Reads it.
    ///
    /// # Errors
    ///
    /// There is none, or it does not parse.
    pub fn read(home: &ClusterDir) -> anyhow::Result<Self> {
        let path = home.state();
        let text = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("parse {}", path.display()))
    }

    /// Replaces it as a whole.
    ///
    /// # Errors
    ///
    /// The file system's.
    pub fn write(&self, home: &ClusterDir) -> anyhow::Result<()> {
        let (path, partial) = (home.state(), home.path("state.json.partial"));
        fs::write(&partial, serde_json::to_vec_pretty(self)?)
            .with_context(|| format!("write {}", partial.display()))?;
        fs::rename(&partial, &path).with_context(|| format!("replace {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_another_start_time_is_another_process() {
        let me = ProcessId::of(std::process::id()).unwrap();
        assert!(me.alive().is_some());
        assert!(
            ProcessId {
                started: me.started + 1,
                ..me
            }
            .alive()
            .is_none()
        );
    }
}
