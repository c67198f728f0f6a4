//! Keep-alives of all streams of a member, renewed together.
//!
//! A stream reads ahead while its keep-alives are in flight, and coalesces those of one lease. The stream that has waited longest
//! takes the leases of all streams, renews them on the leader in one request, and distributes the answers. It does so in a task of its
//! own, because a stream is not polled while its client reads no answers, and the others would wait. If that stream goes away, the
//! others send their requests again.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use super::client;
use crate::api::context::ApiContext;
use crate::clock::since_boot;
use crate::errors::Error;
use crate::pb::etcdserverpb as pb;
use crate::rows::Rows;
use crate::sequencer::command::Request as Command;
use crate::types::{Caller, LeaseId};

/// The number of leases whose keep-alives a stream reads ahead.
const AHEAD: usize = 1024;

/// The number of leases that are renewed in one request; one stream's batch may exceed it.
const TOGETHER: usize = 8 * AHEAD;

/// The answers by lease.
pub(super) type Answers = HashMap<i64, pb::LeaseKeepAliveResponse>;

/// Coalesces keep-alives; see the module.
pub(super) struct KeepAlives<R: Rows> {
    store: ApiContext<R>,
    /// At most one entry of each stream.
    waiting: Mutex<VecDeque<Asked>>,
    /// Held by the stream that sends the request to the leader.
    turn: tokio::sync::Mutex<()>,
}

/// Leases that a stream waits for.
struct Asked {
    ids: Vec<i64>,
    answer: oneshot::Sender<Result<Arc<Answers>, Status>>,
}

/// The leases to renew, as sent to the leader.
#[derive(Clone, PartialEq, prost::Message)]
struct Renew {
    #[prost(int64, repeated, tag = "1")]
    ids: Vec<i64>,
}

/// The keep-alives of a stream that are not in flight yet, in the order of the first one of each lease.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    order: Vec<i64>,
    times: HashMap<i64, u64>,
}

impl Ahead {
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.order.len() >= AHEAD
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

/// Returns the answer for a lease. Fails if the leader's response does not contain it.
pub(super) fn answered(answers: &Answers, id: i64) -> Result<pb::LeaseKeepAliveResponse, Status> {
    answers.get(&id).copied().ok_or(Error::TimeoutDueToLeaderFail.into())
}

impl<R: Rows> KeepAlives<R> {
    pub(super) fn new(store: ApiContext<R>) -> Self {
        Self {
            store,
            waiting: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// Renews the leases that a stream has read ahead; answers are in the same order.
    pub(super) async fn renew_all(
        self: Arc<Self>,
        ahead: Vec<(i64, u64)>,
    ) -> Result<Vec<(pb::LeaseKeepAliveResponse, u64)>, Status> {
        let ids: Vec<i64> = ahead.iter().map(|(id, _)| *id).collect();
        let answers = self.renew(&ids).await?;
        let answers = ahead
            .into_iter()
            .map(|(id, times)| Ok((answered(&answers, id)?, times)));
        answers.collect()
    }

    /// Renews leases, together with those of other callers.
    pub(super) async fn renew(&self, ids: &[i64]) -> Result<Arc<Answers>, Status> {
        loop {
            let (answer, mut answered) = oneshot::channel();
            let ids = ids.to_vec();
            self.waiting().push_back(Asked { ids, answer });
            loop {
                tokio::select! {
                    biased;
                    answer = &mut answered => match answer {
                        Ok(answer) => return answer,
                        Err(_) => break, // whoever asked for it went away
                    },
                    _turn = self.turn.lock() => self.ask_for_all().await,
                }
            }
        }
    }

    /// Renews on the leader the leases of all waiting callers, as many as fit into one request.
    async fn ask_for_all(&self) {
        let asked = self.take();
        let ids: BTreeSet<i64> = asked.iter().flat_map(|asked| asked.ids.iter().copied()).collect();
        if ids.is_empty() {
            return;
        }
        let answers = self.ask(ids.into_iter().collect()).await.map(Arc::new);
        for asked in asked {
            // The caller may be gone.
            drop(asked.answer.send(answers.clone()));
        }
    }

    fn take(&self) -> Vec<Asked> {
        let (mut waiting, mut taken, mut ids) = (self.waiting(), Vec::new(), 0);
        while ids < TOGETHER
            && let Some(asked) = waiting.pop_front()
        {
            if !asked.answer.is_closed() {
                ids += asked.ids.len();
                taken.push(asked);
            }
        }
        taken
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Asked>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ask(&self, ids: Vec<i64>) -> Result<Answers, Status> {
        let here =
            |request: Request<Renew>| async move { self.renew_here(request.into_inner().ids).await.map(Response::new) };
        let there = |leader, request: Request<Renew>| async move {
            self.renew_there(leader, request.into_inner().ids)
                .await
                .map(Response::new)
        };
        let answer = self.store.on_leader(Request::new(Renew { ids }), here, there).await?;
        Ok(answer.into_inner())
    }

    async fn renew_there(&self, leader: Channel, ids: Vec<i64>) -> Result<Answers, Status> {
        let mut answers = Answers::with_capacity(ids.len());
        let asked = futures::stream::iter(ids.into_iter().map(|id| pb::LeaseKeepAliveRequest { id }));
        let mut stream = client(leader).lease_keep_alive(asked).await?.into_inner();
        while let Some(mut answer) = stream.message().await? {
            self.store.stamp_member(&mut answer.header);
            answers.insert(answer.id, answer);
        }
        Ok(answers)
    }

    /// Renews leases as the leader: a lease that is gone has no time to live.
    async fn renew_here(&self, ids: Vec<i64>) -> Result<Answers, Status> {
        let store = &self.store;
        // Like etcd's, the header is older than the renewal.
        let header = Some(store.header(store.view()?.revision));
        let (mut answers, mut noted) = (Answers::with_capacity(ids.len()), Vec::new());
        {
            let (mut leases, now) = (store.state.leases(), since_boot());
            for id in ids {
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
            let size = 64 + 16 * noted.len();
            store.propose(Caller::Server, Command::Checkpoint(noted), size).await?;
        }
        // The next leader counts from the time that it knows: only a leader may promise that time.
        if !store.router.lease_valid() {
            return Err(Error::NotLeader.into());
        }
        Ok(answers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keep_alives_of_one_lease_are_counted_together() {
        let mut ahead = Ahead::default();
        [3, 1, 3, 2, 3].into_iter().for_each(|id| ahead.add(id));
        assert_eq!(ahead.take(), [(3, 3), (1, 1), (2, 1)]);
        assert!(ahead.is_empty());
    }
}
