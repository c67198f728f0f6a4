//! What a write needs of the rows is read before the writer takes it: nobody waits for the reads of others, and nothing is
//! read that is not needed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use brain::log::MemLog;
use brain::mvcc::LeaseId;
use brain::rows::mem::{MemRows, MemSnapshot};
use brain::rows::{Change, Page, Rows, RowsError, Scan, Snapshot, Step};
use brain::sequencer::command::Request as Command;
use brain::state::{CORRUPT, since_boot};
use bytes::Bytes;
use tokio::time::timeout;

use crate::engine::Engine;
use crate::gate::Gated;
use crate::wire::{Answer, Request, Response, Target, pb};

/// Keys with this in them cannot be read while rows are silent.
const SILENT: &[u8] = b"silent";

/// Longer than anybody waits for an answer.
const LONG: Duration = Duration::from_secs(60);

/// Rows whose reads are counted, and of which some never answer while a test says so.
#[derive(Clone, Default)]
struct Counted {
    rows: MemRows,
    reads: Arc<Reads>,
}

#[derive(Default)]
struct Reads {
    is_silent: AtomicBool,
    /// Single rows.
    gets: AtomicUsize,
    /// Many rows at once.
    multi_gets: AtomicUsize,
    /// Rows with values that were asked for by name.
    objects: AtomicUsize,
    /// Reads that began and did not end.
    under_way: AtomicUsize,
}

