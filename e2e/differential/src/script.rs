//! Random requests that run into one another: few keys, revisions around the ones that matter, leases that come and go.
//!
//! Invariant: what a request leads to depends on the script alone and on no clock. So leases live either for minutes
//! more than a run lasts or end at once, and before anything that would race with events in flight (compaction, the end
//! of a watcher) the stream is settled.

use std::collections::{BTreeSet, VecDeque};
use std::sync::LazyLock;

use bytes::Bytes;
use rand::RngExt as _;
use testkit::requests::{self, NAMED_LEASES, RandomRequests};
use wire::etcdserverpb as pb;

use super::answer::{Answer, Received};
use super::request::{Request, Step};

mod auth;
mod locks;
mod members;
mod spans;
mod watches;

use auth::Users;
use watches::Streams;

/// The generator: its random requests about keys, and what else it knows of the store.
#[derive(Debug)]
pub struct Script {
    random: RandomRequests,
    queue: VecDeque<Step>,
    /// Compacted revisions before that one.
    compacted_before: BTreeSet<i64>,
    /// Revisions at which no compaction is asked for.
    spared: BTreeSet<i64>,
    named: i64,
    streams: Streams,
    /// Number of requests until the raised alarm is disarmed, and the request that raised it.
    alarmed: Option<(u32, pb::AlarmRequest)>,
    users: Users,
    /// Number of locks and elections so far.
    contests: u64,
    /// True if there is only one member, as far as is known.
    alone: bool,
    finished: bool,
}

/// A kind of request and how often it comes.
type Weight = (u32, fn(&mut Script) -> Request);

const WEIGHTS: &[Weight] = &[
    (340, |script| Request::Range(script.random.range())),
    (200, |script| Request::Put(script.random.put())),
    (80, |script| Request::DeleteRange(script.random.delete_range())),
    (200, |script| Request::Txn(script.random.txn())),
    (16, Script::grant),
    (3, Script::grant_short),
    (12, |script| {
        Request::Revoke(pb::LeaseRevokeRequest {
            id: script.random.lease(),
        })
    }),
    (10, |script| {
        Request::KeepAlive(pb::LeaseKeepAliveRequest {
            id: script.random.lease(),
        })
    }),
    (12, |script| Request::TimeToLive(script.time_to_live())),
    (4, |_| Request::Leases(pb::LeaseLeasesRequest {})),
    (20, Script::change_users),
    (6, Script::big_put),
    (4, Script::hash_kv),
    (14, Script::rare),
];

/// These are left out while an alarm is raised.
const CALM_WEIGHTS: &[Weight] = &[
    (36, Script::watch),
    (14, Script::cancel),
    (14, Script::settle),
    (4, Script::compact),
    (3, Script::contest),
];

const MAX_REQUEST_BYTES: usize = 1_572_864;
const MAX_RECEIVED_BYTES: usize = MAX_REQUEST_BYTES + 512 * 1024;
static BIG_VALUES: LazyLock<[Bytes; 4]> =
    LazyLock::new(|| [b'a', b'g', b'q', b'z'].map(|letter| vec![letter; MAX_RECEIVED_BYTES + 4_000].into()));

/// How many of a hundred requests that can be sent as JSON are.
const GATEWAY_PERCENT: u32 = 12;
/// Bytes of a request that is sent as JSON.
const MAX_GATEWAY_BYTES: usize = 100_000;

impl Script {
    /// The script of this seed.
    pub fn new(seed: u64) -> Self {
        Self {
            random: RandomRequests::new(seed),
            queue: VecDeque::new(),
            compacted_before: BTreeSet::new(),
            spared: BTreeSet::new(),
            named: 0,
            streams: Streams::default(),
            alarmed: None,
            users: Users::default(),
            contests: 0,
            alone: false,
            finished: false,
        }
    }

    /// The store's revision.
    pub fn revision(&self) -> i64 {
        self.random.known.revision
    }

    /// The compacted revision; 0 before the first compaction.
    pub fn compacted(&self) -> i64 {
        self.random.known.compacted
    }

