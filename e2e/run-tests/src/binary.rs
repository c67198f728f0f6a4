//! Test binaries, as cargo's messages name them.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use serde::Deserialize;

/// A binary of tests.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TestBinary {
    /// The directory of its package and its target, such as `mvcc lib`.
    pub(crate) name: String,
    pub(crate) executable: PathBuf,
    pub(crate) package_dir: PathBuf,
    /// True for a target of kind `test`.
    pub(crate) is_integration: bool,
}

/// A line of `cargo build --message-format=json`: the fields that are used here. The Cargo Book, "External tools", has all of them.
#[derive(Debug, Deserialize)]
struct Message {
    reason: String,
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    success: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

/// Returns the test binaries that cargo's messages name.
///
/// # Errors
/// A message cannot be parsed; the build failed, or its messages are cut off.
pub(crate) fn parse(messages: &str) -> anyhow::Result<Vec<TestBinary>> {
    let mut binaries = Vec::new();
    let mut has_finished = false;
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Message = serde_json::from_str(line).with_context(|| format!("not a message of cargo: {line}"))?;
        has_finished |= message.reason == "build-finished" && message.success == Some(true);
        binaries.extend(test_binary(message));
    }
    ensure!(has_finished, "the tests were not built");
    Ok(binaries)
}

/// With `--no-run`, cargo names the executables of tests, and those of programs that they start.
fn test_binary(message: Message) -> Option<TestBinary> {
    let executable = message.executable.filter(|_| message.reason == "compiler-artifact")?;
    let is_test = executable.parent().and_then(Path::file_name) == Some("deps".as_ref());
    let (target, manifest) = (message.target?, message.manifest_path?);
    let package_dir = manifest.parent()?.to_owned();
    let package = package_dir.file_name()?.display().to_string();
    is_test.then(|| TestBinary {
        name: format!("{package} {}", target.name),
        is_integration: target.kind.iter().any(|kind| kind == "test"),
        executable,
        package_dir,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FINISHED: &str = r#"{"reason":"build-finished","success":true}"#;

    fn artifact(executable: &str, kind: &str) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","executable":"{executable}","manifest_path":"/src/mvcc/Cargo.toml","target":{{"name":"it","kind":["{kind}"]}}}}"#
        )
    }

    #[test]
    fn programs_that_tests_start_are_not_run() {
        let (test, program) = (
            artifact("/t/debug/deps/it-1f", "test"),
            artifact("/t/debug/brain", "bin"),
        );
        let found = parse(&format!("{test}\n{program}\n{FINISHED}\n")).unwrap();
        let expected = TestBinary {
            name: "mvcc it".to_owned(),
            executable: "/t/debug/deps/it-1f".into(),
            package_dir: "/src/mvcc".into(),
            is_integration: true,
        };
        assert_eq!(found, [expected]);
    }

    #[test]
    fn build_that_failed_runs_nothing() {
        let test = artifact("/t/debug/deps/it-1f", "test");
        let failed = r#"{"reason":"build-finished","success":false}"#;
        assert!(parse(&format!("{test}\n{failed}\n")).is_err());
        assert!(parse(&test).is_err());
    }
}
