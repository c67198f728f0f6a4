//! No space left: nothing is lost, reads and destruction work, and so do appends once there is space again.

use futures::poll;

use super::*;
use testkit::small_disk;

/// Appends until the log is full; returns what was written.
async fn fill(log: &FileLog, from: u64, len: usize) -> Vec<(u64, Bytes)> {
    let mut written = Vec::new();
    for slot in from..from + 100_000 {
        let record = record(slot, 0, len);
        match log.append(Slot(slot), record.clone()).await {
            Ok(()) => written.push((slot, record)),
            Err(AppendError::Full(_)) => return written,
            Err(other) => panic!("slot {slot}: {other:?}"),
        }
    }
    panic!("the log is never full");
}

#[tokio::test]
async fn a_full_disk_stops_appends_and_nothing_else() {
    let dir = scratch();
    let disk = Disk::default();
    let log = FileLog::open_on(dir.path(), SMALL_SEGMENTS, disk.clone(), None).unwrap();
    let mut written = append_range(&log, 1..=20, 500).await;
    disk.faults.full.store(true, SeqCst);
    written.extend(fill(&log, 21, 500).await);
    let next = written.len() as u64 + 1;
    for _ in 0..3 {
        let answer = log.append(Slot(next), record(next, 0, 500)).await;
        assert!(matches!(answer, Err(AppendError::Full(_))), "{answer:?}");
    }
    assert_eq!(
        read_all(&log, 0).await,
        written,
        "nothing of the refused record is there"
    );
    log.raise_watermark(Slot(15)).await.unwrap();
    log.destroy_below_watermark().await.unwrap();
    disk.faults.full.store(false, SeqCst);
    written.extend(append_range(&log, next..=next + 30, 500).await);
    drop(log);
    assert_eq!(read_all(&open_small(dir.path()), 15).await, written[14..]);
}

/// Appends that were queued together are refused together; one that is asked after that finds what space there is by then.
#[tokio::test]
#[expect(clippy::await_holding_lock, reason = "the writer's thread is to wait for them")]
async fn an_append_after_a_refused_one_asks_for_space_again() {
    let dir = scratch();
    let disk = Disk::default();
    let log = FileLog::open_on(dir.path(), SMALL_SEGMENTS, disk.clone(), None).unwrap();
    disk.faults.full.store(true, SeqCst);
    let next = fill(&log, 1, 500).await.len() as u64 + 1;
    let append = |slot, len| Box::pin(log.append(Slot(slot), record(slot, 0, len)));
    let (mut refused, mut fits, mut queued) = (append(next, 500), append(next + 1, 1), append(next + 2, 500));
    let [room, sync] = [&disk.faults.room, &disk.faults.sync].map(|held| held.write().unwrap());
    assert!(poll!(&mut refused).is_pending() && poll!(&mut fits).is_pending() && poll!(&mut queued).is_pending());
    drop(room);
    let answer = refused.await;
    assert!(matches!(answer, Err(AppendError::Full(_))), "{answer:?}");
    // the writer cannot be done with the queue: it must sync the record that fits
    disk.faults.full.store(false, SeqCst);
    let mut later = append(next, 500);
    assert!(poll!(&mut later).is_pending());
    drop(sync);
    fits.await.unwrap();
    let answer = queued.await;
    assert!(matches!(answer, Err(AppendError::Full(_))), "{answer:?}");
    later.await.unwrap();
}

