//! Follows changes of leader by long polling: one request per member, which the member answers when its leader changes. Every change
//! triggers a reconcile.
//!
//! A brain that keeps answering at once, or reports false epochs, is asked more and more rarely, down to about once a second. A brain that
//! does not answer is asked down to twice a minute.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crds::KubeBrainCluster;
use kube::runtime::reflector::{ObjectRef, Store};
use plan::member::{BrainRole, KnownLeader, MemberAnswer};
use runtime::backoff::Backoff;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tracing::debug;

use crate::probe::{self, ClientIdentity};
use crate::work_queue::WorkQueue;

/// Maximum number of members that are followed, in all clusters together. Changes at other members are found at the next resync.
const MAX_FOLLOWED_MEMBERS: usize = 1024;
/// First pause between requests. It grows if an answer comes quickly or not at all.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Maximum pause after an answer: however often the leader changes, its label must follow within two seconds.
const MAX_PAUSE_AFTER_ANSWER: Duration = Duration::from_millis(1200);
/// Maximum pause after a request without answer. Passes ask the silent member, too.
const MAX_PAUSE_AFTER_SILENCE: Duration = Duration::from_secs(30);
/// An answer after more than this time counts as a long poll: leaders do not change often.
const LONG_POLL_TIME: Duration = Duration::from_secs(5);

/// A member that may be followed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct FollowedMember {
    pub(crate) pod: String,
    /// Uid of the pod: a new pod of the same name is another member.
    pub(crate) uid: String,
    pub(crate) address: String,
    pub(crate) host: String,
    pub(crate) identity: Option<ClientIdentity>,
}

/// The part of an answer whose change triggers a reconcile.
#[derive(Debug, Clone, PartialEq, Eq)]
struct MemberLeadership {
    role: BrainRole,
    leader: Option<KnownLeader>,
    epoch: i64,
}

impl MemberLeadership {
    fn of(answer: &MemberAnswer) -> Self {
        Self {
            role: answer.role,
            leader: answer.leader.clone(),
            epoch: answer.epoch,
        }
    }
}

/// The members of all clusters of one scope that are followed.
#[derive(Clone)]
pub(crate) struct LeaderWatches {
    clusters: Store<KubeBrainCluster>,
    queue: Arc<WorkQueue>,
    running: Arc<Mutex<RunningFollower>>,
}

#[derive(Default)]
struct RunningFollower {
    tasks: JoinSet<()>,
    members: HashMap<ObjectRef<KubeBrainCluster>, HashMap<String, (FollowedMember, AbortHandle)>>,
}

impl LeaderWatches {
    pub(crate) fn new(clusters: Store<KubeBrainCluster>, queue: Arc<WorkQueue>) -> Self {
        Self {
            clusters,
            queue,
            running: Arc::default(),
        }
    }

    /// Follows the members that answered, and no others of this cluster. A member that stops answering is followed as long as its pod is
    /// the same: `known` lists the existing pods.
    pub(crate) fn follow(
        &self,
        cluster: &KubeBrainCluster,
        known: &[FollowedMember],
        answers: &HashMap<&str, &MemberAnswer>,
    ) {
        let object = ObjectRef::from_obj(cluster);
        let mut running = self.lock();
        // Finished tasks would accumulate otherwise.
        while running.tasks.try_join_next().is_some() {}
        let RunningFollower { tasks, members } = &mut *running;
        members.retain(|cluster, members| {
            let exists = self.clusters.get(cluster).is_some();
            if !exists {
                members.values().for_each(|(_, task)| task.abort());
            }
            exists
        });
        let of_cluster = members.entry(object.clone()).or_default();
        of_cluster.retain(|_, (member, task)| {
            let stays = known.contains(member) && !task.is_finished();
            if !stays {
                task.abort();
            }
            stays
        });
        let mut followed: usize = members.values().map(HashMap::len).sum();
        let of_cluster = members.entry(object.clone()).or_default();
        for member in known {
            let Some(answer) = answers.get(member.pod.as_str()) else {
                continue;
            };
            if of_cluster.contains_key(&member.pod) || followed >= MAX_FOLLOWED_MEMBERS {
                continue;
            }
            followed += 1;
            let follower = MemberFollower {
                cluster: object.clone(),
                uid: cluster.metadata.uid.clone(),
                clusters: self.clusters.clone(),
                queue: self.queue.clone(),
                member: member.clone(),
            };
            let task = tasks.spawn(follower.run(MemberLeadership::of(answer)));
            of_cluster.insert(member.pod.clone(), (member.clone(), task));
        }
    }

