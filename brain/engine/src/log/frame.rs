//! The frame in a slot: a barrier, or a part of a batch. The payload of a batch is opaque here.
//!
//! No two attempts ever have equal bytes: parts name epoch and number, barriers carry a nonce.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{LogError, Slot};

/// Slots that a writer may have open at once, its first uncommitted one included. Part of the format.
pub const WINDOW_SLOTS: u64 = 8;

const BARRIER_TAG: u8 = 1;
const PART_TAG: u8 = 2;
const LAST_PART_FLAG: u32 = 1 << 31;

/// Bytes that a part takes in addition to its payload.
pub const PART_HEADER_BYTES: usize = 1 + 8 + 8 + 4;

/// The first record of an epoch. The `WINDOW_SLOTS - 1` slots after it are dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Barrier {
    /// The epoch that begins here.
    pub epoch: u64,
    /// Makes two attempts at the same epoch differ.
    pub nonce: u128,
    /// Member id of the writer.
    pub writer: u64,
    /// Time for which the writer may answer reads after its lock was last renewed. A successor that did not see the lock
    /// expire must wait this long.
    pub lease: Duration,
    /// The lock that the writer held. Seeing another lock expire proves nothing about this writer. 0 is the lock in the store itself.
    pub lock: u64,
}

/// The writer that is about to begin an epoch, as its barrier will name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Candidate {
    /// Member id.
    pub member: u64,
    /// See [`Barrier::lease`].
    pub lease: Duration,
    /// See [`Barrier::lock`].
    pub lock: u64,
}

/// A piece of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The epoch of the writer.
    pub epoch: u64,
    /// The batch within the epoch, from 0.
    pub number: u64,
    /// The piece within the batch, from 0.
    pub index: u32,
    /// No piece follows.
    pub last: bool,
    /// The piece itself.
    pub payload: Bytes,
}

/// The content of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// An epoch begins.
    Barrier(Barrier),
    /// A piece of a batch.
    Part(Part),
}

impl Barrier {
    /// The bytes of the slot.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(1 + 8 + 16 + 8 + 4 + 8);
        bytes.put_u8(BARRIER_TAG);
        bytes.put_u64_le(self.epoch);
        bytes.put_u128_le(self.nonce);
        bytes.put_u64_le(self.writer);
        bytes.put_u32_le(u32::try_from(self.lease.as_millis()).unwrap_or(u32::MAX));
        if self.lock != 0 {
            bytes.put_u64_le(self.lock);
        }
        bytes.freeze()
    }
}

/// Writes the header of a part; the payload follows it.
pub fn put_part_header(bytes: &mut BytesMut, epoch: u64, number: u64, index: u32, last: bool) {
    bytes.put_u8(PART_TAG);
    bytes.put_u64_le(epoch);
    bytes.put_u64_le(number);
    bytes.put_u32_le(index | if last { LAST_PART_FLAG } else { 0 });
}

/// The bytes of a slot are a barrier's. A log that several writers may append to must not destroy them.
#[must_use]
pub fn is_barrier(record: &[u8]) -> bool {
    record.first() == Some(&BARRIER_TAG)
}

impl Frame {
    /// Decodes the bytes of `slot`. Returns [`LogError::Corrupt`] if they are not a frame.
    pub fn decode(slot: Slot, mut bytes: Bytes) -> Result<Frame, LogError> {
        let corrupt = || LogError::Corrupt(format!("slot {slot} holds no record of this format"));
        if bytes.is_empty() {
            return Err(corrupt());
        }
        match bytes.get_u8() {
            BARRIER_TAG if [8 + 16 + 8 + 4, 8 + 16 + 8 + 4 + 8].contains(&bytes.len()) => Ok(Frame::Barrier(Barrier {
                epoch: bytes.get_u64_le(),
                nonce: bytes.get_u128_le(),
                writer: bytes.get_u64_le(),
                lease: Duration::from_millis(u64::from(bytes.get_u32_le())),
                lock: bytes.try_get_u64_le().unwrap_or(0),
            })),
            PART_TAG if bytes.len() >= PART_HEADER_BYTES - 1 => {
                let (epoch, number, index) = (bytes.get_u64_le(), bytes.get_u64_le(), bytes.get_u32_le());
                Ok(Frame::Part(Part {
                    epoch,
                    number,
                    index: index & !LAST_PART_FLAG,
                    last: index & LAST_PART_FLAG != 0,
                    payload: bytes,
                }))
            }
            _ => Err(corrupt()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_the_round_trip() {
        for lock in [0, u64::MAX] {
            let barrier = Barrier {
                epoch: 7,
                nonce: 1 << 100,
                writer: u64::MAX,
                lease: Duration::from_millis(2_000),
                lock,
            };
            assert_eq!(
                Frame::decode(Slot(1), barrier.encode()).unwrap(),
                Frame::Barrier(barrier)
            );
        }
        let mut bytes = BytesMut::new();
        put_part_header(&mut bytes, 7, 9, 3, true);
        bytes.put_slice(b"payload");
        let part = Part {
            epoch: 7,
            number: 9,
            index: 3,
            last: true,
            payload: Bytes::from_static(b"payload"),
        };
        assert_eq!(Frame::decode(Slot(1), bytes.freeze()).unwrap(), Frame::Part(part));
    }

    #[test]
    fn anything_else_is_damage() {
        for bytes in [&b""[..], b"\x00", b"\x01short", b"\x02short", b"\x03"] {
            assert!(matches!(
                Frame::decode(Slot(1), Bytes::copy_from_slice(bytes)),
                Err(LogError::Corrupt(_))
            ));
        }
    }
}
