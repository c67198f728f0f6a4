//! The next steps, in the protocol as it is and in wrong variants of it.
//!
//! The rules are the code's own: `BatchDecoder` decides what a record means in its slot and which slots are dead, `Window` which slots may
//! be open, `may_be_cut` whether a read is valid. Any append may get lost, or arrive late and repeatedly, and its answer may come late or
//! never; a writer may stop anywhere and continue when everything has changed.

use engine::log::Slot;
use engine::log::window::{Window, may_be_cut};

use crate::state::{Phase, Placed, Record, Reply, Rows, State, Writer, small};

/// A way to get it wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Variant {
    /// Barriers are destroyed with the records around them.
    DestroyBarriers,
    /// An epoch begins in the slot after its barrier.
    NoDeadSlots,
    /// A writer has one slot more open.
    WindowTooLarge,
    /// A batch is acknowledged when it is durable, not when all before it are.
    AckOutOfOrder,
    /// Readers do not check if slots were destroyed while they were read.
    NoWatermarkCheck,
    /// The watermark is compared with where the barrier went.
    CheckWhereTheBarrierIs,
    /// The barriers of two attempts have the same bytes.
    EqualBarriers,
    /// A slow writer moves the watermark back.
    WatermarkMovesBack,
    /// Slots are destroyed before the watermark is moved.
    DestroyFirst,
    /// A flush replaces whatever the rows are.
    NoFence,
    /// Records that contradict each other are damage, also where slots were destroyed.
    DamageUnchecked,
    /// A writer that begins again at its position takes its next epoch from the one in the fence.
    ForgetEpoch,
    /// A reader that begins in the middle does not look back for a barrier.
    NoLookBack,
    /// It does not look back from the barriers that it finds.
    LookBackOnce,
    /// It lets a barrier below the watermark count.
    StrayBarriersCount,
}

/// The protocol in a small world.
#[derive(Debug, Clone)]
pub(crate) struct Protocol {
    pub(crate) window: Window,
    pub(crate) writers: usize,
    /// Barriers that each writer sends: it begins again after a failure.
    pub(crate) attempts: u8,
    /// Batches that each leader writes.
    pub(crate) batches: u8,
    /// Parts of each batch.
    pub(crate) parts: u8,
    /// Nothing is sent to slots after it.
    pub(crate) last: u8,
    /// Look at what readers find that begin anywhere.
    pub(crate) seek: bool,
    /// Writers may begin again at their position, too.
    pub(crate) again: bool,
    pub(crate) variant: Option<Variant>,
}

/// One step. Writers are named by their place among the sorted ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// An append arrives.
    Arrive(Placed),
    /// The fence is read.
    Begin(usize),
    /// The next slot is read; where it is free, a barrier is sent there.
    Read(usize),
    /// The answer to the barrier arrives.
    Answered(usize, bool),
    /// The epoch is written into the fence.
    Fence(usize),
    /// A writer whose term ended at any point begins again at its position.
    Again(usize),
    /// A part is sent.
    Send(usize),
    /// The answer for the first uncommitted slot arrives.
    Settle(usize, bool),
    /// The answer for a later slot arrives, and is passed on at once.
    AckEarly(usize, Record),
    /// All that is committed goes into the rows.
    Flush(usize),
    /// The watermark moves to the applied slot.
    Raise(usize),
    /// A slot is destroyed.
    Destroy(u8),
}

impl Protocol {
    pub(crate) fn is(&self, variant: Variant) -> bool {
        self.variant == Some(variant)
    }

    /// The window by which the dead slots are counted.
    pub(crate) fn reading(&self) -> Window {
        match self.is(Variant::NoDeadSlots) {
            true => Window(1),
            false => self.window,
        }
    }

    fn writing(&self) -> Window {
        Window(self.window.0 + u64::from(self.is(Variant::WindowTooLarge)))
    }