    /// The next step. With `last` only what is needed so that everything has been compared, then none.
    pub fn next(&mut self, last: bool) -> Option<Step> {
        if let Some(step) = self.queue.pop_front() {
            return Some(step);
        }
        if let Some((left, alarm)) = self.alarmed.take() {
            if left == 0 || last {
                let lowered = Request::Alarm(pb::AlarmRequest { action: 2, ..alarm });
                return Some(Step::new(lowered, self.administrator()));
            }
            self.alarmed = Some((left - 1, alarm));
        }
        if let Some(step) = self.end_of_auth(last) {
            return Some(step);
        }
        if last {
            return self.finish();
        }
        let calm = self.alarmed.is_none();
        let weights = WEIGHTS.iter().chain(CALM_WEIGHTS.iter().filter(|_| calm));
        let sum: u32 = weights.clone().map(|(weight, _)| weight).sum();
        let mut at = self.random.rng.random_range(0..sum);
        for (weight, make) in weights {
            if at < *weight {
                let request = make(self);
                let step = self.step(request);
                // steps that must come before it are in the queue
                self.queue.push_back(step);
                return self.queue.pop_front();
            }
            at -= weight;
        }
        None
    }

    /// Queues a request that must succeed.
    fn push(&mut self, request: Request) {
        let step = Step::new(request, self.administrator());
        self.queue.push_back(step);
    }

    /// Sends a request as any user, over gRPC or the gateway.
    fn step(&mut self, request: Request) -> Step {
        // Etcd looks up such a range in an interval tree, whose shape then decides whether the range is permitted. There are no keys in
        // it.
        let by = if spans::any_inverted(&request) {
            self.administrator()
        } else {
            self.anybody()
        };
        let is_short = |bytes: &Vec<u8>| bytes.len() < MAX_GATEWAY_BYTES;
        // Reading a whole store as JSON would take most of the time of a run.
        let is_long = matches!(request, Request::Snapshot);
        let gateway = self.random.chance(GATEWAY_PERCENT)
            && !is_long
            && request
                .as_json()
                .is_some_and(|(rpc, bytes)| !rpc.path.is_empty() && is_short(&bytes));
        Step { request, by, gateway }
    }

    fn finish(&mut self) -> Option<Step> {
        if !std::mem::replace(&mut self.finished, true) {
            self.settle_all();
            let all = pb::RangeRequest {
                key: requests::ZERO,
                range_end: requests::ZERO,
                ..pb::RangeRequest::default()
            };
            self.push(Request::Range(all));
            self.push(Request::Leases(pb::LeaseLeasesRequest {}));
            self.push(Request::UserList(pb::AuthUserListRequest {}));
            self.push(Request::RoleList(pb::AuthRoleListRequest {}));
        }
        self.queue.pop_front()
    }

    /// Learns from the reference's answer.
    pub fn learn(&mut self, request: &Request, answer: &Answer) {
        if let Some(revision) = answer.revision() {
            self.random.known.revision = self.random.known.revision.max(revision);
        }
        match (request, answer) {
            (Request::Compact(compact), Answer::Compact(_)) => {
                self.compacted_before.insert(self.random.known.compacted);
                self.random.known.compacted = compact.revision;
            }
            // If etcd is compacted at this revision, it loses keys that the transaction put after the deletion, and exits when it looks
            // for them.
            (Request::Txn(txn), Answer::Txn(_)) if requests::puts_what_it_deletes(txn) => {
                self.spared.insert(self.random.known.revision);
            }
            (Request::Grant(grant, name), Answer::Grant(_)) => {
                self.random
                    .known
                    .leases
                    .push(if grant.id == 0 { *name } else { grant.id });
            }
            (Request::Revoke(revoke), Answer::Revoke(_)) => {
                self.random.known.leases.retain(|lease| *lease != revoke.id)
            }
            (Request::Watch { stream, fresh, create }, Answer::Watch(Some(created))) => {
                self.streams.created(*stream, *fresh, create, created);
            }
            (Request::MemberList(_), Answer::MemberList(response)) => self.alone = response.members.len() == 1,
            (Request::Cancel { stream, id, .. }, Answer::Watch(_)) => self.streams.ended(*stream, *id),
            (Request::Settle { stream, .. }, Answer::Watched(watchers)) => {
                for (id, received) in watchers {
                    if received
                        .iter()
                        .any(|one| matches!(one, Received::Control(response) if response.canceled))
                    {
                        self.streams.ended(*stream, *id);
                    }
                }
            }
            _ => self.users.learn(request, answer),
        }
        self.after(request, answer);
    }

