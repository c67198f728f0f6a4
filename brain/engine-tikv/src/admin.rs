//! Operations on whole ranges: physical destruction, the end of unfinished transactions.

use std::time::Duration;

use bytes::Bytes;
use tikv_client::TransactionClient;
use tokio::time::Instant;

use super::error::CallKind;
use super::read::Ts;
use super::{CallLimits, Error, LONGEST_CALL_ROUND_TRIPS, Tikv};

/// Delay before locks are requested again.
const LOCK_RETRY_DELAY: Duration = Duration::from_millis(5);

/// A range may be large, so the limits are longer than for a read. But a client that is stuck is given up soon: a member
/// that begins to lead waits for this.
const END_TRANSACTIONS_LIMITS: CallLimits = CallLimits {
    attempt: Duration::from_secs(4),
    total: Duration::from_secs(40),
};

impl Tikv {
    /// Destroys all keys of a range on every server, with all of their versions. The results of concurrent reads and writes of
    /// the range are undefined. It is tried once, and fails while a server cannot be reached: the other servers may have destroyed
    /// the range by then, and the caller must destroy it again.
    pub(crate) async fn destroy(&self, from: &Bytes, to: &Bytes, limit: Duration) -> Result<(), Error> {
        let destroy = |client: TransactionClient| {
            let range = from.to_vec()..to.to_vec();
            async move { client.unsafe_destroy_range(range).await }
        };
        let pool = &self.shared.pool;
        let limit = pool.stretched(limit, LONGEST_CALL_ROUND_TRIPS);
        pool.call_untracked("destroy", limit, destroy).await
    }

    /// Ends every transaction that was begun at `until` or before and has a lock in the range: it is rolled back unless it
    /// is committed already, also if its writer still runs.
    pub(crate) async fn end_transactions(&self, until: Ts, from: &Bytes, to: &Bytes) -> Result<(), Error> {
        let end = |client: TransactionClient| {
            let range = from.to_vec()..to.to_vec();
            async move {
                let ended = client.cleanup_locks(range, &until.timestamp()).await?;
                if ended.resolved_locks > 0 {
                    tracing::info!(locks = ended.resolved_locks, "ended unfinished transactions");
                }
                Ok(())
            }
        };
        // TiKV refuses to list locks beside one-phase commits that are under way. Those begun before `until` are soon over.
        let deadline = Instant::now() + END_TRANSACTIONS_LIMITS.attempt;
        loop {
            match self
                .shared
                .pool
                .call(CallKind::short("end_transactions"), END_TRANSACTIONS_LIMITS, end)
                .await
            {
                Err(Error::Locked(_)) if Instant::now() + LOCK_RETRY_DELAY < deadline => {
                    tokio::time::sleep(LOCK_RETRY_DELAY).await
                }
                outcome => return outcome,
            }
        }
    }
}