    /// Stops following the members of `cluster`.
    pub(crate) fn leave(&self, cluster: &KubeBrainCluster) {
        self.follow(cluster, &[], &HashMap::new());
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        self.lock().members.values().map(HashMap::len).sum()
    }

    fn lock(&self) -> MutexGuard<'_, RunningFollower> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task for one member.
struct MemberFollower {
    cluster: ObjectRef<KubeBrainCluster>,
    /// Uid of the cluster.
    uid: Option<String>,
    clusters: Store<KubeBrainCluster>,
    queue: Arc<WorkQueue>,
    member: FollowedMember,
}

impl MemberFollower {
    /// Sends requests until the cluster is deleted.
    async fn run(self, mut seen: MemberLeadership) {
        let mut pauses = Backoff::new(FIRST_PAUSE, MAX_PAUSE_AFTER_SILENCE);
        let mut silent = false;
        while self
            .clusters
            .get(&self.cluster)
            .is_some_and(|cluster| cluster.metadata.uid == self.uid)
        {
            let asked = Instant::now();
            let FollowedMember {
                address,
                host,
                identity,
                ..
            } = &self.member;
            match Box::pin(probe::ask_after(address, host, identity.as_ref(), seen.epoch)).await {
                Ok(answer) => {
                    let now = MemberLeadership::of(&answer);
                    if now != seen || silent {
                        debug!(pod = self.member.pod, epoch = now.epoch, role = ?now.role, "the leader changed");
                        self.queue.add(self.cluster.clone());
                    }
                    (seen, silent) = (now, false);
                }
                Err(error) => {
                    if !silent {
                        debug!(pod = self.member.pod, error, "a member fell silent");
                        self.queue.add(self.cluster.clone());
                    }
                    silent = true;
                }
            }
            let pause = next_pause(&mut pauses, asked.elapsed() > LONG_POLL_TIME, silent);
            tokio::time::sleep(pause.mul_f64(rand::random_range(1.0..1.3))).await;
        }
    }
}

/// Returns the pause after a request: `waited` if it was a long poll, `silent` if the member did not answer.
fn next_pause(pauses: &mut Backoff, waited: bool, silent: bool) -> Duration {
    if waited && !silent {
        pauses.reset();
    }
    pauses.set_longest(if silent {
        MAX_PAUSE_AFTER_SILENCE
    } else {
        MAX_PAUSE_AFTER_ANSWER
    });
    pauses.next_delay()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use futures::{FutureExt as _, StreamExt as _};
    use kube::runtime::reflector;
    use kube::runtime::reflector::store::Writer;
    use kube::runtime::watcher::Event;
    use plan::testing::{answer, cluster, full};
    use serde_json::json;
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;

    use super::*;
    use crate::probe::tests::reply;

    /// Starts a brain that answers each request with the next epoch that it receives, and sends the requests it got.
    async fn brain(
        mut epochs: mpsc::Receiver<i64>,
        asked: mpsc::Sender<String>,
        tasks: &mut JoinSet<()>,
    ) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tasks.spawn(async move {
            while let Some(epoch) = epochs.recv().await {
                let (stream, _) = listener.accept().await.unwrap();
                let mut answer = full();
                answer["epoch"] = json!(epoch);
                let (request, _) = reply(stream, 200, answer.to_string().into(), &[]).await;
                asked
                    .send(request.uri().query().unwrap_or_default().to_owned())
                    .await
                    .unwrap();
            }
        });
        address
    }

    struct Fixture {
        leader_watches: LeaderWatches,
        queue: Arc<WorkQueue>,
        writer: Writer<KubeBrainCluster>,
        epochs: mpsc::Sender<i64>,
        asked: mpsc::Receiver<String>,
        member: FollowedMember,
        _brain: JoinSet<()>,
    }

    async fn fixture() -> Fixture {
        let (clusters, mut writer) = reflector::store();
        writer.apply_watcher_event(&Event::Apply(cluster(json!({}))));
        let queue = Arc::<WorkQueue>::default();
        let (epochs, sent) = mpsc::channel(100);
        let (ask, asked) = mpsc::channel(100);
        let mut tasks = JoinSet::new();
        let address = brain(sent, ask, &mut tasks).await.to_string();
        let member = FollowedMember {
            pod: "dev-0".to_owned(),
            uid: "pod-uid".to_owned(),
            address,
            host: "dev-0".to_owned(),
            identity: None,
        };
        Fixture {
            leader_watches: LeaderWatches::new(clusters, queue.clone()),
            queue,
            writer,
            epochs,
            asked,
            member,
            _brain: tasks,
        }
    }