#[tokio::test]
async fn a_write_that_stops_for_want_of_space_leaves_no_trace() {
    let dir = scratch();
    let disk = Disk::default();
    let mut log = FileLog::open_on(dir.path(), SMALL_SEGMENTS, disk.clone(), None).unwrap();
    let mut written = Vec::new();
    for slot in 1..=30 {
        if slot % 7 == 0 {
            log.raise_watermark(Slot(slot / 7)).await.unwrap();
            drop(log);
            log = FileLog::open_on(dir.path(), SMALL_SEGMENTS, disk.clone(), None).unwrap();
        }
        disk.faults.full_write.store(true, SeqCst);
        let answer = log.append(Slot(slot), record(slot, 1, 200)).await;
        assert!(matches!(answer, Err(AppendError::Full(_))), "slot {slot}: {answer:?}");
        log.raise_watermark(Slot(slot / 2)).await.unwrap();
        let copied = copy(dir.path());
        assert_eq!(
            read_all(&open_small(copied.path()), 0).await,
            written,
            "opened right then"
        );
        written.extend(append_range(&log, slot..=slot, 150).await);
        assert_eq!(read_all(&log, 0).await, written);
    }
    let size = log.size();
    drop(log);
    let log = open_small(dir.path());
    assert_eq!(read_all(&log, 0).await, written);
    assert_eq!(log.size(), size);
}

#[tokio::test]
async fn a_segment_whose_first_batch_fails_is_made_anew() {
    let dir = scratch();
    let disk = Disk::default();
    let log = FileLog::open_on(dir.path(), SMALL_SEGMENTS, disk.clone(), None).unwrap();
    // Nine of these fill a segment.
    let mut written = append_range(&log, 1..=9, 400).await;
    for watermark in [2, 3, 4] {
        disk.faults.full_write.store(true, SeqCst);
        let answer = log.append(Slot(10), record(10, 1, 400)).await;
        assert!(matches!(answer, Err(AppendError::Full(_))), "{answer:?}");
        log.raise_watermark(Slot(watermark)).await.unwrap();
        let copied = copy(dir.path());
        // Bytes that were not synced need not be on disk.
        let second = segments(copied.path()).remove(1);
        let mut bytes = fs::read(&second).unwrap();
        bytes[4096..].fill(0);
        fs::write(&second, bytes).unwrap();
        assert_eq!(read_all(&open_small(copied.path()), 0).await, written);
    }
    written.extend(append_range(&log, 10..=30, 400).await);
    drop(log);
    assert_eq!(read_all(&open_small(dir.path()), 0).await, written);
}

#[tokio::test]
async fn whole_records_of_a_batch_that_failed_do_not_come_back() {
    let dir = scratch();
    let disk = Disk::default();
    let log = FileLog::open_on(dir.path(), SMALL_SEGMENTS, disk.clone(), None).unwrap();
    let mut written = Vec::new();
    for round in 0..60 {
        let slots = round * 10 + 1..=round * 10 + 8;
        disk.faults.full_write.store(true, SeqCst);
        let appends = slots.clone().map(|slot| log.append(Slot(slot), record(slot, 0, 100)));
        for (slot, answer) in slots.zip(futures::future::join_all(appends).await) {
            match answer {
                Ok(()) => written.push((slot, record(slot, 0, 100))),
                Err(AppendError::Full(_)) => {}
                Err(other) => panic!("slot {slot}: {other:?}"),
            }
        }
        written.extend(append_range(&log, round * 10 + 9..=round * 10 + 9, 100).await);
        let copied = copy(dir.path());
        assert_eq!(
            read_all(&FileLog::open(copied.path(), SMALL_SEGMENTS).unwrap(), 0).await,
            written
        );
    }
}

#[tokio::test]
async fn a_log_that_cannot_even_begin_says_so() {
    let dir = scratch();
    let disk = Disk::default();
    disk.faults.full.store(true, SeqCst);
    let refused = FileLog::open_on(dir.path(), SMALL_SEGMENTS, disk, None).unwrap_err();
    assert!(matches!(refused, FileLogOpenError::Full { .. }), "{refused}");
    drop(open_small(dir.path()));
}

#[tokio::test]
async fn a_real_full_disk_stops_appends_and_nothing_else() {
    const TEST: &str = "log::tests::space::a_real_full_disk_stops_appends_and_nothing_else";
    if let Some(disk) = small_disk::mounted_for(TEST, 1) {
        fill_a_disk(&disk).await;
    }
}

