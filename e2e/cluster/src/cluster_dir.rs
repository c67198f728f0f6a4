//! The directory of one cluster, and its names in the machine's shared name spaces.
//!
//! Everything a cluster makes is found again by its name alone, so that a later run can sweep what a killed one left.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context as _, ensure};
use programs::tools::cache::CacheKey;
use serde::{Deserialize, Serialize};

use crate::marker;

/// Apart from where a brain keeps its own data, which no test may touch.
const CLUSTERS_DIR: &str = "/var/lib/kubebrain-clusters";
const LOGS_DIR: &str = "/var/log/kubebrain-clusters";

/// A cluster's name: 1 to 20 of `a`-`z`, `0`-`9` and `-`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClusterName(String);

impl ClusterName {
    /// The cluster for the tests of the checkout whose programs are in `dir`: another run of these tests gets the same name.
    pub fn of_tests(dir: &Path) -> Self {
        let key = CacheKey::of([dir.as_os_str().as_encoded_bytes()]).to_string();
        Self(format!("e2e-{}", &key[..8]))
    }
}

impl FromStr for ClusterName {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> anyhow::Result<Self> {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        ensure!(
            (1..=20).contains(&name.len()) && name.chars().all(fits) && !name.starts_with('-'),
            "{name:?} is not a valid cluster name: it must have 1 to 20 characters of a-z, 0-9 and -, and not begin with -"
        );
        Ok(Self(name.to_owned()))
    }
}

impl std::fmt::Display for ClusterName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The directories and names of one cluster.
#[derive(Clone, Debug)]
pub struct ClusterDir(ClusterName);

impl ClusterDir {
    /// That of the cluster called `name`.
    pub fn of(name: &ClusterName) -> Self {
        Self(name.clone())
    }

    /// The homes of all clusters that are up or were left by killed runs, be it that only their lock is left. Directories
    /// of others are not among them.
    ///
    /// # Errors
    ///
    /// The directory of homes cannot be read.
    pub fn all() -> anyhow::Result<Vec<Self>> {
        let mut names = BTreeSet::new();
        if Path::new(CLUSTERS_DIR).exists() {
            for entry in fs::read_dir(CLUSTERS_DIR).with_context(|| format!("list {CLUSTERS_DIR}"))? {
                let file = entry?.file_name();
                let name = file.to_str().map(|file| file.strip_suffix(".lock").unwrap_or(file));
                names.extend(name.and_then(|name| name.parse().ok()));
            }
        }
        let homes = names.into_iter().map(Self);
        Ok(homes.filter(|home| home.check().is_ok()).collect())
    }

    /// Refuses directories under the cluster's name that are not its own.
    ///
    /// # Errors
    ///
    /// There is one.
    pub fn check(&self) -> anyhow::Result<()> {
        marker::check(&self.dir(), &self.0)?;
        marker::check(&self.logs(), &self.0)
    }

    /// Makes the directory of the home, marked as the cluster's.
    ///
    /// # Errors
    ///
    /// It exists and belongs to another owner, or the file system refuses.
    pub fn claim(&self) -> anyhow::Result<()> {
        marker::claim(&self.dir(), &self.0)
    }

    /// Removes the home; the logs stay.
    ///
    /// # Errors
    ///
    /// It belongs to another owner, or something in it cannot be removed.
    pub fn remove(&self) -> anyhow::Result<()> {
        marker::remove(&self.dir(), &self.0)
    }

    /// Removes the logs.
    ///
    /// # Errors
    ///
    /// They belong to another owner, or something cannot be removed.
    pub fn remove_logs(&self) -> anyhow::Result<()> {
        marker::remove(&self.logs(), &self.0)
    }

    /// The clusters whose logs are kept, the latest last.
    ///
    /// # Errors
    ///
    /// The directory of logs cannot be read.
    pub fn all_with_logs() -> anyhow::Result<Vec<Self>> {
        let mut homes = Vec::new();
        if Path::new(LOGS_DIR).exists() {
            for entry in fs::read_dir(LOGS_DIR).with_context(|| format!("list {LOGS_DIR}"))? {
                let entry = entry?;
                let modified = entry.metadata().and_then(|metadata| metadata.modified());
                let name = entry.file_name().to_str().and_then(|name| name.parse().ok());
                homes.extend(modified.ok().zip(name.map(Self)));
            }
        }
        homes.retain(|(_, home)| home.check().is_ok());
        homes.sort_by_key(|(modified, _)| *modified);
        Ok(homes.into_iter().map(|(_, home)| home).collect())
    }

    /// The cluster's name.
    pub fn name(&self) -> &ClusterName {
        &self.0
    }