    impl Fixture {
        fn follow(&self, members: &[FollowedMember]) {
            // This is the brain's own answer of epoch 2, so that only the epoch differs.
            let mut answer = answer(1, 0);
            answer.role = BrainRole::Follower;
            answer.leader = Some(KnownLeader {
                name: "dev-1".to_owned(),
                member: 16,
            });
            let answers = HashMap::from([("dev-0", &answer)]);
            self.leader_watches.follow(&cluster(json!({})), members, &answers);
        }
    }

    #[tokio::test]
    async fn change_of_leader_starts_a_pass() {
        let mut fixture = fixture().await;
        fixture.follow(std::slice::from_ref(&fixture.member));
        let mut named = Box::pin(fixture.queue.clone().stream());
        fixture.epochs.send(2).await.unwrap();
        assert_eq!(fixture.asked.recv().await.unwrap(), "after=2");
        fixture.epochs.send(3).await.unwrap();
        assert_eq!(fixture.asked.recv().await.unwrap(), "after=2");
        assert_eq!(named.next().await.unwrap().name, "dev");
        fixture.epochs.send(3).await.unwrap();
        assert_eq!(fixture.asked.recv().await.unwrap(), "after=3");
        assert!(named.next().now_or_never().is_none(), "nothing changed in the end");
    }

    #[test]
    fn pauses_grow_more_in_silence_than_between_quick_answers() {
        let last_of = |count: usize, waited: bool, silent: bool| {
            let mut pauses = Backoff::new(FIRST_PAUSE, MAX_PAUSE_AFTER_SILENCE);
            let last = (0..count).map(|_| next_pause(&mut pauses, waited, silent)).last();
            last.unwrap()
        };
        assert_eq!(last_of(1, false, false), FIRST_PAUSE);
        assert_eq!(last_of(100, true, false), FIRST_PAUSE);
        // With jitter and the pass that follows, less than the two seconds by which the leader's label may lag.
        assert!(last_of(100, false, false).mul_f64(1.3) < Duration::from_secs(2));
        assert_eq!(last_of(100, false, true), MAX_PAUSE_AFTER_SILENCE);
        let mut long_silent = Backoff::new(MAX_PAUSE_AFTER_SILENCE, MAX_PAUSE_AFTER_SILENCE);
        assert_eq!(next_pause(&mut long_silent, true, true), MAX_PAUSE_AFTER_SILENCE);
        assert_eq!(next_pause(&mut long_silent, false, false), MAX_PAUSE_AFTER_ANSWER);
    }

    #[tokio::test]
    async fn brain_that_answers_at_once_is_asked_more_and_more_rarely() {
        let mut fixture = fixture().await;
        for epoch in 0..100 {
            fixture.epochs.send(epoch).await.unwrap();
        }
        fixture.follow(std::slice::from_ref(&fixture.member));
        let asking = async { while fixture.asked.recv().await.is_some() {} };
        // Requests 0, 0.1, 0.3, 0.7, 1.5 and 2.7 s after the first one, or later; one more answer is ready.
        assert!(tokio::time::timeout(Duration::from_secs(3), asking).await.is_err());
        assert!(fixture.epochs.capacity() <= 7, "{}", fixture.epochs.capacity());
    }

    #[tokio::test]
    async fn members_are_followed_as_long_as_pod_and_cluster_are_there() {
        let mut fixture = fixture().await;
        let member = fixture.member.clone();
        fixture.follow(std::slice::from_ref(&member));
        fixture.follow(std::slice::from_ref(&member));
        assert_eq!(fixture.leader_watches.count(), 1);
        let next = FollowedMember {
            uid: "another".to_owned(),
            ..member.clone()
        };
        fixture.follow(std::slice::from_ref(&next));
        assert_eq!(fixture.leader_watches.count(), 1);
        fixture.leader_watches.leave(&cluster(json!({})));
        assert_eq!(fixture.leader_watches.count(), 0);

        let task = MemberFollower {
            cluster: ObjectRef::from_obj(&cluster(json!({}))),
            uid: cluster(json!({})).metadata.uid,
            clusters: fixture.leader_watches.clusters.clone(),
            queue: fixture.queue.clone(),
            member,
        };
        fixture.writer.apply_watcher_event(&Event::Delete(cluster(json!({}))));
        task.run(MemberLeadership::of(&answer(1, 1))).await;
    }
}
