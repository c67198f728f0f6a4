//! Keep-alives of all streams of a member, renewed together.
//!
//! A stream reads ahead while its keep-alives are in flight, and coalesces those of one lease. The stream that has waited longest
//! takes the leases of all streams, renews them on the leader in one request, and distributes the answers. It does so in a task of its
//! own, because a stream is not polled while its client reads no answers, and the others would wait. If that stream goes away, the
//! others send their requests again. If the leader does not answer soon, because checkpoints wait for its disk, the next stream has its
//! turn: renewals without checkpoints need no disk.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::context::ApiContext;
use crate::header::HasHeaders;
use crate::leader_request::LeaderRequest;
use etcd_types::errors::Error;
use etcd_types::pb::etcdserverpb as pb;
use etcd_types::types::{Caller, LeaseId};
use pb::lease_client::LeaseClient;
use runtime::clock::since_boot;
use store::sequencer::command::Command;

/// The number of leases whose keep-alives a stream reads ahead.
const MAX_READ_AHEAD_LEASES: usize = 1024;

/// The number of leases that are renewed in one request; one stream's batch may exceed it.
const LEASES_PER_RENEWAL: usize = 8 * MAX_READ_AHEAD_LEASES;

/// The time for which a request to the leader has the others wait.
const RENEWAL_TURN_TIMEOUT: Duration = Duration::from_millis(200);

/// The answers by lease.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct KeepAliveAnswers {
    #[prost(map = "int64, message", tag = "1")]
    by_id: HashMap<i64, pb::LeaseKeepAliveResponse>,
}

impl HasHeaders for KeepAliveAnswers {
    fn headers_mut(&mut self) -> impl Iterator<Item = &mut pb::ResponseHeader> {
        self.by_id.values_mut().filter_map(|answer| answer.header.as_mut())
    }
}

/// Coalesces keep-alives; see the module.
pub(super) struct KeepAlives {
    store: ApiContext,
    /// At most one entry of each stream.
    waiting: Mutex<VecDeque<WaitingRenewal>>,
    /// Held by the stream that sends the request to the leader, for [`RENEWAL_TURN_TIMEOUT`] at most.
    turn: tokio::sync::Mutex<()>,
}

/// Leases that a stream waits for.
struct WaitingRenewal {
    ids: Vec<i64>,
    /// True once they are in a request.
    is_taken: Arc<AtomicBool>,
    answer: oneshot::Sender<Result<Arc<KeepAliveAnswers>, Status>>,
}

/// The leases to renew on the leader. Between members it is a stream of keep-alives.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RenewLeasesRequest {
    #[prost(int64, repeated, tag = "1")]
    ids: Vec<i64>,
}

/// The keep-alives of a stream that are not in flight yet, in the order of the first one of each lease.
#[derive(Debug, Default)]
pub(super) struct PendingKeepAlives {
    order: Vec<i64>,
    times: HashMap<i64, u64>,
}

impl PendingKeepAlives {
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.order.len() >= MAX_READ_AHEAD_LEASES
    }

    pub(super) fn has(&self, id: i64) -> bool {
        self.times.contains_key(&id)
    }

    pub(super) fn add(&mut self, id: i64) {
        let times = self.times.entry(id).or_default();
        *times += 1;
        if *times == 1 {
            self.order.push(id);
        }
    }

    /// Takes the leases, with the number of keep-alives of each.
    pub(super) fn take(&mut self) -> Vec<(i64, u64)> {
        let mut times = std::mem::take(&mut self.times);
        let order = std::mem::take(&mut self.order).into_iter();
        order.map(|id| (id, times.remove(&id).unwrap_or(1))).collect()
    }
}

/// The answers for a stream.
#[derive(Debug, Default)]
pub(super) struct StreamRenewal {
    /// Each with the number of its keep-alives, in their order.
    pub(super) answers: Vec<(pb::LeaseKeepAliveResponse, u64)>,
    /// The reason why other leases of the stream have none.
    pub(super) refused: Option<Status>,
}

/// Returns the answer for a lease. Fails if the leader's response does not contain it.
pub(super) fn answered(answers: &KeepAliveAnswers, id: i64) -> Result<pb::LeaseKeepAliveResponse, Status> {
    answers
        .by_id
        .get(&id)
        .copied()
        .ok_or(Error::TimeoutDueToLeaderFail.into())
}

