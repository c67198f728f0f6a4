//! `kubebrain import` copies an etcd that is written to, and clients find on the copy what they had.

use std::io::{BufRead as _, BufReader, PipeReader};
use std::process::{Child, Stdio};

use differential::FLAGS;
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use programs::members::Members;
use programs::progress::Progress;
use programs::server::{Program, Server, spawn};
use programs::tikv::Tikv;
use programs::watchdog;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::transport::Channel;
use wire::etcdserverpb as pb;

use crate::harness::deadline;
use crate::snapshot::{assert_same, first_readable, read};

/// Set it to make a run happen again.
const SEED_VARIABLE: &str = "KUBEBRAIN_SEED";

/// Requests that are written at most.
const MAX_REQUESTS: u32 = 2_000;

/// Requests at most from the start of the copy until it is killed.
const MAX_REQUESTS_BEFORE_KILL: u32 = 600;

/// Requests before the copy begins.
const REQUESTS_BEFORE_COPY: u32 = 200;

/// A running `kubebrain import`. The kernel kills it if this process ends.
struct Copy {
    child: Child,
    lines: std::io::Lines<BufReader<PipeReader>>,
    log: Vec<String>,
}

impl Copy {
    /// Copies from the endpoints to where the flags say.
    fn start(program: &Program, endpoints: &str, flags: &[String]) -> Self {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut command = programs::server::command(program);
        command
            .args(["import", "--follow", "--from-endpoints", endpoints])
            .args(flags)
            .stdin(Stdio::null())
            .stdout(writer.try_clone().unwrap())
            .stderr(writer);
        Self {
            child: spawn(command).unwrap(),
            lines: BufReader::new(reader).lines(),
            log: Vec::new(),
        }
    }

    /// Waits until a line of its output holds the text.
    fn says(&mut self, text: &str) {
        for line in self.lines.by_ref() {
            let line = line.unwrap();
            let is_found = line.contains(text);
            self.log.push(line);
            if is_found {
                return;
            }
        }
        panic!("it never said {text:?}:\n{}", self.log.join("\n"));
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to finish, and waits for its end.
    fn finish(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::USR1).unwrap();
        self.says("equal to the source: checksum");
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}\n{}", self.log.join("\n"));
    }
}

