use super::*;

const LEASE_DURATION: Duration = Duration::from_secs(2);

fn at(millis: u64) -> Moment {
    Moment::new(Duration::from_millis(millis))
}

fn wall(millis: i64) -> Timestamp {
    Timestamp::from_millisecond(1_700_000_000_000 + millis).unwrap()
}

fn state(me: &str) -> State<u32> {
    State::new(Config::storage(me))
}

fn held_by(holder: &str, transitions: u32) -> Record {
    Record {
        holder_identity: holder.to_owned(),
        lease_duration: LEASE_DURATION,
        acquire_time: Some(wall(0)),
        renew_time: Some(wall(i64::from(transitions))),
        leader_transitions: transitions,
    }
}

fn released(transitions: u32) -> Record {
    Record {
        lease_duration: Duration::from_secs(1),
        renew_time: Some(wall(0)),
        ..held_by("", transitions)
    }
}

/// Applies the decision of `state` at `sent`, with the answer at `answered`.
#[track_caller]
fn acquire(state: &mut State<u32>, sent: Moment, answered: Moment) -> Predecessor {
    let Decision::Acquire(record, over, predecessor) = state.decide(sent, wall(0)) else {
        panic!("{:?} is no claim", state.decide(sent, wall(0)));
    };
    state.claiming(predecessor);
    state.doubt();
    state.wrote(record, over.unwrap_or(0) + 1, sent, answered);
    predecessor
}

#[test]
fn nothing_is_decided_before_the_lock_was_read() {
    let mut state = state("a");
    assert_eq!(state.decide(at(0), wall(0)), Decision::Read);
    state.read(None, at(0));
    assert!(matches!(
        state.decide(at(0), wall(0)),
        Decision::Acquire(_, None, Predecessor::Unseen)
    ));
    state.doubt();
    assert_eq!(state.decide(at(0), wall(0)), Decision::Read);
}

#[test]
fn a_held_lock_is_taken_only_after_its_own_duration_unchanged_on_our_clock() {
    let mut state = state("a");
    let record = Record {
        lease_duration: Duration::from_secs(5),
        ..held_by("b", 3)
    };
    state.read(Some((record.clone(), 1)), at(1_000));
    assert_eq!(state.decide(at(1_000), wall(0)), Decision::Wait(Duration::from_secs(5)));
    state.read(Some((record.clone(), 1)), at(5_999));
    assert_eq!(
        state.decide(at(5_999), wall(0)),
        Decision::Wait(Duration::from_millis(1))
    );
    assert_eq!(
        state.election_state(at(5_999)),
        ElectionState::Following { leader: "b".to_owned() }
    );

    let renewed = Record {
        renew_time: Some(wall(9)),
        ..record
    };
    state.read(Some((renewed.clone(), 2)), at(5_999));
    assert_eq!(
        state.decide(at(10_998), wall(0)),
        Decision::Wait(Duration::from_millis(1))
    );
    assert_eq!(state.election_state(at(10_999)), ElectionState::NoLeader);
    assert_eq!(acquire(&mut state, at(10_999), at(11_000)), Predecessor::Expired);
}

#[test]
fn a_version_alone_does_not_prolong_a_lease() {
    let mut state = state("a");
    state.read(Some((held_by("b", 1), 1)), at(0));
    state.read(Some((held_by("b", 1), 2)), at(1_999));
    let Decision::Acquire(_, over, _) = state.decide(at(2_000), wall(0)) else {
        panic!("it did not expire")
    };
    assert_eq!(over, Some(2), "the claim must be made over the version seen last");
}

#[test]
fn a_holder_that_does_not_say_for_how_long_gets_our_duration() {
    let mut state = state("a");
    state.read(
        Some((
            Record {
                lease_duration: Duration::ZERO,
                ..held_by("b", 1)
            },
            1,
        )),
        at(0),
    );
    assert_eq!(state.decide(at(0), wall(0)), Decision::Wait(LEASE_DURATION));
}

