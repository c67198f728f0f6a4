//! Appends batches as the only writer of an epoch, its barrier placed first.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::watch;

use super::frame::{Barrier, Candidate, PART_HEADER_BYTES, put_part_header};
use super::reader::{LogEntry, Reader};
use super::window::{Window, may_be_cut};
use super::{AppendError, DynLog, Log, LogError, Slot};
use runtime::backoff::Backoff;

/// The delay before an append of unknown outcome is repeated.
const APPEND_BACKOFF: Backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(500));

/// The right to append within one epoch.
///
/// Invariant: all slots below `next` that are not dead were handed out in order, each for one attempt.
#[derive(Debug)]
pub struct Writer {
    epoch: u64,
    number: u64,
    next: Slot,
    max_record_len: usize,
    open: OpenSlots,
}

/// The slots under way. An append waits until its slot is within the window of the first uncommitted one.
#[derive(Debug, Clone)]
struct OpenSlots(Arc<watch::Sender<UnderWay>>);

#[derive(Debug)]
struct UnderWay {
    /// The first uncommitted slot.
    first: Slot,
    /// Committed slots after it.
    committed: BTreeSet<Slot>,
    /// The last append that was tried found no space.
    is_full: bool,
}

/// The reason why nothing more can be appended.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Another writer began a later epoch. The outcome of appends that were under way is unknown.
    #[error("a later leader took slot {0}")]
    Deposed(Slot),
    /// The log failed.
    #[error("the log failed")]
    Failed(#[source] anyhow::Error),
}

/// Errors of opening an epoch.
#[derive(Debug, thiserror::Error)]
pub enum WriterOpenError {
    /// Slots were destroyed while they were read: begin again from rows.
    #[error("the log was truncated below slot {0} while it was read")]
    Destroyed(Slot),
    /// The log cannot be read.
    #[error("read the log")]
    Log(#[from] LogError),
    /// The barrier cannot be placed.
    #[error("place a barrier")]
    Write(#[from] WriteError),
}

/// The point from which a writer takes the log over.
#[derive(Debug, Clone, Copy)]
pub struct TakeOverPoint {
    /// The slot at which its reader began.
    pub began: Slot,
    /// The newest epoch that is known; its own is above.
    pub known_epoch: u64,
}

impl Writer {
    /// Reads everything after `reader`'s position, passes it to `replay`, and places a barrier of the next epoch, which is
    /// above the known one, in the first free slot. If the watermark is beyond the slot at which the reader began afterwards, the reader
    /// may have seen destroyed slots, which look free, or late messages in them. Fails with [`WriterOpenError`], or with the error of
    /// `replay`.
    pub async fn open<E: From<WriterOpenError>>(
        log: &dyn Log,
        reader: &mut Reader,
        TakeOverPoint { began, known_epoch }: TakeOverPoint,
        candidate: Candidate,
        mut replay: impl FnMut(LogEntry) -> Result<(), E>,
    ) -> Result<(Writer, Barrier), E> {
        loop {
            if let Err(damage) = replay_all(reader, &mut replay).await {
                // Destroyed slots may hold late messages that contradict everything.
                check_cut(log, began).await?;
                return Err(damage);
            }
            let slot = reader.frontier();
            let barrier = Barrier {
                epoch: reader.next_epoch(known_epoch),
                nonce: rand::random(),
                writer: candidate.member,
                lease: candidate.lease,
                lock: candidate.lock,
            };
            match append_until_known(log, slot, barrier.encode()).await {
                Ok(()) => {
                    check_cut(log, began).await?;
                    if let Some(item) = reader.accept(slot, barrier.encode()).map_err(WriterOpenError::Log)? {
                        replay(item)?;
                    }
                    let next = reader.frontier();
                    let max_record_len = log.max_record_len();
                    return Ok((
                        Writer {
                            epoch: barrier.epoch,
                            number: 0,
                            next,
                            max_record_len,
                            open: OpenSlots::at(next),
                        },
                        barrier,
                    ));
                }
                Err(WriteError::Deposed(_)) => {} // another writer won the race: read its record and try again
                Err(error) => return Err(WriterOpenError::Write(error).into()),
            }
        }
    }

    /// Appends the slots of a batch: as many as may be open at once, then the others as these are committed. Fails with the
    /// first [`WriteError`].
    pub fn append(
        &self,
        log: &DynLog,
        slots: Vec<(Slot, Bytes)>,
    ) -> impl Future<Output = Result<(), WriteError>> + Send + 'static {
        let (log, open) = (log.clone(), self.open.clone());
        async move {
            let appends = slots.into_iter().map(|(slot, record)| open.append(&*log, slot, record));
            futures::future::try_join_all(appends).await?;
            Ok(())
        }
    }

    /// The epoch of this writer.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns true if the log takes nothing now, because it has no space.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.open.0.borrow().is_full
    }

    /// The slot that the next batch begins in.
    #[must_use]
    pub fn next(&self) -> Slot {
        self.next
    }

