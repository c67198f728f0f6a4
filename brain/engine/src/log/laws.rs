//! The laws of [`Log`], as one suite for every implementation.
//!
//! An append is repeated while its outcome is unknown, so the suite also holds on a twin that loses answers.

#![allow(clippy::unwrap_used, reason = "a law that does not hold is a failed test")]

use bytes::Bytes;

use super::{AppendError, Faulty, Log, Slot};

/// A log that can be closed and opened again.
pub trait Subject {
    /// The implementation under test.
    type Log: Log + Clone;

    /// Opens the log, for the first time or after everything else has let go of it.
    fn open(&mut self) -> impl Future<Output = Self::Log>;
}

/// Runs every law, each on a fresh log.
pub async fn all<S: Subject>(mut fresh: impl AsyncFnMut() -> S) {
    a_fresh_log_is_empty(fresh().await).await;
    appended_records_are_read_and_survive(fresh().await).await;
    equal_bytes_do_no_harm_and_others_are_refused(fresh().await).await;
    of_two_that_race_for_a_slot_one_wins(fresh().await).await;
    slots_may_stay_free_and_come_in_any_order(fresh().await).await;
    reads_are_bounded_but_never_stuck(fresh().await).await;
    the_watermark_only_moves_forward(fresh().await).await;
    destruction_stays_below_the_watermark(fresh().await).await;
    records_without_or_with_too_many_bytes_are_refused(fresh().await).await;
    the_longest_record_is_kept(fresh().await).await;
}

/// Appends until the outcome is known.
pub async fn settle(log: &dyn Log, slot: u64, record: &Bytes) -> Result<(), AppendError> {
    for _ in 0..1000 {
        match log.append(Slot(slot), record.clone()).await {
            Err(AppendError::Unknown(..) | AppendError::Unavailable(_)) => {}
            known => return known,
        }
    }
    panic!("slot {slot} stays unknown");
}

async fn put(log: &dyn Log, slot: u64, record: &Bytes) {
    settle(log, slot, record).await.unwrap();
}

/// Everything from `from` on, read in small pieces.
pub async fn read_all(log: &dyn Log, from: u64) -> Vec<(u64, Bytes)> {
    let mut all: Vec<(u64, Bytes)> = Vec::new();
    let mut next = Slot(from);
    loop {
        let part = log.read(next, 700).await.unwrap();
        let Some((last, _)) = part.last() else { return all };
        next = last.next();
        all.extend(part.into_iter().map(|(slot, record)| (slot.0, record)));
    }
}

/// A record that differs from slot to slot and from `attempt` to `attempt`.
pub fn record(slot: u64, attempt: u32, len: usize) -> Bytes {
    let mut bytes = format!("slot {slot} attempt {attempt} ").into_bytes();
    let filler = (slot.wrapping_mul(31).wrapping_add(u64::from(attempt)) % 251) as u8;
    bytes.resize(len.max(bytes.len()), filler);
    bytes.into()
}

async fn a_fresh_log_is_empty<S: Subject>(mut subject: S) {
    let log = subject.open().await;
    assert_eq!(read_all(&log, 0).await, []);
    assert_eq!(log.watermark().await.unwrap(), Slot::FIRST);
}

async fn appended_records_are_read_and_survive<S: Subject>(mut subject: S) {
    let mut expected = Vec::new();
    for restart in 0..4u64 {
        let log = subject.open().await;
        assert_eq!(read_all(&log, 0).await, expected, "after restart {restart}");
        for n in 1..=20 {
            let slot = restart * 20 + n;
            let record = record(slot, 0, 40 * n as usize);
            put(&log, slot, &record).await;
            expected.push((slot, record));
        }
        assert_eq!(read_all(&log, 0).await, expected);
    }
}

async fn equal_bytes_do_no_harm_and_others_are_refused<S: Subject>(mut subject: S) {
    for _ in 0..2 {
        let log = subject.open().await;
        let (mine, other) = (record(3, 1, 100), record(3, 2, 100));
        put(&log, 3, &mine).await;
        put(&log, 3, &mine).await;
        match settle(&log, 3, &other).await {
            Err(AppendError::Taken(Slot(3), there)) => assert_eq!(there, mine),
            answer => panic!("{answer:?}"),
        }
        put(&log, 3, &mine).await;
        assert_eq!(read_all(&log, 0).await, [(3, mine)]);
    }
}

async fn of_two_that_race_for_a_slot_one_wins<S: Subject>(mut subject: S) {
    let log = subject.open().await;
    for slot in 1..=30 {
        let (a, b) = (record(slot, 1, 64), record(slot, 2, 64));
        let (one, same, two) = tokio::join!(settle(&log, slot, &a), settle(&log, slot, &a), settle(&log, slot, &b));
        let (winner, loser) = match (&one, &two) {
            (Ok(()), Err(AppendError::Taken(_, there))) => (&a, (there, &same)),
            (Err(AppendError::Taken(_, there)), Ok(())) => (&b, (there, &same)),
            answers => panic!("{answers:?}"),
        };
        assert_eq!(loser.0, winner);
        assert_eq!(loser.1.is_ok(), one.is_ok());
        assert_eq!(read_all(&log, slot).await, [(slot, winner.clone())]);
    }
}

