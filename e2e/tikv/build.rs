//! Compiles the server side of PD's and TiKV's services from the `.proto` files that the client crate ships, so that
//! the stand-in and the client under test speak of the same messages. No system `protoc`, no copy of the files.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, bail, ensure};
use serde_json::Value;

/// The package whose directory holds `proto/` and `proto/include/`.
const CLIENT: &str = "tikv-client";

fn main() -> anyhow::Result<()> {
    let proto = client_directory()?.join("proto");
    let include = proto.join("include");
    println!("cargo:rerun-if-changed={}", proto.display());
    println!("cargo:rerun-if-changed=build.rs");
    let files = protox::compile(["pdpb.proto", "keyspacepb.proto", "tikvpb.proto"], [&proto, &include])
        .with_context(|| format!("compile the messages in {}", proto.display()))?;
    let mut builder = tonic_prost_build::configure();
    for field in [
        "region_error",
        "KvPair.error",
        "GetResponse.error",
        "ScanResponse.error",
    ] {
        // Errors are large and rare: inline, every pair of a scan would carry room for one.
        builder = builder.boxed(field);
    }
    builder
        .build_client(false)
        .generate_default_stubs(true)
        .bytes(".")
        .disable_comments(["."])
        .include_file("kvproto.rs")
        .compile_fds(files)?;
    Ok(())
}

/// Where cargo keeps the client crate's sources: of the locked version, wherever this machine keeps packages.
fn client_directory() -> anyhow::Result<PathBuf> {
    // A build of this package alone has not fetched what other packages need, and offline cargo then refuses to list.
    let listing = match metadata(true) {
        Ok(listing) => listing,
        Err(_) => metadata(false)?,
    };
    let packages = listing["packages"]
        .as_array()
        .context("cargo metadata lists no packages")?;
    let mut manifests = packages
        .iter()
        .filter(|package| package["name"] == CLIENT)
        .map(|package| &package["manifest_path"]);
    let Some(manifest) = manifests.next() else {
        bail!("{CLIENT} is not among the workspace's packages")
    };
    ensure!(
        manifests.next().is_none(),
        "more than one version of {CLIENT} is locked"
    );
    let manifest = PathBuf::from(manifest.as_str().context("a manifest_path that is no text")?);
    Ok(manifest.parent().context("a manifest without a directory")?.to_owned())
}

fn metadata(offline: bool) -> anyhow::Result<Value> {
    let mut command = Command::new(std::env::var_os("CARGO").context("CARGO is not set")?);
    command.args(["metadata", "--locked", "--format-version", "1", "--filter-platform"]);
    command.arg(std::env::var_os("TARGET").context("TARGET is not set")?);
    if offline {
        command.arg("--offline");
    }
    let output = command.output().context("run cargo metadata")?;
    ensure!(
        output.status.success(),
        "cargo metadata: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    serde_json::from_slice(&output.stdout).context("read the output of cargo metadata")
}
