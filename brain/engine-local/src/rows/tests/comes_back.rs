//! Closed and opened again, the rows are the same; and they agree with the model through any script.

use std::collections::VecDeque;

use proptest::collection::vec;
use proptest::prelude::*;

use super::{LsmRows, small};
use bytes::Bytes;
use engine::rows::DynSnapshot;
use engine::rows::mem::MemRows;
use engine::rows::{Order, RowChange, Rows, Scan};

#[derive(Debug, Clone)]
enum Step {
    Apply(Vec<RowChange>),
    /// A page of a snapshot that is this many snapshots old.
    Scan(usize, Scan),
    Get(usize, Vec<Bytes>),
    Hold,
    Sync,
    Reopen,
    /// Merges some tables.
    Merge,
}

fn key() -> impl Strategy<Value = Bytes> {
    vec(prop_oneof![Just(0x00u8), Just(0x01), Just(b'a'), Just(0xff)], 1..4).prop_map(Bytes::from)
}

fn bound() -> impl Strategy<Value = Bytes> {
    prop_oneof![1 => Just(Bytes::new()), 9 => key()]
}

fn scan() -> impl Strategy<Value = Scan> {
    let order = prop_oneof![Just(Order::Ascending), Just(Order::Descending)];
    (
        bound(),
        proptest::option::of(bound()),
        order,
        any::<bool>(),
        0..60usize,
        0..500usize,
    )
        .prop_map(|(from, to, order, keys_only, max_rows, max_bytes)| Scan {
            from,
            to,
            order,
            keys_only,
            max_rows,
            max_bytes,
        })
}

fn change() -> impl Strategy<Value = RowChange> {
    prop_oneof![
    2 => (key(), vec(any::<u8>(), 0..40)).prop_map(|(key, value)| RowChange::Put(key, value.into())),
    1 => key().prop_map(RowChange::Delete),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
    6 => vec(change(), 0..12).prop_map(Step::Apply),
    4 => (0..4usize, scan()).prop_map(|(age, scan)| Step::Scan(age, scan)),
    2 => (0..4usize, vec(key(), 0..50)).prop_map(|(age, keys)| Step::Get(age, keys)),
    2 => Just(Step::Hold),
    1 => Just(Step::Sync),
    1 => Just(Step::Reopen),
    1 => Just(Step::Merge),
    ]
}

async fn run(steps: Vec<Step>) {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("rows");
    let mut rows = LsmRows::open(&dir, small()).unwrap();
    let model = MemRows::new();
    let mut held: VecDeque<(DynSnapshot, DynSnapshot)> = VecDeque::new();
    let mut batch = 0u8;
    for step in steps {
        match step {
            Step::Apply(changes) => {
                let fence = rows.fence().await.unwrap();
                batch = batch.wrapping_add(1);
                let next = Bytes::copy_from_slice(&[batch]);
                rows.apply(fence.clone(), next.clone(), changes.clone()).await.unwrap();
                model.apply(fence, next, changes).await.unwrap();
            }
            Step::Scan(age, scan) => {
                let (mine, wanted) = at(&held, &rows, &model, age).await;
                let found = mine.scan(scan.clone()).await.unwrap();
                assert_eq!(found, wanted.scan(scan).await.unwrap());
            }
            Step::Get(age, keys) => {
                let (mine, wanted) = at(&held, &rows, &model, age).await;
                assert_eq!(
                    mine.multi_get(&keys).await.unwrap(),
                    wanted.multi_get(&keys).await.unwrap()
                );
            }
            Step::Hold => {
                held.push_front((rows.snapshot().await.unwrap(), model.snapshot().await.unwrap()));
                held.truncate(3);
            }
            Step::Sync => rows.sync().await.unwrap(),
            Step::Merge => drop(rows.shared.merger.push_down().unwrap()),
            Step::Reopen => {
                held.clear();
                // Batches that are only in memory are lost.
                rows.sync().await.unwrap();
                drop(rows);
                rows = LsmRows::open(&dir, small()).unwrap();
            }
        }
        assert_eq!(rows.fence().await.unwrap(), model.fence().await.unwrap());
    }
}

async fn at(
    held: &VecDeque<(DynSnapshot, DynSnapshot)>,
    rows: &LsmRows,
    model: &MemRows,
    age: usize,
) -> (DynSnapshot, DynSnapshot) {
    match age.checked_sub(1).and_then(|age| held.get(age)) {
        Some(pair) => pair.clone(),
        None => (rows.snapshot().await.unwrap(), model.snapshot().await.unwrap()),
    }
}

