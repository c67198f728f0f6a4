//! The log in TiKV: a key for each slot, inserted in one phase.
//!
//! One mutation is one raft write, whatever its size up to TiKV's limit: no lock is left, the key is claim and content at
//! once, and a repeated insert finds itself. Slots are read at fresh timestamps.
//!
//! - **Checksums**: a record is stored with a checksum over itself and its slot, so that every reader detects corrupted bytes, and bytes
//!   that are stored in another slot than they were written to.
//! - **Watermark**: one register that holds it and the slot up to which everything is destroyed; it moves by compare-and-set.
//! - **Destruction** deletes whole ranges between the records that must be kept, on every server, outside TiKV's transactions.
//!   Late appends may put garbage into destroyed slots. It is never read and never removed.
//! - **Size** counts the slots that this process wrote or read, which are at least all from the applied slot on.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{BufMut, Bytes, BytesMut};
use tokio::time::Instant;

use self::slot_index::SlotIndex;
use crate::{Error, ScanRange, Tikv, TikvRegister, Ts};
use engine::cas_register::{Cas, CasRegister};
use engine::log::frame::WINDOW_SLOTS;
use engine::log::{AppendError, Log, LogError, LogId, LogObserver, LogWrite, Slot, check_len};

mod slot_index;
#[cfg(test)]
mod tests;

/// Longest record, in bytes: TiKV takes raft entries of 8 MiB, and an entry is somewhat longer than its record.
const MAX_RECORD_LEN: usize = (8 << 20) - (64 << 10);

/// The bytes that one request is meant to bring, and the slots that it asks for at most. TiKV answers 10 MiB at most.
const CHUNK_BYTES: usize = 4 << 20;
const CHUNK_SLOTS: u32 = 512;

/// Slots below the watermark that are kept from destruction. Servers destroy one kind of their files after the other. A copy
/// of a region that is made in between may hold a slot that can no longer be read. A reader that looks back from the
/// watermark for barriers must not encounter such a slot.
const DESTROY_MARGIN_SLOTS: u64 = 8 * WINDOW_SLOTS;

/// Time limit of a destruction. A range may be large, but a stuck client is given up soon, because a member that begins to lead waits
/// for this.
const DESTROY_TIMEOUT: Duration = Duration::from_secs(4);

/// Time after which one destruction reads no more slots that it has not seen, so that its caller gets to other work. A new leader has
/// seen none of what its predecessor left.
const DESTROY_SCAN_TIME: Duration = Duration::from_secs(1);

/// The end of the log is expected within this many slots after the last one that was seen.
const MAX_SLOTS_TO_END: u64 = 4096;

/// A log in TiKV. Clones share their knowledge of it.
#[derive(Debug, Clone)]
pub struct TikvLog {
    inner: Arc<LogInner>,
    observer: Option<LogObserver>,
}

#[derive(Debug)]
struct LogInner {
    tikv: Tikv,
    watermark: TikvRegister,
    keep: fn(&[u8]) -> bool,
    index: Mutex<SlotIndex>,
    /// Bytes of a record, about.
    average: AtomicUsize,
    /// The highest slot that was seen taken.
    highest: AtomicU64,
}

/// The content of the register that holds the watermark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Watermarks {
    watermark: u64,
    /// All slots below are destroyed, except those that are kept. Never above the watermark, and by now at least [`DESTROY_MARGIN_SLOTS`]
    /// slots below it.
    destroyed: u64,
}

impl TikvLog {
    /// The log below a connection's prefix. Its destruction spares the records that `keep` names: several writers may
    /// append here, and an older one must never get past the barrier of its successor.
    #[must_use]
    pub fn keeping(tikv: Tikv, keep: fn(&[u8]) -> bool) -> TikvLog {
        let inner = LogInner {
            watermark: tikv.register("watermark"),
            tikv,
            keep,
            index: Mutex::default(),
            average: AtomicUsize::new(CHUNK_BYTES / 16),
            highest: AtomicU64::new(0),
        };
        TikvLog {
            inner: Arc::new(inner),
            observer: None,
        }
    }

