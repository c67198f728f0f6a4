//! Renders all install manifests of KubeBrain into directories that are committed and never edited by hand.
//!
//! `kubectl apply -k manifests/yaml` and `helm install … manifests/helm/kubebrain-operator` install this output. A test fails when the
//! committed files differ from it.

use std::path::PathBuf;

use anyhow::Context;
use clap::Parser;

mod admission;
mod argocd;
mod chart;
mod deployment;
mod install;
mod kustomize;
mod monitoring;
mod network;
mod rbac;
mod render;
mod samples;

/// Renders the install manifests.
#[derive(Parser)]
#[command(version)]
struct Flags {
    /// Directory to write yaml, helm, argocd and monitoring to; what was in these is removed
    #[arg(long, default_value = env!("CARGO_MANIFEST_DIR"))]
    out: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let flags = Flags::parse();
    let files = render::files()?;
    for root in render::ROOTS {
        let path = flags.out.join(root);
        match std::fs::remove_dir_all(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("remove {}", path.display())),
        }
    }
    for (name, text) in files {
        let path = flags.out.join(name);
        let parent = path.parent().context("a manifest has a parent directory")?;
        std::fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}
