//! The locks that a leader leaves in TiKV when it is killed in the middle of a flush do not block other members.

use std::time::Duration;

use pb::kv_client::KvClient;
use pb::request_op::Request as Op;
use programs::members::{self, Members};
use programs::server::Program;
use programs::tikv::MockTikv;
use serde_json::{Value, json};
use tokio::time::timeout;
use tonic::transport::Channel;
use wire::etcdserverpb as pb;

use crate::harness::deadline;

const ELECTION_TIMEOUT: Duration = Duration::from_secs(60);
/// More than a brain keeps in memory before it flushes.
const KEYS: usize = 12_000;
const VALUE_BYTES: usize = 1024;
/// Puts of one transaction.
const PUTS_PER_TXN: usize = 100;

fn put(number: usize) -> pb::PutRequest {
    pb::PutRequest {
        key: format!("key/{number:06}").into(),
        value: vec![b'v'; VALUE_BYTES].into(),
        ..pb::PutRequest::default()
    }
}

async fn fill(kv: &mut KvClient<Channel>) {
    for first in (0..KEYS).step_by(PUTS_PER_TXN) {
        let op = |number| pb::RequestOp {
            request: Some(Op::RequestPut(put(number))),
        };
        let txn = pb::TxnRequest {
            success: (first..first + PUTS_PER_TXN).map(op).collect(),
            ..pb::TxnRequest::default()
        };
        kv.txn(txn).await.unwrap();
    }
}

async fn kv(members: &Members, member: usize) -> KvClient<Channel> {
    let channel = members.server(member).unwrap().connect().await.unwrap();
    KvClient::new(channel).max_decoding_message_size(usize::MAX)
}

/// All values, read at the leader's word.
async fn read(kv: &mut KvClient<Channel>) -> usize {
    let range = pb::RangeRequest {
        key: b"key/".to_vec().into(),
        range_end: b"key0".to_vec().into(),
        ..pb::RangeRequest::default()
    };
    let answer = kv.range(range).await.unwrap().into_inner();
    answer.kvs.iter().filter(|kv| kv.value.len() == VALUE_BYTES).count()
}

async fn sizes(tikv: &MockTikv) -> (u64, u64) {
    let status = tikv.command("GET", "/status", None).await.unwrap();
    let size = |name: &str| status["sizes"][name].as_u64().unwrap();
    (size("keys"), size("locks"))
}

async fn until(tikv: &MockTikv, what: &str, reached: impl Fn((u64, u64)) -> bool) {
    let waiting = async {
        while !reached(sizes(tikv).await) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(ELECTION_TIMEOUT, waiting)
        .await
        .unwrap_or_else(|_| panic!("not in time: {what}"));
}

async fn fault(tikv: &MockTikv, fault: Value) -> u64 {
    let answer = tikv.command("POST", "/faults", Some(fault)).await.unwrap();
    answer["id"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_of_a_leader_killed_in_a_flush_hold_nobody_up() {
    let _deadline = deadline();
    // a member that waited for these locks to expire would wait for ever
    let tikv = MockTikv::start(None, &["--lock-ttl=3600s"]).unwrap();
    let program = Program::kubebrain().unwrap();
    let mut members = Members::brains(&program, tikv.pd(), 3, &members::PATIENT_ELECTION_FLAGS).unwrap();
    let leader = members.leader().await.unwrap();
    // a transaction within one region is committed in one phase, and leaves no locks
    let rows: String = members
        .first_key(b'r')
        .unwrap()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    tikv.command("POST", "/split", Some(json!({"key": rows})))
        .await
        .unwrap();
    // the transactions of a flush complete the first phase, but not the second
    let lost = json!({"kind": "lose_request", "silent": true});
    let stuck = fault(&tikv, json!({"rpc": "commit", "action": lost})).await;
    fill(&mut kv(&members, leader).await).await;
    // more than one transaction leaves
    until(&tikv, "a flush is under way", |(_, locks)| locks > 20).await;
    members.kill(leader).unwrap();
    tikv.command("DELETE", &format!("/faults/{stuck}"), None).await.unwrap();

    for member in members.running() {
        let mut kv = kv(&members, member).await;
        let write = async {
            while let Err(status) = kv.put(put(0)).await {
                let known = ["etcdserver: request timed out", "etcdserver: leader changed"];
                assert!(known.contains(&status.message()), "{status:?}");
            }
        };
        timeout(ELECTION_TIMEOUT, write).await.expect("a leader in time");
        assert_eq!(read(&mut kv).await, KEYS);
    }
    let rows = 2 * KEYS as u64;
    until(&tikv, "the flush is made up for", |(keys, locks)| {
        keys > rows && locks == 0
    })
    .await;
    members.stop().unwrap();
}
