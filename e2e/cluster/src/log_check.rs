//! Lines in our programs' logs that report a problem: a test that did not provoke them fails.
//!
//! The path of a log shows which programs are ours; warnings of etcd and Kubernetes are ignored.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use programs::complaints::{ProvokedComplaints, is_complaint};

use crate::cluster_dir::ClusterDir;
use crate::store;

/// Directories of pods below a cluster's logs begin with a namespace and a name; the containers with ours in them.
const OUR_CONTAINERS: [&str; 2] = ["brain", "operator"];

/// The logs of our programs in one cluster, and how far they were read.
#[derive(Debug)]
pub struct ClusterLogs {
    home: ClusterDir,
    read: BTreeMap<PathBuf, u64>,
    expected_logs: ProvokedComplaints,
}

impl ClusterLogs {
    /// From their beginning.
    pub fn of(home: &ClusterDir) -> Self {
        let mut expected_logs = ProvokedComplaints::default();
        // none if nothing was expected
        for text in fs::read_to_string(provocations(home)).unwrap_or_default().lines() {
            expected_logs.add(text);
        }
        Self {
            home: home.clone(),
            read: BTreeMap::new(),
            expected_logs,
        }
    }

    /// Lets lines with this text pass until the cluster is started again, also in checks after its end.
    ///
    /// # Errors
    ///
    /// That cannot be written down.
    pub fn expect_log(&mut self, text: &str) -> anyhow::Result<()> {
        let path = provocations(&self.home);
        let file = File::options().create(true).append(true).open(&path);
        file.and_then(|mut file| writeln!(file, "{text}"))
            .with_context(|| format!("write {}", path.display()))?;
        self.expected_logs.add(text);
        Ok(())
    }

    /// Looks at what was added since the last look.
    ///
    /// # Errors
    ///
    /// A line complains that was not to be expected, or a log cannot be read.
    pub fn check(&mut self) -> anyhow::Result<()> {
        let mut found = Vec::new();
        for path in ours(&self.home)? {
            let read = self.read.entry(path.clone()).or_default();
            for line in added(&path, read)? {
                if is_complaint(&line) {
                    found.push(format!("{}: {line}", path.display()));
                }
            }
        }
        self.expected_logs
            .check(&format!("cluster {}: a program of ours", self.home.name()), &found)
    }
}

/// Beside the logs: like them it outlives the cluster.
fn provocations(home: &ClusterDir) -> PathBuf {
    home.logs().join("provoked.txt")
}

/// The logs of the store and those of our pods. If the store is etcd it writes its levels in small letters.
fn ours(home: &ClusterDir) -> anyhow::Result<Vec<PathBuf>> {
    let mut logs: Vec<PathBuf> = store::MEMBERS.iter().map(|member| home.log(member.name)).collect();
    for pod in below(&home.logs().join("pods"))? {
        for container in OUR_CONTAINERS {
            logs.extend(below(&pod.join(container))?);
        }
    }
    logs.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    Ok(logs)
}

/// Returns the entries of a directory, which may be gone.
fn below(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    match fs::read_dir(dir) {
        Ok(entries) => entries
            .map(|entry| Ok(entry.with_context(|| format!("list {}", dir.display()))?.path()))
            .collect(),
        Err(error)
            if matches!(
                error.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(Vec::new())
        }
        Err(error) => Err(error).with_context(|| format!("list {}", dir.display())),
    }
}

/// Returns the complete lines after offset `read`, and advances it past them.
fn added(path: &Path, read: &mut u64) -> anyhow::Result<Vec<String>> {
    let context = || format!("read {}", path.display());
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()), // its pod is gone
        Err(error) => return Err(error).with_context(context),
    };
    file.seek(SeekFrom::Start(*read)).with_context(context)?;
    let (mut reader, mut lines, mut line) = (BufReader::new(file), Vec::new(), Vec::new());
    while reader.read_until(b'\n', &mut line).with_context(context)? > 0 && line.ends_with(b"\n") {
        *read += line.len() as u64;
        lines.push(String::from_utf8_lossy(&line).trim_end().to_owned());
        line.clear();
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_on_from_where_it_ended() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("log");
        let mut read = 0;
        assert!(added(&path, &mut read).unwrap().is_empty());
        fs::write(&path, "one\ntwo\nhal").unwrap();
        assert_eq!(added(&path, &mut read).unwrap(), ["one", "two"]);
        fs::write(&path, "one\ntwo\nhalf\n").unwrap();
        assert_eq!(added(&path, &mut read).unwrap(), ["half"]);
        assert!(added(&path, &mut read).unwrap().is_empty());
    }
}
