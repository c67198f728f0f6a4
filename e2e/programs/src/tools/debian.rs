//! Programs that come from Debian's packages.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use super::cache;
use crate::progress::Progress;

/// A program (or, with a slash, a file) and the package that brings it.
#[derive(Clone, Copy, Debug)]
pub struct DebianPackage {
    /// `iptables`, or `/usr/lib/cni/bridge`.
    pub brings: &'static str,
    /// Debian's name of the package.
    pub name: &'static str,
}

const fn package(brings: &'static str, name: &'static str) -> DebianPackage {
    DebianPackage { brings, name }
}

/// Packages that a cluster needs.
pub const CLUSTER_PACKAGES: &[DebianPackage] = &[
    package("containerd", "containerd"),
    package("ctr", "containerd"),
    package("runc", "runc"),
    package("/usr/lib/cni/bridge", "containernetworking-plugins"),
    package("iptables", "iptables"),
    package("ip", "iproute2"),
    package("conntrack", "conntrack"),
    package("ethtool", "ethtool"),
    package("socat", "socat"),
    package("buildah", "buildah"),
    package("objcopy", "binutils"),
    package("nsenter", "util-linux"),
    package("sysctl", "procps"),
];

/// Packages by which the network and the clocks of members are disturbed.
pub const CHAOS_PACKAGES: &[DebianPackage] = &[
    package("ip", "iproute2"),
    package("nft", "nftables"),
    package("nsenter", "util-linux"),
    package(FAKETIME_LIBRARY, "libfaketime"),
];

/// The library that shows a process another time of day.
pub const FAKETIME_LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";

/// Makes sure that these packages are installed: installs the missing ones when run as root, names them otherwise.
///
/// # Errors
///
/// Not root and something is missing, or `apt-get` fails.
pub fn require(packages: &[DebianPackage], progress: &Progress) -> anyhow::Result<()> {
    let missing = missing(packages);
    if missing.is_empty() {
        return Ok(());
    }
    let command = format!("apt-get install -y --no-install-recommends {}", missing.join(" "));
    if !rustix::process::geteuid().is_root() {
        bail!("Debian packages are missing; as root: apt-get update && {command}");
    }
    // `apt-get update` does not wait for another one, as it does for dpkg's lock.
    let lock = std::env::temp_dir().join("kubebrain-apt-get.lock");
    let _alone = cache::lock(&lock, progress, "Debian packages are installed by another process")?;
    let missing = self::missing(packages);
    if missing.is_empty() {
        return Ok(());
    }
    progress.during(format_args!("install Debian packages: {}", missing.join(" ")), || {
        apt_get(["update", "-q"])?;
        apt_get(
            ["install", "-y", "-q", "--no-install-recommends"]
                .into_iter()
                .chain(missing.iter().copied()),
        )
    })?;
    match self::missing(packages)[..] {
        [] => Ok(()),
        ref still => bail!("installed, but still not found on this machine: {}", still.join(" ")),
    }
}

/// The path of a program on `PATH`, or in the directories for administrators, which a user's `PATH` lacks.
///
/// # Errors
///
/// It is in none of them.
pub fn find(program: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let administrators = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    let mut dirs = std::env::split_paths(&path).chain(administrators);
    dirs.find_map(|dir| Some(dir.join(program)).filter(|path| path.is_file()))
        .with_context(|| format!("there is no program {program} on this machine"))
}

fn missing(packages: &[DebianPackage]) -> Vec<&'static str> {
    let there = |brings: &str| {
        if brings.contains('/') {
            Path::new(brings).exists()
        } else {
            find(brings).is_ok()
        }
    };
    let mut missing: Vec<_> = packages
        .iter()
        .filter(|package| !there(package.brings))
        .map(|p| p.name)
        .collect();
    missing.sort_unstable();
    missing.dedup();
    missing
}

fn apt_get<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> anyhow::Result<()> {
    let mut command = Command::new("apt-get");
    command
        .args(["-o", "DPkg::Lock::Timeout=600"])
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive");
    // a group of its own: whatever ends us must not end dpkg half way
    let output = command.process_group(0).output().context("start apt-get")?;
    if !output.status.success() {
        bail!(
            "{command:?}: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_packages_are_named_once() {
        let of_x = [
            package("/no/such/file", "x"),
            package("no-such-program", "x"),
            package("/bin/sh", "dash"),
        ];
        assert_eq!(missing(&of_x), ["x"]);
    }

    #[test]
    fn programs_are_found_by_name() {
        assert!(find("sh").unwrap().is_absolute());
        assert_eq!(
            find("no-such").unwrap_err().to_string(),
            "there is no program no-such on this machine"
        );
    }
}
