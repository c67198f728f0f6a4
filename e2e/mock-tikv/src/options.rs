//! Options of a mock.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Settings of a mock. The default is one store in memory, on free ports of this machine, without TLS.
#[derive(Clone, Debug)]
pub struct Options {
    /// Port 0 takes a free one.
    pub pd: SocketAddr,
    /// Members of PD; those beside the first one take free ports.
    pub pd_members: usize,
    /// One address for each store; stores are numbered from 1 in this order.
    pub stores: Vec<SocketAddr>,
    /// The host that clients get, if it is not the one that is listened on.
    pub advertised_host: Option<String>,
    /// Keeps the data; in memory when absent.
    pub data_file: Option<PathBuf>,
    /// Minimum time of every write, from its arrival until it is applied.
    pub commit_latency: Duration,
    /// Lifetime of locks that are neither committed nor rolled back; the TTL that their transaction asks for when absent.
    pub lock_ttl: Option<Duration>,
    pub cluster_id: u64,
    /// Seed of the random choice of faults.
    pub seed: u64,
    pub tls: Option<Tls>,
    pub gc: GcApi,
}

/// API by which PD learns the limit of garbage collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GcApi {
    /// By safe points of services, whose lowest the owner of GC asks for; the safe point itself is not compared with them.
    Services,
    /// As from PD 9.0 on: the safe point of transactions goes ahead, held back by barriers, and that of GC follows.
    States,
}

/// Certificates and key of PD and all stores, as PEM files. Clients must bring a certificate of the same CA.
#[derive(Clone, Debug)]
pub struct Tls {
    pub ca: PathBuf,
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// Any free port of this machine.
const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

impl Default for Options {
    fn default() -> Self {
        Self {
            pd: ANY_PORT,
            pd_members: 1,
            stores: vec![ANY_PORT],
            advertised_host: None,
            data_file: None,
            commit_latency: Duration::ZERO,
            lock_ttl: None,
            cluster_id: 7,
            seed: 0,
            tls: None,
            gc: GcApi::Services,
        }
    }
}

impl Options {
    /// The same with `count` members of PD.
    #[must_use]
    pub fn with_pd_members(mut self, count: usize) -> Self {
        self.pd_members = count;
        self
    }

    /// The same with `count` stores on free ports.
    #[must_use]
    pub fn with_stores(mut self, count: usize) -> Self {
        self.stores = vec![ANY_PORT; count];
        self
    }
}
