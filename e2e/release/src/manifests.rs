//! The chart as a package, and the operator's manifests as one file.

use std::path::Path;
use std::process::Command;

use programs::command::output;

/// Packages the chart, whose version is in its `Chart.yaml`, into a directory.
///
/// # Errors
/// Helm fails.
pub(crate) fn package_chart(helm: &Path, chart: &Path, directory: &Path) -> anyhow::Result<()> {
    let home = tempfile::tempdir()?;
    let mut command = Command::new(helm);
    command.arg("package").arg(chart).arg("--destination").arg(directory);
    output(command.env("HOME", home.path()))?;
    Ok(())
}

/// Returns what `kubectl apply -k` would apply.
///
/// # Errors
/// kubectl fails.
pub(crate) fn kustomize(kubectl: &Path, directory: &Path) -> anyhow::Result<String> {
    output(Command::new(kubectl).arg("kustomize").arg(directory))
}
