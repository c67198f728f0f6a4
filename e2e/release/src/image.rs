//! Images for several architectures in one OCI archive, built by buildah.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use programs::command::output;

use crate::arch::Arch;

/// Builds the image from one directory of files per architecture. The archive has an index that names all of them.
///
/// # Errors
/// buildah fails.
pub(crate) fn build(
    containerfile: &Path,
    contents: &[(Arch, PathBuf)],
    tag: &str,
    archive: &Path,
) -> anyhow::Result<()> {
    let storage = tempfile::tempdir()?;
    let buildah = || {
        let mut command = Command::new("buildah");
        command
            .args(["--storage-driver", "vfs", "--root"])
            .arg(storage.path().join("root"));
        command.arg("--runroot").arg(storage.path().join("run"));
        command
    };
    for (arch, directory) in contents {
        let mut bud = buildah();
        bud.args([
            "bud",
            "--isolation",
            "chroot",
            "--timestamp",
            "0",
            "--arch",
            arch.name(),
            "--manifest",
            tag,
        ]);
        bud.arg("--file").arg(containerfile).arg(directory);
        output(&mut bud)?;
    }
    // buildah adds to an archive that exists.
    if archive.exists() {
        fs::remove_file(archive).with_context(|| format!("replace {}", archive.display()))?;
    }
    let destination = format!("oci-archive:{}:{tag}", archive.display());
    output(buildah().args(["manifest", "push", "--all", tag, &destination]))?;
    Ok(())
}