    /// Adds the actions that are possible next.
    pub(crate) fn possible(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend(state.sent.iter().map(Action::Arrive));
        for (at, writer) in state.writers.as_slice().iter().enumerate() {
            match writer.phase {
                Phase::Fresh => actions.push(Action::Begin(at)),
                Phase::Reading => actions.push(Action::Read(at)),
                Phase::Fencing => actions.push(Action::Fence(at)),
                Phase::Leading => actions.extend([Action::Send(at), Action::Flush(at), Action::Raise(at)]),
                Phase::Placing | Phase::Deposed | Phase::Damaged => {}
            }
            if self.again && writer.led() && writer.attempts < self.attempts {
                actions.push(Action::Again(at));
            }
            for reply in state.replies.iter().filter(|reply| writer.waits_for(reply.to)) {
                match writer.phase {
                    Phase::Placing => actions.push(Action::Answered(at, reply.ok)),
                    _ if reply.to.slot == writer.next => actions.push(Action::Settle(at, reply.ok)),
                    _ if self.is(Variant::AckOutOfOrder) && reply.ok => {
                        actions.push(Action::AckEarly(at, reply.to.record));
                    }
                    _ => {}
                }
            }
        }
        let end = match self.is(Variant::DestroyFirst) {
            true => state.rows.applied_slot,
            false => state.watermark,
        };
        let destroyed = |placed: &Placed| !placed.record.is_barrier() || self.is(Variant::DestroyBarriers);
        let doomed = state.log.iter().filter(|placed| placed.slot < end && destroyed(placed));
        actions.extend(doomed.map(|placed| Action::Destroy(placed.slot)));
    }

    /// The world after an action; `None` when it changes nothing.
    pub(crate) fn after(&self, state: &State, action: Action) -> Option<State> {
        let mut after = *state;
        match action {
            Action::Arrive(to) => arrive(&mut after, to),
            Action::Begin(at) => begin(&mut after, at),
            Action::Read(at) => self.read(&mut after, at)?,
            Action::Answered(at, ok) => self.answered(&mut after, at, ok),
            Action::Fence(at) => fence(&mut after, at),
            Action::Again(at) => self.again(&mut after, at),
            Action::Send(at) => self.send(&mut after, at)?,
            Action::Settle(at, ok) => self.settle(&mut after, at, ok),
            Action::AckEarly(_, record) => after.early.insert(record),
            Action::Flush(at) => self.flush(&mut after, at)?,
            Action::Raise(at) => self.raise(&mut after, at)?,
            Action::Destroy(slot) => after.log.retain(|placed| placed.slot != slot),
        }
        after.normalize();
        (after != *state).then_some(after)
    }

    /// A read of the log.
    fn read(&self, state: &mut State, at: usize) -> Option<()> {
        let writer = &mut state.writers.as_mut_slice()[at];
        if let Some(found) = state.log.iter().find(|placed| placed.slot == writer.next) {
            if writer.read(found.record, self.reading(), self.parts).is_err() {
                match self.is_cut(writer.began, state.watermark) {
                    true if !self.is(Variant::DamageUnchecked) => *writer = writer.restarted(),
                    _ => writer.phase = Phase::Damaged,
                }
            }
            return Some(());
        }
        if writer.next > self.last || writer.attempts == self.attempts {
            return None;
        }
        writer.attempts += 1;
        writer.phase = Phase::Placing;
        writer.own = small(
            writer
                .walk(self.reading(), self.parts)
                .next_epoch(u64::from(writer.floor)),
        );
        if !self.is(Variant::EqualBarriers) {
            let alike = |placed: &Placed| placed.slot == writer.next && placed.record.is_barrier();
            let alike = state
                .sent
                .iter()
                .filter(alike)
                .filter(|placed| placed.record.epoch() == writer.own);
            writer.nonce = small(alike.count() as u64);
        }
        let (slot, record) = (writer.next, writer.barrier());
        state.sent.insert(Placed { slot, record });
        Some(())
    }

    fn is_cut(&self, began: u8, watermark: u8) -> bool {
        let (began, watermark) = (Slot(u64::from(began)), Slot(u64::from(watermark)));
        may_be_cut(began, watermark) && !self.is(Variant::NoWatermarkCheck)
    }

