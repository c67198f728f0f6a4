//! Lines in our programs' logs that report a problem: a test that did not provoke them fails.
//!
//! The path of a log shows which programs are ours; warnings of etcd and Kubernetes are ignored.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::cluster_dir::ClusterDir;
use crate::store;

/// Number of lines that an error shows.
const SHOWN: usize = 20;

/// Directories of pods below a cluster's logs begin with a namespace and a name; the containers with ours in them.
const OUR_CONTAINERS: [&str; 2] = ["brain", "operator"];

/// Texts of complaints that were expected, each a part of its line.
#[derive(Clone, Debug, Default)]
pub struct Provoked(Vec<String>);

impl Provoked {
    /// Lets lines with this text pass from now on.
    pub fn add(&mut self, text: &str) {
        self.0.push(text.to_owned());
    }

    /// An error with the lines that were not expected, if there are any.
    ///
    /// # Errors
    ///
    /// There are.
    pub fn check(&self, whose: &str, complaints: &[String]) -> anyhow::Result<()> {
        let expected = |line: &str| self.0.iter().any(|text| line.contains(text));
        let lines: Vec<_> = complaints.iter().filter(|line| !expected(line)).collect();
        if lines.is_empty() {
            return Ok(());
        }
        let more = lines.len().saturating_sub(SHOWN);
        let shown: Vec<_> = lines.iter().take(SHOWN).map(|line| line.as_str()).collect();
        bail!(
            "{whose} complained, which nobody expected ({} lines, {more} not shown):\n{}",
            lines.len(),
            shown.join("\n")
        )
    }
}

/// Texts of lines about slow requests, which are expected on a busy machine.
const SLOW: [&str; 2] = [r#""msg":"apply request took too long""#, r#""msg":"request stats""#];

/// Returns true if a line of one of our programs is a warning, an error or a panic, but not about a slow request.
#[must_use]
pub fn is_complaint(line: &str) -> bool {
    if SLOW.iter().any(|text| line.contains(text)) {
        return false;
    }
    if line.contains("' panicked at ") || (line.starts_with("thread ") && line.contains(" panicked at ")) {
        return true;
    }
    // pods' lines are preceded by time, stream and a mark
    let level = match line.find('{').map(|at| serde_json::from_str::<Value>(&line[at..])) {
        // etcd's own lines have the same keys, but no Rust file in them
        Some(Ok(object))
            if object
                .get("caller")
                .and_then(Value::as_str)
                .is_some_and(|caller| caller.contains(".rs:")) =>
        {
            object.get("level").and_then(Value::as_str).map(str::to_uppercase)
        }
        Some(Ok(object)) => object.get("level").and_then(Value::as_str).map(str::to_owned),
        _ => line.split_whitespace().nth(1).map(str::to_owned),
    };
    level.is_some_and(|level| matches!(level.as_str(), "WARN" | "ERROR"))
}

/// The logs of our programs in one cluster, and how far they were read.
#[derive(Debug)]
pub struct ClusterLogs {
    home: ClusterDir,
    read: BTreeMap<PathBuf, u64>,
    expected_logs: Provoked,
}

impl ClusterLogs {
    /// From their beginning.
    pub fn of(home: &ClusterDir) -> Self {
        let mut expected_logs = Provoked::default();
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
    fn warnings_errors_and_panics_are_told_from_other_lines() {
        for line in [
            r#"{"timestamp":"2026-11-21T12:44:42Z","level":"WARN","message":"odd"}"#,
            r#"2026-11-21T12:44:53Z stderr F {"level":"warn","ts":"2026","caller":"net/serve.rs:7","msg":"odd"}"#,
            r#"2026-11-21T12:44:53Z stderr F {"timestamp":"2026","level":"ERROR","fields":{"message":"bad"}}"#,
            "2026-11-21T12:34:07.014356Z  WARN e2e::supervisor: ended by itself",
            "thread 'main' (7) panicked at src/main.rs:1:1:",
        ] {
            assert!(is_complaint(line), "{line}");
        }
        for line in [
            r#"{"timestamp":"2026-11-21T12:44:42Z","level":"INFO","message":"no \"level\":\"WARN\" here"}"#,
            r#"{"level":"warn","ts":"2026","caller":"etcdserver/server.go:7","msg":"etcd's own"}"#,
            r#"{"level":"info","ts":"2026","caller":"net/serve.rs:7","msg":"fine"}"#,
            r#"{"level":"warn","ts":"2026","caller":"slow_requests.rs:7","msg":"apply request took too long"}"#,
            r#"{"level":"warn","ts":"2026","caller":"slow_requests.rs:7","msg":"request stats"}"#,
            "2026-11-21T12:34:07.014356Z  INFO e2e: a WARN ERROR of others",
            "",
        ] {
            assert!(!is_complaint(line), "{line}");
        }
    }

    #[test]
    fn only_what_was_provoked_passes() {
        let mut expected_logs = Provoked::default();
        let lines = ["a WARN about space".to_owned(), "an ERROR".to_owned()];
        expected_logs.add("about space");
        let error = expected_logs.check("a brain", &lines).unwrap_err().to_string();
        assert!(error.contains("an ERROR") && !error.contains("space"), "{error}");
        expected_logs.add("an ERROR");
        expected_logs.check("a brain", &lines).unwrap();
    }

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
