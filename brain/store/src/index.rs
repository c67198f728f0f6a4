//! The background task that builds the index of keys and keeps it up to date.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::state::StoreState;
use engine::rows::RowsError;
use mvcc::key_index::{IndexPhase, KeyIndex};
use mvcc::op::Span;
use mvcc::view::View;

/// Keys that are added at once.
const KEYS_PER_PIECE: usize = 2_048;

/// Pauses of a build, as a multiple of the time that its last piece took: clients come first.
const PAUSE_FACTOR: u32 = 3;

/// Delay before a build continues that waits for a view, or whose rows cannot be read.
const VIEW_WAIT_DELAY: Duration = Duration::from_millis(5);
const READ_RETRY_DELAY: Duration = Duration::from_secs(5);

/// Delay before an index is built again that took too much memory: keys may have been deleted.
const REBUILD_DELAY: Duration = Duration::from_secs(600);

/// Keeps the index of a member's keys in `max_bytes` of memory, until `stop`.
pub async fn run(state: Arc<StoreState>, max_bytes: usize, stop: CancellationToken) -> anyhow::Result<()> {
    tokio::select! {
    () = stop.cancelled() => {}
    () = keep(&state, max_bytes) => {}
    }
    Ok(())
}

async fn keep(state: &StoreState, max_bytes: usize) {
    loop {
        let index = state.view().key_index.clone();
        match index.size().phase {
            IndexPhase::Idle | IndexPhase::Building => match build(state, &index, max_bytes).await {
                Ok(()) if index.size().phase != IndexPhase::Idle => {}
                Ok(()) => tokio::time::sleep(READ_RETRY_DELAY).await,
                Err(error) => {
                    tracing::info!(%error, "cannot read rows; the index of keys is built later");
                    tokio::time::sleep(READ_RETRY_DELAY).await;
                }
            },
            IndexPhase::Serving => {
                while index.apply_some() {
                    tokio::task::yield_now().await;
                }
                index.woken().await;
                if index.size().phase == IndexPhase::Idle {
                    // Changes come too fast: it would not be built to its end.
                    tokio::time::sleep(READ_RETRY_DELAY).await;
                }
            }
            IndexPhase::Exceeded => tokio::select! {
            () = index.woken() => {}
            () = tokio::time::sleep(REBUILD_DELAY) => index.try_again(),
            },
            // The view that has another one is published in this moment.
            IndexPhase::Closed => tokio::time::sleep(VIEW_WAIT_DELAY).await,
        }
    }
}

/// Builds an index piece by piece. Returns early if it is not wanted any more.
async fn build(state: &StoreState, index: &KeyIndex, max_bytes: usize) -> Result<(), RowsError> {
    let since = Instant::now();
    let Some(begun) = index.begin(max_bytes) else {
        return Ok(());
    };
    let mut rest = Span {
        key: [0].as_slice().into(),
        end: [0].as_slice().into(),
    };
    while index.size().phase == IndexPhase::Building {
        let view = state.view();
        if view.revision < begun {
            tokio::time::sleep(VIEW_WAIT_DELAY).await;
            continue;
        }
        while index.build_up_to(view.revision) {
            tokio::task::yield_now().await;
        }
        let piece = Instant::now();
        let next = add_piece(&view, index, &rest).await;
        drop(view);
        let next = match next {
            Ok(next) => next,
            Err(error) => {
                // The part that is built stays, and changes of it are still recorded.
                tracing::info!(%error, "cannot read rows; building the index of keys resumes later");
                tokio::time::sleep(READ_RETRY_DELAY).await;
                continue;
            }
        };
        match next {
            Some(next) => rest = next,
            None => break,
        }
        tokio::time::sleep(piece.elapsed() * PAUSE_FACTOR).await;
    }
    let size = index.size();
    if size.phase == IndexPhase::Serving {
        let (keys, bytes, took) = (size.keys, size.bytes, since.elapsed());
        tracing::info!(keys, bytes, ?took, "built the index of keys");
    }
    Ok(())
}

/// Adds the first keys of a span; returns the rest of it.
async fn add_piece(view: &View, index: &KeyIndex, span: &Span) -> Result<Option<Span>, RowsError> {
    let mut cursor = view.cursor(span, view.revision, false);
    let mut keys = Vec::new();
    while keys.len() < KEYS_PER_PIECE {
        let Some(page) = cursor.next(usize::MAX).await? else {
            break;
        };
        keys.extend(page.into_iter().map(|kv| kv.key));
    }
    let rest = cursor.rest();
    index.build(&keys, rest.as_ref().map(|rest| rest.key.clone()), view.revision);
    Ok(rest)
}
