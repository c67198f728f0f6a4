//! All states of a small cluster in which the operator rolls out a template while members fail, move and are evicted.
//!
//! Everything around the operator is a model. Its steps come from the real [`plan`](crate::steps::plan), and its memory is what the real
//! [`status::of`](crate::status::of) writes. The walk finds states where a step breaks a rule, or where a cluster rests before it is rolled
//! out.

#![allow(clippy::print_stderr, reason = "the size of a walk is of use when it fails or grows")]

use std::env;

use stateright::{Checker, Expectation, Model, Property};

use self::pass::Operator;

mod cluster;
mod pass;
mod rules;

/// A request for another leader, as an annotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Wish {
    Any,
    /// This member.
    Member(usize),
}

/// Number of times that each of these may still happen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Limits {
    /// A member fails or is evicted, or no member can be reached.
    faults: u8,
    /// Another member leads, for no reason that the operator knows.
    leads: u8,
    pauses: u8,
    /// The operator is killed after a step, before it writes the status.
    kills: u8,
    /// The spec is changed again.
    edits: u8,
}

/// Setup that is walked.
#[derive(Debug, Clone, Copy)]
struct Scenario {
    members: usize,
    max_unavailable: usize,
    /// Brains of the first new template never run.
    broken: bool,
    wish: Option<Wish>,
    limits: Limits,
}

impl Scenario {
    /// One for each template and each request, and one more for other causes in between.
    fn most_hand_overs(&self) -> u8 {
        let Limits {
            faults,
            leads,
            kills,
            edits,
            ..
        } = self.limits;
        1 + u8::from(self.wish.is_some()) + faults + leads + kills + edits
    }
}

const THREE: Scenario = Scenario {
    members: 3,
    max_unavailable: 1,
    broken: false,
    wish: None,
    limits: NONE,
};

const NONE: Limits = Limits {
    faults: 0,
    leads: 0,
    pauses: 0,
    kills: 0,
    edits: 0,
};

struct Walk {
    scenario: Scenario,
    operator: Operator,
}

/// `make test-long` walks more states.
fn long() -> u8 {
    u8::from(env::var_os("KUBEBRAIN_LONG").is_some())
}

/// Walks every state; each of the named events must happen in some state.
#[track_caller]
fn holds(scenario: Scenario, happens: &[&'static str]) {
    let operator = Operator::new(&scenario);
    let checker = Walk { scenario, operator }.checker().spawn_dfs().join();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    let plans = checker.model().operator.plans();
    eprintln!("{scenario:?}: {states} states, {plans} plans, {depth} steps deep");
    for Property { expectation, name, .. } in checker.model().properties() {
        match expectation {
            Expectation::Sometimes if happens.contains(&name) => drop(checker.assert_any_discovery(name)),
            Expectation::Sometimes => {}
            Expectation::Always | Expectation::Eventually => checker.assert_no_discovery(name),
        }
    }
}

const ENDS: &str = "the newest template is rolled out";
const OVERDUE: &str = "a hand-over is overdue";
const HALF_PAUSED: &str = "a roll-out is paused half way";
const BROKEN: &str = "a broken template is left where it is";
const WISH: &str = "a wish for another leader is handled";

#[test]
fn roll_out_ends_although_a_member_fails() {
    let limits = Limits {
        faults: 1,
        leads: long(),
        ..NONE
    };
    let scenario = Scenario { limits, ..THREE };
    holds(scenario, &[ENDS, OVERDUE]);
}

#[test]
fn roll_out_ends_although_the_leader_moves_and_the_operator_is_killed() {
    let limits = Limits {
        leads: 1,
        kills: 1,
        ..NONE
    };
    let scenario = Scenario { limits, ..THREE };
    holds(scenario, &[ENDS, OVERDUE]);
}

#[test]
fn roll_out_ends_although_it_is_paused_and_the_spec_changes_again() {
    let limits = Limits {
        pauses: 1,
        leads: long(),
        edits: 1,
        ..NONE
    };
    let scenario = Scenario { limits, ..THREE };
    holds(scenario, &[ENDS, OVERDUE, HALF_PAUSED]);
}

#[test]
fn roll_out_of_two_members_ends_although_faults_meet() {
    let limits = Limits {
        faults: 1 + long(),
        leads: 1,
        pauses: long(),
        ..NONE
    };
    let scenario = Scenario {
        members: 2,
        limits,
        ..THREE
    };
    holds(scenario, &[ENDS, OVERDUE]);
}

#[test]
fn roll_out_ends_where_two_members_may_be_away() {
    let limits = Limits {
        faults: long(),
        leads: 1,
        ..NONE
    };
    let scenario = Scenario {
        max_unavailable: 2,
        limits,
        ..THREE
    };
    holds(scenario, &[ENDS, OVERDUE]);
}

#[test]
fn broken_template_stops_after_one_member_and_is_replaced_when_corrected() {
    let limits = Limits {
        faults: long(),
        leads: long(),
        edits: 1,
        ..NONE
    };
    let scenario = Scenario {
        broken: true,
        limits,
        ..THREE
    };
    holds(scenario, &[ENDS, BROKEN]);
}

#[test]
fn wish_for_another_leader_is_handled_after_the_roll_out() {
    let limits = Limits {
        faults: long(),
        leads: 1,
        kills: 1,
        ..NONE
    };
    for wish in [Wish::Any, Wish::Member(0)] {
        let scenario = Scenario {
            members: 2,
            wish: Some(wish),
            limits,
            ..THREE
        };
        holds(scenario, &[ENDS, WISH]);
    }
}
