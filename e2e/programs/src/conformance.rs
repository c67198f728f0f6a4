//! Kubernetes' own tests of its storage layer, unmodified, against a server that we choose.
//!
//! `go test -overlay` puts our file in the place of the one that starts an embedded etcd, and nothing else. Go overlays
//! no file of its module cache, so the module is copied out of there; go.sum vouches for what is copied.
//!
//! Invariant: a test that did not run, or skipped itself without being known to, is a failure.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};

use crate::progress::Progress;
use crate::server::{self, Program};
use crate::tools::cache::{CacheKey, ToolCache};

const APISERVER_MODULE: &str = "k8s.io/apiserver";
const REPLACED_FILE: &str = "pkg/storage/etcd3/testserver/test_server.go";

/// A package of upstream's tests.
#[derive(Clone, Copy, Debug)]
pub struct ConformanceSuite {
    /// Its directory in k8s.io/apiserver.
    pub package: &'static str,
    /// Number of top-level tests that run, of the pinned version.
    pub tests: usize,
    /// Tests that are not run, as a regular expression of `go test -skip`; empty if all are.
    pub excluded: &'static str,
    /// Number of tests below them that skip themselves, whatever the server.
    pub skips: usize,
}

/// The store that kube-apiserver keeps its objects in.
pub const ETCD3: ConformanceSuite = ConformanceSuite {
    package: "pkg/storage/etcd3",
    tests: 73,
    excluded: "",
    skips: 0,
};
/// The watch cache above it.
pub const CACHER: ConformanceSuite = ConformanceSuite {
    package: "pkg/storage/cacher",
    tests: 141,
    excluded: "",
    skips: 8,
};
/// Tests of the code that connects to it: TLS, health and readiness.
pub const FACTORY: ConformanceSuite = ConformanceSuite {
    package: "pkg/storage/storagebackend/factory",
    tests: 5,
    // It asks no store: it starts two timers of 2.5 s at the same moment, and fails if the wrong one is first, as on a busy machine.
    excluded: "^TestTimeTravelHealthcheck$",
    skips: 0,
};

/// Outcome of a run.
#[derive(Debug, Default)]
pub struct SuiteOutcome {
    /// Top-level tests that passed.
    pub passed: Vec<String>,
    /// Tests that failed, subtests too.
    pub failed: Vec<String>,
    /// Tests that skipped themselves, subtests too.
    pub skipped: Vec<String>,
}

impl ConformanceSuite {
    /// Builds the tests if they were not before, runs them against the program, and keeps what they wrote in `log`.
    ///
    /// # Errors
    ///
    /// They cannot be built or started, or any of them did not pass.
    pub fn run(&self, program: &Program, log: &Path, progress: &Progress) -> anyhow::Result<SuiteOutcome> {
        let built = self.build(progress)?;
        let output = fs::File::create(log).with_context(|| format!("create {}", log.display()))?;
        let what = format!("{} with {}", self.package, program.name);
        let status = progress.during(&what, || {
            // two processors: more at once only makes the ones that measure time fail
            let mut command = Command::new(built.join("tests"));
            command.args(["-test.v", "-test.parallel=4", "-test.timeout=20m"]);
            if !self.excluded.is_empty() {
                command.arg(format!("-test.skip={}", self.excluded));
            }
            command.current_dir(built.join(APISERVER_MODULE).join(self.package));
            command
                .env(server::BRAIN_BINARY_VARIABLE, &program.path)
                .env("TMPDIR", std::env::temp_dir());
            command.stdout(output.try_clone()?).stderr(output);
            Ok(command.status()?)
        })?;
        let text = fs::read(log).with_context(|| format!("read {}", log.display()))?;
        let outcome = SuiteOutcome::read(&String::from_utf8_lossy(&text));
        let counts = format!(
            "{} of {} tests passed, {} failed, {} skipped; all output is in {}",
            outcome.passed.len(),
            self.tests,
            outcome.failed.len(),
            outcome.skipped.len(),
            log.display()
        );
        progress.say(&counts);
        ensure!(
            outcome.failed.is_empty(),
            "{counts}\nfailed: {}",
            outcome.failed.join("\n        ")
        );
        ensure!(status.success(), "the tests ended with {status}: {counts}");
        ensure!(outcome.passed.len() == self.tests, "not all tests ran: {counts}");
        ensure!(
            outcome.skipped.len() == self.skips,
            "{counts}\nskipped: {}",
            outcome.skipped.join("\n         ")
        );
        Ok(outcome)
    }