    /// The home directory. It contains everything but the logs.
    pub fn dir(&self) -> PathBuf {
        Path::new(CLUSTERS_DIR).join(&self.0.0)
    }

    /// A file or directory in the home.
    pub fn path(&self, inside: impl AsRef<Path>) -> PathBuf {
        self.dir().join(inside)
    }

    /// One file per program, and those of the pods. They outlive the cluster.
    pub fn logs(&self) -> PathBuf {
        Path::new(LOGS_DIR).join(&self.0.0)
    }

    /// The log of one program.
    pub fn log(&self, program: &str) -> PathBuf {
        self.logs().join(format!("{program}.log"))
    }

    /// Opens the log of one program, to add to it.
    ///
    /// # Errors
    ///
    /// Most often, this is not run by root.
    pub fn open_log(&self, program: &str) -> anyhow::Result<File> {
        let log = self.log(program);
        marker::claim(&self.logs(), &self.0)?;
        File::options()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("open {}", log.display()))
    }

    /// Locked while the cluster is up.
    pub fn lock(&self) -> PathBuf {
        Path::new(CLUSTERS_DIR).join(format!("{}.lock", self.0))
    }

    /// The programs that run; see [`crate::state::ClusterState`].
    pub fn state(&self) -> PathBuf {
        self.path("state.json")
    }

    /// For kubectl outside of the cluster's network.
    pub fn kubeconfig(&self) -> PathBuf {
        self.path("kubeconfig")
    }

    /// For kubectl outside, to the tenant's API server.
    pub fn tenant_kubeconfig(&self) -> PathBuf {
        self.path("tenant.kubeconfig")
    }

    /// A mount of its own for containerd and kubelet.
    pub fn node(&self) -> PathBuf {
        self.path("node")
    }

    /// The socket of containerd.
    pub fn containerd_socket(&self) -> PathBuf {
        self.path("node/containerd.sock")
    }

    /// The network namespace, also the name of the pods' network.
    pub fn netns(&self) -> String {
        format!("kubebrain-{}", self.0)
    }

    /// The cgroup above those of all pods, relative to each hierarchy's root.
    pub fn cgroup(&self) -> String {
        format!("kubebrain/{}", self.0)
    }

    /// Makes the directories, readable by root alone.
    ///
    /// # Errors
    ///
    /// A directory cannot be made.
    pub fn create(&self) -> anyhow::Result<()> {
        use std::os::unix::fs::PermissionsExt as _;
        self.claim()?;
        for dir in ["pki", "config", "cni", "node", "sockets", "volumes", "store"] {
            let path = self.path(dir);
            fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
        }
        let private = fs::Permissions::from_mode(0o700);
        for dir in [self.path("pki"), self.path("store")] {
            fs::set_permissions(&dir, private.clone()).with_context(|| format!("make {} private", dir.display()))?;
        }
        self.clear_logs()
    }

    /// Removes the logs of an earlier run. The host's own is open already, by those who only add to it: it is emptied.
    fn clear_logs(&self) -> anyhow::Result<()> {
        let (logs, host) = (self.logs(), self.log("host"));
        marker::claim(&logs, &self.0)?;
        if host.exists() {
            let emptied = File::options().write(true).open(&host).and_then(|log| log.set_len(0));
            emptied.with_context(|| format!("empty the old log {}", host.display()))?;
        }
        marker::empty(&logs, &self.0, |path| path == host)
    }

    /// Writes a file in the home.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn write(&self, inside: &str, content: impl AsRef<[u8]>) -> anyhow::Result<PathBuf> {
        let path = self.path(inside);
        fs::write(&path, content).with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    }
}

/// Makes the directory of homes and locks.
///
/// # Errors
///
/// It cannot be made: most often because this is not run by root.
pub fn prepare() -> anyhow::Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "a cluster needs namespaces, mounts and cgroups: run it as root"
    );
    fs::create_dir_all(CLUSTERS_DIR).with_context(|| format!("create {CLUSTERS_DIR}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_directory() {
        for bad in ["", "../x", "a/b", "A", "-a", "a.b", "abcdefghijklmnopqrstu"] {
            assert!(bad.parse::<ClusterName>().is_err(), "{bad}");
        }
        assert_eq!(
            ClusterDir::of(&"e2e-1".parse().unwrap()).dir(),
            Path::new("/var/lib/kubebrain-clusters/e2e-1")
        );
    }

    #[test]
    fn homes_lie_apart_from_a_brains_data() {
        let home = ClusterDir::of(&"data".parse().unwrap());
        for path in [home.dir(), home.logs(), home.lock()] {
            for brains in ["/var/lib/kubebrain", "/var/log/kubebrain", "/var/lib/etcd"] {
                assert!(!path.starts_with(brains), "{}", path.display());
            }
        }
    }
}
