//! Options of the connection to TiKV.

use std::path::PathBuf;
use std::time::Duration;

use super::keys::MAX_PREFIX_LEN;
use crate::metrics::TikvMetrics;

/// The addresses of the TiKV cluster, the keys of this store in it, and the timeouts.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// Addresses of PD, `host:port` or with a scheme; at least one.
    pub pd_endpoints: Vec<String>,
    /// Certificates, if the cluster wants them. TiKV knows mutual TLS only.
    pub tls: Option<TikvTls>,
    /// The prefix of all keys of this store, at most 255 bytes.
    pub key_prefix: Vec<u8>,
    /// The only TiKV cluster that is used; whichever PD leads to, if none is named.
    pub cluster_id: Option<u64>,
    /// Connections to each TiKV server.
    pub connections: usize,
    /// Timeout of one request, at least; it is sent again after that. See [`ConnectOptions::slowest_answer`].
    pub rpc_timeout: Duration,
    /// Timeout of a read or an append, retries included, while the cluster answers quickly or not at all.
    pub timeout: Duration,
    /// Factor of the timeouts before the cluster has answered for the first time: a start waits as long as it takes.
    pub patience: u32,
    /// The slowest answer to one request that is waited for, if that takes longer than [`ConnectOptions::rpc_timeout`].
    pub slowest_answer: Duration,
    /// Timeout of connecting: short at first, doubled with each failure up to a bound.
    pub connect_timeout: Duration,
    /// Age at which the cluster's garbage collection removes old versions. A snapshot is used for half of it.
    pub gc_window: Duration,
    /// The owner of the cluster's safe point. At most one store or database of a cluster moves it.
    pub gc: GcOwner,
    /// Interval at which the certificates are checked for changes.
    pub tls_interval: Duration,
    /// The metrics that count requests.
    pub metrics: TikvMetrics,
}

/// Files of the client's TLS credentials. They are read again when they change.
#[derive(Debug, Clone)]
pub struct TikvTls {
    /// Certificates of the authority that signed PD's and TiKV's, in PEM.
    pub ca: PathBuf,
    /// Our own certificate chain, in PEM.
    pub cert: PathBuf,
    /// Its private key, in PEM.
    pub key: PathBuf,
}

/// The owner of garbage collection: versions that are too old to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GcOwner {
    /// This store, for the whole cluster, this often.
    Every(Duration),
    /// Another service.
    Foreign,
}

impl ConnectOptions {
    /// The defaults for the cluster with these addresses of PD.
    #[must_use]
    pub fn new(pd_endpoints: Vec<String>, key_prefix: impl Into<Vec<u8>>) -> ConnectOptions {
        ConnectOptions {
            pd_endpoints,
            tls: None,
            key_prefix: key_prefix.into(),
            cluster_id: None,
            connections: 4,
            rpc_timeout: Duration::from_secs(2),
            timeout: Duration::from_secs(5),
            patience: 1,
            slowest_answer: Duration::ZERO,
            connect_timeout: super::connect_timeout(0),
            gc_window: Duration::from_secs(600),
            gc: GcOwner::Foreign,
            tls_interval: Duration::from_secs(10),
            metrics: TikvMetrics::default(),
        }
    }

    /// The timeout of one request of a client, and of one to PD.
    pub(super) fn answer_timeout(&self) -> Duration {
        self.slowest_answer.max(self.rpc_timeout * self.patience)
    }

    /// A fault of the options.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.pd_endpoints.is_empty() || self.pd_endpoints.iter().any(|url| url.trim().is_empty()) {
            return Err("an address of PD is missing".into());
        }
        let mut sorted: Vec<&String> = self.pd_endpoints.iter().collect();
        sorted.sort();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("the address {} of PD is given twice", pair[0]));
        }
        if self.key_prefix.len() > MAX_PREFIX_LEN {
            let len = self.key_prefix.len();
            return Err(format!("a key prefix has at most {MAX_PREFIX_LEN} bytes, not {len}"));
        }
        if !(1..=64).contains(&self.connections) {
            return Err(format!("there are 1 to 64 connections, not {}", self.connections));
        }
        if self.rpc_timeout.is_zero() || self.timeout < self.rpc_timeout {
            return Err("a request may take longer than all of its repetitions".into());
        }
        if self.gc_window < Duration::from_secs(120) {
            return Err("the window of garbage collection is shorter than two minutes".into());
        }
        match self.gc {
            GcOwner::Every(interval) if interval < Duration::from_secs(1) => {
                Err("garbage is collected more often than once a second".into())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_cannot_work_are_named() {
        let good = || ConnectOptions::new(vec!["pd:2379".into()], "p");
        assert_eq!(good().check(), Ok(()));
        let refused = |change: fn(&mut ConnectOptions)| {
            let mut options = good();
            change(&mut options);
            options.check().unwrap_err()
        };
        assert!(refused(|options| options.pd_endpoints.clear()).contains("address"));
        assert!(refused(|options| options.pd_endpoints.push("pd:2379".into())).contains("twice"));
        assert!(refused(|options| options.key_prefix = vec![0; 256]).contains("255 bytes, not 256"));
        assert!(refused(|options| options.connections = 0).contains("1 to 64"));
        assert!(refused(|options| options.timeout = Duration::from_secs(1)).contains("longer"));
        assert!(refused(|options| options.gc_window = Duration::from_secs(60)).contains("window"));
        assert!(refused(|options| options.gc = GcOwner::Every(Duration::ZERO)).contains("once a second"));
    }
}
