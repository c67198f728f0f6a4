use mock_tikv::{Action, Fault, RegionFault, Rpc};

use super::*;
use crate::testing::{self, Connected, on_mock};
use engine::log::laws::{self, Subject};
use engine::log::writer::append_until_known;

/// A log with a prefix of its own. It is opened again without any knowledge of its slots.
struct Store(Connected);

impl Subject for Store {
    type Log = TikvLog;

    async fn open(&mut self) -> TikvLog {
        TikvLog::keeping(self.0.tikv.clone(), |record| record.starts_with(b"barrier"))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tikv_keeps_the_laws() {
    laws::all(async || Store(testing::fresh().await)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn destruction_spares_what_is_to_be_kept_also_when_it_was_not_seen() {
    let mut store = Store(testing::fresh().await);
    for seen in [true, false] {
        let base = if seen { 0 } else { 1000 };
        let mut log = store.open().await;
        for (slot, record) in [(1, "barrier 1"), (9, "a"), (10, "barrier 2"), (18, "b"), (19, "c")] {
            log.append(Slot(base + slot), Bytes::from(record)).await.unwrap();
        }
        if !seen {
            log = store.open().await;
        }
        log.raise_watermark(Slot(base + 19 + DESTROY_MARGIN_SLOTS))
            .await
            .unwrap();
        while log.destroy_below_watermark().await.unwrap() {}
        let left = log.read(Slot(base), usize::MAX).await.unwrap();
        let left: Vec<u64> = left.iter().map(|(slot, _)| slot.0 - base).collect();
        assert_eq!(left, [1, 10, 19], "seen: {seen}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_barrier_that_landed_in_a_slot_seen_free_is_spared() {
    let mut store = Store(testing::fresh().await);
    let (log, other) = (store.open().await, store.open().await);
    for slot in [1, 2, 4] {
        log.append(Slot(slot), Bytes::from("a")).await.unwrap();
    }
    assert_eq!(log.read(Slot(1), usize::MAX).await.unwrap().len(), 3);
    other.append(Slot(3), Bytes::from("barrier")).await.unwrap();
    log.raise_watermark(Slot(5 + DESTROY_MARGIN_SLOTS)).await.unwrap();
    while log.destroy_below_watermark().await.unwrap() {}
    assert_eq!(
        log.read(Slot(1), usize::MAX).await.unwrap(),
        [(Slot(3), Bytes::from("barrier"))]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_destruction_reads_only_for_a_while() {
    let mut store = Store(on_mock(|_| {}).await);
    let log = store.open().await;
    let slots = 100;
    for slot in 1..=slots {
        let record = if slot == slots { "barrier" } else { "a" };
        log.append(Slot(slot), Bytes::from(record)).await.unwrap();
    }
    log.raise_watermark(Slot(slots + 1 + DESTROY_MARGIN_SLOTS))
        .await
        .unwrap();
    let successor = store.open().await;
    let faults = store.0.mock_tikv().faults();
    faults
        .add(Fault::new(Rpc::Scan, Action::DelayReply { by: DESTROY_SCAN_TIME }))
        .unwrap();
    assert!(successor.destroy_below_watermark().await.unwrap(), "it read everything");
    faults.clear();
    let left = log.read(Slot(1), usize::MAX).await.unwrap();
    assert!((2..100).contains(&left.len()), "{} are left", left.len());
    while successor.destroy_below_watermark().await.unwrap() {}
    assert_eq!(
        log.read(Slot(1), usize::MAX).await.unwrap(),
        [(Slot(slots), Bytes::from("barrier"))]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_another_member_destroyed_are_not_counted() {
    let mut store = Store(testing::fresh().await);
    let (log, other) = (store.open().await, store.open().await);
    for slot in 1..=10 {
        log.append(Slot(slot), laws::record(slot, 0, 100)).await.unwrap();
    }
    assert_eq!(other.read(Slot(1), usize::MAX).await.unwrap().len(), 10);
    assert_eq!(other.size(), 1_000);
    log.raise_watermark(Slot(6 + DESTROY_MARGIN_SLOTS)).await.unwrap();
    while log.destroy_below_watermark().await.unwrap() {}
    other.watermark().await.unwrap();
    assert_eq!(other.size(), 500);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_far_apart_and_of_all_sizes_are_found() {
    let mut store = Store(testing::fresh().await);
    let log = store.open().await;
    let mut expected = Vec::new();
    for (n, slot) in [1, 2, 5, 10_000, 10_001, 1 << 40, (1 << 40) + 3]
        .into_iter()
        .enumerate()
    {
        let record = laws::record(slot, 0, if n % 3 == 0 { 3 << 20 } else { 100 });
        log.append(Slot(slot), record.clone()).await.unwrap();
        expected.push((slot, record));
    }
    for log in [log, store.open().await] {
        assert!(laws::read_all(&log, 0).await == expected);
    }
}

#[test]
fn marks_that_were_not_written_here_are_damage() {
    let marks = Watermarks {
        watermark: 7,
        destroyed: 3,
    };
    assert_eq!(Watermarks::decode(&marks.encode()).unwrap(), marks);
    let inverted = Watermarks {
        watermark: 3,
        destroyed: 7,
    };
    for bytes in [&b""[..], b"short", &[0; 17], &inverted.encode()] {
        assert!(matches!(Watermarks::decode(bytes), Err(LogError::Corrupt(_))));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_whose_replies_are_lost_are_found_and_late_ones_are_refused() {
    let here = on_mock(|_| {}).await;
    let log = TikvLog::keeping(here.tikv.clone(), |_| false);
    let faults = here.mock_tikv().faults();
    faults
        .add(Fault::new(Rpc::Prewrite, Action::LoseReply { silent: false }).with_probability(0.3))
        .unwrap();
    faults
        .add(Fault::new(Rpc::Prewrite, Action::Duplicate { after: None }).with_probability(0.3))
        .unwrap();
    let mut written = Vec::new();
    for slot in 1..=30 {
        let record = laws::record(slot, 0, 100);
        laws::settle(&log, slot, &record).await.unwrap();
        written.push((slot, record));
    }
    faults.clear();
    assert_eq!(laws::read_all(&log, 0).await, written);
    log.raise_watermark(Slot(20)).await.unwrap();
    while log.destroy_below_watermark().await.unwrap() {}
    // Garbage may land below the watermark, and nothing above it changes.
    assert!(faults.held() > 0);
    faults.deliver().await;
    assert_eq!(laws::read_all(&log, 20).await, written[19..]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_laws_of_logs_hold_in_a_tikv_that_loses_replies() {
    laws::all(async || {
        let here = on_mock(|_| {}).await;
        let lost = Fault::new(Rpc::Prewrite, Action::LoseReply { silent: false });
        here.mock_tikv().faults().add(lost.with_probability(0.1)).unwrap();
        Store(here)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_is_one_request_and_no_space_is_told() {
    let here = on_mock(|_| {}).await;
    let log = TikvLog::keeping(here.tikv.clone(), |_| false);
    log.append(Slot(1), laws::record(1, 0, 1 << 20)).await.unwrap();
    here.mock_tikv().reset_requests();
    log.append(Slot(2), laws::record(2, 0, 4 << 20)).await.unwrap();
    let requests = here.mock_tikv().requests();
    assert_eq!(requests.get(&Rpc::Prewrite), Some(&1), "{requests:?}");
    assert_eq!(requests.get(&Rpc::Commit), None, "{requests:?}");
    assert_eq!(here.mock_tikv().sizes().locks, 0);
    let error = mock_tikv::RegionFault::DiskFull;
    let faults = here.mock_tikv().faults();
    faults.add(Fault::new(Rpc::Prewrite, Action::Region { error })).unwrap();
    let answer = log.append(Slot(3), laws::record(3, 0, 100)).await;
    assert!(matches!(answer, Err(AppendError::Full(_))), "{answer:?}");
}

#[test]
fn bytes_that_rot_or_stand_elsewhere_are_named() {
    let record = Bytes::from_static(b"record");
    let stored = seal(Slot(7), &record);
    assert_eq!(unseal(Slot(7), stored.clone()).unwrap(), record);
    let error = unseal(Slot(8), stored.clone()).unwrap_err();
    assert!(error.to_string().contains("slot 8"), "{error}");
    for at in 0..stored.len() {
        let mut rotten = stored.to_vec();
        rotten[at] ^= 1;
        assert!(
            matches!(unseal(Slot(7), rotten.into()), Err(LogError::Corrupt(_))),
            "byte {at}"
        );
    }
    assert!(matches!(unseal(Slot(7), stored.slice(..3)), Err(LogError::Corrupt(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn append_that_is_called_too_large_is_repeated() {
    let here = on_mock(|_| {}).await;
    let log = TikvLog::keeping(here.tikv.clone(), |_| false);
    let faults = here.mock_tikv().faults();
    let error = RegionFault::RaftEntryTooLarge;
    for (slot, len) in [(1, 10), (2, 4 << 20)] {
        let fault = Fault::new(Rpc::Prewrite, Action::Region { error }).times(3);
        faults.add(fault).unwrap();
        let record = Bytes::from(vec![7; len]);
        append_until_known(&log, Slot(slot), record).await.unwrap();
        faults.clear();
    }
    assert_eq!(log.read(Slot(1), usize::MAX).await.unwrap().len(), 2);
}