    /// Etcd keeps the hashes that it took at the last compactions, and answers with them although these revisions are
    /// gone: they are not asked for.
    fn hash_kv(&mut self) -> Request {
        let revision = self.random.some_revision();
        let is_kept = self.compacted_before.contains(&revision);
        Request::HashKv(pb::HashKvRequest {
            revision: if is_kept { 0 } else { revision },
        })
    }

    fn grant(&mut self) -> Request {
        let id = self.random.pick(&[0, 0, 0, 1, 2, 3, 4, -5, i64::MAX]);
        let ttl = self
            .random
            .pick(&[3_600, 7_200, 86_400, 100_000, 9_000_000_000, 9_000_000_001, i64::MAX]);
        self.named += 1;
        Request::Grant(pb::LeaseGrantRequest { ttl, id }, NAMED_LEASES + self.named)
    }

    fn grant_short(&mut self) -> Request {
        let (ttl, id) = (
            self.random.pick(&[0, 1, -5, 2, i64::MIN]),
            self.random.pick(&[0, 77, 1]),
        );
        Request::GrantShort(pb::LeaseGrantRequest { ttl, id })
    }

    fn time_to_live(&mut self) -> pb::LeaseTimeToLiveRequest {
        pb::LeaseTimeToLiveRequest {
            id: self.random.lease(),
            keys: self.random.chance(60),
        }
    }

    fn big_put(&mut self) -> Request {
        // near the limits, but not so near that the length of an id decides
        let size = self.random.pick(&[
            300_000,
            600_000,
            600_000,
            900_000,
            MAX_REQUEST_BYTES - 4_000,
            MAX_REQUEST_BYTES,
            MAX_REQUEST_BYTES + 4_000,
            MAX_RECEIVED_BYTES - 4_000,
            MAX_RECEIVED_BYTES + 4_000,
        ]);
        // shared, because the steps of a whole run are kept
        let value = BIG_VALUES[self.random.rng.random_range(0..BIG_VALUES.len())].slice(..size);
        Request::Put(pb::PutRequest {
            key: self.random.key(),
            value,
            ..pb::PutRequest::default()
        })
    }

    fn compact(&mut self) -> Request {
        self.settle_all();
        let (now, floor) = (self.random.known.revision, self.random.known.compacted);
        let mut revision = match self.random.rng.random_range(0..10) {
            0..=5 => (now - self.random.rng.random_range(0..60)).max(floor),
            6 => now,
            7 => now + self.random.rng.random_range(1..3),
            8 => floor + self.random.rng.random_range(-1..2),
            _ => self.random.pick(&[0, -1, i64::MAX, i64::MIN]),
        };
        while self.spared.contains(&revision) {
            revision -= 1;
        }
        Request::Compact(pb::CompactionRequest {
            revision,
            physical: self.random.chance(30),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_compaction_meets_a_txn_that_puts_what_it_deletes() {
        let (mut script, mut met) = (Script::new(1), 0);
        for revision in 2..12_000 {
            let txn = script.random.txn();
            let is_unseen = requests::puts_what_it_deletes(&txn);
            let header = pb::ResponseHeader {
                revision,
                ..pb::ResponseHeader::default()
            };
            let answer = pb::TxnResponse {
                header: Some(header),
                ..pb::TxnResponse::default()
            };
            script.learn(&Request::Txn(txn), &Answer::Txn(answer));
            if is_unseen {
                met += 1;
                for _ in 0..20 {
                    let compaction = script.compact();
                    assert!(matches!(&compaction, Request::Compact(compact) if compact.revision != revision));
                }
            }
        }
        assert!(met > 50, "{met}");
    }
}
