//! State shared by PD and all stores.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use tokio_util::task::TaskTracker;

use super::gc::GcStates;
use crate::engine::Engine;
use crate::faults::Faults;
use crate::gate::{Gate, SilentRegions};
use crate::rpc::Counters;
use crate::tso::Tso;

/// PD's number among the processes; stores count from one.
pub(crate) const PD: u64 = 0;

/// The mock but for its listeners.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) cluster_id: u64,
    pub(crate) engine: Engine,
    pub(crate) tso: Tso,
    pub(crate) faults: Faults,
    pub(crate) counters: Counters,
    /// Requests that go on without their callers.
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
}
