//! The service `peerpb.Peer`: the messages of a leader to its followers.

use std::pin::Pin;
use std::sync::Arc;

use async_stream::try_stream;
use futures::Stream;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::Renewals;
use crate::followers::Followers;
use crate::forward::{LeaderRouter, Role};
use crate::members::Members;
use etcd_types::errors::Error;
use etcd_types::pb::etcdserverpb::Member;
use etcd_types::pb::peerpb as pb;
use etcd_types::types::Prev;
use mvcc::row::size_of;
use net::serve::PeerId;
use runtime::clock::since_boot;
use runtime::log_once::LogOnce;
use store::commit_feed::{CommitEvent, CommitFeed, CommittedBatch};
use store::state::StoreState;
use telemetry::metrics::PeerMetrics;

/// The largest message to followers, in bytes. Followers read a longer batch from the log.
pub const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// The bytes of a message that are reserved for the encoding around a batch and each of its parts.
const MESSAGE_MARGIN_BYTES: usize = 1 << 20;

/// The service of a member. Only members connect to it: see [`proof`](super::peer_auth).
pub struct PeerService {
    /// The cluster that followers must belong to.
    pub cluster_id: u64,
    /// The published state.
    pub state: Arc<StoreState>,
    /// The feed of committed batches.
    pub feed: CommitFeed,
    /// The router to the leader.
    pub router: LeaderRouter,
    /// The renewals that this member writes into its lock.
    pub renewals: Renewals,
    /// The members of the cluster.
    pub members: Members,
    /// The followers now; for the metrics and transfers of leadership.
    pub followers: Followers,
    /// This member.
    pub member_id: u64,
    /// The metrics of the traffic with followers.
    pub metrics: PeerMetrics,
    /// Limits log lines about refused peers.
    pub log_once: LogOnce<String>,
    /// Ends streams.
    pub stop: CancellationToken,
}

#[tonic::async_trait]
impl pb::peer_server::Peer for PeerService {
    type FollowStream = Pin<Box<dyn Stream<Item = Result<pb::FollowResponse, Status>> + Send>>;

    async fn follow(&self, request: Request<pb::FollowRequest>) -> Result<Response<Self::FollowStream>, Status> {
        self.leading()?;
        let peer = request.extensions().get().copied();
        let pb::FollowRequest {
            member,
            identity,
            cluster_id,
            cannot_lead,
        } = request.into_inner();
        if cluster_id != self.cluster_id {
            if self.log_once.due_for(identity.clone()).is_some() {
                tracing::warn!(peer = identity, "rejected a peer of another cluster");
            }
            return Err(Error::ClusterIdMismatch.into());
        }
        let member = member.ok_or(Error::MemberNotFound)?;
        if peer.is_some_and(|PeerId(peer)| peer != member.id) {
            return Err(Error::MemberNotFound.into());
        }
        let entered = self.followers.enter(member.id, (!cannot_lead).then_some(identity));
        let active = self.metrics.connect(self.member_id, member.id);
        self.members.learn([member]);
        // The subscription precedes the read of the slot, so that no commit is missed between them.
        let mut commits = self.feed.subscribe();
        let mut members = self.members.watch();
        members.mark_changed();
        let (state, router, stop) = (self.state.clone(), self.router.clone(), self.stop.clone());
        let (mut roles, mut renewals) = (router.watch(), self.renewals.clone());
        renewals.mark_changed();
        let stream = try_stream! {
        let (_entered, _active) = (entered, active);
        yield committed(&state);
        loop {
        let next = tokio::select! {
        biased;
        () = stop.cancelled() => break,
        // Only a leader commits.
        over = roles.wait_for(|role| !matches!(role, Role::Leading(_) | Role::Transferring)) => { drop(over); break }
        Ok(()) = renewals.changed() => match &*renewals.borrow_and_update() {
        Some(record) => FollowEvent::Renewal(record.encode().into()),
        None => continue,
        },
        Ok(()) = members.changed() => FollowEvent::Members(members.borrow_and_update().values().cloned().collect()),
        event = commits.recv() => FollowEvent::Commit(event),
        };
        yield match next {
        FollowEvent::Renewal(renewal) => pb::FollowResponse { renewal, ..Default::default() },
        FollowEvent::Members(members) => pb::FollowResponse {
        members: Some(pb::Members { members }),
        ..Default::default()
        },
        FollowEvent::Commit(Ok(CommitEvent::Batch(CommittedBatch { first, next, payload: Some(payload), events })))
        if fits(&payload, &events) => pb::FollowResponse {
        batch: Some(pb::Batch {
        first: first.0,
        next: next.0,
        payload,
        superseded: superseded(&events),
        }),
        ..Default::default()
        },
        FollowEvent::Commit(Ok(CommitEvent::Batch(_)) | Err(RecvError::Lagged(_))) => committed(&state),
        FollowEvent::Commit(Ok(CommitEvent::Rows)) => pb::FollowResponse { rows: true, ..Default::default() },
        FollowEvent::Commit(Err(RecvError::Closed)) => break,
        };
        }
        };
        Ok(Response::new(Box::pin(stream)))
    }