proptest! {
#![proptest_config(ProptestConfig::with_cases(24))]

#[test]
fn any_script_finds_what_the_model_finds(steps in vec(step(), 1..40)) {
tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run(steps));
}
}

#[tokio::test]
async fn a_second_process_is_kept_out() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("rows");
    let first = LsmRows::open(&dir, small()).unwrap();
    match LsmRows::open(&dir, small()) {
        Err(super::RowsOpenError::InUse(named)) => assert_eq!(named, dir),
        other => panic!("expected in use, got {other:?}"),
    }
    let view = first.snapshot().await.unwrap();
    drop(first);
    assert!(LsmRows::open(&dir, small()).is_err(), "the view reads files");
    drop(view);
    LsmRows::open(&dir, small()).unwrap();
}

#[tokio::test]
async fn a_start_that_was_cut_short_is_begun_again() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("rows");
    std::fs::create_dir_all(root.path().join("rows.new/keyspaces")).unwrap();
    std::fs::write(root.path().join("rows.new/0.jnl"), "half").unwrap();
    std::fs::create_dir(&dir).unwrap();
    let rows = LsmRows::open(&dir, small()).unwrap();
    assert_eq!(rows.fence().await.unwrap(), None);
    assert!(!root.path().join("rows.new").exists());
}

#[tokio::test]
async fn a_full_medium_is_told_before_anything_is_written() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("rows");
    let rows = LsmRows::open(&dir, small()).unwrap();
    rows.apply(None, Bytes::from("1"), vec![]).await.unwrap();
    drop(rows);
    let mut options = small();
    options.reserve_bytes = 1 << 62;
    let rows = LsmRows::open(&dir, options).unwrap();
    let put = || vec![RowChange::Put(Bytes::from("a"), Bytes::from("1"))];
    match rows.apply(Some(Bytes::from("1")), Bytes::from("2"), put()).await {
        Err(super::RowsError::Full(_)) => {}
        other => panic!("expected full, got {other:?}"),
    }
    assert_eq!(rows.fence().await.unwrap(), Some(Bytes::from("1")));
    drop(rows);
    let rows = LsmRows::open(&dir, small()).unwrap();
    rows.apply(Some(Bytes::from("1")), Bytes::from("2"), put())
        .await
        .unwrap();
}

/// lsm-tree takes a view of number 0 for another one.
#[tokio::test]
async fn a_snapshot_of_empty_rows_outlives_what_comes_after_it() {
    let all = Scan {
        from: Bytes::new(),
        to: None,
        order: Order::Ascending,
        keys_only: false,
        max_rows: 10,
        max_bytes: 1 << 10,
    };
    let apply = || Step::Apply(vec![RowChange::Put(Bytes::from("a"), Bytes::from("1"))]);
    let mut steps = vec![Step::Hold, apply(), apply(), apply(), apply()];
    steps.extend([Step::Hold, Step::Sync, apply(), Step::Sync, Step::Merge]);
    steps.extend([1, 2, 0].map(|age| Step::Scan(age, all.clone())));
    run(steps).await;
}

#[test]
fn scans_of_few_rows_leave_the_callers_thread() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let root = tempfile::tempdir().unwrap();
        let rows = LsmRows::open(&root.path().join("rows"), small()).unwrap();
        let put = RowChange::Put(Bytes::from("a"), Bytes::from("1"));
        rows.apply(None, Bytes::from("1"), vec![put]).await.unwrap();
        let snapshot = rows.snapshot().await.unwrap();
        let few = Scan {
            from: Bytes::new(),
            to: None,
            order: Order::Ascending,
            keys_only: false,
            max_rows: 1,
            max_bytes: 1 << 10,
        };
        // The only other thread is busy.
        let (release, held) = std::sync::mpsc::sync_channel::<()>(1);
        let busy = tokio::task::spawn_blocking(move || held.recv().unwrap());
        let mut scan = Box::pin(snapshot.scan(few));
        assert!(
            futures::poll!(scan.as_mut()).is_pending(),
            "a scan passes any number of deleted rows on the thread of its caller"
        );
        release.send(()).unwrap();
        busy.await.unwrap();
        assert_eq!(scan.await.unwrap().rows.len(), 1);
    });
}