async fn slots_may_stay_free_and_come_in_any_order<S: Subject>(mut subject: S) {
    let order = [9u64, 1, 17, 3, 2, 40, 8, 25, 39];
    let log = subject.open().await;
    for slot in order {
        put(&log, slot, &record(slot, 0, 200)).await;
    }
    let mut sorted = order;
    sorted.sort_unstable();
    let mut log = Some(log);
    for _ in 0..2 {
        // A log that is still open is not opened again.
        let log = match log.take() {
            Some(log) => log,
            None => subject.open().await,
        };
        for from in [0, 2, 4, 18, 40, 41] {
            let found: Vec<u64> = read_all(&log, from).await.into_iter().map(|(slot, _)| slot).collect();
            let expected: Vec<u64> = sorted.into_iter().filter(|slot| *slot >= from).collect();
            assert_eq!(found, expected, "from {from}");
        }
    }
}

async fn reads_are_bounded_but_never_stuck<S: Subject>(mut subject: S) {
    let log = subject.open().await;
    for slot in 1..=10 {
        put(&log, slot, &record(slot, 0, 100)).await;
    }
    for (max_bytes, expected) in [(0, 1), (99, 1), (100, 1), (199, 1), (200, 2), (350, 3), (usize::MAX, 8)] {
        let found = log.read(Slot(3), max_bytes).await.unwrap();
        assert_eq!(found.len(), expected, "within {max_bytes} bytes");
        assert_eq!(found[0].0, Slot(3));
    }
    assert_eq!(log.read(Slot(11), usize::MAX).await.unwrap(), []);
}

async fn the_watermark_only_moves_forward<S: Subject>(mut subject: S) {
    let mut expected = Slot::FIRST;
    for to in [5, 3, 5, 6, 1, 20] {
        let log = subject.open().await;
        assert_eq!(log.watermark().await.unwrap(), expected);
        log.raise_watermark(Slot(to)).await.unwrap();
        expected = expected.max(Slot(to));
        assert_eq!(log.watermark().await.unwrap(), expected);
    }
    assert_eq!(subject.open().await.watermark().await.unwrap(), Slot(20));
}

async fn destruction_stays_below_the_watermark<S: Subject>(mut subject: S) {
    let mut written = Vec::new();
    for round in 1..=12u64 {
        let log = subject.open().await;
        for slot in (round - 1) * 10 + 1..=round * 10 {
            let record = record(slot, 0, 300);
            put(&log, slot, &record).await;
            written.push((slot, record));
        }
        let watermark = round * 10 - 4;
        log.raise_watermark(Slot(watermark)).await.unwrap();
        while log.destroy_below_watermark().await.unwrap() {}
        let expected: Vec<_> = written.iter().filter(|(slot, _)| *slot >= watermark).cloned().collect();
        check_destroyed(&log, watermark, &expected, &written).await;
        drop(log);
        check_destroyed(&subject.open().await, watermark, &expected, &written).await;
    }
    let log = subject.open().await;
    assert!(log.size() < 120 * 300, "{} bytes are left", log.size());
}

/// Checks that the log holds everything from `watermark` on, and nothing that was never written.
async fn check_destroyed(log: &dyn Log, watermark: u64, expected: &[(u64, Bytes)], written: &[(u64, Bytes)]) {
    assert_eq!(read_all(log, watermark).await, expected);
    let left = read_all(log, 0).await;
    assert!(
        left.iter().all(|there| written.contains(there)),
        "destroyed slots are free or unchanged"
    );
}

async fn records_without_or_with_too_many_bytes_are_refused<S: Subject>(mut subject: S) {
    let log = subject.open().await;
    for len in [0, log.max_record_len() + 1] {
        let answer = log.append(Slot(1), Bytes::from(vec![1; len])).await;
        assert!(matches!(answer, Err(AppendError::Failed(_))), "{len} bytes: {answer:?}");
    }
    put(&log, 1, &record(1, 0, 10)).await;
    assert_eq!(read_all(&log, 0).await.len(), 1);
}

async fn the_longest_record_is_kept<S: Subject>(mut subject: S) {
    let log = subject.open().await;
    let longest = record(2, 0, log.max_record_len());
    put(&log, 1, &record(1, 0, 10)).await;
    put(&log, 2, &longest).await;
    put(&log, 3, &record(3, 0, 10)).await;
    drop(log);
    let log = subject.open().await;
    let slots: Vec<_> = log.read(Slot(0), usize::MAX).await.unwrap();
    assert_eq!(slots.len(), 3);
    assert!(slots[1].1 == longest, "the longest record has changed");
}

/// A twin over `S` that draws its faults from one seed after the other.
pub struct Twin<S> {
    /// The log below.
    pub below: S,
    /// The last seed.
    pub seed: u64,
}

impl<S: Subject> Subject for Twin<S> {
    type Log = Faulty<S::Log>;

    async fn open(&mut self) -> Faulty<S::Log> {
        self.seed += 1;
        Faulty::seeded(self.below.open().await, self.seed, 3)
    }
}

#[cfg(test)]
mod tests {
    use super::super::MemLog;
    use super::*;

    struct Mem(MemLog);

    impl Subject for Mem {
        type Log = MemLog;

        async fn open(&mut self) -> MemLog {
            self.0.clone()
        }
    }

    #[tokio::test]
    async fn the_model_keeps_the_laws() {
        all(async || Mem(MemLog::new())).await;
    }

    #[tokio::test]
    async fn the_faulty_twin_of_the_model_keeps_the_laws() {
        for seed in 0..50 {
            all(async || Twin {
                below: Mem(MemLog::new()),
                seed: 1000 * seed,
            })
            .await;
        }
    }
}
