//! The alerts, by Prometheus' own promtool: it parses every expression, and raises them on series that are made up.

use std::path::Path;
use std::process::Command;

use programs::progress::Progress;
use programs::tools::cache::ToolCache;
use programs::tools::go;

use crate::chart::{manifests, said};

/// Standard output of promtool, which must succeed.
#[track_caller]
fn promtool(arguments: &[&str], file: &Path) -> String {
    let programs = go::PROMETHEUS
        .build(&ToolCache::open().unwrap(), &Progress::stderr())
        .unwrap();
    let mut promtool = Command::new(programs.join("promtool"));
    promtool.args(arguments).arg(file).env_clear();
    said(promtool.output().unwrap())
}

#[test]
fn promtool_accepts_the_alerts() {
    let said = promtool(
        &["check", "rules", "--lint=all", "--lint-fatal"],
        &manifests("monitoring/rules.yaml"),
    );
    assert!(said.contains("rules found"), "{said}");
}

#[test]
fn alerts_are_raised_when_they_should_be() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("prometheus/rules-test.yaml");
    let said = promtool(&["test", "rules"], &tests);
    assert!(said.contains("SUCCESS"), "{said}");
}
