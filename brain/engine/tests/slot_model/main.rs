//! All states of a small log: the protocol of slots, barriers and dead slots holds in each, and each wrong variant of it fails in
//! one. `KUBEBRAIN_LONG` walks larger worlds as well.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test may stop at once")]

mod list;
mod protocol;
mod state;
mod truth;

use engine::log::window::Window;
use stateright::{Checker, Expectation, HasDiscoveries, Model};
use tokio::time::Instant;

use crate::protocol::{Protocol, Variant};

/// Three writers that begin once and write two batches each, in a log of the smallest window that has dead slots.
const SMALL: Protocol = Protocol {
    window: Window(2),
    writers: 3,
    attempts: 1,
    batches: 2,
    parts: 1,
    last: 9,
    seek: true,
    again: false,
    variant: None,
};

/// The same with writers that begin again after a failure, and write one batch each.
const AGAIN: Protocol = Protocol {
    attempts: 2,
    batches: 1,
    last: 6,
    ..SMALL
};

/// Writers that outlive their terms: each begins again at its current position, or anew from the rows.
const GOES_ON: Protocol = Protocol {
    writers: 2,
    again: true,
    ..AGAIN
};

/// The states that a walk must reach, in addition to breaking no rule.
#[derive(Debug, PartialEq)]
enum Worth {
    /// Every state that the model calls possible.
    All,
    /// None: the world is too small for some of them.
    Nothing,
}

/// Walks every state.
fn holds(protocol: &Protocol, worth: Worth) {
    let began = Instant::now();
    let checker = protocol.clone().checker().spawn_dfs().join();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    eprintln!(
        "{protocol:?}: {states} states, {depth} steps deep, {:?}",
        began.elapsed()
    );
    for property in protocol.properties() {
        match property.expectation {
            Expectation::Sometimes if worth == Worth::Nothing => {}
            Expectation::Sometimes => drop(checker.assert_any_discovery(property.name)),
            Expectation::Always | Expectation::Eventually => checker.assert_no_discovery(property.name),
        }
    }
}

/// Checks that some state of a wrong variant breaks a rule.
fn fails(variant: Variant) {
    fails_in(&SMALL, variant);
}

fn fails_in(world: &Protocol, variant: Variant) {
    let protocol = Protocol {
        variant: Some(variant),
        ..world.clone()
    };
    let any = HasDiscoveries::AnyFailures;
    let checker = protocol.clone().checker().finish_when(any).spawn_dfs().join();
    let broken: Vec<_> = protocol
        .properties()
        .into_iter()
        .filter(|property| property.expectation == Expectation::Always)
        .filter(|property| checker.discovery(property.name).is_some())
        .map(|property| property.name)
        .collect();
    let states = checker.unique_state_count();
    eprintln!("{variant:?}: not {broken:?}, found among {states} states");
    assert!(!broken.is_empty(), "{variant:?} is as good as the protocol");
}

/// `make test-long` walks larger worlds.
fn long() -> bool {
    std::env::var_os("KUBEBRAIN_LONG").is_some()
}

#[test]
fn the_protocol_holds_in_every_state_of_a_small_log() {
    let world = Protocol {
        batches: if long() { 3 } else { 2 },
        ..SMALL
    };
    holds(&world, Worth::All);
}

#[test]
fn it_holds_with_the_window_of_the_format() {
    let world = Protocol {
        window: Window::FORMAT,
        last: 27,
        seek: long(),
        ..SMALL
    };
    holds(&world, Worth::All);
}

#[test]
fn it_holds_with_batches_that_span_slots() {
    let world = Protocol {
        parts: 2,
        batches: 1,
        last: if long() { 12 } else { 8 },
        ..SMALL
    };
    holds(&world, Worth::Nothing);
}

#[test]
fn it_holds_with_writers_that_begin_again() {
    let world = Protocol {
        last: if long() { 7 } else { 6 },
        batches: if long() { 2 } else { 1 },
        ..AGAIN
    };
    holds(&world, Worth::Nothing);
}

#[test]
fn it_holds_with_writers_that_outlive_their_terms() {
    let world = Protocol {
        last: if long() { 9 } else { 7 },
        attempts: if long() { 3 } else { 2 },
        ..GOES_ON
    };
    holds(&world, Worth::Nothing);
}

#[test]
fn it_holds_with_four_writers() {
    let world = Protocol {
        writers: 4,
        batches: 1,
        last: if long() { 12 } else { 4 },
        ..SMALL
    };
    holds(&world, Worth::Nothing);
}

#[test]
fn barriers_must_outlive_destruction() {
    fails(Variant::DestroyBarriers);
}

#[test]
fn slots_behind_a_barrier_must_be_dead() {
    fails(Variant::NoDeadSlots);
}

#[test]
fn one_slot_more_than_the_window_must_not_be_open() {
    let world = Protocol { batches: 3, ..SMALL };
    fails_in(&world, Variant::WindowTooLarge);
}

#[test]
fn acknowledgements_must_be_in_order() {
    fails(Variant::AckOutOfOrder);
}

#[test]
fn an_opener_must_look_at_the_watermark() {
    fails(Variant::NoWatermarkCheck);
}

#[test]
fn the_watermark_must_not_have_passed_where_the_opener_began_not_where_its_barrier_is() {
    fails(Variant::CheckWhereTheBarrierIs);
}

#[test]
fn barriers_must_differ_in_bytes() {
    fails(Variant::EqualBarriers);
}

#[test]
fn the_watermark_must_not_move_back() {
    fails(Variant::WatermarkMovesBack);
}

#[test]
fn the_watermark_must_move_before_slots_are_destroyed() {
    fails(Variant::DestroyFirst);
}

#[test]
fn a_flush_must_expect_the_fence() {
    fails(Variant::NoFence);
}

#[test]
fn contradicting_records_in_destroyed_slots_must_not_pass_for_damage() {
    fails(Variant::DamageUnchecked);
}

#[test]
fn restarted_writer_must_continue_from_its_own_epoch() {
    fails_in(&GOES_ON, Variant::ForgetEpoch);
}

#[test]
fn reader_that_begins_in_the_middle_must_look_back_for_a_barrier() {
    fails(Variant::NoLookBack);
}

#[test]
fn a_stray_barrier_in_a_dead_slot_must_not_count() {
    fails_in(&AGAIN, Variant::LookBackOnce);
}

#[test]
fn a_stray_barrier_below_the_watermark_must_not_count() {
    fails(Variant::StrayBarriersCount);
}
