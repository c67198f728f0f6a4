//! The architectures that a release has programs for.

use programs::tools::debian::DebianPackage;

/// An architecture, by the name that Go and container images use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Arch {
    Amd64,
    Arm64,
}

impl Arch {
    /// The name in images and file names.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Arch::Amd64 => "amd64",
            Arch::Arm64 => "arm64",
        }
    }

    /// Rust's name of the target.
    pub(crate) fn target(self) -> &'static str {
        match self {
            Arch::Amd64 => "x86_64-unknown-linux-gnu",
            Arch::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// The `objcopy` that knows programs of this architecture.
    pub(crate) fn objcopy(self) -> &'static str {
        match self {
            Arch::Amd64 => "x86_64-linux-gnu-objcopy",
            Arch::Arm64 => "aarch64-linux-gnu-objcopy",
        }
    }
}

/// Debian's packages that packing programs of these architectures needs.
pub(crate) fn packages(archs: &[Arch]) -> Vec<DebianPackage> {
    let mut packages = vec![
        DebianPackage {
            brings: "buildah",
            name: "buildah",
        },
        DebianPackage {
            brings: "tar",
            name: "tar",
        },
    ];
    packages.extend(archs.iter().map(|arch| DebianPackage {
        brings: arch.objcopy(),
        name: match arch {
            Arch::Amd64 => "binutils-x86-64-linux-gnu",
            Arch::Arm64 => "binutils-aarch64-linux-gnu",
        },
    }));
    packages
}