    /// Builds the tests if they were not before; returns the directory with the program and the module's sources.
    ///
    /// # Errors
    ///
    /// Go is missing, the module cannot be downloaded, or the build fails.
    pub fn build(&self, progress: &Progress) -> anyhow::Result<PathBuf> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../storage");
        let read = |file: &str| fs::read(source.join(file)).with_context(|| format!("read {file} in e2e/storage"));
        let ours = source.join("testserver/test_server.go");
        let version = go(Command::new("go").arg("version")).context("Go 1.26 or newer is needed")?;
        let parts = [read("go.mod")?, read("go.sum")?, read("testserver/test_server.go")?];
        let key = CacheKey::of(
            parts
                .iter()
                .map(Vec::as_slice)
                .chain([version.as_bytes(), self.package.as_bytes()]),
        );
        let name = format!("upstream-{}", self.package.replace('/', "-"));
        ToolCache::open()?.once("go", &name, &key, progress, |dir| {
            progress.during(
                format_args!("build {} (about 2 min the first time)", self.package),
                || {
                    let module = dir.join(APISERVER_MODULE);
                    copy(&downloaded(&source)?, &module)?;
                    self.compile(&module, &ours, dir)
                },
            )
        })
    }

    fn compile(&self, module: &Path, ours: &Path, dir: &Path) -> anyhow::Result<()> {
        let replaced = module.join(REPLACED_FILE);
        ensure!(
            replaced.is_file(),
            "{APISERVER_MODULE} no longer has {REPLACED_FILE}: find what starts its etcd now"
        );
        // Go resolves links, so both paths must be free of them
        let (replaced, ours) = (fs::canonicalize(replaced)?, fs::canonicalize(ours)?);
        let overlay = dir.join("overlay.json");
        fs::write(
            &overlay,
            serde_json::json!({ "Replace": { replaced.to_string_lossy(): ours } }).to_string(),
        )?;
        let mut test = Command::new("go");
        test.current_dir(module).args(["test", "-c", "-overlay"]).arg(&overlay);
        test.arg("-o").arg(dir.join("tests")).arg(format!("./{}", self.package));
        go(test.env("GOFLAGS", "-mod=readonly"))?;
        Ok(())
    }
}

/// The directory of the module in Go's cache, its sum checked.
fn downloaded(source: &Path) -> anyhow::Result<PathBuf> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct DownloadedModule {
        dir: PathBuf,
    }
    let said = go(Command::new("go")
        .current_dir(source)
        .args(["mod", "download", "-json", APISERVER_MODULE]))?;
    let module: DownloadedModule = serde_json::from_str(&said).with_context(|| format!("read what go said: {said}"))?;
    Ok(module.dir)
}

/// Copies directories and files, and makes them writable: the cache's are not, and could not be removed again.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to).with_context(|| format!("create {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("read {}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            let bytes = fs::read(entry.path())?;
            fs::write(&target, bytes).with_context(|| format!("write {}", target.display()))?;
        }
    }
    Ok(())
}

/// Standard output of a command that must succeed.
fn go(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().context("start go")?;
    if !output.status.success() {
        bail!(
            "{command:?}: {}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

impl SuiteOutcome {
    /// From what `-test.v` prints. A test with only a start line has failed: the process ended under it.
    fn read(text: &str) -> Self {
        let mut outcome = Self::default();
        let mut open = BTreeMap::new();
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("=== RUN   ") {
                open.insert(name.trim().to_owned(), ());
            }
            let Some((result, name, top)) = result(line) else {
                continue;
            };
            open.remove(name);
            let name = name.to_owned();
            match result {
                "PASS" if top => outcome.passed.push(name),
                "FAIL" => outcome.failed.push(name),
                "SKIP" => outcome.skipped.push(name),
                _ => {}
            }
        }
        outcome
            .failed
            .extend(open.into_keys().map(|name| format!("{name} (never ended)")));
        outcome
    }
}

/// The result, name and rank in a line such as `    --- PASS: TestA/b (0.01s)`. A log line of the server may precede it without a line
/// break.
fn result(line: &str) -> Option<(&str, &str, bool)> {
    let at = line.find("--- ")?;
    let (result, rest) = line[at + 4..].split_once(": ")?;
    let (name, _) = rest.rsplit_once(" (")?;
    let known = matches!(result, "PASS" | "FAIL" | "SKIP") && name.starts_with("Test");
    known.then_some((result, name, !name.contains('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_test_counts_once_and_a_silent_one_has_failed() {
        let text = "=== RUN   TestA\n=== RUN   TestA/x\n=== RUN   TestB\n=== RUN   TestC\n=== RUN   TestD\n\
                    --- PASS: TestA (0.01s)\n    --- SKIP: TestA/x (0.00s)\nlog line--- FAIL: TestB (1.00s)\n\
                    --- SKIP: TestD (0.00s)\npanic: oh\n";
        let outcome = SuiteOutcome::read(text);
        assert_eq!(outcome.passed, ["TestA"]);
        assert_eq!(outcome.failed, ["TestB", "TestC (never ended)"]);
        assert_eq!(outcome.skipped, ["TestA/x", "TestD"]);
    }
}