struct UnderWay<'a>(&'a AtomicUsize);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Reads {
    async fn pass(&self, key: &[u8]) {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        let _under_way = UnderWay(&self.under_way);
        let is_silent = key.windows(SILENT.len()).any(|part| part == SILENT);
        if is_silent && self.is_silent.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if key.first() == Some(&b'o') {
            self.objects.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Single reads, reads of many rows, and rows with values, since the last time.
    fn take(&self) -> (usize, usize, usize) {
        let take = |count: &AtomicUsize| count.swap(0, Ordering::SeqCst);
        (take(&self.gets), take(&self.multi_gets), take(&self.objects))
    }
}

#[derive(Clone)]
struct CountedSnapshot(MemSnapshot, Arc<Reads>);

impl Snapshot for CountedSnapshot {
    async fn fence(&self) -> Result<Option<Bytes>, RowsError> {
        self.0.fence().await
    }

    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, RowsError> {
        self.1.gets.fetch_add(1, Ordering::SeqCst);
        self.1.pass(key).await;
        self.0.get(key).await
    }

    async fn multi_get(&self, keys: &[Bytes]) -> Result<Vec<Option<Bytes>>, RowsError> {
        self.1
            .multi_gets
            .fetch_add(usize::from(!keys.is_empty()), Ordering::SeqCst);
        for key in keys {
            self.1.pass(key).await;
        }
        self.0.multi_get(keys).await
    }

    async fn scan(&self, scan: Scan) -> Result<Page, RowsError> {
        // A scan is no read by name.
        self.1.pass(&[b"i", &scan.from[..]].concat()).await;
        self.0.scan(scan).await
    }

    async fn split_points(&self, from: &[u8], to: Option<&[u8]>, parts: usize) -> Result<Vec<Bytes>, RowsError> {
        self.0.split_points(from, to, parts).await
    }
}

impl Rows for Counted {
    type Snapshot = CountedSnapshot;

    async fn snapshot(&self) -> Result<CountedSnapshot, RowsError> {
        Ok(CountedSnapshot(self.rows.snapshot().await?, self.reads.clone()))
    }

    async fn fence(&self) -> Result<Option<Bytes>, RowsError> {
        self.rows.fence().await
    }

    async fn apply(&self, expected: Option<Bytes>, fence: Bytes, changes: Vec<Change>) -> Result<(), RowsError> {
        self.rows.apply(expected, fence, changes).await
    }

    async fn take_over(&self) -> Result<(), RowsError> {
        self.rows.take_over().await
    }

    async fn sync(&self) -> Result<(), RowsError> {
        self.rows.sync().await
    }

    fn renew_after(&self) -> Option<Duration> {
        self.rows.renew_after()
    }

    fn step(&self) -> Step {
        self.rows.step()
    }

    fn max_key_len(&self) -> usize {
        self.rows.max_key_len()
    }

    fn max_value_len(&self) -> usize {
        self.rows.max_value_len()
    }

    fn size(&self) -> Option<u64> {
        self.rows.size()
    }
}

async fn start() -> (Engine<MemLog, Counted>, Counted) {
    let rows = Counted::default();
    (Engine::start(MemLog::new(), rows.clone()).await.unwrap(), rows)
}

/// Puts so many keys, attached to a lease, and waits until none of them is in memory.
async fn fill(engine: &mut Engine<MemLog, Counted>, keys: usize, lease: i64) {
    for n in 0..keys {
        let put = pb::PutRequest {
            key: format!("many/{n:05}").into(),
            value: "a value".into(),
            lease,
            ..pb::PutRequest::default()
        };
        engine.call(Request::Put(put)).await.unwrap();
    }
    while engine.store.state.view().recent.bytes() > 0 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn delete(engine: &mut Engine<MemLog, Counted>, prev_kv: bool) -> pb::DeleteRangeResponse {
    let delete = pb::DeleteRangeRequest {
        key: "many/".into(),
        range_end: "many0".into(),
        prev_kv,
    };
    match engine.call(Request::Delete(delete)).await.unwrap() {
        Response::Delete(answer) => answer,
        other => panic!("answered by {other:?}"),
    }
}

fn text(answer: Answer) -> String {
    answer.map_or_else(|refused| refused.text, |_| "accepted".to_owned())
}

#[tokio::test(start_paused = true)]
async fn writes_do_not_wait_for_rows_that_others_need() {
    let (mut engine, rows) = start().await;
    rows.reads.is_silent.store(true, Ordering::SeqCst);
    let kv = &engine.kv;
    let put = |key: &'static str| {
        let put = pb::PutRequest {
            key: key.into(),
            ..pb::PutRequest::default()
        };
        pb::kv_server::Kv::put(kv, tonic::Request::new(put))
    };
    let mut silent = Box::pin(put("silent/1"));
    assert!(futures::poll!(&mut silent).is_pending());
    for key in ["new", "new", "other"] {
        let answer = timeout(Duration::from_secs(1), put(key)).await;
        answer.expect("waits for what another one needs").unwrap();
    }
    let refused = silent.await.unwrap_err();
    assert_eq!(refused.message(), "etcdserver: request timed out");
    // Whoever asked for it has gone: so has the read.
    let gone = timeout(Duration::from_millis(10), put("silent/2")).await;
    assert!(gone.is_err());
    assert_eq!(rows.reads.under_way.load(Ordering::SeqCst), 0);
    rows.reads.is_silent.store(false, Ordering::SeqCst);
    put("silent/1").await.unwrap();
    engine.put(b"new", b"").await.unwrap();
    engine.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lease_that_ends_reads_its_keys_at_once() {
    let (mut engine, rows) = start().await;
    let grant = Request::Grant(pb::LeaseGrantRequest { id: 7, ttl: 3_600 });
    engine.call(grant).await.unwrap();
    fill(&mut engine, 1_000, 7).await;
    rows.reads.take();
    engine
        .call(Request::Revoke(pb::LeaseRevokeRequest { id: 7 }))
        .await
        .unwrap();
    let (gets, multi_gets, _) = rows.reads.take();
    assert!(
        (gets, multi_gets) <= (0, 2),
        "{gets} single reads, {multi_gets} of many rows"
    );
    assert_eq!(delete(&mut engine, false).await.deleted, 0);
    engine.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lease_that_expires_reads_its_keys_at_once_and_nobody_waits() {
    let (mut engine, rows) = start().await;
    let grant = Request::Grant(pb::LeaseGrantRequest { id: 7, ttl: 3_600 });
    engine.call(grant).await.unwrap();
    fill(&mut engine, 1_000, 7).await;
    let silent = pb::PutRequest {
        key: "silent".into(),
        lease: 7,
        ..pb::PutRequest::default()
    };
    engine.call(Request::Put(silent)).await.unwrap();
    fill(&mut engine, 0, 0).await;
    rows.reads.is_silent.store(true, Ordering::SeqCst);
    rows.reads.take();
    run_out(&engine);
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let put = timeout(Duration::from_secs(1), engine.put(b"new", b"")).await;
        put.expect("waits for the keys of a lease").unwrap();
    }
    assert!(engine.store.state.leases().contains(LeaseId(7)));
    rows.reads.is_silent.store(false, Ordering::SeqCst);
    let ended = async {
        while engine.store.state.leases().contains(LeaseId(7)) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(LONG, ended)
        .await
        .expect("the lease ends when its keys can be read");
    assert_eq!(delete(&mut engine, false).await.deleted, 0);
    engine.stop().await.unwrap();
}

/// Has the lease run out now.
fn run_out(engine: &Engine<MemLog, Counted>) {
    let mut leases = engine.store.state.leases();
    let attached: Vec<_> = leases.attached(LeaseId(7)).cloned().collect();
    leases.grant(LeaseId(7), 1, 0, since_boot() - Duration::from_secs(2));
    attached.into_iter().for_each(|key| leases.attach(LeaseId(7), key));
}

#[tokio::test(start_paused = true)]
async fn lease_that_runs_out_while_data_is_corrupt_ends_afterwards() {
    let (mut engine, _) = start().await;
    let grant = Request::Grant(pb::LeaseGrantRequest { id: 7, ttl: 3_600 });
    engine.call(grant).await.unwrap();
    let alarm = |raised| engine.kv.store.ask(Command::Alarm(1, CORRUPT, raised), 64);
    alarm(true).await.unwrap();
    run_out(&engine);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(engine.store.state.leases().contains(LeaseId(7)));
    alarm(false).await.unwrap();
    let ended = async {
        while engine.store.state.leases().contains(LeaseId(7)) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(LONG, ended).await.expect("the lease ends");
    engine.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn deletion_of_many_keys_reads_no_values() {
    let (mut engine, rows) = start().await;
    fill(&mut engine, 3_000, 0).await;
    rows.reads.take();
    let answer = delete(&mut engine, false).await;
    let (gets, _, objects) = rows.reads.take();
    assert_eq!(
        (answer.deleted, gets, objects),
        (3_000, 0, 0),
        "deleted, single reads, values"
    );
    // Watchers that want them read them.
    let revision = answer.header.unwrap().revision;
    let history = engine.history(revision).await;
    let prev = history[0]
        .events
        .iter()
        .map(|event| event.prev_kv.as_ref().unwrap().value.clone());
    assert!(prev.into_iter().all(|value| value == "a value"));
    fill(&mut engine, 1_500, 0).await;
    let answer = delete(&mut engine, true).await;
    assert_eq!((answer.deleted, answer.prev_kvs.len()), (1_500, 1_500));
    assert!(answer.prev_kvs.iter().all(|kv| kv.value == "a value"));
    engine.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn acknowledged_writes_are_answered_while_the_flush_is_stuck() {
    let gates = Gated::new(MemRows::new());
    let mut engine = Engine::start(MemLog::new(), gates.clone()).await.unwrap();
    gates.change.hold();
    // Each fills a generation; all of them together are no more than may be in memory.
    for n in 0..12 {
        let answer = timeout(Duration::from_secs(1), engine.put(b"key", &[b'v'; 17 << 10])).await;
        answer.unwrap_or_else(|_| panic!("put {n} is not answered")).unwrap();
    }
    gates.change.release();
    engine.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn txn_reads_spans_in_any_order_of_its_operations() {
    let (mut engine, rows) = start().await;
    fill(&mut engine, 600, 0).await;
    rows.reads.take();
    let span = || (Bytes::from("many/"), Bytes::from("many0"));
    let range = |limit, count_only, revision| {
        let (key, range_end) = span();
        let range = pb::RangeRequest {
            key,
            range_end,
            limit,
            count_only,
            revision,
            ..pb::RangeRequest::default()
        };
        op(pb::request_op::Request::RequestRange(range))
    };
    let remove = |from: &'static str, to: &'static str| {
        let delete = pb::DeleteRangeRequest {
            key: from.into(),
            range_end: to.into(),
            prev_kv: false,
        };
        op(pb::request_op::Request::RequestDeleteRange(delete))
    };
    let put = pb::PutRequest {
        key: "many/00700".into(),
        ..pb::PutRequest::default()
    };
    let revision = engine.store.state.view().revision;
    let txn = pb::TxnRequest {
        success: vec![
            range(2, false, 0),
            remove("many/00000", "many/00300"),
            range(2, false, 0),
            op(pb::request_op::Request::RequestPut(put)),
            range(0, true, 0),
            range(1, false, revision),
        ],
        ..pb::TxnRequest::default()
    };
    let Response::Txn(answer) = engine.call(Request::Txn(txn)).await.unwrap() else {
        panic!("not a txn");
    };
    let found: Vec<_> = answer.responses.iter().map(brief).collect();
    assert_eq!(
        found,
        [
            "600 many/00000=a value many/00001=a value",
            "deleted 300",
            "300 many/00300=a value many/00301=a value",
            "put",
            "301",
            "600 many/00000=a value",
        ]
    );
    engine.stop().await.unwrap();
}

fn op(request: pb::request_op::Request) -> pb::RequestOp {
    pb::RequestOp { request: Some(request) }
}

fn brief(response: &pb::ResponseOp) -> String {
    use pb::response_op::Response as Op;
    match response.response.as_ref().unwrap() {
        Op::ResponseRange(range) => {
            let kv =
                |kv: &brain::pb::mvccpb::KeyValue| format!(" {}={}", kv.key.escape_ascii(), kv.value.escape_ascii());
            let kvs: String = range.kvs.iter().map(kv).collect();
            format!("{}{kvs}", range.count)
        }
        Op::ResponsePut(_) => "put".to_owned(),
        Op::ResponseDeleteRange(delete) => format!("deleted {}", delete.deleted),
        Op::ResponseTxn(_) => "txn".to_owned(),
    }
}

#[tokio::test(start_paused = true)]
async fn nested_operations_count_in_total() {
    let (mut engine, _) = start().await;
    let count = || {
        op(pb::request_op::Request::RequestRange(pb::RangeRequest {
            key: "a".into(),
            range_end: "b".into(),
            count_only: true,
            ..pb::RangeRequest::default()
        }))
    };
    let nested = || {
        op(pb::request_op::Request::RequestTxn(pb::TxnRequest {
            success: (0..60).map(|_| count()).collect(),
            ..pb::TxnRequest::default()
        }))
    };
    let mut txn = pb::TxnRequest {
        success: (0..10).map(|_| nested()).collect(),
        ..pb::TxnRequest::default()
    };
    engine.call(Request::Txn(txn.clone())).await.unwrap();
    txn.success.extend((0..50).map(|_| nested()));
    assert_eq!(
        text(engine.call(Request::Txn(txn)).await),
        "etcdserver: too many operations in txn request"
    );
    engine.stop().await.unwrap();
}

/// Eight nested txns that look at 360 keys each, all of them in rows: values are asked for among more points than are read
/// with values when nobody needs them.
#[tokio::test(start_paused = true)]
async fn txn_of_many_points_reads_the_values_that_it_needs() {
    let (mut engine, _) = start().await;
    fill(&mut engine, 8 * 360, 0).await;
    let key = |n: usize| Bytes::from(format!("many/{n:05}"));
    let compare = |n| pb::Compare {
        key: key(n),
        target: 3,
        target_union: Some(pb::compare::TargetUnion::Value("a value".into())),
        ..pb::Compare::default()
    };
    let put = |n, prev_kv, ignore_value| {
        op(pb::request_op::Request::RequestPut(pb::PutRequest {
            key: key(n),
            prev_kv,
            ignore_value,
            ..pb::PutRequest::default()
        }))
    };
    let success = |n| match n % 4 {
        0 => put(n, true, false),
        1 => put(n, true, true),
        2 => op(pb::request_op::Request::RequestDeleteRange(pb::DeleteRangeRequest {
            key: key(n),
            prev_kv: true,
            ..pb::DeleteRangeRequest::default()
        })),
        _ => op(pb::request_op::Request::RequestRange(pb::RangeRequest {
            key: key(n),
            ..pb::RangeRequest::default()
        })),
    };
    let nested = |n: usize| {
        let from = n * 360;
        op(pb::request_op::Request::RequestTxn(pb::TxnRequest {
            compare: (from..from + 120).map(compare).collect(),
            success: (from + 120..from + 240).map(success).collect(),
            failure: (from + 240..from + 360).map(|n| put(n, false, false)).collect(),
        }))
    };
    let txn = pb::TxnRequest {
        success: (0..8).map(nested).collect(),
        ..pb::TxnRequest::default()
    };
    let Response::Txn(answer) = engine.call(Request::Txn(txn)).await.unwrap() else {
        panic!("not a txn");
    };
    let nested = answer.responses.into_iter().map(|response| match response.response {
        Some(pb::response_op::Response::ResponseTxn(txn)) => txn,
        other => panic!("answered by {other:?}"),
    });
    for txn in nested {
        assert!(txn.succeeded, "a value that was not read was compared");
        for (n, response) in txn.responses.into_iter().enumerate() {
            use pb::response_op::Response as Op;
            let prev = match response.response.unwrap() {
                Op::ResponsePut(put) => put.prev_kv,
                Op::ResponseDeleteRange(delete) => delete.prev_kvs.first().cloned(),
                Op::ResponseRange(range) => range.kvs.first().cloned(),
                Op::ResponseTxn(_) => None,
            };
            assert_eq!(prev.unwrap().value, "a value", "operation {n}");
        }
    }
    engine.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn large_values_that_nobody_needs_are_not_read() {
    let (mut engine, rows) = start().await;
    let grant = Request::Grant(pb::LeaseGrantRequest { id: 7, ttl: 3_600 });
    engine.call(grant).await.unwrap();
    for n in 0..300 {
        let put = pb::PutRequest {
            key: format!("large/{n:05}").into(),
            value: vec![b'v'; 1 << 20].into(),
            lease: 7,
            ..pb::PutRequest::default()
        };
        engine.call(Request::Put(put)).await.unwrap();
    }
    fill(&mut engine, 0, 0).await;
    rows.reads.take();
    let revoke = Request::Revoke(pb::LeaseRevokeRequest { id: 7 });
    assert_eq!(text(engine.call(revoke).await), "accepted");
    let (_, _, objects) = rows.reads.take();
    assert_eq!(objects, 0, "values");
    engine.stop().await.unwrap();
}

/// Nested txns, each of which counts the keys of one span so often and puts a key of its own.
fn counting(name: &str, nested: usize, counts: usize) -> pb::TxnRequest {
    let count = || {
        op(pb::request_op::Request::RequestRange(pb::RangeRequest {
            key: "many/".into(),
            range_end: "many0".into(),
            count_only: true,
            ..pb::RangeRequest::default()
        }))
    };
    let nested = (0..nested).map(|_| {
        op(pb::request_op::Request::RequestTxn(pb::TxnRequest {
            success: (0..counts).map(|_| count()).collect(),
            ..pb::TxnRequest::default()
        }))
    });
    let put = op(pb::request_op::Request::RequestPut(pb::PutRequest {
        key: name.to_owned().into(),
        ..pb::PutRequest::default()
    }));
    pb::TxnRequest {
        success: nested.chain([put]).collect(),
        ..pb::TxnRequest::default()
    }
}

#[tokio::test(start_paused = true)]
async fn txn_that_looks_at_too_many_rows_is_refused() {
    let (mut engine, _) = start().await;
    fill(&mut engine, 600, 0).await;
    let refused = engine.call(Request::Txn(counting("key", 8, 60))).await;
    assert_eq!(text(refused), "etcdserver: request is too large");
    engine.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn batch_ends_when_it_looked_at_many_rows() {
    let (mut engine, _) = start().await;
    fill(&mut engine, 600, 0).await;
    let slot = || engine.store.state.committed().0;
    let before = slot();
    let kv = &engine.kv;
    let txns = (0..20).map(|n| {
        let txn = counting(&format!("key/{n}"), 1, 100);
        async move { pb::kv_server::Kv::txn(kv, tonic::Request::new(txn)).await.unwrap() }
    });
    let revisions = futures::future::join_all(txns)
        .await
        .into_iter()
        .map(|answer| answer.into_inner().header.unwrap().revision);
    let revisions: Vec<i64> = revisions.collect();
    assert!(revisions.is_sorted(), "in order: {revisions:?}");
    let batches = slot() - before;
    assert_eq!(batches, 20, "each txn looks at 60,000 rows");
    engine.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn slow_reads_do_not_keep_others_waiting() {
    let (mut engine, rows) = start().await;
    fill(&mut engine, 1, 0).await;
    rows.reads.is_silent.store(true, Ordering::SeqCst);
    let kv = &engine.kv;
    let put = |key: String| {
        let put = pb::PutRequest {
            key: key.into(),
            ..pb::PutRequest::default()
        };
        pb::kv_server::Kv::put(kv, tonic::Request::new(put))
    };
    let mut silent = futures::future::join_all((0..1_100).map(|n| put(format!("silent/{n}"))));
    assert!(futures::poll!(&mut silent).is_pending());
    let healthy = timeout(Duration::from_secs(1), put("many/00000".to_owned()));
    tokio::select! {
        answer = healthy => drop(answer.expect("waits for what others read").unwrap()),
        _ = &mut silent => panic!("silent rows answered"),
    }
    drop(silent);
    rows.reads.is_silent.store(false, Ordering::SeqCst);
    engine.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lease_ends_while_the_keys_of_others_cannot_be_read() {
    let (mut engine, rows) = start().await;
    for n in 1..=300 {
        let grant = Request::Grant(pb::LeaseGrantRequest { id: n, ttl: 3_600 });
        engine.call(grant).await.unwrap();
        let name = if n == 300 { "healthy" } else { "silent" };
        let put = pb::PutRequest {
            key: format!("{name}/{n}").into(),
            lease: n,
            ..pb::PutRequest::default()
        };
        engine.call(Request::Put(put)).await.unwrap();
    }
    fill(&mut engine, 0, 0).await;
    rows.reads.is_silent.store(true, Ordering::SeqCst);
    for n in 1..=300 {
        let mut leases = engine.store.state.leases();
        let attached: Vec<_> = leases.attached(LeaseId(n)).cloned().collect();
        // The healthy one is the last to run out.
        let ran_out = Duration::from_millis(if n == 300 { 1_100 } else { 2_000 });
        leases.grant(LeaseId(n), 1, 0, since_boot() - ran_out);
        attached.into_iter().for_each(|key| leases.attach(LeaseId(n), key));
    }
    let ended = async {
        while engine.store.state.leases().contains(LeaseId(300)) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(Duration::from_secs(10), ended)
        .await
        .expect("a lease waits for others");
    rows.reads.is_silent.store(false, Ordering::SeqCst);
    let all = async {
        while engine.store.state.leases().ids().count() > 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(2 * LONG, all).await.expect("all leases end");
    engine.stop().await.unwrap();
}

/// A history of one large revision that counts how often it is read.
struct Large(Arc<AtomicUsize>);

impl brain::watch::History for Large {
    async fn read(
        &self,
        from: i64,
        _: usize,
        _: brain::watch::PrevKv,
    ) -> Result<Vec<Arc<brain::mvcc::Committed>>, brain::watch::HistoryError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let kv = brain::mvcc::KeyValue {
            key: "key".into(),
            value: vec![b'v'; 1 << 20].into(),
            mod_revision: from,
            ..brain::mvcc::KeyValue::default()
        };
        let event = brain::mvcc::Event {
            kind: brain::mvcc::EventKind::Put,
            kv,
            prev_kv: None,
            is_prev_unread: false,
        };
        Ok(vec![Arc::new(brain::mvcc::Committed {
            revision: from,
            events: vec![event],
        })])
    }

    fn published(&self) -> i64 {
        2
    }

    fn compacted(&self) -> i64 {
        -1
    }
}

#[tokio::test(start_paused = true)]
async fn large_history_is_read_once_for_all_who_wait() {
    let reads = Arc::default();
    let options = brain::watch::Options {
        cache_bytes: 1 << 10,
        ..brain::watch::Options::default()
    };
    let replay = brain::watch::Replay::new(Large(Arc::clone(&reads)), options);
    let loads = (0..8).map(|_| replay.load(2, brain::watch::PrevKv::Included));
    let chunks = futures::future::join_all(loads).await;
    assert!(chunks.into_iter().all(|chunk| chunk.unwrap().through() == 2));
    assert_eq!(reads.load(Ordering::SeqCst), 1, "reads");
}
