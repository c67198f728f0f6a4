//! Giving back the space that rows and log do not need.

use std::time::Duration;

use anyhow::Context as _;
use prost::Message as _;
use tokio::time::Instant;

use super::row::Fence;
use crate::log::Log;
use crate::rows::{Rows, Snapshot as _};
use crate::state::State;

/// How long a compaction that is under way is waited for: what it deletes, and what reads still see of it, cannot be given back.
const COMPACTION: Duration = Duration::from_secs(30);

/// How often reads are looked at meanwhile.
const LOOK: Duration = Duration::from_millis(20);

/// Gives back what compaction made superfluous, of the log first: that needs no room.
///
/// # Errors
/// When log or rows fail, or have no room for it.
pub async fn defragment<L: Log, R: Rows>(log: &L, rows: &R, state: &State<R>) -> anyhow::Result<()> {
    let begun = Instant::now();
    while !is_deleted(state).await? {
        if begun.elapsed() >= COMPACTION {
            tracing::warn!(limit = ?COMPACTION, "the compaction that is under way takes long: its space is given back later");
            break;
        }
        tokio::time::sleep(LOOK).await;
    }
    log.shrink().await?;
    Ok(rows.compact().await?)
}

/// Whether the rows that are read now lack all that compaction made superfluous.
async fn is_deleted<R: Rows>(state: &State<R>) -> anyhow::Result<bool> {
    let view = state.view();
    let Some(fence) = view.rows.fence().await? else {
        return Ok(true);
    };
    let fence = Fence::decode(fence).context("decode the fence")?;
    Ok(fence.deleted_up_to >= view.compacted)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::log::MemLog;
    use crate::replica::Replica;
    use crate::rows::mem::MemRows;

    #[tokio::test(start_paused = true)]
    async fn compaction_under_way_is_waited_for_up_to_a_limit() {
        let rows = MemRows::new();
        let fence = Fence {
            revision: 9,
            compacted: 9,
            deleted_up_to: 5,
            ..Fence::fresh()
        };
        let stored = Bytes::from(fence.encode_to_vec());
        rows.apply(None, stored.clone(), Vec::new()).await.unwrap();
        let log = MemLog::new();
        let mut replica = Replica::load(&log, &rows).await.unwrap();
        let state = replica.state().clone();
        let begun = Instant::now();
        defragment(&log, &rows, &state).await.unwrap();
        assert_eq!(begun.elapsed(), COMPACTION);
        let done = Fence {
            deleted_up_to: 9,
            ..fence
        };
        rows.apply(Some(stored), done.encode_to_vec().into(), Vec::new())
            .await
            .unwrap();
        let begun = Instant::now();
        let shown = async {
            tokio::time::sleep(5 * LOOK).await;
            let snapshot = rows.snapshot().await.unwrap();
            replica.swap_rows(crate::replica::Flushed {
                through: None,
                snapshot,
            });
        };
        let (outcome, ()) = tokio::join!(defragment(&log, &rows, &state), shown);
        outcome.unwrap();
        assert!(
            (5 * LOOK..COMPACTION).contains(&begun.elapsed()),
            "{:?}",
            begun.elapsed()
        );
    }
}
