//! State shared by PD and all stores.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio_util::task::TaskTracker;

use super::gc::GcStates;
use crate::delays::Delays;
use crate::engine::Engine;
use crate::faults::Faults;
use crate::gate::{Gate, SilentRegions};
use crate::rpc::Counters;
use crate::tso::Tso;

/// PD's number among the processes; stores count from one.
pub(crate) const PD: u64 = 0;

/// The number of the second member of PD, if it has several; the others follow.
const SECOND_PD: u64 = 1 << 32;

/// Returns the number of a member of PD, which count from 0, among the processes.
pub(crate) fn pd_process(member: usize) -> u64 {
    match member {
        0 => PD,
        _ => SECOND_PD + member as u64 - 1,
    }
}

/// Returns true if a process is a member of PD.
pub(crate) fn is_pd(process: u64) -> bool {
    process == PD || process >= SECOND_PD
}

/// The members of PD. One leads and answers everything; the others name it.
#[derive(Debug)]
pub(crate) struct PdMembers {
    pub(crate) number: usize,
    state: Mutex<PdState>,
}

#[derive(Debug)]
struct PdState {
    leader: u64,
    /// Members that name no leader, as those that an election has not reached.
    unaware: BTreeSet<u64>,
}

impl PdMembers {
    pub(crate) fn new(number: usize) -> Self {
        let state = PdState {
            leader: PD,
            unaware: BTreeSet::new(),
        };
        Self {
            number,
            state: Mutex::new(state),
        }
    }

    pub(crate) fn lead(&self, process: u64) {
        self.state().leader = process;
    }

    pub(crate) fn set_aware(&self, process: u64, aware: bool) {
        let mut state = self.state();
        match aware {
            true => state.unaware.remove(&process),
            false => state.unaware.insert(process),
        };
    }

    pub(crate) fn leads(&self, process: u64) -> bool {
        self.state().leader == process
    }

    /// The leader as a member knows it.
    pub(crate) fn leader_by(&self, process: u64) -> Option<u64> {
        let state = self.state();
        (!state.unaware.contains(&process)).then_some(state.leader)
    }

    fn state(&self) -> MutexGuard<'_, PdState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The mock but for its listeners.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) cluster_id: u64,
    pub(crate) engine: Engine,
    pub(crate) tso: Tso,
    pub(crate) faults: Faults,
    pub(crate) delays: Delays,
    pub(crate) pd_members: PdMembers,
    pub(crate) counters: Counters,
    /// Requests that continue after their callers have left.
    pub(crate) late: TaskTracker,
    pub(crate) gc: GcStates,
    pub(crate) gates: BTreeMap<u64, Gate>,
    pub(crate) silent: SilentRegions,
    /// PD's URL and the stores' addresses as clients get them; known once all listen.
    pub(crate) addresses: OnceLock<BTreeMap<u64, String>>,
}

impl Shared {
    pub(crate) fn address(&self, process: u64) -> String {
        self.addresses
            .get()
            .and_then(|all| all.get(&process))
            .cloned()
            .unwrap_or_default()
    }
}

/// PD or one store: what a request arrives at.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) shared: Arc<Shared>,
    pub(crate) id: u64,
}

impl Process {
    /// Waits while the process is paused.
    pub(crate) async fn running(&self) {
        if let Some(gate) = self.shared.gates.get(&self.id) {
            gate.pass().await;
        }
    }

    /// Waits while the process is paused, or the region is silent that a request is for.
    pub(crate) async fn answering(&self, region: Option<u64>) {
        self.running().await;
        let Some(region) = region else { return };
        let contains = |key: &[u8]| {
            let tables = self.shared.engine.read();
            tables.regions.by_id(region).is_some_and(|region| region.contains(key))
        };
        self.shared.silent.pass(contains).await;
    }

    /// Waits until an answer that is ready now is due.
    pub(crate) async fn late(&self) {
        let by = self.shared.delays.draw(self.id);
        if !by.is_zero() {
            tokio::time::sleep(by).await;
        }
    }
}
