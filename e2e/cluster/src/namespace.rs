//! A cluster's own network: node, pod and service addresses exist only in there.
//!
//! Programs enter with `nsenter --net`, not `ip netns exec`: the latter mounts a fresh /sys, in which a kubelet finds no cgroups. The
//! node's address is that of a veth whose other end is unused: a kubelet refuses loopback.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Context as _;
use programs::command::run;
use programs::tools::debian;

use crate::cluster_dir::ClusterDir;

/// The node's address.
pub const NODE: &str = "10.99.0.1";
/// Address on which the API server listens.
pub const API: &str = "10.99.0.1:6443";
/// Address of the tenant's API server.
pub const TENANT: &str = "10.96.0.20:6443";
/// The tenant's Service.
pub const TENANT_SERVICE: &str = "10.96.0.20";
/// Addresses of pods.
pub const PODS: &str = "10.244.0.0/16";
/// Those of them on the one node.
pub const NODE_PODS: &str = "10.244.0.0/24";
/// Addresses of Services.
pub const SERVICES: &str = "10.96.0.0/16";
/// The first Service's address: the API server's.
pub const API_SERVICE: &str = "10.96.0.1";
/// The cluster's name server.
pub const DNS_SERVICE: &str = "10.96.0.10";

const LINKS: &str = "
    ip link set lo up
    ip link add eth0 type veth peer name up0
    ip link set up0 up
    ip addr add 10.99.0.1/24 dev eth0
    ip link set eth0 up
    ip route add default via 10.99.0.254
    sysctl -qw net.ipv4.ip_forward=1
    sysctl -qw net.bridge.bridge-nf-call-iptables=1";

/// A network namespace, known to `ip netns` by the cluster's name.
#[derive(Clone, Debug)]
pub struct NetworkNamespace(String);

impl NetworkNamespace {
    /// That of a cluster that is up.
    pub fn of(home: &ClusterDir) -> Self {
        Self(home.netns())
    }

    /// Makes it, with the node's address in it.
    ///
    /// # Errors
    ///
    /// The kernel refuses something; most often a module is missing.
    pub fn create(home: &ClusterDir) -> anyhow::Result<Self> {
        let namespace = Self::of(home);
        run(debian::find("ip")?, ["netns", "add", &namespace.0])?;
        // if it is a module, it must be loaded; if it is built in, modprobe may not exist
        if let Ok(modprobe) = debian::find("modprobe") {
            drop(run(modprobe, ["br_netfilter"])); // the sysctl below fails if it was needed
        }
        let script = LINKS.replace("10.99.0.1/", &format!("{NODE}/"));
        let (program, mut args) = namespace.enter("sh");
        args.extend(["-ec", &script].map(OsString::from));
        run(program, args).context("set up the cluster's network")?;
        Ok(namespace)
    }

    /// The file that it is known by.
    pub fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.0)
    }

    /// The program and first arguments that run `program` in here. The process is `program` itself: nsenter replaces itself.
    pub fn enter(&self, program: impl Into<OsString>) -> (PathBuf, Vec<OsString>) {
        let net = format!("--net={}", self.path().display());
        (PathBuf::from("nsenter"), vec![net.into(), "--".into(), program.into()])
    }
}

/// The processes in a cluster's network, however they got there.
///
/// # Errors
///
/// `ip` fails for another reason than that there is no such network.
pub fn processes(home: &ClusterDir) -> anyhow::Result<Vec<u32>> {
    if !exists(home) {
        return Ok(Vec::new());
    }
    let listed = run(debian::find("ip")?, ["netns", "pids", &home.netns()])?;
    Ok(listed.split_whitespace().filter_map(|pid| pid.parse().ok()).collect())
}

/// Removes a cluster's network with all links and rules in it.
///
/// # Errors
///
/// `ip` fails for another reason than that there is no such network.
pub fn delete(home: &ClusterDir) -> anyhow::Result<()> {
    if exists(home) {
        run(debian::find("ip")?, ["netns", "del", &home.netns()])?;
    }
    Ok(())
}

fn exists(home: &ClusterDir) -> bool {
    PathBuf::from("/run/netns").join(home.netns()).exists()
}
