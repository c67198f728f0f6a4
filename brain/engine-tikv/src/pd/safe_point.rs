//! Safe points: up to where the versions of a whole cluster may be collected.
//!
//! The owner of GC calls PD twice. First it sends the timestamp below which it will not read any more, and receives that which
//! others still need; then, when no older lock is left, it sends the timestamp up to which TiKV may collect. PD 9.0 has
//! separate calls for that, and refuses the second one beyond the result of the first one. Before, the first one was the safe
//! point of the service `gc_worker`, and only the owner itself kept the second one below those of other services.

use bytes::Bytes;
use tonic::{Code, Status};

use super::PdClient;
use super::wire::{
    AdvanceSafePointRequest, AdvanceSafePointResponse, KeyspaceScope, RequestHeader, UpdateGcSafePointRequest,
    UpdateGcSafePointResponse, UpdateServiceGcSafePointRequest, UpdateServiceGcSafePointResponse,
};

/// The service that stands for the owner of GC.
const GC_SERVICE_ID: &[u8] = b"gc_worker";

/// The keyspace id of clients without a keyspace.
const NO_KEYSPACE: u32 = u32::MAX;

/// The text in PD's answer when a safe point is already further than the requested one.
const DECREASING_ERROR: &str = "ErrDecreasing";

/// The extent to which versions may be collected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SafePointPermit {
    /// Up to `safe_point`. `held_by` names the service that needs later versions, if one does.
    Until {
        safe_point: u64,
        held_by: Option<String>,
        calls: SafePointCalls,
    },
    /// Another owner is further already.
    Further,
}

/// The outcome of moving a safe point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SafePointMove {
    /// It is where it was requested.
    Moved,
    /// It was further already.
    Further,
}

/// Which of its calls PD knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SafePointCalls {
    States,
    Services,
}

impl PdClient {
    /// Reports that nothing older than `target` is needed here, and returns up to where the needs of others permit it.
    pub(crate) async fn permit(&self, target: u64) -> anyhow::Result<SafePointPermit> {
        match self.advance("/pdpb.PD/AdvanceTxnSafePoint", target).await {
            Ok(answer) => Ok(SafePointPermit::Until {
                safe_point: answer.new_safe_point,
                held_by: (answer.new_safe_point < target).then_some(answer.blocker_description),
                calls: SafePointCalls::States,
            }),
            Err(error) if is_decreasing(&error) => Ok(SafePointPermit::Further),
            Err(error) if is_unknown(&error) => self.permit_by_services(target).await,
            Err(error) => Err(error),
        }
    }

    async fn permit_by_services(&self, target: u64) -> anyhow::Result<SafePointPermit> {
        let ask = |cluster_id| UpdateServiceGcSafePointRequest {
            header: Some(RequestHeader { cluster_id }),
            service_id: Bytes::from_static(GC_SERVICE_ID),
            ttl: i64::MAX,
            safe_point: target,
        };
        let path = "/pdpb.PD/UpdateServiceGCSafePoint";
        let answer: UpdateServiceGcSafePointResponse = self.ask_leader(path, ask).await?;
        if answer.min_safe_point > target {
            return Ok(SafePointPermit::Further);
        }
        let holder = || String::from_utf8_lossy(&answer.service_id).into_owned();
        Ok(SafePointPermit::Until {
            safe_point: answer.min_safe_point,
            held_by: (answer.min_safe_point < target).then(holder),
            calls: SafePointCalls::Services,
        })
    }

    /// Lets TiKV collect versions older than `until`, which was permitted.
    pub(crate) async fn collect(&self, until: u64, calls: SafePointCalls) -> anyhow::Result<SafePointMove> {
        match calls {
            SafePointCalls::States => match self.advance("/pdpb.PD/AdvanceGCSafePoint", until).await {
                Ok(_) => Ok(SafePointMove::Moved),
                Err(error) if is_decreasing(&error) => Ok(SafePointMove::Further),
                Err(error) => Err(error),
            },
            SafePointCalls::Services => {
                let ask = |cluster_id| UpdateGcSafePointRequest {
                    header: Some(RequestHeader { cluster_id }),
                    safe_point: until,
                };
                let answer: UpdateGcSafePointResponse = self.ask_leader("/pdpb.PD/UpdateGCSafePoint", ask).await?;
                Ok(if answer.new_safe_point > until {
                    SafePointMove::Further
                } else {
                    SafePointMove::Moved
                })
            }
        }
    }

    async fn advance(&self, path: &'static str, target: u64) -> anyhow::Result<AdvanceSafePointResponse> {
        let ask = |cluster_id| AdvanceSafePointRequest {
            header: Some(RequestHeader { cluster_id }),
            keyspace_scope: Some(KeyspaceScope {
                keyspace_id: NO_KEYSPACE,
            }),
            target,
        };
        self.ask_leader(path, ask).await
    }
}

pub(super) fn is_decreasing(error: &anyhow::Error) -> bool {
    error.to_string().contains(DECREASING_ERROR)
}

/// PD is too old to know the call.
pub(super) fn is_unknown(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref::<Status>(), Some(status) if status.code() == Code::Unimplemented)
}
