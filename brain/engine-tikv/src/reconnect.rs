//! The background task of a connection to TiKV: replaces unhealthy clients and those with old certificates.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::TikvInner;
use super::options::TikvTls;
use runtime::backoff::Backoff;
use runtime::log_once::LogBackoff;

/// The delay before clients are replaced again: a cluster that is back must be used within seconds.
const RECONNECT_BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));

/// Initial and maximum pause between two log lines about one continuing failure.
const FIRST_LOG_INTERVAL: Duration = Duration::from_millis(500);
const MAX_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The timeout of connecting, which grows with failures. The client asks all members of PD at once, then the leader, and gives each
/// the time of one request.
const CONNECT_TIMEOUTS: Backoff = Backoff::new(Duration::from_secs(4), Duration::from_secs(16));

/// Timeouts of single requests that a connection may take at least: it needs a few answers of PD.
const ANSWERS_PER_CONNECT: u32 = 2;

/// Clients that lived this long begin with the first pause again.
const BACKOFF_RESET_TIME: Duration = Duration::from_secs(60);

/// Returns the timeout of connecting after this many failures.
#[must_use]
pub(super) fn connect_timeout(failures: u32) -> Duration {
    CONNECT_TIMEOUTS.after(failures)
}

/// Keeps a connection alive. Without it a stuck client stays stuck.
pub struct ConnectionSupervisor {
    shared: Arc<TikvInner>,
    /// Contents of the certificate files as the clients have them.
    tls: Vec<Vec<u8>>,
}

impl ConnectionSupervisor {
    pub(super) fn new(shared: Arc<TikvInner>) -> anyhow::Result<ConnectionSupervisor> {
        let tls = contents(shared.options.tls.as_ref())?;
        Ok(ConnectionSupervisor { shared, tls })
    }

    /// Runs until `stop`.
    ///
    /// # Errors
    /// Never: failed attempts are repeated.
    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut tls_tick = tokio::time::interval(self.shared.options.tls_interval);
        tls_tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let shared = self.shared.clone();
        let clients = async {
            let (mut pauses, mut failures, mut last) = (RECONNECT_BACKOFF, 0, Instant::now());
            let log_backoff = || LogBackoff::new(FIRST_LOG_INTERVAL, MAX_LOG_INTERVAL);
            let mut log = log_backoff();
            loop {
                tokio::select! {
                    () = shared.pool.unhealthy() => {
                        if last.elapsed() > BACKOFF_RESET_TIME {
                            (pauses, failures) = (RECONNECT_BACKOFF, 0);
                        }
                        match self.replace(false, connect_timeout(failures)).await {
                            Ok(()) => log = log_backoff(),
                            Err(trouble) => {
                                if log.is_due() {
                                    trouble.log(self.shared.cluster_id);
                                }
                                failures += 1;
                            }
                        }
                        last = Instant::now();
                        tokio::time::sleep(pauses.next_delay()).await;
                    }
                    _ = tls_tick.tick(), if !self.tls.is_empty() => self.look_at_certificates(connect_timeout(failures)).await,
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => Ok(()),
            () = clients => Ok(()),
        }
    }

    /// Replaces clients.
    async fn replace(&self, all: bool, limit: Duration) -> Result<(), ReconnectError> {
        let shared = &self.shared;
        let limit = limit.max(ANSWERS_PER_CONNECT * shared.options.answer_timeout());
        let reached = shared.pd.reach().await.map_err(ReconnectError::NoPd)?;
        if reached.cluster_id != shared.cluster_id {
            return Err(ReconnectError::OtherCluster(reached.cluster_id));
        }
        let (options, endpoints) = (&shared.options, &reached.endpoints);
        let replaced = shared.pool.replace(options, endpoints, all, limit).await;
        replaced.map_err(ReconnectError::NoClient)?;
        tracing::info!("reconnected to TiKV");
        Ok(())
    }

    /// Replaces clients whose certificates are no longer those in the files; those that the cluster takes.
    pub(super) async fn look_at_certificates(&mut self, limit: Duration) {
        match contents(self.shared.options.tls.as_ref()) {
            Ok(found) if found == self.tls => {}
            Ok(found) => {
                tracing::info!("the certificates for TiKV changed");
                match self.replace(true, limit).await {
                    Ok(()) => self.tls = found,
                    Err(trouble) => trouble.log(self.shared.cluster_id),
                }
            }
            Err(error) => {
                tracing::warn!(
                    error = &*error as &dyn std::error::Error,
                    "cannot read the certificates for TiKV"
                );
            }
        }
    }
}

/// The reason why clients were not replaced.
enum ReconnectError {
    OtherCluster(u64),
    NoPd(anyhow::Error),
    NoClient(anyhow::Error),
}

impl ReconnectError {
    fn log(&self, expected: u64) {
        match self {
            ReconnectError::OtherCluster(found) => tracing::error!(
                expected,
                found,
                "the addresses of PD belong to another cluster: not using it"
            ),
            ReconnectError::NoPd(error) => tracing::warn!(error = format!("{error:#}"), "PD does not answer"),
            ReconnectError::NoClient(error) => tracing::warn!(error = format!("{error:#}"), "cannot connect to TiKV"),
        }
    }
}

impl std::fmt::Debug for ConnectionSupervisor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ConnectionSupervisor(..)") // the key must not get into logs
    }
}

fn contents(tls: Option<&TikvTls>) -> anyhow::Result<Vec<Vec<u8>>> {
    use anyhow::Context;
    let Some(tls) = tls else { return Ok(Vec::new()) };
    [&tls.ca, &tls.cert, &tls.key]
        .into_iter()
        .map(|path| std::fs::read(path).with_context(|| format!("read {}", path.display())))
        .collect()
}
