//! The versions: that of etcd which is emulated, and that of kubebrain.

/// The version of etcd whose behaviour is served; clients determine the available features by it.
pub const ETCD: &str = "3.6.16";

/// The cluster version in etcd's format: without a patch level.
pub const CLUSTER: &str = "3.6.0";

/// The version of kubebrain.
pub const KUBEBRAIN: &str = env!("CARGO_PKG_VERSION");

/// Returns the lines of `--version`: etcd's format, with kubebrain's version added.
#[must_use]
pub fn describe() -> String {
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    format!("etcd Version: {ETCD}\nkubebrain Version: {KUBEBRAIN}\nOS/Arch: {os}/{arch}\n")
}
