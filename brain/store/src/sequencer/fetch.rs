//! Reads the rows that requests need before they are queued.

use super::command::Command;
use crate::state::StoreState;
use engine::rows::RowsError;
use etcd_types::errors::Error;
use etcd_types::types::LeaseId;
use mvcc::evaluate::{LeasePart, chosen};
use mvcc::fetch::{Extent, FetchBudget, FetchKind, FetchNeeds, Fetched};
use mvcc::op::{Op, TxnOp};
use mvcc::view::{View, ViewError};

/// Keys of a lease that are looked at before others have their turn.
const KEYS_PER_YIELD: usize = 1_000;

/// Reads what a request needs in addition to memory; `None` if it reads no rows at all.
pub(super) async fn fetched(state: &StoreState, request: &Command, extent: Extent) -> Result<Option<Fetched>, Error> {
    match request {
        Command::Write(op, _) => {
            let path = match op {
                Op::Txn(txn) if extent == Extent::Expected && txn.looks_at_many() => {
                    Some((txn, Box::pin(chosen_now(state, txn)).await?))
                }
                _ => None,
            };
            // Only now: it may have taken long.
            let view = state.view();
            let needs = match &path {
                Some((txn, path)) => FetchNeeds::expected(txn, path, &view),
                None => FetchNeeds::of(op, &view),
            };
            if let Some(fetched) = needs.in_memory(&view) {
                return Ok(Some(fetched));
            }
            let budget = state.fetches().budget(FetchKind::Writes);
            Box::pin(fetch(state, &view, needs, budget)).await.map(Some)
        }
        Command::Revoke { id, .. } => {
            let keys = async {
                let keys = state.leases().attached_count(*id);
                let budget = state.fetches().budget_for_lease(FetchKind::Writes, keys).await?;
                keys_of_lease(state, *id, LeasePart::ALL, budget).await
            };
            Box::pin(keys).await.map(Some)
        }
        Command::Compact(_)
        | Command::Grant(..)
        | Command::Checkpoint(_)
        | Command::Alarm(..)
        | Command::Auth(..)
        | Command::Token { .. } => Ok(None),
    }
}

/// The branches that a txn takes as far as everything is published.
async fn chosen_now(state: &StoreState, txn: &TxnOp) -> Result<Vec<bool>, Error> {
    let budget = state.fetches().budget(FetchKind::Writes);
    let path = chosen(&state.view(), state.leases_mutex(), txn, budget).await;
    path.map_err(|error| refused(state, error))
}

/// Reads the first keys of a lease, no more than a part.
pub(super) async fn keys_of_lease(
    state: &StoreState,
    id: LeaseId,
    part: LeasePart,
    budget: FetchBudget,
) -> Result<Fetched, Error> {
    // The view first: keys that are attached later are in memory.
    let view = state.view();
    let mut needs = FetchNeeds::default();
    let mut bytes = 0;
    for (n, key) in state.lease_keys(id).take(part.keys).enumerate() {
        if bytes >= part.bytes {
            break;
        }
        bytes += key.len();
        needs.add_key(&key, &view);
        if n % KEYS_PER_YIELD == KEYS_PER_YIELD - 1 {
            tokio::task::yield_now().await;
        }
    }
    if let Some(fetched) = needs.in_memory(&view) {
        return Ok(fetched);
    }
    fetch(state, &view, needs, budget).await
}

async fn fetch(state: &StoreState, view: &View, needs: FetchNeeds, budget: FetchBudget) -> Result<Fetched, Error> {
    let fetched = needs.fetch(view, || state.view(), budget).await;
    fetched.map_err(|error| refused(state, error))
}

/// The client's error for a read that failed.
fn refused(state: &StoreState, error: ViewError) -> Error {
    match error {
        ViewError::Refused(error) => error,
        ViewError::Rows(error) => {
            let source = &error as &dyn std::error::Error;
            match &error {
                RowsError::Corrupt(_) => {
                    tracing::error!(
                        error = source,
                        "rows that a write needs are damaged: this member stops serving"
                    );
                    state.set_corrupt();
                    return Error::Corrupt;
                }
                // The supervisor of the connection logs this once, rather than for each read.
                RowsError::Unavailable(_) | RowsError::Unknown(_) => {
                    tracing::debug!(error = source, "cannot read rows that a write needs");
                }
                _ => tracing::error!(error = source, "cannot read rows that a write needs"),
            }
            Error::Timeout
        }
    }
}
