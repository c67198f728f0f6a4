//! From a request to its answer, through whatever fault is set for it.

use std::future::{Future, pending};
use std::time::Duration;

use futures::FutureExt;
use prost::Message;
use tonic::{Request, Response, Status};
use tracing::debug;

use super::shared::Process;
use crate::engine::server_is_busy;
use crate::faults::{Action, RegionFault};
use crate::proto::{errorpb, kvrpcpb::Context};
use crate::regions::{not_leader, refusal};
use crate::rpc::Rpc;

/// A request that a process answers.
pub(super) trait Command: Message + Clone + 'static {
    type Reply: Send + 'static;
    const RPC: Rpc;

    /// Returns true if one of its keys begins with `prefix`.
    fn touches(&self, prefix: &[u8]) -> bool;

    /// The region it is meant for.
    fn context(&self) -> Option<&Context>;

    /// The answer that is nothing but a region error, for those that go to a region.
    fn refused(error: Box<errorpb::Error>) -> Option<Self::Reply>;

    /// Does it.
    fn run(self, at: Process) -> impl Future<Output = Result<Self::Reply, Status>> + Send;
}

/// Result that the caller of a lost message gets.
async fn lost<R>(silent: bool) -> Result<R, Status> {
    if silent {
        pending::<()>().await;
    }
    Err(Status::unavailable("the message was lost, by command"))
}

pub(super) async fn answer<C: Command>(at: &Process, request: Request<C>) -> Result<Response<C::Reply>, Status> {
    let command = request.into_inner();
    at.shared.counters.count(C::RPC);
    let region = command.context().map(|context| context.region_id);
    at.answering(region).await;
    let touches = |prefix: &[u8]| command.touches(prefix);
    let fault = at.shared.faults.draw(C::RPC, at.id, touches, || command.encoded_len());
    let may_on_full = command.context().is_some_and(|context| context.disk_full_opt > 0);
    let fault = fault.filter(|action| {
        let almost_full = Action::Region {
            error: RegionFault::DiskAlmostFull,
        };
        !may_on_full || *action != almost_full
    });
    let reply = match fault {
        None => command.run(at.clone()).await,
        // Rare and large: boxed, so that calls without faults do not pay for it.
        Some(action) => suffer(at, command, action).boxed().await,
    };
    at.late().await;
    // A stopped process does not answer either.
    at.answering(region).await;
    reply.map(Response::new)
}

async fn suffer<C: Command>(at: &Process, command: C, action: Action) -> Result<C::Reply, Status> {
    debug!(rpc = ?C::RPC, process = at.id, ?action, "fault");
    match action {
        Action::LoseRequest { silent } => lost(silent).await,
        Action::LoseReply { silent } => {
            surely(at, command, Duration::ZERO).await?;
            lost(silent).await
        }
        Action::DelayRequest { by } => surely(at, command, by).await,
        Action::DelayReply { by } => {
            let reply = surely(at, command, Duration::ZERO).await;
            tokio::time::sleep(by).await;
            reply
        }
        Action::Late { after } => {
            deliver_later(at, command, after);
            lost(false).await
        }
        Action::Duplicate { after } => {
            let reply = command.clone().run(at.clone()).await;
            deliver_later(at, command, after);
            reply
        }
        Action::Refuse { code, message } => Err(Status::new(code.into(), message)),
        Action::Region { error } => {
            let error = region_error(at, command.context(), error);
            C::refused(error).ok_or_else(|| Status::internal("no region error for this kind of request"))
        }
    }
}

/// Does it after a time, whether or not the caller is still there.
async fn surely<C: Command>(at: &Process, command: C, after: Duration) -> Result<C::Reply, Status> {
    let process = at.clone();
    let task = at.shared.late.spawn(async move {
        tokio::time::sleep(after).await;
        command.run(process).await
    });
    task.await.map_err(|error| Status::internal(error.to_string()))?
}

/// A message that arrives late has no caller that waits for its answer.
fn deliver_later<C: Command>(at: &Process, command: C, after: Option<Duration>) {
    let process = at.clone();
    let message = async move {
        process.running().await;
        if let Err(status) = command.run(process).await {
            debug!(%status, rpc = ?C::RPC, "a late message failed");
        }
    };
    match after {
        None => at.shared.faults.hold(message.boxed()),
        Some(after) => drop(at.shared.late.spawn(tokio::time::sleep(after).then(|()| message))),
    }
}

fn region_error(at: &Process, context: Option<&Context>, fault: RegionFault) -> Box<errorpb::Error> {
    let region_id = context.map_or(0, |context| context.region_id);
    match fault {
        RegionFault::NotLeader => not_leader(region_id, None),
        RegionFault::ServerIsBusy => server_is_busy("by command"),
        RegionFault::EpochNotMatch => {
            let tables = at.shared.engine.read();
            match tables.regions.by_id(region_id) {
                Some(region) => tables.regions.epoch_not_match(region),
                None => refusal("epoch not match", |error| {
                    error.epoch_not_match = Some(Default::default())
                }),
            }
        }
        RegionFault::RegionNotFound => refusal("region not found", |error| {
            error.region_not_found = Some(errorpb::RegionNotFound { region_id });
        }),
        RegionFault::StaleCommand => refusal("stale command", |error| {
            error.stale_command = Some(errorpb::StaleCommand {})
        }),
        RegionFault::StoreNotMatch => refusal("store not match", |error| {
            error.store_not_match = Some(errorpb::StoreNotMatch {
                request_store_id: at.id,
                actual_store_id: 0,
            });
        }),
        RegionFault::RaftEntryTooLarge => raft_entry_too_large(region_id, 0),
        RegionFault::MaxTimestampNotSynced => refusal("max timestamp not synced", |error| {
            error.max_timestamp_not_synced = Some(errorpb::MaxTimestampNotSynced {});
        }),
        RegionFault::ReadIndexNotReady => refusal("read index not ready", |error| {
            error.read_index_not_ready = Some(errorpb::ReadIndexNotReady {
                region_id,
                ..Default::default()
            });
        }),
        RegionFault::DiskFull | RegionFault::DiskAlmostFull => refusal("disk full", |error| {
            error.disk_full = Some(errorpb::DiskFull {
                store_id: vec![at.id],
                reason: "by command".to_owned(),
            });
        }),
    }
}

/// The answer to a write that does not fit into one raft entry; `entry_size` in bytes.
pub(super) fn raft_entry_too_large(region_id: u64, entry_size: u64) -> Box<errorpb::Error> {
    refusal(
        &format!("raft entry is too large, region {region_id}, entry size {entry_size}"),
        |error| {
            error.raft_entry_too_large = Some(errorpb::RaftEntryTooLarge { region_id, entry_size });
        },
    )
}
