use mock_tikv::{Action, Fault, RegionFault, Rpc};
use tokio::time::Instant;

use super::*;
use crate::ConnectOptions;
use crate::testing::{self, Connected, on_mock};
use engine::rows::{Order, Scan, Snapshot, laws};

const LOSE_REPLY: Action = Action::LoseReply { silent: false };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_laws_of_rows_hold_in_tikv() {
    let mut stores = Vec::new();
    let fresh = async || {
        let store = testing::fresh().await;
        let rows = TikvRows::new(store.tikv.clone());
        stores.push(store);
        rows
    };
    laws::hold(fresh, 2_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_laws_of_rows_hold_in_a_tikv_of_many_regions() {
    let mut stores: Vec<Connected> = Vec::new();
    let fresh = async || {
        let store = on_mock(|_| {}).await;
        let keys = store.tikv.keys();
        for (n, at) in ["", "a", "b", "k000500", "k0010", "k5", "k77", "x"]
            .into_iter()
            .enumerate()
        {
            let key = keys.row(at.as_bytes());
            store.mock_tikv().split(&key).await.unwrap();
            store.mock_tikv().move_region(&key, 1 + n as u64 % 3).await.unwrap();
        }
        let rows = TikvRows::new(store.tikv.clone());
        stores.push(store);
        rows
    };
    laws::hold(fresh, 600).await;
}

fn fence(n: u8) -> Bytes {
    Bytes::copy_from_slice(&[n])
}

/// Rows that make several pieces of a transaction.
fn many(value: &str) -> Vec<RowChange> {
    (0..200)
        .map(|n| laws::put(format!("row {n:03}"), value.repeat(200)))
        .collect()
}

/// All rows have `value`.
async fn check(rows: &TikvRows, value: &str) {
    let content = laws::content(rows).await;
    assert_eq!(content.len(), 200);
    assert!(content.iter().all(|(_, found)| *found == value.repeat(200)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_whose_replies_are_lost_is_made_once() {
    let here = on_mock(|_| {}).await;
    let rows = TikvRows::new(here.tikv.clone());
    let faults = here.mock_tikv().faults();
    rows.apply(None, fence(0), many("0")).await.unwrap();
    let cases = [
        (Rpc::Commit, 1),
        (Rpc::Commit, 40),
        (Rpc::Prewrite, 3),
        (Rpc::Prewrite, 60),
    ];
    for ((rpc, times), n) in cases.into_iter().zip(1u8..) {
        faults.add(Fault::new(rpc, LOSE_REPLY).times(times)).unwrap();
        rows.apply(Some(fence(n - 1)), fence(n), many(&n.to_string()))
            .await
            .unwrap();
        faults.clear();
        assert_eq!(rows.fence().await.unwrap(), Some(fence(n)));
        check(&rows, &n.to_string()).await;
    }
}

/// Time to live of a lock that no client resolves.
const LASTING_LOCK_TTL: Duration = Duration::from_secs(60);

/// A store whose locks live so long that a test notices if anything waits for one to expire.
async fn with_lasting_locks() -> Connected {
    let setup = mock_tikv::Options {
        lock_ttl: Some(LASTING_LOCK_TTL),
        ..mock_tikv::Options::default()
    };
    testing::on(setup, |_| {}).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_that_vanished_in_the_middle_leaves_nothing_in_the_way() {
    for rpc in [Rpc::Prewrite, Rpc::Commit] {
        let here = with_lasting_locks().await;
        let rows = TikvRows::new(here.tikv.clone());
        rows.apply(None, fence(0), many("old")).await.unwrap();
        let faults = here.mock_tikv().faults();
        let hang = Fault::new(rpc, Action::LoseRequest { silent: true });
        // Of the pieces some have arrived.
        let skip = if rpc == Rpc::Prewrite { 2 } else { 0 };
        let id = faults.add(hang.after(skip)).unwrap();
        // In a runtime of its own, which ends with all that it has under way, as a process does.
        let killed = tokio::runtime::Runtime::new().unwrap();
        let options = ConnectOptions::new(vec![here.mock_tikv().pd()], here.prefix());
        killed.spawn(async move {
            let (tikv, _keeper) = Tikv::connect(options).await.unwrap();
            TikvRows::new(tikv)
                .apply(Some(fence(0)), fence(1), many("killed"))
                .await
        });
        testing::until("a change stands half-way", || {
            faults.happened(id) != Some(0) && here.mock_tikv().sizes().locks > 0
        })
        .await;
        killed.shutdown_background();
        faults.clear();
        let begun = Instant::now();
        let successor = TikvRows::new(here.tikv.clone());
        successor.take_over().await.unwrap();
        successor.apply(Some(fence(0)), fence(2), many("new")).await.unwrap();
        check(&successor, "new").await;
        assert!(begun.elapsed() < LASTING_LOCK_TTL, "{:?}", begun.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_writes_of_a_deposed_writer_have_no_effect() {
    let here = on_mock(|_| {}).await;
    let rows = TikvRows::new(here.tikv.clone());
    let faults = here.mock_tikv().faults();
    rows.apply(None, fence(0), many("0")).await.unwrap();
    for rpc in [Rpc::Prewrite, Rpc::Commit] {
        faults.add(Fault::new(rpc, Action::Duplicate { after: None })).unwrap();
    }
    rows.apply(Some(fence(0)), fence(1), many("old")).await.unwrap();
    faults.clear();
    assert!(faults.held() > 2);
    rows.take_over().await.unwrap();
    rows.apply(Some(fence(1)), fence(2), many("new")).await.unwrap();
    faults.deliver().await;
    rows.take_over().await.unwrap();
    assert_eq!(rows.fence().await.unwrap(), Some(fence(2)));
    check(&rows, "new").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stores_whose_prefixes_begin_alike_leave_each_other_alone() {
    let outer = on_mock(|options| options.key_prefix = b"p".to_vec()).await;
    let pd = outer.mock_tikv().pd();
    let (inner, _keeper) = Tikv::connect(ConnectOptions::new(vec![pd], "pr")).await.unwrap();
    let (a, b) = (TikvRows::new(outer.tikv.clone()), TikvRows::new(inner.clone()));
    a.apply(None, fence(1), vec![laws::put("ra", "a"), laws::put("r", "a")])
        .await
        .unwrap();
    b.apply(None, fence(2), vec![laws::put("a", "b")]).await.unwrap();
    a.apply(Some(fence(1)), fence(3), vec![laws::delete("ra")])
        .await
        .unwrap();
    assert_eq!(laws::content(&a).await, [("r".into(), "a".into())]);
    assert_eq!(laws::content(&b).await, [("a".into(), "b".into())]);
    assert_eq!(b.fence().await.unwrap(), Some(fence(2)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_stays_as_it_was_and_says_nothing_when_it_is_too_old() {
    let here = testing::fresh().await;
    let rows = TikvRows::new(here.tikv.clone());
    rows.apply(None, fence(1), vec![laws::put("k", "1")]).await.unwrap();
    let old = TikvSnapshot::now(rows.shared.clone()).await.unwrap();
    rows.apply(Some(fence(1)), fence(2), vec![laws::put("k", "2")])
        .await
        .unwrap();
    assert_eq!(old.get(b"k").await.unwrap(), Some(Bytes::from("1")));
    assert_eq!(old.fence().await.unwrap(), Some(fence(1)));
    let minutes = |n: u64| Duration::from_secs(60 * n);
    assert!(old.clone().aged(minutes(4)).get(b"k").await.is_ok());
    let aged = old.aged(minutes(6));
    let scan = Scan {
        from: Bytes::new(),
        to: None,
        order: Order::Ascending,
        keys_only: false,
        max_rows: 1,
        max_bytes: 1,
    };
    for told in [
        aged.get(b"k").await.map(drop),
        aged.multi_get(&[Bytes::from("k")]).await.map(drop),
        aged.fence().await.map(drop),
        aged.scan(scan).await.map(drop),
    ] {
        assert!(matches!(told, Err(RowsError::Unavailable(_))), "{told:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_space_and_values_too_long_are_told() {
    let here = on_mock(|_| {}).await;
    let rows = TikvRows::new(here.tikv.clone());
    let long = vec![laws::put("k", "v".repeat(MAX_VALUE_LEN + 1))];
    let answer = rows.apply(None, fence(1), long).await;
    assert!(matches!(answer, Err(RowsError::Refused(_))), "{answer:?}");
    let longest = vec![laws::put("k", "v".repeat(MAX_VALUE_LEN))];
    rows.apply(None, fence(1), longest).await.unwrap();
    let faults = here.mock_tikv().faults();
    let error = mock_tikv::RegionFault::DiskFull;
    faults.add(Fault::new(Rpc::Prewrite, Action::Region { error })).unwrap();
    let answer = rows.apply(Some(fence(1)), fence(2), many("1")).await;
    assert!(matches!(answer, Err(RowsError::Full(_))), "{answer:?}");
    faults.clear();
    rows.apply(Some(fence(1)), fence(2), many("2")).await.unwrap();
    assert_eq!(rows.fence().await.unwrap(), Some(fence(2)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_a_dead_writer_leaves_late_does_not_stop_readers() {
    // Which pieces are on their way when the writer dies is chance: not all of them leave a lock.
    for _ in 0..50 {
        if late_locks_do_not_stop_readers().await {
            return;
        }
    }
    panic!("nothing came late");
}

/// Answers whether a lock came late.
async fn late_locks_do_not_stop_readers() -> bool {
    let here = with_lasting_locks().await;
    let rows = TikvRows::new(here.tikv.clone());
    let faults = here.mock_tikv().faults();
    rows.apply(None, fence(0), many("0")).await.unwrap();
    // The piece with the fence is lost, the others arrive when the writer is gone and its successor has taken over.
    let held = Fault::new(Rpc::Prewrite, Action::Late { after: None });
    faults.add(held).unwrap();
    tokio::select! {
    ended = rows.apply(Some(fence(0)), fence(1), many("late")) => panic!("{ended:?}"),
    () = testing::until("several pieces are held", || faults.held() > 3) => {}
    }
    faults.clear();
    let successor = TikvRows::new(here.tikv.clone());
    successor.take_over().await.unwrap();
    // A piece that was on its way when the faults ended is neither held nor late: it may have locked the fence by now, for as long
    // as locks last here.
    if let Err(error) = successor.apply(Some(fence(0)), fence(2), vec![]).await {
        assert!(matches!(error, RowsError::Unknown(_)), "{error:?}");
        return false;
    }
    faults.deliver().await;
    if here.mock_tikv().sizes().locks == 0 {
        return false;
    }
    let begun = Instant::now();
    check(&successor, "0").await;
    successor.apply(Some(fence(2)), fence(3), many("new")).await.unwrap();
    check(&successor, "new").await;
    assert!(begun.elapsed() < LASTING_LOCK_TTL, "{:?}", begun.elapsed());
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deposed_writer_that_has_looked_at_the_fence_spreads_nothing() {
    for one_phase in [false, true] {
        a_late_transaction_fails(one_phase).await;
    }
}

async fn a_late_transaction_fails(one_phase: bool) {
    let here = on_mock(|_| {}).await;
    let keys = here.tikv.keys();
    let old = TikvRows::new(here.tikv.clone());
    old.apply(None, fence(0), many("0")).await.unwrap();
    // The same steps as `apply_parallel`, up to its commit.
    let client = tikv_client::TransactionClient::new(vec![here.mock_tikv().pd()]);
    let options = tikv_client::TransactionOptions::new_optimistic();
    let options = if one_phase { options.try_one_pc() } else { options };
    let mut late = client.await.unwrap().begin_with_options(options).await.unwrap();
    let found = late.get(keys.fence().to_vec()).await.unwrap();
    assert_eq!(found.as_deref(), Some(fence(0).as_ref()));
    late.put(keys.fence_shard(1).to_vec(), fence(0).to_vec()).await.unwrap();
    late.put(keys.row(b"row 000").to_vec(), b"late".to_vec()).await.unwrap();
    let successor = TikvRows::new(here.tikv.clone());
    successor.take_over().await.unwrap();
    successor.apply(Some(fence(0)), fence(1), vec![]).await.unwrap();
    assert!(late.commit().await.is_err(), "a late transaction was committed");
    check(&successor, "0").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parallel_writes_during_a_take_over_never_show() {
    let here = on_mock(|_| {}).await;
    let old = TikvRows::new(here.tikv.clone());
    old.apply(None, fence(0), many("0")).await.unwrap();
    let faults = here.mock_tikv().faults();
    // Its rows, not what the successor writes.
    let late = Fault::new(Rpc::Prewrite, Action::Late { after: None }).on_keys(here.tikv.keys().row(b"").to_vec());
    faults.add(late).unwrap();
    let steps: Vec<_> = many("late").chunks(10).map(<[RowChange]>::to_vec).collect();
    let under_way = steps.len().min(FENCE_SHARDS.into());
    let apply_parallel = old.apply_parallel(fence(0), steps);
    let taken = async {
        testing::until("all lanes are held", || faults.held() >= under_way).await;
        let successor = TikvRows::new(here.tikv.clone());
        successor.take_over().await.unwrap();
        successor.apply(Some(fence(0)), fence(1), vec![]).await.unwrap();
        faults.clear();
        faults.deliver().await;
        successor
    };
    let (apply_parallel, successor) = tokio::join!(apply_parallel, taken);
    assert!(
        matches!(apply_parallel, Err(RowsError::Fenced(_))),
        "{apply_parallel:?}"
    );
    check(&successor, "0").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_in_one_region_are_committed_in_one_phase() {
    let here = on_mock(|_| {}).await;
    let rows = TikvRows::new(here.tikv.clone());
    rows.apply(None, fence(0), vec![]).await.unwrap();
    let most = rows.step();
    let (mut steps, mut step, mut bytes) = (Vec::new(), Vec::new(), 0);
    for change in many("v") {
        bytes += change.len();
        step.push(change);
        if bytes >= most.bytes || step.len() >= most.rows {
            steps.push(std::mem::take(&mut step));
            bytes = 0;
        }
    }
    here.mock_tikv().reset_requests();
    let count = steps.len() as u64;
    rows.apply_parallel(fence(0), steps).await.unwrap();
    let asked = here.mock_tikv().requests();
    assert_eq!(asked.get(&Rpc::Prewrite), Some(&count), "{asked:?}");
    assert_eq!(asked.get(&Rpc::Commit), None, "{asked:?}");
    assert_eq!(asked.get(&Rpc::Get), Some(&1), "the fence is read once: {asked:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_large_is_believed_of_long_rows_only() {
    let here = on_mock(|_| {}).await;
    let rows = TikvRows::new(here.tikv.clone());
    let faults = here.mock_tikv().faults();
    let error = RegionFault::RaftEntryTooLarge;
    let fault = || Fault::new(Rpc::Prewrite, Action::Region { error });
    faults.add(fault().times(3)).unwrap();
    rows.apply(None, fence(0), many("0")).await.unwrap();
    faults.clear();
    faults.add(fault().times(2)).unwrap();
    rows.apply_parallel(fence(0), vec![many("1"), vec![laws::put("other", "1")]])
        .await
        .unwrap();
    faults.clear();
    faults.add(fault()).unwrap();
    let long = laws::put("long", "v".repeat(2 << 20));
    let refused = rows.apply(Some(fence(0)), fence(1), vec![long]).await;
    assert!(matches!(refused, Err(RowsError::Refused(_))), "{refused:?}");
    faults.clear();
    assert_eq!(rows.fence().await.unwrap(), Some(fence(0)));
}
