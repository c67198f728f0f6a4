//! TiKV goes away and comes back, or fills up.

use std::time::Duration;

use etcd_types::pb::etcdserverpb as pb;
use mock_tikv::{Action, Fault, MockTikv, RegionFault, Rpc};
use pb::kv_client::KvClient;
use pb::maintenance_client::MaintenanceClient;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use super::Site;
use crate::number;
use crate::program::{Process, STEP_TIMEOUT};

/// Longer than a request waits for its outcome.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of memory that a member may take on under a load that it cannot get rid of: what may wait for the writer and
/// what may wait for a leader (128 MiB each), what is in memory before it is in rows, and the ring of watchers.
const MAX_MEMORY_GROWTH: u64 = 512 << 20;

/// Time within which the cluster must recover, on a busy machine.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(20);

/// Returns the length of a storage outage, which is longer in long tests.
fn outage(short: u64, long: u64) -> Duration {
    let is_long = std::env::var_os("KUBEBRAIN_LONG").is_some();
    Duration::from_secs(number("OUTAGE", if is_long { long } else { short }))
}

fn put(key: &str, bytes: usize) -> pb::PutRequest {
    pb::PutRequest {
        key: key.to_owned().into(),
        value: vec![b'v'; bytes].into(),
        ..pb::PutRequest::default()
    }
}

fn get(key: &str, serializable: bool) -> pb::RangeRequest {
    pb::RangeRequest {
        key: key.to_owned().into(),
        serializable,
        ..pb::RangeRequest::default()
    }
}

/// Writers that never wait for each other. Their outcomes are counted; a request that hangs is a panic.
struct Load {
    writers: JoinSet<Told>,
    stop: CancellationToken,
}

#[derive(Debug, Default)]
struct Told {
    done: usize,
    timed_out: usize,
    refused: usize,
}

impl Load {
    /// Begins, with values of `bytes` bytes.
    async fn begin(member: &Process, writers: usize, bytes: usize) -> Load {
        let stop = CancellationToken::new();
        let mut set = JoinSet::new();
        for writer in 0..writers {
            let mut kv = KvClient::new(member.connect().await);
            let stop = stop.clone();
            set.spawn(async move {
                let mut told = Told::default();
                for n in 0.. {
                    if stop.is_cancelled() {
                        break;
                    }
                    let asked = timeout(REQUEST_TIMEOUT, kv.put(put(&format!("load/{writer}/{n}"), bytes))).await;
                    match asked.expect("a write hangs") {
                        Ok(_) => told.done += 1,
                        Err(status) if is(&status, Code::Unavailable, "etcdserver: request timed out") => {
                            told.timed_out += 1;
                        }
                        Err(status) if is(&status, Code::ResourceExhausted, "etcdserver: too many requests") => {
                            told.refused += 1;
                        }
                        Err(status) => panic!("{status:?}"),
                    }
                }
                told
            });
        }
        Load { writers: set, stop }
    }

    async fn end(mut self) -> Told {
        self.stop.cancel();
        let mut sum = Told::default();
        while let Some(told) = timeout(STEP_TIMEOUT, self.writers.join_next()).await.unwrap() {
            let told = told.unwrap();
            sum.done += told.done;
            sum.timed_out += told.timed_out;
            sum.refused += told.refused;
        }
        sum
    }
}

fn is(status: &Status, code: Code, text: &str) -> bool {
    status.code() == code && status.message() == text
}

fn times_out<T: std::fmt::Debug>(outcome: &Result<T, Status>) {
    let status = outcome.as_ref().unwrap_err();
    assert!(
        is(status, Code::Unavailable, "etcdserver: request timed out"),
        "{status:?}"
    );
}

/// Waits until a write is done, and answers how long that took.
async fn until_done(kv: &mut KvClient<tonic::transport::Channel>, key: &str) -> Duration {
    let begun = Instant::now();
    while let Err(status) = timeout(REQUEST_TIMEOUT, kv.put(put(key, 1)))
        .await
        .expect("a write hangs")
    {
        assert!(
            matches!(status.code(), Code::Unavailable | Code::ResourceExhausted),
            "{status:?}"
        );
        assert!(begun.elapsed() < STEP_TIMEOUT, "{status:?}");
    }
    begun.elapsed()
}