    /// An empty buffer that already holds the header of a batch of one part.
    #[must_use]
    pub fn buffer(&self, capacity: usize) -> BytesMut {
        let mut bytes = BytesMut::with_capacity(PART_HEADER_BYTES + capacity);
        put_part_header(&mut bytes, self.epoch, self.number, 0, true);
        bytes
    }

    /// Takes the slots for a batch that was appended to the header from [`Writer::buffer`].
    /// A batch that is too long for one record is cut into parts.
    pub fn take_slots(&mut self, batch: BytesMut) -> Vec<(Slot, Bytes)> {
        let mut slots = Vec::with_capacity(1);
        if batch.len() <= self.max_record_len {
            slots.push((self.next, batch.freeze()));
            self.next = self.next.next();
        } else {
            let payload = &batch[PART_HEADER_BYTES..];
            let mut pieces = payload
                .chunks(self.max_record_len - PART_HEADER_BYTES)
                .zip(0u32..)
                .peekable();
            while let Some((piece, index)) = pieces.next() {
                let mut bytes = BytesMut::with_capacity(PART_HEADER_BYTES + piece.len());
                put_part_header(&mut bytes, self.epoch, self.number, index, pieces.peek().is_none());
                bytes.extend_from_slice(piece);
                slots.push((self.next, bytes.freeze()));
                self.next = self.next.next();
            }
        }
        self.number += 1;
        slots
    }
}

impl OpenSlots {
    /// Nothing is under way; the first append goes to `first`.
    fn at(first: Slot) -> Self {
        Self(Arc::new(watch::Sender::new(UnderWay {
            first,
            committed: BTreeSet::new(),
            is_full: false,
        })))
    }

    async fn append(&self, log: &dyn Log, slot: Slot, record: Bytes) -> Result<(), WriteError> {
        let may_open = |under_way: &UnderWay| Window::FORMAT.is_open(under_way.first, slot);
        // The wait cannot fail, because `self` holds the sender. The guard must not be held while the append is under way.
        drop(self.0.subscribe().wait_for(may_open).await);
        append(log, slot, record, |is_full| {
            self.0
                .send_if_modified(|under_way| std::mem::replace(&mut under_way.is_full, is_full) != is_full);
        })
        .await?;
        self.0.send_modify(|under_way| {
            under_way.committed.insert(slot);
            while under_way.committed.remove(&under_way.first) {
                under_way.first = under_way.first.next();
            }
        });
        Ok(())
    }
}

/// Hands everything that can be read to `replay`.
async fn replay_all<E: From<WriterOpenError>>(
    reader: &mut Reader,
    replay: &mut impl FnMut(LogEntry) -> Result<(), E>,
) -> Result<(), E> {
    while let Some(item) = reader.next().await.map_err(WriterOpenError::Log)? {
        replay(item)?;
    }
    Ok(())
}

/// Fails if slots from `began` on may have been destroyed while they were read.
async fn check_cut(log: &dyn Log, began: Slot) -> Result<(), WriterOpenError> {
    if may_be_cut(began, log.watermark().await?) {
        return Err(WriterOpenError::Destroyed(began));
    }
    Ok(())
}

/// Appends, and repeats the same bytes while the outcome is unknown or there is no space. Returns a [`WriteError`], never an
/// [`AppendError::Unknown`].
pub async fn append_until_known(log: &dyn Log, slot: Slot, record: Bytes) -> Result<(), WriteError> {
    append(log, slot, record, |_| {}).await
}

