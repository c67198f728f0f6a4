//! All states of a small log: the protocol of slots, barriers and dead slots holds in each, and each wrong variant of it fails in
//! one. `KUBEBRAIN_LONG` walks larger worlds as well.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test may stop at once")]

mod list;
mod protocol;
mod state;
mod truth;

use brain::log::window::Window;
use stateright::{Checker, Expectation, HasDiscoveries, Model};
use tokio::time::Instant;

use crate::protocol::{Protocol, Variant};

fn world(window: u64, (writers, attempts): (usize, u8), batches: u8, parts: u8, last: u8) -> Protocol {
    Protocol {
        window: Window(window),
        writers,
        attempts,
        batches,
        parts,
        last,
        seek: false,
        variant: None,
    }
}

/// Walks every state.
fn holds(protocol: Protocol) {
    let (name, began) = (format!("{protocol:?}"), Instant::now());
    let checker = protocol.checker().spawn_dfs().join();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    eprintln!("{name}: {states} states, {depth} deep, {:?}", began.elapsed());
    checker.assert_properties();
}

/// Some state breaks a rule.
fn fails(protocol: Protocol, variant: Variant) {
    let began = Instant::now();
    let protocol = Protocol {
        variant: Some(variant),
        ..protocol
    };
    let checker = protocol
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_dfs()
        .join();
    let states = checker.unique_state_count();
    let broken: Vec<_> = checker
        .model()
        .properties()
        .iter()
        .filter(|property| property.expectation == Expectation::Always)
        .filter(|property| checker.discovery(property.name).is_some())
        .map(|property| property.name)
        .collect();
    eprintln!("{variant:?}: {broken:?} in {states} states, {:?}", began.elapsed());
    assert!(!broken.is_empty(), "{variant:?} is as good as the protocol");
}

#[test]
fn the_protocol_holds_in_every_state() {
    let arg = |n: &str, d: u64| std::env::var(n).map_or(d, |t| t.parse().unwrap());
    let w = world(arg("W", 2), (arg("WRITERS", 3) as usize, arg("ATTEMPTS", 1) as u8), arg("BATCHES", 1) as u8, arg("PARTS", 1) as u8, arg("LAST", 6) as u8);
    holds(Protocol { seek: arg("SEEK", 0) == 1, ..w });
}

#[test]
fn variants() {
    use Variant::*;
    for variant in [
        DestroyBarriers, NoDeadSlots, OneDeadSlotLess, WindowTooLarge, AckOutOfOrder, NoWatermarkCheck,
        CheckWhereTheBarrierIs, EqualBarriers, WatermarkMovesBack, DestroyFirst, NoFence, DamageUnchecked,
    ] {
        fails(world(2, (3, 2), 3, 1, 8), variant);
    }
    for variant in [NoLookBack, StrayBarriersCount] {
        let world = Protocol { seek: true, ..world(2, (3, 2), 2, 1, 8) };
        fails(world, variant);
    }
}
