//! The names of the files of a release.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::arch::Arch;

pub(crate) struct Layout {
    directory: PathBuf,
    version: String,
}

impl Layout {
    pub(crate) fn new(directory: &Path, version: &str) -> Self {
        Self {
            directory: directory.to_owned(),
            version: version.to_owned(),
        }
    }

    /// Makes the directories; an earlier release in them is removed.
    pub(crate) fn create(&self) -> anyhow::Result<()> {
        match fs::remove_dir_all(&self.directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("remove {}", self.directory.display()));
            }
            _ => {}
        }
        let debug = self.directory.join("debug");
        fs::create_dir_all(&debug).with_context(|| format!("make {}", debug.display()))
    }

    pub(crate) fn write(&self, path: &Path, text: &str) -> anyhow::Result<()> {
        fs::write(path, text).with_context(|| format!("write {}", path.display()))
    }

    /// The image's name and tag, as the manifests spell them.
    pub(crate) fn tag(&self, program: &str) -> String {
        format!("kubebrain.io/{program}:{}", self.version)
    }

    pub(crate) fn image(&self, program: &str) -> PathBuf {
        self.file(&format!("{program}-{}.oci.tar", self.version))
    }

    pub(crate) fn archive(&self, program: &str, arch: Arch) -> PathBuf {
        self.file(&format!("{program}-{}-linux-{}.tar.gz", self.version, arch.name()))
    }

    pub(crate) fn debug_info(&self, program: &str, arch: Arch) -> PathBuf {
        let name = format!("{program}-{}-linux-{}.debug", self.version, arch.name());
        self.directory.join("debug").join(name)
    }

    /// The bill of materials.
    pub(crate) fn bill(&self, program: &str) -> PathBuf {
        self.file(&format!("{program}-{}.cdx.json", self.version))
    }

    /// The operator's manifests, to be applied by kubectl.
    pub(crate) fn manifests(&self) -> PathBuf {
        self.file(&format!("kubebrain-operator-{}.yaml", self.version))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}