#[test]
fn the_right_counts_from_the_request_not_from_the_answer() {
    let mut state = state("a");
    state.read(None, at(0));
    acquire(&mut state, at(1_000), at(1_700));
    assert_eq!(state.valid_until(), Some(at(2_500)));
    let Decision::Renew(record, version) = state.decide(at(1_800), wall(0)) else {
        panic!("must renew")
    };
    state.wrote(record, version, at(1_800), at(2_400));
    assert_eq!(state.valid_until(), Some(at(3_300)));
    assert!(!state.expire(at(3_299)));
    assert!(state.expire(at(3_300)));
    assert_eq!(state.valid_until(), None);
}

#[test]
fn an_answer_after_the_deadline_wins_nothing() {
    let mut state = state("a");
    state.read(None, at(0));
    acquire(&mut state, at(1_000), at(2_500));
    assert_eq!(state.valid_until(), None);
    assert_eq!(acquire(&mut state, at(2_600), at(2_700)), Predecessor::Named);
}

#[test]
fn a_leader_that_reads_another_name_leads_no_more() {
    let mut state = state("a");
    state.read(None, at(0));
    acquire(&mut state, at(0), at(1));
    state.read(Some((held_by("b", 1), 9)), at(2));
    assert_eq!(
        state.election_state(at(2)),
        ElectionState::Following { leader: "b".to_owned() }
    );
    assert_eq!(state.valid_until(), None);

    state.read(Some((held_by("a", 1), 10)), at(3));
    acquire(&mut state, at(3), at(4));
    state.read(None, at(5));
    assert_eq!(state.valid_until(), None, "the record was deleted");
}

#[test]
fn transitions_count_holders_and_acquire_time_stays() {
    let mut state = state("a");
    state.read(Some((held_by("b", 4), 1)), at(0));
    acquire(&mut state, at(2_000), at(2_001));
    let Decision::Renew(renewed, _) = state.decide(at(2_400), wall(400)) else {
        panic!("must renew")
    };
    assert_eq!(renewed.leader_transitions, 5);
    assert_eq!(
        renewed.acquire_time,
        Some(Timestamp::from_microsecond(wall(4).as_microsecond() + 1).unwrap())
    );
    assert_eq!(renewed.renew_time, Some(wall(400)));
}

#[test]
fn a_renewal_is_never_equal_to_the_one_before() {
    let mut state = state("a");
    state.read(None, at(0));
    acquire(&mut state, at(0), at(1));
    let Decision::Renew(first, version) = state.decide(at(400), wall(0)) else {
        panic!("must renew")
    };
    state.wrote(first.clone(), version, at(400), at(401));
    let Decision::Renew(second, _) = state.decide(at(800), wall(-5_000)) else {
        panic!("must renew")
    };
    assert!(second.renew_time > first.renew_time);
}

#[test]
fn the_predecessor_says_whether_an_older_leader_may_still_be_valid() {
    let case = |record: Option<Record>, now| {
        let mut state = state("a");
        state.read(record.map(|record| (record, 1)), at(0));
        acquire(&mut state, now, now)
    };
    assert_eq!(case(None, at(0)), Predecessor::Unseen);
    assert_eq!(
        case(Some(Record::default()), at(0)),
        Predecessor::Unseen,
        "made beforehand"
    );
    assert_eq!(case(Some(released(1)), at(0)), Predecessor::Released);
    assert_eq!(
        case(Some(held_by("", 1)), at(0)),
        Predecessor::Unseen,
        "its holder was removed by another"
    );
    let short = Record {
        renew_time: Some(wall(1)),
        ..released(1)
    };
    assert_eq!(
        case(Some(short), at(0)),
        Predecessor::Unseen,
        "one with a short lease, too"
    );
    assert_eq!(case(Some(held_by("a", 1)), at(0)), Predecessor::Named);
    assert_eq!(case(Some(held_by("b", 1)), at(2_000)), Predecessor::Expired);
}