/// Writes like an application until `stop` is set. Compacts now and then. Returns the newest revision.
async fn load(channel: Channel, mut random: StdRng, written: watch::Sender<u32>, stop: watch::Receiver<bool>) -> i64 {
    let (mut kv, mut lease) = (KvClient::new(channel.clone()), LeaseClient::new(channel));
    let (mut revision, mut leases) = (0, Vec::new());
    for n in 0..MAX_REQUESTS {
        if *stop.borrow() {
            break;
        }
        let key = format!("load/{}", random.random_range(0..60));
        let id = leases.get(random.random_range(0..leases.len().max(1))).copied();
        let put = pb::PutRequest {
            key: key.clone().into(),
            value: vec![b'v'; random.random_range(0..300)].into(),
            lease: id.filter(|_| n % 3 == 0).unwrap_or_default(),
            ..Default::default()
        };
        let header = match random.random_range(0..20) {
            0 => {
                let grant = pb::LeaseGrantRequest { id: 0, ttl: 3_600 };
                leases.push(lease.lease_grant(grant).await.unwrap().into_inner().id);
                None
            }
            1 if leases.len() > 3 => {
                let id = leases.swap_remove(random.random_range(0..leases.len()));
                let revoked = lease.lease_revoke(pb::LeaseRevokeRequest { id }).await;
                revoked.unwrap().into_inner().header
            }
            2 | 3 => {
                let delete = pb::DeleteRangeRequest {
                    range_end: format!("{key}9").into(),
                    key: key.into(),
                    ..Default::default()
                };
                kv.delete_range(delete).await.unwrap().into_inner().header
            }
            4 | 5 => {
                let ops = ["a", "b", "c"].map(|end| {
                    let put = pb::PutRequest {
                        key: format!("{key}/{end}").into(),
                        ..put.clone()
                    };
                    pb::RequestOp {
                        request: Some(pb::request_op::Request::RequestPut(put)),
                    }
                });
                let txn = pb::TxnRequest {
                    success: ops.into(),
                    ..Default::default()
                };
                kv.txn(txn).await.unwrap().into_inner().header
            }
            _ => kv.put(put).await.unwrap().into_inner().header,
        };
        revision = header.map_or(revision, |header| header.revision);
        if n % 300 == 299 {
            let compact = pb::CompactionRequest {
                revision: revision - 200,
                physical: true,
            };
            kv.compact(compact).await.unwrap();
        }
        written.send_replace(n + 1);
    }
    revision
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_is_copied_while_it_is_written_to() {
    let progress = Progress::stderr();
    is_copied_while_it_is_written_to(&Program::etcd(&progress).unwrap(), FLAGS, &progress).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "builds two more etcds: make test-long"]
async fn earlier_etcds_are_copied_while_they_are_written_to() {
    let progress = Progress::stderr();
    for etcd in [Program::etcd_3_5, Program::etcd_3_4] {
        is_copied_while_it_is_written_to(&etcd(&progress).unwrap(), &[], &progress).await;
    }
}

async fn is_copied_while_it_is_written_to(etcd: &Program, flags: &[&str], progress: &Progress) {
    let _deadline: watchdog::Watchdog = deadline();
    let seed = std::env::var(SEED_VARIABLE).map_or_else(|_| rand::random(), |text| text.parse::<u64>().unwrap());
    progress.say(format_args!("{SEED_VARIABLE}={seed}"));
    let mut random = StdRng::seed_from_u64(seed);
    let dir = TempDir::new().unwrap();
    let dir = dir.path().join("copy");
    let into = [format!("--data-dir={}", dir.display())];
    let kubebrain = Program::kubebrain().unwrap();
    let etcd = Server::start(etcd, flags).unwrap();
    let channel = etcd.connect().await.unwrap();
    let ((written, mut is_written), (stop, stopped)) = (watch::channel(0), watch::channel(false));
    let mut writer = JoinSet::new();
    writer.spawn(load(
        channel.clone(),
        StdRng::seed_from_u64(random.random()),
        written,
        stopped,
    ));
    is_written
        .wait_for(|written| *written >= REQUESTS_BEFORE_COPY)
        .await
        .unwrap();
    let copy = Copy::start(&kubebrain, etcd.endpoint(), &into);
    let killed_at = REQUESTS_BEFORE_COPY + random.random_range(0..MAX_REQUESTS_BEFORE_KILL);
    is_written.wait_for(|written| *written >= killed_at).await.unwrap();
    copy.kill();
    let mut copy = Copy::start(&kubebrain, etcd.endpoint(), &into);
    copy.says("the copy has reached the source");
    more_is_written(&mut is_written).await;
    // The switch-over: first the clients, then the copy.
    stop.send_replace(true);
    let newest = writer.join_next().await.unwrap().unwrap();
    copy.finish();

    let brain = Server::start_in(&kubebrain, &dir, FLAGS).unwrap();
    assert_copied(&channel, &brain, newest).await;
    brain.stop().unwrap();
    etcd.stop().unwrap();
}

/// Waits until the load has done more, or all, of its requests.
async fn more_is_written(is_written: &mut watch::Receiver<u32>) {
    let more = MAX_REQUESTS.min(*is_written.borrow() + 200);
    is_written.wait_for(|written| *written >= more).await.unwrap();
}

/// Compares all that clients can read of the source with what they can read of its copy, which is written to afterwards.
async fn assert_copied(source: &Channel, brain: &Server, newest: i64) {
    let compacted = first_readable(&mut KvClient::new(source.clone()), newest).await;
    let expected = read(source, (compacted, newest)).await;
    let channel = brain.connect().await.unwrap();
    let mut kv = KvClient::new(channel.clone());
    assert_eq!(first_readable(&mut kv, newest).await, compacted);
    assert_same(&read(&channel, (compacted, newest)).await, &expected, "the copy");
    let put = pb::PutRequest {
        key: "after".into(),
        ..Default::default()
    };
    let header = kv.put(put).await.unwrap().into_inner().header.unwrap();
    assert_eq!(header.revision, newest + 1);
}

/// The copy continues with the next endpoint when the member that it follows ends.
#[tokio::test(flavor = "multi_thread")]
async fn etcd_of_three_members_is_copied_to_tikv_while_one_of_them_ends() {
    let _deadline: watchdog::Watchdog = deadline();
    let progress = Progress::stderr();
    let kubebrain = Program::kubebrain().unwrap();
    let tikv = Tikv::for_test().unwrap();
    let into = [
        "--storage=tikv".to_owned(),
        format!("--tikv-pd-endpoints={}", tikv.pd()),
        format!("--tikv-key-prefix=copy-{:032x}", rand::random::<u128>()),
    ];
    let mut etcds = Members::etcds(&Program::etcd(&progress).unwrap(), 3, FLAGS).unwrap();
    let (leader, followers) = (etcds.leader().await.unwrap(), etcds.followers().await.unwrap());
    let (followed, other) = (followers[0], followers[1]);
    let endpoints = [followed, leader, other].map(|member| etcds.url(member).unwrap());
    let channel = etcds.server(leader).unwrap().connect().await.unwrap();
    let ((written, mut is_written), (stop, stopped)) = (watch::channel(0), watch::channel(false));
    let mut writer = JoinSet::new();
    let random = StdRng::seed_from_u64(rand::random());
    writer.spawn(load(channel.clone(), random, written, stopped));
    is_written
        .wait_for(|written| *written >= REQUESTS_BEFORE_COPY)
        .await
        .unwrap();
    let mut copy = Copy::start(&kubebrain, &endpoints.join(","), &into);
    copy.says("the copy has reached the source");
    etcds.kill(followed).unwrap();
    more_is_written(&mut is_written).await;
    stop.send_replace(true);
    let newest = writer.join_next().await.unwrap().unwrap();
    copy.finish();

    let flags: Vec<&str> = FLAGS.iter().copied().chain(into.iter().map(String::as_str)).collect();
    let brain = Server::start(&kubebrain, &flags).unwrap();
    assert_copied(&channel, &brain, newest).await;
    brain.stop().unwrap();
    etcds.stop().unwrap();
}
