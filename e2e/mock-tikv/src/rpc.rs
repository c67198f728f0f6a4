//! The kinds of requests, and how often each came.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

macro_rules! rpcs {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A kind of request. In JSON in `snake_case`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Rpc { $($(#[$doc])* $name,)* }

        impl Rpc {
            /// Every kind there is.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
        }
    };
}

rpcs! {
    Get,
    BatchGet,
    Scan,
    Prewrite,
    Commit,
    BatchRollback,
    CheckTxnStatus,
    CheckSecondaryLocks,
    ResolveLock,
    ScanLock,
    TxnHeartBeat,
    PessimisticLock,
    PessimisticRollback,
    UnsafeDestroyRange,
    GetMembers,
    /// One message on the stream of timestamps, however many it asks for.
    Tso,
    GetRegion,
    GetRegionById,
    GetStore,
    GetAllStores,
    ScanRegions,
    UpdateGcSafePoint,
    UpdateServiceGcSafePoint,
    AdvanceGcSafePoint,
    AdvanceTxnSafePoint,
    LoadKeyspace,
}

impl Rpc {
    /// Returns true if it goes to PD.
    #[must_use]
    pub fn is_pd(self) -> bool {
        self >= Self::GetMembers
    }

    /// Returns true if it is sent to a region and can be answered with a region error.
    #[must_use]
    pub fn is_regional(self) -> bool {
        self < Self::UnsafeDestroyRange
    }
}

/// Requests received since the start or the last reset, faulted ones included.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    by_rpc: [AtomicU64; Rpc::ALL.len()],
}

impl Counters {
    pub(crate) fn count(&self, rpc: Rpc) {
        self.by_rpc[rpc as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of each kind; kinds that never came are left out.
    pub(crate) fn read(&self) -> BTreeMap<Rpc, u64> {
        let counts = Rpc::ALL
            .iter()
            .map(|&rpc| (rpc, self.by_rpc[rpc as usize].load(Ordering::Relaxed)));
        counts.filter(|&(_, count)| count > 0).collect()
    }

    pub(crate) fn reset(&self) {
        self.by_rpc.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }
}
