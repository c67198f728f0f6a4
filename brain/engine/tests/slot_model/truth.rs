//! Properties that must hold in every state, and that must occur in some.

use std::fmt::Debug;

use engine::log::Slot;
use engine::log::batch_decoder::BatchDecoder;
use engine::log::frame::Frame;
use engine::log::window::BarrierSearch;
use stateright::{Model, Property};

use crate::protocol::{Action, Protocol, Variant};
use crate::state::{History, Phase, Placed, State, Writer, entry};

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::fresh(self.writers)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.possible(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        self.after(last, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("histories are prefixes of each other", |_, state| {
                histories_agree(state)
            }),
            Property::always("a batch stands right behind what it was evaluated on", |_, state| {
                histories(state).all(|history| in_sequence(&history))
            }),
            Property::always("an epoch has one leader", one_leader),
            Property::always("what was acknowledged is known to every later leader", |_, state| {
                nothing_is_lost(state)
            }),
            Property::always(
                "an opener that sees damage gets there by destroyed slots",
                |_, state| !in_phase(state, Phase::Damaged),
            ),
            Property::always("rows hold what the log has given up", |_, state: &State| {
                state.watermark <= state.rows.applied_slot
            }),
            Property::sometimes("the last writer acknowledges", |protocol: &Self, state: &State| {
                let done = |writer: &Writer| writer.led() && writer.acknowledged().count() > 0;
                state.writers.as_slice().iter().filter(|writer| done(writer)).count() == protocol.writers
            }),
            Property::sometimes("a leader is deposed", |_, state| in_phase(state, Phase::Deposed)),
            Property::sometimes("a late message lands in a destroyed slot", |_, state| {
                stray(state).any(|placed| !placed.record.is_barrier())
            }),
            Property::sometimes("an opener puts its barrier into a destroyed slot", |_, state| {
                stray(state).any(|placed| placed.record.is_barrier())
            }),
        ];
        if self.seek {
            properties.push(Property::always(
                "who begins anywhere reads what happened",
                seekers_agree,
            ));
        }
        properties
    }
}

fn in_phase(state: &State, phase: Phase) -> bool {
    state.writers.as_slice().iter().any(|writer| writer.phase == phase)
}

fn led(state: &State) -> impl Iterator<Item = &Writer> {
    state.writers.as_slice().iter().filter(|writer| writer.led())
}

/// The histories that clients can see: those of leaders, and that of the rows.
fn histories(state: &State) -> impl Iterator<Item = History> + '_ {
    led(state)
        .map(|writer| writer.history)
        .chain(std::iter::once(state.rows.history))
}

fn longest(state: &State) -> History {
    histories(state)
        .max_by_key(|history| history.as_slice().len())
        .unwrap_or_default()
}

fn histories_agree(state: &State) -> bool {
    let longest = longest(state);
    histories(state).all(|history| longest.as_slice().starts_with(history.as_slice()))
}

fn in_sequence(history: &History) -> bool {
    let mut before = None;
    history.iter().all(|Placed { record, .. }| {
        let fits = record.is_barrier()
            || before.is_some_and(|before: crate::state::Record| {
                let follows = match before.is_barrier() {
                    true => record.number() == 0,
                    false => record.number() == before.number() + 1,
                };
                follows && before.epoch() == record.epoch()
            });
        before = Some(record);
        fits
    })
}

fn one_leader(_: &Protocol, state: &State) -> bool {
    let leaders: Vec<&Writer> = led(state).collect();
    let twice = |(at, one): (usize, &&Writer)| leaders[at + 1..].iter().any(|other| other.own == one.own);
    !leaders.iter().enumerate().any(twice)
}

fn nothing_is_lost(state: &State) -> bool {
    led(state).all(|leader| {
        let knows = |record| leader.history.iter().any(|placed| placed.record == record);
        let earlier = led(state).filter(|other| other.own < leader.own);
        let mut early = state.early.iter().filter(|record| record.epoch() < leader.own);
        earlier.flat_map(Writer::acknowledged).all(knows) && early.all(knows)
    })
}

/// Records below the watermark that do not belong to the history.
fn stray(state: &State) -> impl Iterator<Item = Placed> + '_ {
    let happened = longest(state);
    state
        .log
        .iter()
        .filter(|placed| placed.slot < state.watermark)
        .filter(move |placed| !happened.contains(*placed))
}

/// A reader that begins at any slot from the watermark on, as `Reader::seek` does, finds the whole history from there on.
fn seekers_agree(protocol: &Protocol, state: &State) -> bool {
    let happened = longest(state);
    (state.watermark..=protocol.last + 1).all(|from| {
        let expected = happened.iter().filter(|placed| placed.slot >= from);
        let Ok(found) = sought(protocol, state, from) else {
            return false;
        };
        let mut found = found.into_iter();
        expected.into_iter().all(|placed| found.next() == Some(placed))
    })
}

fn sought(protocol: &Protocol, state: &State, from: u8) -> Result<Vec<Placed>, impl Debug> {
    let (window, from) = (protocol.reading(), Slot(u64::from(from)));
    let mut search = BarrierSearch::new(window, from);
    loop {
        let (first, end) = search.near();
        let barriers = state.log.iter().filter(|placed| placed.record.is_barrier());
        let barriers = barriers.map(|placed| Slot(u64::from(placed.slot)));
        let near: Vec<Slot> = barriers.filter(|slot| (first..end).contains(slot)).collect();
        if !search.found(&near) || protocol.is(Variant::LookBackOnce) {
            break;
        }
    }
    let mut next = search.first_alive(match protocol.variant {
        Some(Variant::StrayBarriersCount) => Slot(0),
        Some(Variant::NoLookBack) => Slot(u64::MAX),
        _ => Slot(u64::from(state.watermark)),
    });
    let at = |slot: Slot| state.log.iter().find(|placed| u64::from(placed.slot) == slot.0);
    while at(next).is_some_and(|placed| !placed.record.is_barrier() && placed.record.index() > 0) {
        next = next.next(); // in the middle of a batch
    }
    let (mut walk, mut found) = (BatchDecoder::new(window, next), Vec::new());
    while let Some(placed) = at(walk.frontier()) {
        let frame: Frame = placed.record.frame(protocol.parts);
        match walk.accept(walk.frontier(), frame) {
            Ok(item) => found.extend(item.as_ref().map(entry)),
            Err(damage) => return Err(damage),
        }
    }
    Ok(found)
}
