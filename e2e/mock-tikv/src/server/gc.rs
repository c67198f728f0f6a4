//! The safe points of PD. Kept in memory only: a safe point that was reached is in the data.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tonic::Status;

use super::shared::Process;
use crate::engine::Failure;
use crate::options::GcApi;
use crate::proto::pdpb;

/// The service that stands for the owner of GC.
const GC_OWNER_SERVICE: &str = "gc_worker";

/// The services that hold versions, and the safe point below which transactions may not count on them.
#[derive(Debug)]
pub(crate) struct GcStates {
    api: GcApi,
    state: Mutex<GcState>,
}

#[derive(Debug, Default)]
struct GcState {
    /// The safe point of transactions.
    txn: u64,
    services: BTreeMap<String, u64>,
}

impl GcState {
    /// The lowest safe point, of all services or of all but the owner.
    fn lowest(&self, with_owner: bool) -> Option<(&str, u64)> {
        let services = self
            .services
            .iter()
            .filter(|&(id, _)| with_owner || id != GC_OWNER_SERVICE);
        let lowest = services.min_by_key(|&(_, &safe_point)| safe_point);
        lowest.map(|(id, &safe_point)| (id.as_str(), safe_point))
    }

    /// Moves the safe point of transactions to `target` or as far as barriers permit; answers with who holds it back.
    fn advance_txn(&mut self, target: u64) -> Result<Option<String>, String> {
        if target < self.txn {
            let text = format!("current value: {}, given: {target}", self.txn);
            return Err(format!(
                "[PD:gc:ErrDecreasingTxnSafePoint]trying to update txn safe point to a smaller value, {text}"
            ));
        }
        let barrier = self.lowest(false).filter(|&(_, safe_point)| safe_point < target);
        let by = barrier.map(|(id, _)| id.to_owned());
        self.txn = self.txn.max(barrier.map_or(target, |(_, safe_point)| safe_point));
        Ok(by)
    }
}

impl GcStates {
    pub(crate) fn new(api: GcApi) -> Self {
        Self {
            api,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, GcState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn hold(&self, service: &str, until: u64) {
        self.state().services.insert(service.to_owned(), until);
    }

    fn check_states(&self) -> Result<(), Status> {
        match self.api {
            GcApi::States => Ok(()),
            GcApi::Services => Err(Status::unimplemented("")),
        }
    }

    /// Sets what a service holds; answers with who holds most.
    pub(super) fn update_service(&self, id: &str, safe_point: u64) -> Result<(String, u64), Status> {
        let mut state = self.state();
        match self.api {
            GcApi::States if id == GC_OWNER_SERVICE => {
                let by = state.advance_txn(safe_point).map_err(Status::unknown)?;
                return Ok((by.unwrap_or_else(|| GC_OWNER_SERVICE.to_owned()), state.txn));
            }
            GcApi::States => drop(state.services.insert(id.to_owned(), safe_point)),
            GcApi::Services => {
                state.services.entry(GC_OWNER_SERVICE.to_owned()).or_default();
                if state.lowest(true).is_none_or(|(_, lowest)| safe_point >= lowest) {
                    state.services.insert(id.to_owned(), safe_point);
                }
            }
        }
        let lowest = state.lowest(true).map(|(id, lowest)| (id.to_owned(), lowest));
        Ok(lowest.unwrap_or_else(|| (GC_OWNER_SERVICE.to_owned(), state.txn)))
    }

    /// The answer to a request that moves the safe point of transactions, without its header; or why it was not moved.
    pub(super) fn advance_txn(&self, target: u64) -> Result<Result<pdpb::AdvanceTxnSafePointResponse, String>, Status> {
        self.check_states()?;
        let mut state = self.state();
        let old_txn_safe_point = state.txn;
        Ok(state.advance_txn(target).map(|by| pdpb::AdvanceTxnSafePointResponse {
            header: None,
            old_txn_safe_point,
            new_txn_safe_point: state.txn,
            blocker_description: by.unwrap_or_default(),
        }))
    }

    /// Checks that the safe point of GC may be moved from `old` to `target` by a request of the newer kind.
    pub(super) fn check_advance(&self, old: u64, target: u64) -> Result<Result<(), String>, Status> {
        self.check_states()?;
        if target < old {
            let text = format!("current value: {old}, given: {target}");
            return Ok(Err(format!(
                "[PD:gc:ErrDecreasingGCSafePoint]trying to update gc safe point to a smaller value, {text}"
            )));
        }
        Ok(self.check_update(target))
    }

    /// Checks that the safe point of GC may be moved to `target`.
    pub(super) fn check_update(&self, target: u64) -> Result<(), String> {
        let txn = self.state().txn;
        match self.api {
            GcApi::States if target > txn => Err(format!(
                "[PD:gc:ErrGCSafePointExceedsTxnSafePoint]trying to update GC safe point to a too large value that exceeds \
                 the txn safe point, given: {target}, current txn safe point: {txn}"
            )),
            _ => Ok(()),
        }
    }
}

/// Raises the safe point of GC, unless it is further already, and answers with where it is.
///
/// Stores collect in their own time; here before the answer, so that reads below the safe point meet the holes.
/// It is carried to its end also when the caller leaves.
pub(super) async fn collect(at: &Process, safe_point: u64) -> Result<u64, Status> {
    if safe_point > at.shared.engine.read().safe_point {
        let shared = Arc::clone(&at.shared);
        let collected = at
            .shared
            .late
            .spawn(async move { shared.engine.collect(safe_point).await });
        let collected = collected.await.map_err(|error| Status::internal(error.to_string()))?;
        collected.map_err(|failure| match failure {
            Failure::Region(error) => Status::unavailable(error.message),
            Failure::Call(status) => status,
        })?;
    }
    Ok(at.shared.engine.read().safe_point)
}
