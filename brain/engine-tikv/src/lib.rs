//! The engines of a TiKV cluster: log, rows and registers below one prefix of its keys. Only this crate talks to TiKV, and no type of the
//! client leaves it. It must not know etcd, nor other engines.
//!
//! It adds what the client lacks: a limit on every call (the client has none for a whole one), retries of transient errors (a busy server
//! is reported at once), several connections, replacement of stuck clients, reloading of certificates, and an exact classification
//! of failed commits (`error.rs`). Two features are never used: async commit, which loses acknowledged writes with this client, and
//! heartbeats, which leave a task running after each transaction.
//!
//! There are only three kinds of writes: `insert` of one key, once (slots); `swap` of one key (registers); and `write`, a
//! transaction of any size whose primary key is a fence (rows). The first two are one mutation each and commit in one phase: they
//! never leave a lock. An unknown outcome is resolved in three ways: an insert by repeating it, a swap by rolling it back, a fenced
//! write by reading the fence.

use std::sync::Arc;
use std::time::Duration;

pub use cas_register::TikvRegister;
pub use log::TikvLog;
pub use metrics::TikvMetrics;
pub use options::{ConnectOptions, GcOwner, TikvTls};
pub use reconnect::ConnectionSupervisor;
use reconnect::connect_timeout;
pub use rows::{MAX_VALUE_LEN, TikvRows, TikvSnapshot};
pub use wipe::{Reclaim, WipePart};

pub(crate) use error::Error;
pub(crate) use keys::Keys;
pub(crate) use pool::CallLimits;
pub(crate) use read::{ScanRange, Ts};
pub(crate) use write::{FencedOutcome, FencedWrite, Mutation};

mod admin;
mod cas_register;
mod error;
mod gc;
mod keys;
mod log;
mod metrics;
mod options;
mod pd;
mod pin;
mod pool;
mod read;
mod reconnect;
mod regions;
mod rows;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod wipe;
mod write;

/// The register with the id of the TiKV cluster on which the store was begun.
const CLUSTER_REGISTER: &str = "cluster";

/// Short calls that take as long as the longest call that is made of a few requests, about: a transaction in two phases.
const LONGEST_CALL_ROUND_TRIPS: u32 = 6;

/// Checks the options of a connection, and the files that they name; no request is sent.
pub fn check(options: &ConnectOptions) -> anyhow::Result<()> {
    options.check().map_err(anyhow::Error::msg)?;
    pd::PdClient::new(options).check()
}

/// A connection to a TiKV cluster, for the keys with one prefix. Clones share it.
#[derive(Clone)]
pub struct Tikv {
    shared: Arc<TikvInner>,
}

struct TikvInner {
    options: ConnectOptions,
    keys: Keys,
    cluster_id: u64,
    pool: pool::ClientPool,
    pd: pd::PdClient,
    regions: regions::RegionCache,
}

/// The reason why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The options are invalid: report them to the user.
    #[error("{0}")]
    Options(String),
    /// The store was begun on another cluster: refuse, change nothing.
    #[error("the store belongs to TiKV cluster {pinned}, but the addresses of PD belong to cluster {found}")]
    OtherCluster {
        /// The cluster that the store was begun on.
        pinned: u64,
        /// The cluster that was found.
        found: u64,
    },
    /// PD belongs to another cluster than the options name: refuse, change nothing.
    #[error("--tikv-cluster-id is {wanted}, but the addresses of PD belong to cluster {found}")]
    UnwantedCluster {
        /// The cluster that the options name.
        wanted: u64,
        /// The cluster that was found.
        found: u64,
    },
    /// Stored bytes are not what was written: refuse.
    #[error("the register {0:?} does not hold a cluster id")]
    Corrupt(&'static str),
    /// TiKV cannot be reached: try again later.
    #[error("TiKV cannot be reached")]
    Unreachable(#[source] anyhow::Error),
}

impl Tikv {
    /// Connects, and pins a new store to the cluster. The [`ConnectionSupervisor`] must run as long as the connection is used.
    pub async fn connect(options: ConnectOptions) -> Result<(Tikv, ConnectionSupervisor), ConnectError> {
        let (tikv, supervisor) = Self::attach(options).await?;
        tikv.pin().await?;
        Ok((tikv, supervisor))
    }

    /// Connects, but neither writes anything nor checks on which cluster the store was begun.
    pub async fn attach(options: ConnectOptions) -> Result<(Tikv, ConnectionSupervisor), ConnectError> {
        options.check().map_err(ConnectError::Options)?;
        let keys =
            Keys::new(&options.key_prefix).ok_or_else(|| ConnectError::Options("the key prefix is too long".into()))?;
        let pd = pd::PdClient::new(&options);
        let reached = pd.reach().await.map_err(ConnectError::Unreachable)?;
        if let Some(wanted) = options.cluster_id.filter(|wanted| *wanted != reached.cluster_id) {
            let found = reached.cluster_id;
            return Err(ConnectError::UnwantedCluster { wanted, found });
        }
        let pool = pool::ClientPool::connect(&options, &reached.endpoints).await;
        let pool = pool.map_err(ConnectError::Unreachable)?;
        let shared = Arc::new(TikvInner {
            options,
            keys,
            cluster_id: reached.cluster_id,
            pool,
            pd,
            regions: regions::RegionCache::default(),
        });
        let supervisor = ConnectionSupervisor::new(shared.clone()).map_err(ConnectError::Unreachable)?;
        Ok((Tikv { shared }, supervisor))
    }

    /// Returns the id of the TiKV cluster, which PD chose when the cluster was created.
    #[must_use]
    pub fn cluster_id(&self) -> u64 {
        self.shared.cluster_id
    }

    /// Returns a register of this store. Its name is part of the format. A request takes as long as a read or an append may.
    #[must_use]
    pub fn register(&self, name: &str) -> TikvRegister {
        TikvRegister::new(self.clone(), self.keys().register(name))
    }

    /// Returns the same register for an election: a leader loses its lead if it does not renew its record within `renew_deadline`.
    #[must_use]
    pub fn election_register(&self, name: &str, renew_deadline: Duration) -> TikvRegister {
        TikvRegister::reading_ahead(self.clone(), self.keys().register(name), renew_deadline)
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.shared.keys
    }

    /// Returns the limits of reads and appends at this moment: a cluster that is slow stretches them.
    fn limits(&self) -> CallLimits {
        let TikvInner { options, pool, .. } = &*self.shared;
        let total = match pool.has_answered() {
            true => pool.stretched(options.timeout, LONGEST_CALL_ROUND_TRIPS),
            false => options.timeout * options.patience,
        };
        CallLimits {
            attempt: (options.rpc_timeout + options.rpc_timeout / 4).min(total),
            total,
        }
    }

    /// Returns the age up to which a snapshot is used.
    pub(crate) fn snapshot_age(&self) -> Duration {
        self.shared.options.gc_window / 2
    }
}

impl std::fmt::Debug for Tikv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tikv")
            .field("cluster_id", &self.shared.cluster_id)
            .field("pd_endpoints", &self.shared.options.pd_endpoints)
            .finish_non_exhaustive()
    }
}