    /// Returns the same log. It reports each append that TiKV makes durable to `observer`, as a write with its sync.
    #[must_use]
    pub fn observed(self, observer: LogObserver) -> TikvLog {
        TikvLog {
            observer: Some(observer),
            ..self
        }
    }
}

#[async_trait]
impl Log for TikvLog {
    async fn append(&self, slot: Slot, record: Bytes) -> Result<(), AppendError> {
        check_len(&record, MAX_RECORD_LEN)?;
        let inner = &self.inner;
        let key = inner.tikv.keys().slot(slot.0);
        let began = Instant::now();
        match inner.tikv.insert(&key, &seal(slot, &record)).await {
            Ok(()) => {
                if let Some(observer) = &self.observer {
                    let took = began.elapsed();
                    observer.tell(LogWrite::Written(record.len(), took));
                    observer.tell(LogWrite::Synced(took));
                }
                inner.note(slot.0, &record);
                Ok(())
            }
            Err(Error::Conflict | Error::Committed) => inner.compare(slot, &key, &record).await,
            Err(Error::Full(error)) => Err(AppendError::Full(error)),
            // Too large, too: a leader whose append does not get through loses its lead, and its successor voids the record.
            Err(error) => Err(AppendError::Unknown(slot, error.into())),
        }
    }

    async fn read(&self, from: Slot, max_bytes: usize) -> Result<Vec<(Slot, Bytes)>, LogError> {
        let inner = &self.inner;
        let now = inner.tikv.timestamp().await.map_err(unavailable)?;
        let (mut found, mut bytes, mut next) = (Vec::new(), 0usize, from.0);
        loop {
            let page = inner.page(now, next, max_bytes.saturating_sub(bytes)).await?;
            let Some((last, _)) = page.last() else {
                return Ok(found);
            };
            next = last.0.saturating_add(1);
            for (slot, record) in page {
                bytes = bytes.saturating_add(record.len());
                if !found.is_empty() && bytes > max_bytes {
                    return Ok(found);
                }
                found.push((slot, record));
            }
        }
    }

    async fn watermark(&self) -> Result<Slot, LogError> {
        Ok(Slot(self.inner.marks().await?.1.watermark))
    }

    async fn raise_watermark(&self, to: Slot) -> Result<(), LogError> {
        loop {
            let (stored, marks) = self.inner.marks().await?;
            if marks.watermark >= to.0 {
                return Ok(());
            }
            let watermark = to.0;
            self.inner.set_marks(stored, Watermarks { watermark, ..marks }).await?;
        }
    }

    async fn destroy_below_watermark(&self) -> Result<bool, LogError> {
        let inner = &self.inner;
        loop {
            let (stored, marks) = inner.marks().await?;
            let end = marks.watermark.saturating_sub(DESTROY_MARGIN_SLOTS);
            if marks.destroyed >= end {
                return Ok(false);
            }
            let destroyed = inner.look_into_gaps(marks.destroyed, end).await?;
            let ranges = inner.index().between_kept(marks.destroyed, destroyed);
            let keys = inner.tikv.keys();
            for (from, to) in ranges {
                inner
                    .tikv
                    .destroy(&keys.slot(from), &keys.slot(to), DESTROY_TIMEOUT)
                    .await
                    .map_err(unavailable)?;
            }
            // False if another member has moved the watermark since. The next attempt finds the destroyed slots free.
            if inner.set_marks(stored, Watermarks { destroyed, ..marks }).await? {
                inner.index().forget_below(destroyed);
                return Ok(destroyed < end);
            }
        }
    }

    fn max_record_len(&self) -> usize {
        MAX_RECORD_LEN
    }

    fn size(&self) -> u64 {
        self.inner.index().bytes()
    }

    async fn shrink(&self) -> Result<(), LogError> {
        Ok(())
    }

