//! Versions: etcd's that we answer for, and our own.

/// The version of etcd whose behaviour is served; clients decide by it what they may ask.
pub const ETCD: &str = "3.6.16";

/// The version of the cluster as etcd words it: no patch level.
pub const CLUSTER: &str = "3.6.0";

/// Our own version.
pub const KUBEBRAIN: &str = env!("CARGO_PKG_VERSION");

/// The lines of `--version`: etcd's shape, and our own.
#[must_use]
pub fn describe() -> String {
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    format!("etcd Version: {ETCD}\nkubebrain Version: {KUBEBRAIN}\nOS/Arch: {os}/{arch}\n")
}
