//! A whole Kubernetes on three brains, whose API server knows only one of them: a follower.

use std::time::Duration;

use e2e_cluster::cluster::{self, Cluster};
use e2e_cluster::cluster_dir::ClusterName;
use e2e_cluster::config::{ClusterConfig, StoreProgram};
use e2e_cluster::store::MEMBERS;
use e2e_cluster::{apiserver, kubelet};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use pb::maintenance_client::MaintenanceClient;
use programs::members;
use programs::progress::Progress;
use programs::tools::own::Programs;
use programs::watchdog::Watchdog;
use rustix::process::Signal;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::transport::Endpoint;
use wire::etcdserverpb as pb;

use crate::crash::until;
use crate::harness::witness::Witness;
use crate::harness::{calm, cluster_program};
use crate::writers::{Load, RECOVERY_TIMEOUT, WRITERS};

/// The member that the API server is connected to.
const APISERVER_MEMBER: usize = 1;
/// Acknowledged writes between two kills.
const WRITES_PER_KILL: usize = 100;
/// The longest time without a write. A leader that was killed is missed for 4 s, the length of its lease; its successor
/// is found within a retry, and what was lost in between is asked again. A member that is started again is connected to
/// after at most 3 s, the longest pause of etcd's client. Twice over for a busy machine.
const MAX_OUTAGE: Duration = Duration::from_secs(15);
/// Interval at which a kubelet renews the Lease of its node. That and an outage are less than the 40 s after which a node counts as
/// lost.
const NODE_LEASE_INTERVAL: Duration = Duration::from_secs(10);
/// Interval of the looks at the Lease.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Messages that our programs may log when members are killed.
const PROVOKED_MESSAGES: [&str; 1] = ["a watch was interrupted"];

fn start(progress: &Progress) -> Cluster {
    let tests = ClusterName::of_tests(Programs::find().unwrap().dir());
    let config = ClusterConfig {
        name: format!("{tests}-brains").parse().unwrap(),
        store: StoreProgram::Tikv,
        through: Some(APISERVER_MEMBER),
        product: false,
        test_images: false,
        ports: Default::default(),
    };
    cluster::down(&config.name, progress).unwrap();
    let cluster = Cluster::start(&config, &cluster_program().unwrap(), progress).unwrap();
    for text in members::ELECTION_MESSAGES.iter().chain(&PROVOKED_MESSAGES) {
        cluster.expect_log(text).unwrap();
    }
    cluster
}

/// The members of a cluster's store.
struct Brains<'a>(&'a Cluster);

impl Brains<'_> {
    async fn status(&self, member: usize) -> anyhow::Result<pb::StatusResponse> {
        members::status(&self.0.member_url(&MEMBERS[member])?).await
    }

    /// The member that leads by its own word.
    async fn leader(&self) -> usize {
        let deadline = Instant::now() + RECOVERY_TIMEOUT;
        loop {
            for member in 0..MEMBERS.len() {
                if self.status(member).await.is_ok_and(|status| members::leads(&status)) {
                    return member;
                }
            }
            assert!(Instant::now() < deadline, "nobody leads");
        }
    }

    /// Moves the lead away from `member`.
    async fn depose(&self, member: usize) {
        while self.leader().await == member {
            let other = self.status((member + 1) % MEMBERS.len()).await.unwrap();
            let target_id = other.header.unwrap().member_id;
            let endpoint = Endpoint::new(self.0.member_url(&MEMBERS[member]).unwrap()).unwrap();
            let mut client = MaintenanceClient::new(endpoint.connect().await.unwrap());
            client.move_leader(pb::MoveLeaderRequest { target_id }).await.unwrap();
        }
    }

    /// Kills a member. Returns when it was started again and answers, and writes have continued.
    async fn kill(&self, member: usize, load: &Load) {
        let name = MEMBERS[member].name;
        let killed = self.0.state().unwrap().programs[name];
        assert!(killed.signal(Signal::KILL), "{name} had ended by itself");
        until(
            || self.0.state().unwrap().programs[name] != killed,
            "it was started again",
        )
        .await;
        load.acknowledge(WRITERS + 1).await; // at least one was begun after the kill
        let deadline = Instant::now() + RECOVERY_TIMEOUT;
        while let Err(error) = self.status(member).await {
            assert!(Instant::now() < deadline, "{name} does not come back: {error:#}");
        }
        load.acknowledge(WRITES_PER_KILL).await;
    }
}

/// State of an API server's watches of the store.
#[derive(Debug, PartialEq, Eq)]
struct Watches {
    /// Streams that were begun.
    begun: u64,
    /// Streams that ended.
    ended: u64,
    /// Caches that were filled by a list.
    filled: u64,
    /// Watches that the store gave up.
    given_up: usize,
}