    fn id(&self) -> Option<LogId> {
        None
    }
}

impl LogInner {
    fn index(&self) -> MutexGuard<'_, SlotIndex> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, slot: u64, record: &[u8]) {
        self.index().note(slot, record.len(), (self.keep)(record));
        self.highest.fetch_max(slot, Ordering::Relaxed);
    }

    /// A slot is taken, maybe by an earlier attempt of ours.
    async fn compare(&self, slot: Slot, key: &Bytes, record: &Bytes) -> Result<(), AppendError> {
        let unknown = |error: anyhow::Error| AppendError::Unknown(slot, error);
        let now = self.tikv.timestamp().await.map_err(|error| unknown(error.into()))?;
        let there = self.tikv.get(now, key).await.map_err(|error| unknown(error.into()))?;
        let Some(there) = there else {
            // The slot was destroyed since, or the other writer gave up: a repeated attempt finds out.
            return Err(unknown(anyhow::anyhow!("the slot was taken but is free again")));
        };
        let there = unseal(slot, there).map_err(|damaged| AppendError::Failed(damaged.into()))?;
        self.note(slot.0, &there);
        if there == *record {
            Ok(())
        } else {
            Err(AppendError::Taken(slot, there))
        }
    }

    /// Some slots from `from` on, at least one if there is any.
    async fn page(&self, now: Ts, from: u64, max_bytes: usize) -> Result<Vec<(Slot, Bytes)>, LogError> {
        let wanted = max_bytes.min(CHUNK_BYTES) / self.average.load(Ordering::Relaxed).max(1);
        let limit = u32::try_from(wanted).unwrap_or(CHUNK_SLOTS).clamp(1, CHUNK_SLOTS);
        let keys = self.tikv.keys();
        // A scan costs a request to every region that it touches. Taken slots are close together, so the next ones are
        // searched nearby, and further away only if none are found.
        let near = from.saturating_add(u64::from(limit));
        if near.saturating_add(MAX_SLOTS_TO_END) < self.highest.load(Ordering::Relaxed) {
            let page = self.scan(now, keys.slot(from), keys.slot(near), limit).await?;
            if !page.is_empty() {
                return Ok(page);
            }
        }
        self.scan(now, keys.slot(from), keys.slots_end(), limit).await
    }

    async fn scan(&self, now: Ts, from: Bytes, to: Bytes, mut limit: u32) -> Result<Vec<(Slot, Bytes)>, LogError> {
        let rows = loop {
            let range = ScanRange {
                from: from.clone(),
                to: to.clone(),
                limit,
                keys_only: false,
                backward: false,
            };
            match self.tikv.scan(now, &range).await {
                Ok(rows) => break rows,
                Err(Error::TooLarge(_)) if limit > 1 => limit /= 4,
                Err(error) => return Err(unavailable(error)),
            }
            limit = limit.max(1);
        };
        let mut page = Vec::with_capacity(rows.len());
        let mut bytes = 0;
        for (key, record) in rows {
            let slot = self
                .tikv
                .keys()
                .parse_slot(&key)
                .ok_or_else(|| LogError::Corrupt("a key between slots is not a slot".into()))?;
            let record = unseal(Slot(slot), record)?;
            self.note(slot, &record);
            bytes += record.len();
            page.push((Slot(slot), record));
        }
        if let Some(mean) = bytes.checked_div(page.len()) {
            let old = self.average.load(Ordering::Relaxed);
            self.average.store((old / 2 + mean / 2).max(1), Ordering::Relaxed);
        }
        Ok(page)
    }

    /// Reads slots of `[from, to)` that this process has not seen, to find those to keep, for [`DESTROY_SCAN_TIME`] or a little longer.
    /// Returns the end of the slots that it has seen by then, which is after `from`.
    async fn look_into_gaps(&self, from: u64, to: u64) -> Result<u64, LogError> {
        let gaps = self.index().gaps(from, to);
        let until = Instant::now() + DESTROY_SCAN_TIME;
        let now = self.tikv.timestamp().await.map_err(unavailable)?;
        let keys = self.tikv.keys();
        let mut width = u64::MAX;
        for (mut next, end) in gaps {
            while next < end {
                if next > from && Instant::now() >= until {
                    return Ok(next);
                }
                let limit = u32::try_from(CHUNK_BYTES / self.average.load(Ordering::Relaxed).max(1));
                let limit = limit.unwrap_or(CHUNK_SLOTS).clamp(1, CHUNK_SLOTS);
                let last = next.saturating_add(width).min(end);
                match self.scan(now, keys.slot(next), keys.slot(last), limit).await {
                    Ok(page) => {
                        next = page.last().map_or(last, |(slot, _)| slot.0 + 1);
                        width = width.saturating_mul(2);
                    }
                    // A server that ended while it destroyed these slots has left some without their values. They are none to keep:
                    // those are short.
                    Err(error) if is_torn(&error) && last - next == 1 => next = last,
                    Err(error) if is_torn(&error) => width = ((last - next).min(limit.into()) / 2).max(1),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(to)
    }

    /// The marks, and the bytes they are stored as.
    async fn marks(&self) -> Result<(Option<Bytes>, Watermarks), LogError> {
        let stored = self.watermark.get().await.map_err(LogError::Unavailable)?;
        let marks = match &stored {
            Some(bytes) => Watermarks::decode(bytes)?,
            None => Watermarks {
                watermark: Slot::FIRST.0,
                destroyed: 0,
            },
        };
        // Another member may have destroyed them.
        self.index().forget_below(marks.destroyed);
        Ok((stored, marks))
    }

    /// Sets the marks if they are as they were; whether they were.
    async fn set_marks(&self, stored: Option<Bytes>, marks: Watermarks) -> Result<bool, LogError> {
        match self.watermark.compare_and_set(stored, Some(marks.encode())).await {
            Cas::Swapped => Ok(true),
            Cas::Mismatch => Ok(false),
            Cas::Unknown(error) => Err(LogError::Unavailable(error)),
        }
    }
}

impl Watermarks {
    fn encode(self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(16);
        bytes.put_u64(self.watermark);
        bytes.put_u64(self.destroyed);
        bytes.freeze()
    }

    fn decode(bytes: &[u8]) -> Result<Watermarks, LogError> {
        let number = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_be_bytes);
        match (number(0), number(8), bytes.len()) {
            (Some(watermark), Some(destroyed), 16) if destroyed <= watermark => Ok(Watermarks { watermark, destroyed }),
            _ => Err(LogError::Corrupt(format!("the watermark is {bytes:02x?}"))),
        }
    }
}

/// Returns a record as it is stored: the record, then its checksum.
fn seal(slot: Slot, record: &Bytes) -> Bytes {
    let mut bytes = BytesMut::with_capacity(record.len() + 4);
    bytes.put_slice(record);
    bytes.put_u32(checksum(slot, record));
    bytes.freeze()
}

/// The record that was stored in a slot.
fn unseal(slot: Slot, mut stored: Bytes) -> Result<Bytes, LogError> {
    let damaged = || LogError::Corrupt(format!("slot {slot} does not match its checksum"));
    let at = stored.len().checked_sub(4).ok_or_else(damaged)?;
    let found = stored.split_off(at);
    if found[..] == checksum(slot, &stored).to_be_bytes() {
        Ok(stored)
    } else {
        Err(damaged())
    }
}

fn checksum(slot: Slot, record: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&slot.0.to_be_bytes()), record)
}

fn unavailable(error: Error) -> LogError {
    LogError::Unavailable(error.into())
}

/// True if a slot has lost its value.
fn is_torn(error: &LogError) -> bool {
    matches!(error, LogError::Unavailable(source) if matches!(source.downcast_ref(), Some(Error::DefaultNotFound(_))))
}