async fn fill_a_disk(disk: &Path) {
    let options = FileLogOptions {
        first_segment_bytes: 64 << 10,
        segment_bytes: 64 << 10,
        unsafe_no_fsync: false,
    };
    let dir = disk.join("log");
    let log = FileLog::open(&dir, options).unwrap();
    let mut written = fill(&log, 1, 1000).await;
    assert!(written.len() > 500);
    let ballast = disk.join("ballast");
    let rest = fs::write(&ballast, vec![1; 1 << 20]).unwrap_err();
    assert_eq!(rest.kind(), std::io::ErrorKind::StorageFull);
    assert_eq!(read_all(&log, 0).await, written);
    log.raise_watermark(Slot(200)).await.unwrap();
    drop(log);
    let log = FileLog::open(&dir, options).unwrap();
    assert_eq!(read_all(&log, 0).await, written, "opens on a full disk");
    log.destroy_below_watermark().await.unwrap();
    let next = written.len() as u64 + 1;
    written.extend(append_range(&log, next..=next + 100, 1000).await);
    assert_eq!(read_all(&log, 200).await, written[199..]);
}

#[tokio::test]
async fn a_shrunk_log_occupies_what_it_holds() {
    let dir = scratch();
    let options = FileLogOptions {
        first_segment_bytes: 8 << 10,
        segment_bytes: 1 << 20,
        unsafe_no_fsync: false,
    };
    let log = FileLog::open(dir.path(), options).unwrap();
    let mut written = append_range(&log, 1..=300, 1000).await;
    log.raise_watermark(Slot(300)).await.unwrap();
    log.destroy_below_watermark().await.unwrap();
    let before = log.size();
    log.shrink().await.unwrap();
    let after = log.size();
    assert!(after < before / 2, "{after} of {before} bytes are left");
    written.extend(append_range(&log, 301..=320, 1000).await);
    log.raise_watermark(Slot(310)).await.unwrap();
    log.destroy_below_watermark().await.unwrap();
    assert!(log.size() <= 64 << 10, "{} bytes hold ten records", log.size());
    let left: Vec<_> = written.into_iter().filter(|(slot, _)| *slot >= 310).collect();
    assert!(read_all(&log, 310).await == left);
    let size = log.size();
    drop(log);
    let again = FileLog::open(dir.path(), options).unwrap();
    assert_eq!(again.size(), size);
    assert!(read_all(&again, 310).await == left);
    append_range(&again, 321..=325, 1000).await;
}

#[tokio::test]
async fn a_shrunk_log_whose_last_segment_cannot_be_cut_keeps_what_follows() {
    let dir = scratch();
    let disk = Disk::default();
    let log = FileLog::open_on(dir.path(), SMALL_SEGMENTS, disk.clone(), None).unwrap();
    let mut written = append_range(&log, 1..=2, 400).await;
    disk.faults.full_cut.store(true, SeqCst);
    log.shrink().await.unwrap_or_else(|error| eprintln!("{error:#}"));
    written.extend(append_range(&log, 3..=4, 400).await);
    let size = log.size();
    drop(log);
    let again = open_small(dir.path());
    let found = read_all(&again, 0).await;
    assert_eq!(found.len(), written.len(), "records that were acknowledged");
    assert!(found == written);
    assert_eq!(again.size(), size);
}

#[tokio::test]
async fn a_watermark_for_which_there_is_no_space_is_raised_later() {
    let dir = scratch();
    let disk = Disk::default();
    let log = FileLog::open_on(dir.path(), SMALL_SEGMENTS, disk.clone(), None).unwrap();
    append_range(&log, 1..=30, 400).await;
    disk.faults.full_page.store(true, SeqCst);
    match log.raise_watermark(Slot(20)).await {
        Err(LogError::Unavailable(_)) => {}
        other => panic!("expected an error that passes, got {other:?}"),
    }
    log.raise_watermark(Slot(20)).await.unwrap();
    disk.faults.full_page.store(true, SeqCst);
    match log.destroy_below_watermark().await {
        Err(LogError::Unavailable(_)) => {}
        other => panic!("expected an error that passes, got {other:?}"),
    }
    log.destroy_below_watermark().await.unwrap();
    assert_eq!(log.watermark().await.unwrap(), Slot(20));
}
