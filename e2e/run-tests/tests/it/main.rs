//! The program, with shell scripts in the place of test binaries.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Returns cargo's message about a test binary of a package, which is a script.
fn script(dir: &Path, name: &str, text: &str) -> String {
    let executable = dir.join("deps").join(name);
    fs::create_dir_all(executable.parent().unwrap()).unwrap();
    fs::write(&executable, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&executable, fs::Permissions::from_mode(0o755)).unwrap();
    serde_json::json!({
        "reason": "compiler-artifact",
        "executable": executable,
        "manifest_path": dir.join("Cargo.toml"),
        "target": { "name": name, "kind": ["lib"] },
    })
    .to_string()
}

fn run(messages: &[String], args: &[&str]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_kubebrain-run-tests"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let finished = r#"{"reason":"build-finished","success":true}"#;
    let mut stdin = child.stdin.take().unwrap();
    writeln!(stdin, "{}\n{finished}", messages.join("\n")).unwrap();
    drop(stdin);
    child.wait_with_output().unwrap()
}

#[test]
fn every_binary_runs_in_its_package_with_the_arguments() {
    let dir = tempfile::tempdir().unwrap();
    let messages = ["a", "b", "c"].map(|name| script(dir.path(), name, "echo $0 in $(pwd) with $1"));
    let output = run(&messages, &["--jobs", "2", "--", "--nocapture"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}");
    let root = dir.path().canonicalize().unwrap();
    for name in ["a", "b", "c"] {
        let line = format!("deps/{name} in {} with --nocapture\n", root.display());
        assert!(said.contains(&line), "{line} is not in {said}");
    }
}

/// Each of the two waits for the other.
#[test]
fn binaries_run_at_the_same_time() {
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = (dir.path().join("one"), dir.path().join("other"));
    assert!(Command::new("mkfifo").args([&one, &other]).status().unwrap().success());
    let messages = [
        script(
            dir.path(),
            "a",
            &format!("echo > {}; read x < {}", one.display(), other.display()),
        ),
        script(
            dir.path(),
            "b",
            &format!("read x < {}; echo > {}", one.display(), other.display()),
        ),
    ];
    assert!(run(&messages, &["--jobs", "2"]).status.success());
}

#[test]
fn one_that_fails_is_named_and_the_others_run() {
    let dir = tempfile::tempdir().unwrap();
    let messages = [
        script(dir.path(), "a", "echo of the first; exit 101"),
        script(dir.path(), "b", "echo of the second"),
    ];
    let output = run(&messages, &["--jobs", "1"]);
    let (said, complained) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    assert_eq!(output.status.code(), Some(1), "{complained}");
    assert!(
        said.contains("of the first\n") && said.contains("of the second\n"),
        "{said}"
    );
    let package = dir.path().file_name().unwrap().display();
    assert_eq!(complained, format!("kubebrain-run-tests: failed: {package} a\n"));
}