impl KeepAlives {
    pub(super) fn new(store: ApiContext) -> Self {
        Self {
            store,
            waiting: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// Renews the leases that a stream has read ahead; answers are in the same order.
    pub(super) async fn renew_all(self: Arc<Self>, ahead: Vec<(i64, u64)>) -> Result<StreamRenewal, Status> {
        let ids: Vec<i64> = ahead.iter().map(|(id, _)| *id).collect();
        let answers = self.renew(&ids).await?;
        let mut renewed = StreamRenewal::default();
        for (id, times) in ahead {
            match answered(&answers, id) {
                Ok(answer) => renewed.answers.push((answer, times)),
                Err(status) => renewed.refused = Some(status),
            }
        }
        Ok(renewed)
    }

    /// Renews leases, together with those of other callers.
    pub(super) async fn renew(&self, ids: &[i64]) -> Result<Arc<KeepAliveAnswers>, Status> {
        loop {
            let (answer, mut answered) = oneshot::channel();
            let is_taken = Arc::new(AtomicBool::new(false));
            self.waiting().push_back(WaitingRenewal {
                ids: ids.to_vec(),
                is_taken: Arc::clone(&is_taken),
                answer,
            });
            loop {
                tokio::select! {
                biased;
                answer = &mut answered => match answer {
                Ok(answer) => return answer,
                Err(_) => break, // the caller that sent this request has ended
                },
                turn = self.turn.lock(), if !is_taken.load(Ordering::Acquire) => {
                // Otherwise the request of another stream was slow, and its turn came first.
                if !is_taken.load(Ordering::Acquire) {
                self.ask_for_all(turn).await;
                }
                }
                }
            }
        }
    }

    /// Renews on the leader the leases of all waiting callers, as many as fit into one request.
    async fn ask_for_all(&self, turn: tokio::sync::MutexGuard<'_, ()>) {
        let asked = self.take();
        let ids: BTreeSet<i64> = asked.iter().flat_map(|asked| asked.ids.iter().copied()).collect();
        if ids.is_empty() {
            return;
        }
        let mut asking = pin!(self.ask(ids.into_iter().collect()));
        let answers = match timeout(RENEWAL_TURN_TIMEOUT, asking.as_mut()).await {
            Ok(answers) => answers,
            Err(_) => {
                drop(turn);
                asking.await
            }
        };
        let answers = answers.map(Arc::new);
        for asked in asked {
            // The caller may be gone.
            drop(asked.answer.send(answers.clone()));
        }
    }

    fn take(&self) -> Vec<WaitingRenewal> {
        let (mut waiting, mut taken, mut ids) = (self.waiting(), Vec::new(), 0);
        while ids < LEASES_PER_RENEWAL
            && let Some(asked) = waiting.pop_front()
        {
            if !asked.answer.is_closed() {
                ids += asked.ids.len();
                asked.is_taken.store(true, Ordering::Release);
                taken.push(asked);
            }
        }
        taken
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<WaitingRenewal>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ask(&self, ids: Vec<i64>) -> Result<KeepAliveAnswers, Status> {
        let answer = self.store.forward(Request::new(RenewLeasesRequest { ids })).await?;
        Ok(answer.into_inner())
    }
}

impl LeaderRequest for RenewLeasesRequest {
    type Answer = KeepAliveAnswers;
    const PATH: &'static str = "/etcdserverpb.Lease/LeaseKeepAlive";

    /// Renews leases as the leader: a lease that is gone has no time to live.
    async fn answer(store: &ApiContext, request: &Request<Self>) -> Result<KeepAliveAnswers, Status> {
        // Like etcd's, the header is older than the renewal.
        let header = Some(store.header(store.view()?.revision));
        let ids = &request.get_ref().ids;
        let (mut answers, mut noted) = (HashMap::with_capacity(ids.len()), Vec::new());
        {
            let (mut leases, now) = (store.state.leases(), since_boot());
            for &id in ids {
                let renewed = leases.renew(LeaseId(id), now);
                let ttl = renewed.map_or(0, |renewed| renewed.ttl);
                if renewed.is_some_and(|renewed| renewed.clear_checkpoint) {
                    noted.push((LeaseId(id), 0));
                }
                answers.insert(id, pb::LeaseKeepAliveResponse { header, id, ttl });
            }
        }
        if !noted.is_empty() {
            // After a restart these leases must not expire earlier than promised now.
            let (size, ids) = (64 + 16 * noted.len(), noted.iter().map(|(id, _)| id.0));
            let ids: BTreeSet<i64> = ids.collect();
            let recorded = store.propose(Caller::Server, Command::Checkpoint(noted), size).await;
            match recorded {
                // Recording takes time: leases that have expired since are lost, and the others have their full time to live from now on.
                Ok(_) => {
                    let (mut leases, now) = (store.state.leases(), since_boot());
                    for id in ids {
                        let renewed = leases.renew(LeaseId(id), now);
                        let ttl = renewed.map_or(0, |renewed| renewed.ttl);
                        match renewed.is_some_and(|renewed| renewed.clear_checkpoint) {
                            // The term ends, and the next leader is to know what it has left.
                            true => answers.remove(&id),
                            false => answers.insert(id, pb::LeaseKeepAliveResponse { header, id, ttl }),
                        };
                    }
                }
                Err(error) => {
                    // The others are renewed nevertheless.
                    answers.retain(|id, _| !ids.contains(id));
                    if answers.is_empty() {
                        return Err(error);
                    }
                    tracing::debug!(%error, leases = ids.len(), "could not record checkpoints of renewed leases");
                }
            }
        }
        // The next leader counts from the time that it knows: only a leader may promise that time.
        if !store.router.lease_valid() {
            return Err(Error::NotLeader.into());
        }
        Ok(KeepAliveAnswers { by_id: answers })
    }

    /// Renews leases by a stream of keep-alives.
    async fn ask(leader: Channel, request: Request<Self>) -> Result<Response<KeepAliveAnswers>, Status> {
        let ids = request.into_inner().ids;
        let mut answers = HashMap::with_capacity(ids.len());
        let asked = futures::stream::iter(ids.into_iter().map(|id| pb::LeaseKeepAliveRequest { id }));
        let mut leader = LeaseClient::new(leader).max_decoding_message_size(usize::MAX);
        let mut stream = leader.lease_keep_alive(asked).await?.into_inner();
        loop {
            match stream.message().await {
                Ok(Some(answer)) => {
                    answers.insert(answer.id, answer);
                }
                Ok(None) => break,
                // Some were not noted. Those that have come are right.
                Err(error) if !answers.is_empty() && error.message() == Error::TimeoutDueToLeaderFail.text() => {
                    tracing::debug!(%error, "the leader did not renew some leases");
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Response::new(KeepAliveAnswers { by_id: answers }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keep_alives_of_one_lease_are_counted_together() {
        let mut ahead = PendingKeepAlives::default();
        [3, 1, 3, 2, 3].into_iter().for_each(|id| ahead.add(id));
        assert_eq!(ahead.take(), [(3, 3), (1, 1), (2, 1)]);
        assert!(ahead.is_empty());
    }
}