impl Watches {
    async fn of(cluster: &Cluster, client: &kube::Client) -> Self {
        let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
        let metrics = client.request_text(request).await.unwrap();
        let log = std::fs::read_to_string(cluster.home().log(apiserver::NAME)).unwrap();
        let stream = "grpc_method=\"Watch\"";
        let watches = Self {
            begun: sum(&metrics, "grpc_client_started_total", stream),
            ended: sum(&metrics, "grpc_client_handled_total", stream),
            filled: sum(&metrics, "apiserver_watch_cache_initializations_total", ""),
            given_up: log.matches("watch chan error").count(),
        };
        assert!(
            watches.begun > 0 && watches.filled > 0,
            "{watches:?} of an API server that works"
        );
        watches
    }
}

/// Of all samples of this name with this label.
fn sum(metrics: &str, name: &str, label: &str) -> u64 {
    let value = |line: &str| {
        let labels = line.strip_prefix(name)?.strip_prefix('{')?;
        let (labels, value) = labels.rsplit_once("} ")?;
        labels.contains(label).then(|| value.parse::<f64>().unwrap())
    };
    metrics.lines().filter_map(value).sum::<f64>() as u64
}

/// When the Lease of the node was seen renewed.
struct Renewals {
    seen: watch::Receiver<Vec<Instant>>,
    _task: JoinSet<()>,
}

impl Renewals {
    fn of(client: kube::Client) -> Self {
        let (tell, seen) = watch::channel(Vec::new());
        let mut task = JoinSet::new();
        task.spawn(async move {
            let leases = Api::<Lease>::namespaced(client, "kube-node-lease");
            let (mut look, mut last) = (tokio::time::interval(POLL_INTERVAL), None);
            loop {
                look.tick().await;
                // what cannot be seen now is seen later
                let Ok(lease) = leases.get(kubelet::NODE_NAME).await else {
                    continue;
                };
                let renewed = lease.spec.and_then(|spec| spec.renew_time);
                if renewed != last {
                    last = renewed;
                    tell.send_modify(|seen| seen.push(Instant::now()));
                }
            }
        });
        Self { seen, _task: task }
    }

    /// The longest time between two renewals, once this many were seen.
    async fn longest_gap(&mut self, count: usize) -> Duration {
        let enough = self.seen.wait_for(|seen| seen.len() >= count);
        let seen = tokio::time::timeout(RECOVERY_TIMEOUT, enough)
            .await
            .expect("renewals in time")
            .unwrap();
        let gaps = seen.windows(2).map(|pair| pair[1] - pair[0]);
        gaps.max().expect("there are two").max(seen.last().unwrap().elapsed())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubernetes_on_three_brains_outlives_each_of_them() {
    let _calm = calm().await;
    let _deadline = Watchdog::within(RECOVERY_TIMEOUT * 10);
    let progress = Progress::stderr();
    let cluster = start(&progress);
    let client = cluster.client().await.unwrap();
    let brains = Brains(&cluster);
    brains.depose(APISERVER_MEMBER).await;
    let through = cluster.member_url(&MEMBERS[APISERVER_MEMBER]).unwrap();
    let witness = Witness::start(&through).unwrap();
    let mut renewals = Renewals::of(client.clone());
    let load = Load::start(&client, "brains").await;
    load.acknowledge(WRITES_PER_KILL).await;

    let before = Watches::of(&cluster, &client).await;
    let step = progress.step("leader killed under load");
    brains.kill(brains.leader().await, &load).await;
    step.done();
    progress.say(format_args!("  {:?} without a write", load.longest_gap()));
    let leader = brains.leader().await;
    assert_eq!(
        Watches::of(&cluster, &client).await,
        before,
        "a change of leader ended watches"
    );

    // the one that the API server is connected to last
    let mut followers: Vec<usize> = (0..MEMBERS.len()).filter(|member| *member != leader).collect();
    followers.sort_by_key(|member| *member == APISERVER_MEMBER);
    for follower in followers {
        let step = progress.step(format_args!("{} killed under load", MEMBERS[follower].name));
        brains.kill(follower, &load).await;
        step.done();
        if follower != APISERVER_MEMBER {
            let now = Watches::of(&cluster, &client).await;
            assert_eq!(now, before, "the end of another follower ended watches");
        }
    }
    let (outage, renewed) = (load.longest_gap(), renewals.longest_gap(4).await);
    let written = load.end().await;
    progress.say(format_args!(
        "  {written}; at most {outage:?} without a write, {renewed:?} without a renewal of the node's Lease"
    ));
    assert!(outage <= MAX_OUTAGE, "nothing was written for {outage:?}");
    assert!(
        renewed <= NODE_LEASE_INTERVAL + MAX_OUTAGE,
        "the node's Lease was not renewed for {renewed:?}"
    );
    let compared = tokio::task::block_in_place(|| witness.compare(&through)).unwrap();
    progress.say(format_args!("  list and watch agree: {compared}"));
    cluster.stop().unwrap();
}
