//! The state of the model: slots, messages, rows, and writers somewhere in their protocol.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use engine::log::batch_decoder::{BatchDecoder, LogEntry};
use engine::log::frame::{Barrier, Frame, Part};
use engine::log::window::Window;
use engine::log::{LogError, Slot};

use crate::list::List;

/// The content of a slot. Two records are equal when their bytes are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Record(u16);

const PART: u16 = 1 << 15;

impl Record {
    pub(crate) fn barrier(epoch: u8, nonce: u8) -> Self {
        assert!(epoch < 32 && nonce < 64, "the model's numbers are too small");
        Self(u16::from(epoch) << 10 | u16::from(nonce) << 4)
    }

    pub(crate) fn part(epoch: u8, number: u8, index: u8) -> Self {
        assert!(
            epoch < 32 && number < 64 && index < 16,
            "the model's numbers are too small"
        );
        Self(PART | u16::from(epoch) << 10 | u16::from(number) << 4 | u16::from(index))
    }

    pub(crate) fn is_barrier(self) -> bool {
        self.0 & PART == 0
    }

    pub(crate) fn epoch(self) -> u8 {
        (self.0 >> 10 & 31) as u8
    }

    /// The nonce of a barrier, the number of a batch.
    pub(crate) fn number(self) -> u8 {
        (self.0 >> 4 & 63) as u8
    }

    pub(crate) fn index(self) -> u8 {
        (self.0 & 15) as u8
    }

    /// As the code sees it, in a model whose batches have this many parts.
    pub(crate) fn frame(self, parts: u8) -> Frame {
        let epoch = u64::from(self.epoch());
        if self.is_barrier() {
            return Frame::Barrier(Barrier {
                epoch,
                nonce: u128::from(self.number()),
                writer: 0,
                lease: Duration::ZERO,
                lock: 0,
            });
        }
        Frame::Part(Part {
            epoch,
            number: u64::from(self.number()),
            index: u32::from(self.index()),
            last: self.index() + 1 == parts,
            payload: Bytes::new(),
        })
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (epoch, number) = (self.epoch(), self.number());
        match self.is_barrier() {
            true => write!(f, "barrier {epoch} (nonce {number})"),
            false => write!(f, "batch {epoch}.{number} part {}", self.index()),
        }
    }
}

/// A record in a slot, or on its way there; in a history, a barrier or the first part of a batch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Placed {
    pub(crate) slot: u8,
    pub(crate) record: Record,
}

impl fmt::Debug for Placed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}", self.slot, self.record)
    }
}

/// An answer on its way to a writer that waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Reply {
    pub(crate) to: Placed,
    pub(crate) ok: bool,
}

pub(crate) type Log = List<Placed, 32>;
pub(crate) type History = List<Placed, 20>;

/// The phase of a writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) enum Phase {
    /// It has not read the rows.
    #[default]
    Fresh,
    /// It reads the log.
    Reading,
    /// Its barrier is on its way to the slot `next`.
    Placing,
    /// Its barrier is placed; it is about to write its epoch into the fence.
    Fencing,
    /// It leads: `next` is its first uncommitted slot.
    Leading,
    /// It found its first uncommitted slot taken.
    Deposed,
    /// It reported damage.
    Damaged,
}

/// A process that opens the log. It may stop anywhere, for ever or for long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Writer {
    pub(crate) phase: Phase,
    /// Marker and epoch of the fence that it expects, its own once it leads.
    pub(crate) applied_slot: u8,
    pub(crate) floor: u8,
    /// The slot at which it began to read.
    pub(crate) began: u8,
    pub(crate) next: u8,
    /// The epoch of the records it read.
    pub(crate) epoch: u8,
    /// Epoch and nonce of its own barrier, once that was sent.
    pub(crate) own: u8,
    pub(crate) nonce: u8,
    /// Parts read, or committed, of the batch before `next`, and the number of that batch.
    pub(crate) joined: u8,
    pub(crate) number: u8,
    /// Barriers that it sent.
    pub(crate) attempts: u8,
    /// Parts that it sent as a leader.
    pub(crate) sent: u8,
    pub(crate) history: History,
}

impl Writer {
    /// True if it leads or led: clients may have seen its history.
    pub(crate) fn led(&self) -> bool {
        matches!(self.phase, Phase::Fencing | Phase::Leading | Phase::Deposed)
    }

    /// The record of its barrier.
    pub(crate) fn barrier(&self) -> Record {
        Record::barrier(self.own, self.nonce)
    }