/// The same; `is_full` is called with whether space was missing, each time that is known.
async fn append(
    log: &dyn Log,
    slot: Slot,
    record: Bytes,
    is_full: impl Fn(bool) + Send + Sync,
) -> Result<(), WriteError> {
    let mut backoff = APPEND_BACKOFF;
    loop {
        let outcome = log.append(slot, record.clone()).await;
        match &outcome {
            Ok(()) => is_full(false),
            Err(AppendError::Full(_)) => is_full(true),
            Err(_) => {}
        }
        let error = match outcome {
            Ok(()) => return Ok(()),
            Err(AppendError::Taken(slot, _)) => return Err(WriteError::Deposed(slot)),
            Err(AppendError::Failed(source)) => return Err(WriteError::Failed(source)),
            // `Full` is repeated, too: later batches may be in flight, so the append cannot be taken back.
            Err(error @ (AppendError::Unknown(..) | AppendError::Unavailable(_) | AppendError::Full(_))) => error,
        };
        tracing::warn!(%slot, error = &error as &dyn std::error::Error, "repeating an append");
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::frame::is_barrier;
    use crate::log::{Fault, Faulty, MemLog};

    const FROM_FIRST: TakeOverPoint = TakeOverPoint {
        began: Slot::FIRST,
        known_epoch: 0,
    };

    async fn open(log: &MemLog) -> (Writer, Vec<LogEntry>) {
        let mut items = Vec::new();
        let mut reader = Reader::new(Arc::new(log.clone()), Slot::FIRST);
        let replay = |item| {
            items.push(item);
            Ok::<(), WriterOpenError>(())
        };
        let opened = Writer::open(log, &mut reader, FROM_FIRST, Candidate::default(), replay).await;
        (opened.unwrap().0, items)
    }

    fn batch(writer: &mut Writer, len: usize, byte: u8) -> Vec<(Slot, Bytes)> {
        let mut bytes = writer.buffer(len);
        bytes.resize(bytes.len() + len, byte);
        writer.take_slots(bytes)
    }

    fn payloads(items: &[LogEntry]) -> Vec<(usize, u8)> {
        let payload = |item: &LogEntry| match item {
            LogEntry::Batch { payload, .. } => Some((payload.len(), payload[0])),
            LogEntry::Barrier(..) => None,
        };
        items.iter().filter_map(payload).collect()
    }

    #[tokio::test]
    async fn a_batch_that_is_too_long_for_a_slot_spans_several_and_is_read_as_one() {
        let log = MemLog::keeping(is_barrier);
        let len = 2 * log.max_record_len() + 5;
        let (mut writer, _) = open(&log).await;
        let slots = batch(&mut writer, len, 7);
        assert_eq!(slots.len(), 3);
        for (slot, bytes) in slots.into_iter().chain(batch(&mut writer, 10, 8)) {
            append_until_known(&log, slot, bytes).await.unwrap();
        }
        let (_, items) = open(&log).await;
        assert_eq!(payloads(&items), [(len, 7), (10, 8)]);
    }

    #[tokio::test]
    async fn a_batch_whose_last_part_is_missing_at_the_next_barrier_is_void() {
        let log = MemLog::keeping(is_barrier);
        let (mut writer, _) = open(&log).await;
        let mut slots = batch(&mut writer, 2 * log.max_record_len(), 7);
        let last = slots.pop().unwrap();
        for (slot, bytes) in slots {
            append_until_known(&log, slot, bytes).await.unwrap();
        }
        let (mut next, _) = open(&log).await;
        // The barrier took its place: the older writer is deposed, however late it comes.
        let late = append_until_known(&log, last.0, last.1).await;
        assert!(matches!(late, Err(WriteError::Deposed(_))), "{late:?}");
        for (slot, bytes) in batch(&mut next, 10, 8) {
            append_until_known(&log, slot, bytes).await.unwrap();
        }
        let (_, items) = open(&log).await;
        assert_eq!(payloads(&items), [(10, 8)]);
    }

    #[tokio::test]
    async fn contradiction_is_damage_only_where_nothing_was_destroyed() {
        let log = MemLog::keeping(is_barrier);
        let (mut writer, _) = open(&log).await;
        let (mut other, _) = open(&log).await;
        let (first, second) = (batch(&mut writer, 1, 1).remove(0), batch(&mut other, 1, 2).remove(0));
        // As late messages may leave it in destroyed slots.
        log.append(Slot(30), first.1).await.unwrap();
        log.append(Slot(31), second.1).await.unwrap();
        let opened = async || {
            let mut reader = Reader::new(Arc::new(log.clone()), Slot(30));
            let from = TakeOverPoint {
                began: Slot(30),
                known_epoch: 2,
            };
            Writer::open(&log, &mut reader, from, Candidate::default(), |_| {
                Ok::<(), WriterOpenError>(())
            })
            .await
        };
        assert!(matches!(
            opened().await,
            Err(WriterOpenError::Log(LogError::Corrupt(_)))
        ));
        log.raise_watermark(Slot(40)).await.unwrap();
        assert!(matches!(opened().await, Err(WriterOpenError::Destroyed(Slot(30)))));
    }

    #[tokio::test(start_paused = true)]
    async fn no_slot_is_opened_outside_the_window_of_the_first_uncommitted_one() {
        let log = Faulty::new(MemLog::keeping(is_barrier));
        let mut reader = Reader::new(Arc::new(log.clone()), Slot::FIRST);
        let opened = Writer::open(&log, &mut reader, FROM_FIRST, Candidate::default(), |_| {
            Ok::<(), WriterOpenError>(())
        })
        .await;
        let mut writer = opened.unwrap().0;
        let first = writer.next();
        let slots = (0..20).flat_map(|byte| batch(&mut writer, 10, byte)).collect();
        // The first one is not there until everything else that may be is.
        (0..3).for_each(|_| log.fail_next(Fault::Lost));
        let shared: DynLog = Arc::new(log.clone());
        let mut append = Box::pin(writer.append(&shared, slots));
        assert!(futures::poll!(&mut append).is_pending());
        assert_eq!(log.appends(), 1 + 8, "a barrier and a window of slots");
        let there: Vec<u64> = log
            .inner()
            .read(first, usize::MAX)
            .await
            .unwrap()
            .iter()
            .map(|(slot, _)| slot.0)
            .collect();
        assert_eq!(there, (first.0 + 3..first.0 + 8).collect::<Vec<_>>());
        append.await.unwrap();
        assert_eq!(log.inner().read(first, usize::MAX).await.unwrap().len(), 20);
    }
}