#[test]
fn an_unanswered_claim_on_an_empty_lock_is_still_unseen_when_it_turns_up() {
    let mut state = state("a");
    state.read(None, at(0));
    state.claiming(Predecessor::Unseen);
    state.doubt();
    state.read(Some((held_by("b", 1), 1)), at(10));
    state.claiming(Predecessor::Expired);
    state.refused();
    state.read(Some((held_by("a", 1), 2)), at(20));
    assert!(state.may_be_named());
    assert_eq!(acquire(&mut state, at(20), at(21)), Predecessor::Unseen);
}

#[test]
fn unseen_predecessor_is_kept_for_a_lease_duration() {
    let mut state = state("a");
    state.read(None, at(0));
    acquire(&mut state, at(0), at(10));
    assert_eq!(state.yield_to("b", at(1_000), wall(0)), None);
    assert!(state.expire(at(1_500)));
    state.read(Some((held_by("a", 0), 1)), at(1_600));
    acquire(&mut state, at(1_600), at(1_601));
    let ElectionState::Leading(term) = state.election_state(at(1_601)) else {
        panic!("must lead")
    };
    assert_eq!((term.number, term.predecessor), (2, Predecessor::Unseen));
    assert_eq!(state.yield_to("", at(2_009), wall(0)), None);
    assert!(state.yield_to("", at(2_010), wall(0)).is_some());
}

#[test]
fn giving_the_lock_away_ends_the_term_first() {
    let mut state = state("a");
    state.read(Some((released(6), 1)), at(0));
    acquire(&mut state, at(0), at(1));
    let (record, _) = state.yield_to("b", at(2), wall(2)).unwrap();
    assert_eq!((record.holder_identity.as_str(), record.leader_transitions), ("b", 8));
    assert_eq!(record.lease_duration, LEASE_DURATION);
    assert_eq!(state.valid_until(), None);

    let (record, _) = state.yield_to("", at(2), wall(2)).unwrap();
    assert_eq!((record.holder_identity.as_str(), record.leader_transitions), ("", 7));
    assert_eq!(record.lease_duration, Duration::from_secs(1));
}

#[test]
fn heard_renewal_counts_only_after_a_read_shows_it() {
    let mut state = state("a");
    state.read(Some((held_by("b", 1), 1)), at(0));
    state.hear(held_by("b", 2), at(1_000));
    assert_eq!(state.quiet(at(1_000)), Some(LEASE_DURATION / 2));
    assert_eq!(
        state.decide(at(9_000), wall(0)),
        Decision::Read,
        "nothing is claimed unread"
    );
    state.read(Some((held_by("b", 2), 2)), at(2_500));
    assert_eq!(
        state.decide(at(2_500), wall(0)),
        Decision::Wait(Duration::from_millis(500))
    );
    // Another write followed the one that was received.
    state.hear(held_by("b", 3), at(2_600));
    state.read(Some((held_by("b", 4), 4)), at(2_800));
    assert_eq!(state.decide(at(2_800), wall(0)), Decision::Wait(LEASE_DURATION));
}

#[test]
fn words_of_others_than_the_holder_and_old_ones_are_not_listened_to() {
    let mut state = state("a");
    state.hear(held_by("b", 2), at(0));
    assert_eq!(state.quiet(at(0)), None, "nothing was read yet");
    state.read(Some((held_by("b", 2), 1)), at(0));
    for record in [
        held_by("b", 2),
        held_by("b", 1),
        held_by("c", 3),
        held_by("a", 3),
        held_by("", 3),
    ] {
        state.hear(record, at(500));
        assert_eq!(state.quiet(at(500)), None);
    }
    assert_eq!(
        state.decide(at(500), wall(0)),
        Decision::Wait(Duration::from_millis(1_500))
    );
    state.hear(held_by("b", 3), at(500));
    assert!(state.quiet(at(500)).is_some() && state.quiet(at(1_500)).is_none());
    state.hear_nothing();
    assert_eq!(state.quiet(at(500)), None);
}