    /// Takes the answer to a barrier. If the barrier was overtaken, the slot is read again.
    fn answered(&self, state: &mut State, at: usize, ok: bool) {
        let writer = &mut state.writers.as_mut_slice()[at];
        let checked = match self.is(Variant::CheckWhereTheBarrierIs) {
            true => writer.next,
            false => writer.began,
        };
        if !ok {
            writer.phase = Phase::Reading;
        } else if self.is_cut(checked, state.watermark) {
            *writer = writer.restarted();
        } else if writer.read(writer.barrier(), self.reading(), self.parts).is_ok() {
            writer.phase = Phase::Fencing;
        } else {
            writer.phase = Phase::Damaged;
        }
    }

    fn again(&self, state: &mut State, at: usize) {
        let rows = state.rows;
        let writer = &mut state.writers.as_mut_slice()[at];
        let next = writer.next - writer.joined;
        *writer = Writer {
            phase: Phase::Reading,
            applied_slot: rows.applied_slot,
            floor: rows.epoch,
            began: next,
            next,
            epoch: if self.is(Variant::ForgetEpoch) { 0 } else { writer.epoch },
            history: writer.history,
            ..writer.restarted()
        };
    }

    fn send(&self, state: &mut State, at: usize) -> Option<()> {
        let writer = &mut state.writers.as_mut_slice()[at];
        let committed = small(writer.acknowledged().count() as u64) * self.parts + writer.joined;
        let slot = writer.next + (writer.sent - committed);
        let open = self
            .writing()
            .is_open(Slot(u64::from(writer.next)), Slot(u64::from(slot)));
        if writer.sent == self.batches * self.parts || slot > self.last || !open {
            return None;
        }
        let record = Record::part(writer.own, writer.sent / self.parts, writer.sent % self.parts);
        writer.sent += 1;
        state.sent.insert(Placed { slot, record });
        Some(())
    }

    fn settle(&self, state: &mut State, at: usize, ok: bool) {
        let writer = &mut state.writers.as_mut_slice()[at];
        let committed = small(writer.acknowledged().count() as u64);
        let own = Record::part(writer.own, committed, writer.joined);
        if !ok {
            writer.phase = Phase::Deposed;
        } else if writer.read(own, self.reading(), self.parts).is_err() {
            writer.phase = Phase::Damaged;
        }
    }

    fn flush(&self, state: &mut State, at: usize) -> Option<()> {
        let writer = &mut state.writers.as_mut_slice()[at];
        let applied_slot = writer.next - writer.joined;
        let expected = (writer.own, writer.applied_slot) == (state.rows.epoch, state.rows.applied_slot);
        if applied_slot <= writer.applied_slot || !(expected || self.is(Variant::NoFence)) {
            return None;
        }
        writer.applied_slot = applied_slot;
        state.rows = Rows {
            applied_slot,
            epoch: writer.own,
            history: writer.history,
        };
        Some(())
    }

    fn raise(&self, state: &mut State, at: usize) -> Option<()> {
        let to = state.writers.as_slice()[at].applied_slot;
        if to <= state.watermark && !self.is(Variant::WatermarkMovesBack) {
            return None;
        }
        state.watermark = to;
        Some(())
    }
}

/// An append arrives, and the answer to it sets out.
fn arrive(state: &mut State, to: Placed) {
    let found = state.at(to.slot);
    if found.is_none() {
        state.log.insert(to);
    }
    let ok = found.is_none_or(|found| found == to.record);
    if state.writers.as_slice().iter().any(|writer| writer.waits_for(to)) {
        state.replies.insert(Reply { to, ok });
    }
}

fn begin(state: &mut State, at: usize) {
    let rows = state.rows;
    let writer = &mut state.writers.as_mut_slice()[at];
    *writer = Writer {
        phase: Phase::Reading,
        applied_slot: rows.applied_slot,
        floor: rows.epoch,
        began: rows.applied_slot,
        next: rows.applied_slot,
        history: rows.history,
        ..writer.restarted()
    };
}

/// The new leader writes the fence, if it is as it found it; else it begins again.
fn fence(state: &mut State, at: usize) {
    let writer = &mut state.writers.as_mut_slice()[at];
    if (writer.floor, writer.applied_slot) == (state.rows.epoch, state.rows.applied_slot) {
        state.rows.epoch = writer.own;
        writer.phase = Phase::Leading;
    } else {
        *writer = writer.restarted();
    }
}