    /// True if it waits for an answer to this append.
    pub(crate) fn waits_for(&self, to: Placed) -> bool {
        match self.phase {
            Phase::Placing => to.slot == self.next && to.record == self.barrier(),
            Phase::Leading => !to.record.is_barrier() && to.record.epoch() == self.own && to.slot >= self.next,
            _ => false,
        }
    }

    /// Returns the writer after a restart.
    pub(crate) fn restarted(&self) -> Self {
        Self {
            attempts: self.attempts,
            ..Self::default()
        }
    }

    /// Returns the records that it acknowledged as a leader: its own batches.
    pub(crate) fn acknowledged(&self) -> impl Iterator<Item = Record> + '_ {
        let own = |record: &Record| !record.is_barrier() && record.epoch() == self.own;
        self.history.iter().map(|placed| placed.record).filter(own)
    }

    /// Returns its decoder, as in the code.
    pub(crate) fn walk(&self, window: Window, parts: u8) -> BatchDecoder {
        let first = self.next - self.joined;
        let pending = (0..self.joined).map(|index| {
            let Frame::Part(part) = Record::part(self.epoch, self.number, index).frame(parts) else {
                unreachable!("a part is no barrier")
            };
            (Slot(u64::from(first + index)), part)
        });
        let next = Slot(u64::from(self.next));
        BatchDecoder::resume(window, next, u64::from(self.epoch), pending.collect())
    }

    /// Takes the record that it found at `next`, as the code does.
    pub(crate) fn read(&mut self, record: Record, window: Window, parts: u8) -> Result<(), LogError> {
        let mut walk = self.walk(window, parts);
        if let Some(item) = walk.accept(Slot(u64::from(self.next)), record.frame(parts))? {
            self.history.push(entry(&item));
        }
        self.next = small(walk.frontier().0);
        self.epoch = small(walk.epoch());
        self.joined = small(walk.pending().len() as u64);
        self.number = if self.joined > 0 { record.number() } else { 0 };
        Ok(())
    }
}

/// Returns the history entry of a log entry.
pub(crate) fn entry(item: &LogEntry) -> Placed {
    match item {
        LogEntry::Barrier(slot, barrier) => Placed {
            slot: small(slot.0),
            record: Record::barrier(small(barrier.epoch), barrier.nonce as u8),
        },
        LogEntry::Batch {
            first, number, epoch, ..
        } => Placed {
            slot: small(first.0),
            record: Record::part(small(*epoch), small(*number), 0),
        },
    }
}

/// Converts a number of the code to one of the model.
pub(crate) fn small(number: u64) -> u8 {
    u8::try_from(number).expect("a small model has small numbers")
}

/// The rows: the fence, and what they were made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Rows {
    pub(crate) applied_slot: u8,
    pub(crate) epoch: u8,
    pub(crate) history: History,
}

/// Everything there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// By slot.
    pub(crate) log: Log,
    pub(crate) watermark: u8,
    /// Every append ever sent: each may arrive at any time, again and again.
    pub(crate) sent: Log,
    pub(crate) replies: List<Reply, 24>,
    pub(crate) rows: Rows,
    /// Sorted: nothing depends on who is who.
    pub(crate) writers: List<Writer, 4>,
    /// Batches that were acknowledged although an earlier one was not committed: only a variant does that.
    pub(crate) early: List<Record, 8>,
}

impl State {
    /// An empty log with this many writers that have not begun.
    pub(crate) fn fresh(writers: usize) -> Self {
        let mut state = Self {
            log: List::default(),
            watermark: 1,
            sent: List::default(),
            replies: List::default(),
            rows: Rows {
                applied_slot: 1,
                epoch: 0,
                history: List::default(),
            },
            writers: List::default(),
            early: List::default(),
        };
        (0..writers).for_each(|_| state.writers.push(Writer::default()));
        state
    }

    /// The record in a slot.
    pub(crate) fn at(&self, slot: u8) -> Option<Record> {
        self.log
            .iter()
            .find(|placed| placed.slot == slot)
            .map(|placed| placed.record)
    }

    /// Forgets answers that no writer waits for, and the order of the writers.
    pub(crate) fn normalize(&mut self) {
        let writers = self.writers;
        self.replies
            .retain(|reply| writers.as_slice().iter().any(|writer| writer.waits_for(reply.to)));
        self.writers.as_mut_slice().sort_unstable();
    }
}