#[tokio::test(flavor = "multi_thread")]
async fn while_tikv_is_down_requests_time_out_and_when_it_returns_all_is_well() {
    let site = Site::new(2).await;
    let leader = site.start(0, 2, &[]).await;
    let follower = site.start(1, 2, &[]).await;
    let mut kv = KvClient::new(leader.connect().await);
    kv.put(put("before", 100)).await.unwrap();
    // Into rows, and out of memory: reads need TiKV.
    let flushed = pb::CompactionRequest {
        revision: 2,
        physical: true,
    };
    kv.compact(flushed).await.unwrap();
    let before = leader.rss();
    let processes: Vec<u64> = site.tikv.stores().into_keys().chain([MockTikv::PD]).collect();
    for process in &processes {
        site.tikv.kill(*process).await.unwrap();
    }
    let begun = Instant::now();
    let (load, other) = (
        Load::begin(&leader, 16, 64 << 10).await,
        Load::begin(&follower, 16, 64 << 10).await,
    );
    let (mut most, mut rounds) = (0, 0);
    while begun.elapsed() < outage(20, 600) {
        for member in [&leader, &follower] {
            let mut kv = KvClient::new(member.connect().await);
            times_out(
                &timeout(REQUEST_TIMEOUT, kv.range(get("before", false)))
                    .await
                    .expect("a read hangs"),
            );
            let read = timeout(REQUEST_TIMEOUT, kv.range(get("before", true)))
                .await
                .expect("a read hangs");
            // A follower may have it in memory yet.
            if member.said("compacted") > 0 {
                times_out(&read);
            }
            assert_eq!(member.get("/livez").await.0, 200, "a restart would not help");
            most = most.max(member.rss());
        }
        rounds += 1;
    }
    assert!(
        rounds > 0 && most < before + MAX_MEMORY_GROWTH,
        "{most} bytes, {before} before"
    );
    for member in [&leader, &follower] {
        let mut maintenance = MaintenanceClient::new(member.connect().await);
        let status = maintenance.status(pb::StatusRequest {}).await.unwrap().into_inner();
        assert_eq!(
            (status.leader, &status.errors[..]),
            (0, &["etcdserver: no leader".to_owned()][..])
        );
    }
    for process in &processes {
        site.tikv.revive(*process).await.unwrap();
    }
    let back = until_done(&mut kv, "after").await;
    assert!(back < RECOVERY_TIMEOUT, "{back:?}");
    for load in [load, other] {
        let told = load.end().await;
        assert!(told.timed_out > 0, "{told:?}");
    }
    let ended = Instant::now(); // what the writers had queued is done by then
    for member in [&leader, &follower] {
        let mut kv = KvClient::new(member.connect().await);
        for key in ["before", "after"] {
            let found = loop {
                let read = timeout(REQUEST_TIMEOUT, kv.range(get(key, false)))
                    .await
                    .expect("a read hangs");
                assert!(
                    read.is_ok() || ended.elapsed() < RECOVERY_TIMEOUT,
                    "{key} at {}: {read:?}",
                    member.url
                );
                if let Ok(found) = read {
                    break found;
                }
            };
            assert_eq!(found.get_ref().count, 1, "{key}");
        }
        assert_eq!(member.get("/readyz").await.0, 200);
    }
    follower.stop().await;
    leader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_gone_for_long_stops_neither_flush_nor_compaction() {
    const WRITES: usize = 100;
    let site = Site::new(1).await;
    let member = site.lone().await;
    let mut kv = KvClient::new(member.connect().await);
    let slots = || {
        let keys = site.tikv.contents().into_keys();
        keys.filter(|key| key.starts_with(&Site::key(b'w', b""))).count()
    };
    // This store has no region of ours, but may have remains of data that will be destroyed.
    site.tikv.kill(3).await.unwrap();
    for round in ["first", "second"] {
        let mut revision = 0;
        for _ in 0..WRITES {
            let done = kv.put(put(round, 1)).await.unwrap();
            revision = done.get_ref().header.as_ref().unwrap().revision;
        }
        let compacted = timeout(STEP_TIMEOUT, member.compact(revision)).await;
        assert_eq!(
            compacted,
            Ok(()),
            "the {round} compaction waits for a server that is gone"
        );
    }
    assert!(slots() >= 2 * WRITES, "{} slots", slots());
    site.tikv.revive(3).await.unwrap();
    let done = kv.put(put("third", 1)).await.unwrap();
    let revision = done.get_ref().header.as_ref().unwrap().revision;
    timeout(STEP_TIMEOUT, member.compact(revision)).await.unwrap();
    assert!(slots() < WRITES, "{} slots are left", slots());
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_rows_cannot_be_written_memory_stays_and_writers_wait_or_are_refused() {
    let site = Site::new(1).await;
    let member = site.lone().await;
    let mut kv = KvClient::new(member.connect().await);
    kv.put(put("before", 1)).await.unwrap();
    let before = member.rss();
    let faults = site.tikv.faults();
    let error = RegionFault::ServerIsBusy;
    let fault = Fault::new(Rpc::Prewrite, Action::Region { error }).on_keys(Site::key(b'r', b""));
    let stuck = faults.add(fault).unwrap();
    let begun = Instant::now();
    let load = Load::begin(&member, 64, 64 << 10).await;
    let mut most = 0;
    while begun.elapsed() < outage(15, 60) {
        let found = timeout(REQUEST_TIMEOUT, kv.range(get("before", false)))
            .await
            .expect("a read hangs");
        assert_eq!(found.unwrap().get_ref().count, 1, "reads continue");
        most = most.max(member.rss());
    }
    assert!(faults.happened(stuck).unwrap() > 0, "nothing was to be flushed");
    let told = load.end().await;
    assert!(told.done > 0 && told.timed_out + told.refused > 0, "{told:?}");
    assert!(most < before + MAX_MEMORY_GROWTH, "{most} bytes, {before} before");
    faults.clear();
    let back = until_done(&mut kv, "after").await;
    assert!(back < RECOVERY_TIMEOUT, "{back:?}");
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_raises_the_alarm_before_tikv_is_full_and_deletes_and_compaction_go_on() {
    let site = Site::new(1).await;
    let member = site.start(0, 1, &["--quota-backend-bytes=4194304"]).await;
    let mut kv = KvClient::new(member.connect().await);
    let refused = loop {
        if let Err(status) = kv.put(put("big", 256 << 10)).await {
            break status;
        }
    };
    assert!(
        is(
            &refused,
            Code::ResourceExhausted,
            "etcdserver: mvcc: database space exceeded"
        ),
        "{refused:?}"
    );
    let mut maintenance = MaintenanceClient::new(member.connect().await);
    assert_eq!(
        alarms(&mut maintenance).await.len(),
        1,
        "a refusal is told before its alarm"
    );
    assert_eq!(kv.range(get("big", false)).await.unwrap().get_ref().count, 1);
    let delete = pb::DeleteRangeRequest {
        key: b"big".to_vec().into(),
        ..pb::DeleteRangeRequest::default()
    };
    let revision = kv
        .delete_range(delete)
        .await
        .unwrap()
        .into_inner()
        .header
        .unwrap()
        .revision;
    member.compact(revision).await;
    disarm(&mut maintenance).await;
    kv.put(put("small", 1)).await.unwrap();
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_without_space_raises_the_alarm_and_reads_go_on() {
    let site = Site::new(1).await;
    let member = site.lone().await;
    let mut kv = KvClient::new(member.connect().await);
    let mut maintenance = MaintenanceClient::new(member.connect().await);
    kv.put(put("a", 1)).await.unwrap();
    // The server that has the log is full; real TiKV then refuses every write to it.
    let error = RegionFault::DiskFull;
    let fault = Fault::new(Rpc::Prewrite, Action::Region { error }).on_keys(Site::key(b'w', b""));
    site.tikv.faults().add(fault).unwrap();
    times_out(
        &timeout(REQUEST_TIMEOUT, kv.put(put("b", 1)))
            .await
            .expect("a write hangs"),
    );
    assert_eq!(alarms(&mut maintenance).await.len(), 1);
    let begun = Instant::now();
    let refused = kv.put(put("b", 1)).await.unwrap_err();
    assert!(
        is(
            &refused,
            Code::ResourceExhausted,
            "etcdserver: mvcc: database space exceeded"
        ),
        "{refused:?}"
    );
    assert!(begun.elapsed() < REQUEST_TIMEOUT, "it is refused at once");
    assert_eq!(kv.range(get("a", false)).await.unwrap().get_ref().count, 1);
    let (status, body) = member.get("/health").await;
    assert!(status == 503 && body.contains("ALARM NOSPACE"), "{status} {body}");
    site.tikv.faults().clear();
    // Deletes work again by themselves, and puts once the alarm is disarmed.
    let delete = pb::DeleteRangeRequest {
        key: b"a".to_vec().into(),
        ..pb::DeleteRangeRequest::default()
    };
    kv.delete_range(delete).await.unwrap();
    disarm(&mut maintenance).await;
    kv.put(put("c", 1)).await.unwrap();
    member.stop().await;
}

type Maintenance = MaintenanceClient<tonic::transport::Channel>;

async fn alarms(maintenance: &mut Maintenance) -> Vec<pb::AlarmMember> {
    let raised = maintenance
        .alarm(pb::AlarmRequest::default())
        .await
        .unwrap()
        .into_inner();
    assert!(raised.alarms.iter().all(|alarm| alarm.alarm == store::alarm::NOSPACE));
    raised.alarms
}

async fn disarm(maintenance: &mut Maintenance) {
    for raised in alarms(maintenance).await {
        let disarm = pb::AlarmRequest {
            action: 2,
            member_id: raised.member_id,
            alarm: raised.alarm,
        };
        maintenance.alarm(disarm).await.unwrap();
    }
    assert_eq!(alarms(maintenance).await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_log_is_silent_gives_the_lock_up_and_ends_on_sigterm() {
    let site = Site::new(2).await;
    let mut leader = site.start(0, 2, &[]).await;
    let mut follower = site.start(1, 2, &[]).await;
    let mut kv = KvClient::new(leader.connect().await);
    kv.put(put("before", 1)).await.unwrap();
    let silent = Fault::new(Rpc::Prewrite, Action::LoseRequest { silent: true });
    let silent = silent.on_keys(Site::key(b'w', b""));
    site.tikv.faults().add(silent).unwrap();
    let stuck = async {
        timeout(REQUEST_TIMEOUT, kv.put(put("stuck", 1)))
            .await
            .expect("a write hangs")
    };
    let given_up = async {
        leader.says("cannot lead: giving up the lock").await;
        leader.get("/readyz").await
    };
    let (stuck, (status, body)) = tokio::join!(stuck, given_up);
    times_out(&stuck);
    assert!(
        status == 503 && body.contains("cannot lead: storage has not answered an append"),
        "{status} {body}"
    );
    // The other one cannot begin its term either.
    follower.says("cannot lead: giving up the lock").await;
    assert_eq!(leader.get("/livez").await.0, 200, "a restart would not help");
    for member in [&mut leader, &mut follower] {
        member.signal(rustix::process::Signal::TERM);
        let ended = timeout(REQUEST_TIMEOUT, member.ended()).await;
        let (code, said) = ended.expect("it does not end");
        assert_eq!(code, Some(0), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leader_whose_rows_take_no_write_gives_the_lock_up_to_a_follower() {
    let site = Site::new(2).await;
    let leader = site.start(0, 2, &[]).await;
    let follower = site.start(1, 2, &[]).await;
    let mut kv = KvClient::new(follower.connect().await);
    // The manifest can be written; only objects cannot.
    let silent = Fault::new(Rpc::Prewrite, Action::LoseRequest { silent: true });
    let stuck = site.tikv.faults().add(silent.on_keys(Site::key(b'r', b"o"))).unwrap();
    kv.put(put("before", 1)).await.unwrap();
    leader.says("the rows have not accepted a write for").await;
    assert!(site.tikv.faults().happened(stuck).unwrap() > 0);
    // The follower has in memory what the old leader could not flush.
    until_done(&mut kv, "meanwhile").await;
    assert_eq!(leader.said("cannot start the term"), 0);
    site.tikv.faults().clear();
    for key in ["before", "meanwhile"] {
        let found = timeout(REQUEST_TIMEOUT, kv.range(get(key, false)))
            .await
            .expect("a read hangs");
        assert_eq!(found.unwrap().get_ref().count, 1, "{key}");
    }
    let flushed = pb::CompactionRequest {
        revision: 3,
        physical: true,
    };
    timeout(STEP_TIMEOUT, kv.compact(flushed)).await.unwrap().unwrap();
    follower.stop().await;
    leader.stop().await;
}