    async fn read_index(&self, _: Request<pb::ReadIndexRequest>) -> Result<Response<pb::ReadIndexResponse>, Status> {
        self.leading()?;
        // With strict reads storage is checked, once for the waiting reads of all members.
        self.router.read_index().await?;
        let (committed, epoch) = (self.state.committed().0, self.state.epoch());
        Ok(Response::new(pb::ReadIndexResponse { committed, epoch }))
    }

    async fn probe(&self, _: Request<pb::ProbeRequest>) -> Result<Response<pb::ProbeResponse>, Status> {
        Ok(Response::new(pb::ProbeResponse {}))
    }
}

enum FollowEvent {
    Renewal(bytes::Bytes),
    Commit(Result<CommitEvent, RecvError>),
    Members(Vec<Member>),
}

impl PeerService {
    /// Succeeds only if this member leads with a valid lease.
    fn leading(&self) -> Result<(), Error> {
        match self.router.role() {
            Role::Leading(lease) if lease.holds(since_boot()) => Ok(()),
            _ => Err(Error::NotLeader),
        }
    }
}

fn committed(state: &StoreState) -> pb::FollowResponse {
    pb::FollowResponse {
        committed: state.committed().0,
        ..Default::default()
    }
}

/// Marks a version whose value the leader has not read.
const UNREAD_MOD_REVISION: i64 = -1;
/// Returns true if a batch and its superseded versions fit into one message.
fn fits(payload: &bytes::Bytes, events: &[Arc<etcd_types::types::Committed>]) -> bool {
    /// The size of an empty version, with a margin above the numbers of any.
    const VERSION_BYTES: usize = 64;
    let events = events.iter().flat_map(|committed| &committed.events);
    let superseded = events.map(|event| {
        let version = event.prev_kv.as_ref();
        VERSION_BYTES + version.map_or(0, |kv| kv.key.len() + kv.value.len())
    });
    superseded.sum::<usize>() + payload.len() <= MAX_MESSAGE_BYTES - MESSAGE_MARGIN_BYTES
}

/// Returns the version that each change superseded, in order; a default if there was none.
fn superseded(events: &[Arc<etcd_types::types::Committed>]) -> Vec<etcd_types::pb::mvccpb::KeyValue> {
    let events = events.iter().flat_map(|committed| &committed.events);
    let unread = || etcd_types::pb::mvccpb::KeyValue {
        mod_revision: UNREAD_MOD_REVISION,
        ..Default::default()
    };
    events
        .map(|event| match &event.prev_kv {
            _ if event.is_prev_unread => unread(),
            Some(kv) => kv.clone().into(),
            None => Default::default(),
        })
        .collect()
}

/// Decodes the superseded versions of a batch.
#[must_use]
pub fn superseded_of(batch: &mut pb::Batch) -> Vec<Prev> {
    let kvs = std::mem::take(&mut batch.superseded);
    kvs.into_iter()
        .map(|kv| match kv.mod_revision {
            0 => Prev::Nothing,
            UNREAD_MOD_REVISION => Prev::Unread,
            _ => Prev::Version(from_wire(kv)),
        })
        .collect()
}

fn from_wire(kv: etcd_types::pb::mvccpb::KeyValue) -> etcd_types::types::KeyValue {
    etcd_types::types::KeyValue {
        key: kv.key,
        size: size_of(&kv.value),
        value: kv.value,
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        version: kv.version,
        lease: etcd_types::types::LeaseId(kv.lease),
    }
}
