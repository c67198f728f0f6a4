//! The cgroup above a cluster's pods: a kubelet wants it to exist in every hierarchy, and does not remove it.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::cluster_dir::ClusterDir;

const CGROUP_ROOT: &str = "/sys/fs/cgroup";

/// The weight of all pods together, in the file of each cgroup version: that of four sessions. Each daemon of the node, of other clusters
/// and of the tests has its own session; with the weight of one session, the pods would make no progress while those are busy.
const POD_CPU_WEIGHTS: [(&str, &str); 2] = [("cpu.shares", "4096"), ("cpu.weight", "400")];

/// Makes it: in each hierarchy of version 1, or with all controllers in the one of version 2.
///
/// # Errors
///
/// The kernel refuses.
pub fn create(home: &ClusterDir) -> anyhow::Result<()> {
    for root in hierarchies()? {
        let dir = root.join(home.cgroup());
        fs::create_dir_all(&dir).with_context(|| format!("create the cgroup {}", dir.display()))?;
        if root == Path::new(CGROUP_ROOT) {
            let controllers = fs::read_to_string(root.join("cgroup.controllers"))?;
            let all: Vec<_> = controllers.split_whitespace().map(|name| format!("+{name}")).collect();
            for parent in dir
                .ancestors()
                .skip(1)
                .take_while(|parent| parent.starts_with(CGROUP_ROOT))
            {
                let control = parent.join("cgroup.subtree_control");
                fs::write(&control, all.join(" ")).with_context(|| format!("write {}", control.display()))?;
            }
        }
        for (file, weight) in POD_CPU_WEIGHTS {
            let file = dir.join(file);
            if file.exists() {
                fs::write(&file, weight).with_context(|| format!("write {}", file.display()))?;
            }
        }
    }
    Ok(())
}

/// The processes in it and below.
///
/// # Errors
///
/// The tree cannot be read.
pub fn processes(home: &ClusterDir) -> anyhow::Result<Vec<u32>> {
    let mut found = Vec::new();
    for root in hierarchies()? {
        for dir in tree(&root.join(home.cgroup()))? {
            match fs::read_to_string(dir.join("cgroup.procs")) {
                Ok(text) => found.extend(text.lines().filter_map(|line| line.parse::<u32>().ok())),
                Err(error) if gone(&error) => {}
                Err(error) => return Err(error).with_context(|| format!("read the processes of {}", dir.display())),
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// Removes it and all below; `false` if a process that was killed has not left yet.
///
/// # Errors
///
/// The tree cannot be read or removed.
pub fn delete(home: &ClusterDir) -> anyhow::Result<bool> {
    let mut clean = true;
    for root in hierarchies()? {
        let dir = root.join(home.cgroup());
        for dir in tree(&dir)?.iter().rev() {
            clean &= remove(dir)?;
        }
        if let Some(shared) = dir.parent().filter(|shared| *shared != root) {
            remove(shared)?; // stays as long as another cluster is in it
        }
    }
    Ok(clean)
}

/// Removes one; `false` if something is in it.
fn remove(dir: &Path) -> anyhow::Result<bool> {
    match fs::remove_dir(dir) {
        Ok(()) => Ok(true),
        Err(error) if gone(&error) => Ok(true),
        Err(error) if error.kind() == ErrorKind::ResourceBusy => Ok(false),
        Err(error) => Err(error).with_context(|| format!("remove the cgroup {}", dir.display())),
    }
}

/// Mount points of cgroup file systems: with version 1 many, and often one of version 2 without controllers beside them.
fn hierarchies() -> anyhow::Result<Vec<PathBuf>> {
    let root = PathBuf::from(CGROUP_ROOT);
    if root.join("cgroup.controllers").exists() {
        return Ok(vec![root]);
    }
    let mounts = fs::read_to_string("/proc/mounts").context("read /proc/mounts")?;
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    Ok(fields
        .filter(|f| f.get(2).is_some_and(|kind| kind.starts_with("cgroup")))
        .filter_map(|f| f.get(1).map(PathBuf::from))
        .collect())
}

/// A directory and all below it, parents first; nothing if it is not there.
fn tree(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        match fs::read_dir(&dir) {
            Ok(entries) => {
                for entry in entries {
                    let Ok(entry) = entry else { continue }; // removed while it was listed
                    if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                        open.push(entry.path());
                    }
                }
                found.push(dir);
            }
            Err(error) if gone(&error) => {}
            Err(error) => return Err(error).with_context(|| format!("list {}", dir.display())),
        }
    }
    Ok(found)
}

/// A cgroup that is being removed answers `ENODEV`.
fn gone(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error())
}
