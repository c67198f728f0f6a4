use super::*;

const A: LeaseId = LeaseId(7);

fn at(seconds: u64) -> Duration {
    Duration::from_secs(1_000 + seconds)
}

fn one(ttl: i64) -> Leases {
    let mut leases = Leases::default();
    leases.grant(A, ttl, 0, at(0));
    leases
}

fn consistent(leases: &Leases) {
    assert_eq!(leases.by_id.len(), leases.by_deadline.len());
    for (id, lease) in &leases.by_id {
        assert!(leases.by_deadline.contains(&(lease.deadline, *id)));
    }
}

#[test]
fn a_lease_expires_at_its_deadline_and_not_before() {
    let mut leases = one(10);
    assert!(leases.expired(at(9), 500).is_empty());
    assert_eq!(leases.expired(at(10), 500), [A]);
    assert!(leases.expired(at(11), 500).is_empty(), "handed out once");
    assert_eq!(leases.renew(A, at(11)), None);
    leases.revoke(A);
    consistent(&leases);
    assert!(!leases.contains(A));
}

#[test]
fn a_renewal_gives_the_whole_time_again() {
    let mut leases = one(10);
    assert_eq!(
        leases.renew(A, at(4)),
        Some(Renewed {
            ttl: 10,
            clear_checkpoint: false
        })
    );
    assert!(leases.expired(at(13), 500).is_empty());
    assert_eq!(leases.renew(A, at(14)), None, "run out, though not handed out yet");
    assert_eq!(leases.expired(at(14), 500), [A]);
    consistent(&leases);
}

#[test]
fn an_expired_lease_is_handed_out_again_when_it_could_not_be_revoked() {
    let mut leases = one(10);
    assert_eq!(leases.expired(at(10), 500), [A]);
    leases.retry_expired(A);
    assert_eq!(leases.expired(at(10), 500), [A]);
}

#[test]
fn checkpoint_under_way_is_cleared_by_a_renewal_after_a_lease_is_retried() {
    let mut leases = one(60);
    assert_eq!(leases.due_checkpoints(at(30), 10).len(), 1);
    leases.retry_expired(A);
    assert!(leases.renew(A, at(31)).unwrap().clear_checkpoint, "under way");
    consistent(&leases);
}

#[test]
fn a_new_leader_gives_leases_what_their_checkpoint_left_or_their_whole_time() {
    let mut leases = one(100);
    leases.grant(LeaseId(8), 100, 0, at(0));
    leases.checkpoint(A, 40, at(60));
    assert_eq!(leases.expired(at(200), 10).len(), 2, "both ran out unseen");
    leases.promote(at(200));
    consistent(&leases);
    assert!(leases.expired(at(239), 10).is_empty());
    assert_eq!(leases.expired(at(240), 10), [A]);
    assert_eq!(leases.expired(at(300), 10), [LeaseId(8)]);
}

#[test]
fn no_more_leases_expire_at_once_than_asked_for() {
    let mut leases = Leases::default();
    for id in 1..=1_200 {
        leases.grant(LeaseId(id), 2, 0, at(0));
    }
    let counts = [500, 500, 200, 0].map(|expected| (leases.expired(at(5), 500).len(), expected));
    counts.iter().for_each(|(found, expected)| assert_eq!(found, expected));
}

#[test]
fn a_checkpoint_is_due_after_half_the_time_to_live_without_a_renewal() {
    let mut leases = one(60);
    assert!(leases.due_checkpoints(at(29), 10).is_empty());
    assert_eq!(leases.due_checkpoints(at(30), 10), [(A, 30)]);
    assert!(leases.due_checkpoints(at(59), 10).is_empty(), "one is under way");
    leases.checkpoint(A, 30, at(30));
    assert!(leases.due_checkpoints(at(59), 10).is_empty());
    assert_eq!(leases.stored(A), Some((60, 30)));
}

#[test]
fn a_long_lease_is_checkpointed_every_five_minutes() {
    let mut leases = one(3_660);
    assert_eq!(leases.due_checkpoints(at(300), 10), [(A, 3_360)]);
    leases.checkpoint(A, 3_360, at(300));
    assert_eq!(leases.due_checkpoints(at(600), 10), [(A, 3_060)]);
}

/// A term of this many seconds: checkpoints that are due at each tick are recorded, as by a leader.
fn term(leases: &mut Leases, begins: u64, lasts: u64) {
    leases.promote(at(begins));
    for tick in 1..=2 * lasts {
        let now = at(begins) + Duration::from_millis(500 * tick);
        for (id, left) in leases.due_checkpoints(now, 10) {
            leases.checkpoint(id, left, now);
        }
    }
    consistent(leases);
}

#[test]
fn a_lease_that_nobody_renews_ends_however_often_leaders_change() {
    for (ttl, lasts) in [(60, 2), (60, 6), (60, 14), (60, 29), (3_600, 5), (3_600, 149), (2, 2)] {
        let mut leases = one(ttl);
        let mut now = 0;
        while leases.expired(at(now), 10).is_empty() {
            let limit = 3 * ttl.unsigned_abs() + lasts;
            assert!(now <= limit, "{ttl} s, terms of {lasts} s: it lives on after {now} s");
            term(&mut leases, now, lasts);
            now += lasts;
        }
        assert!(
            now >= ttl.unsigned_abs(),
            "{ttl} s, terms of {lasts} s: over after {now} s"
        );
    }
}

#[test]
fn a_new_leader_notes_what_is_left_soon_and_then_ever_more_rarely() {
    let mut leases = one(3_600);
    leases.promote(at(0));
    let mut noted = Vec::new();
    for second in 0..1_200 {
        for (id, left) in leases.due_checkpoints(at(second), 10) {
            leases.checkpoint(id, left, at(second));
            noted.push(second);
        }
    }
    assert_eq!(noted, [1, 3, 7, 15, 31, 63, 127, 255, 511, 811, 1_111]);
}

#[test]
fn lease_checkpoint_cadence_survives_leader_change() {
    let mut leases = one(60);
    leases.promote(at(0));
    assert!(!leases.renew(A, at(0)).unwrap().clear_checkpoint);
    assert!(leases.due_checkpoints(at(29), 10).is_empty());
    leases.promote(at(30));
    assert_eq!(leases.due_checkpoints(at(31), 10), [(A, 59)]);
    assert!(leases.renew(A, at(31)).unwrap().clear_checkpoint);
    leases.checkpoint(A, 0, at(31));
    assert!(leases.due_checkpoints(at(60), 10).is_empty());
    assert_eq!(leases.due_checkpoints(at(61), 10), [(A, 30)]);
}

#[test]
fn final_checkpoint_notes_what_is_left_of_all_leases_that_would_get_more() {
    let mut leases = Leases::default();
    leases.grant(A, 60, 0, at(0));
    leases.grant(LeaseId(8), 60, 50, at(0));
    leases.grant(LeaseId(9), 10, 0, at(0));
    leases.grant(LeaseId(10), 60, 0, at(10));
    leases.grant(LeaseId(11), 60, 20, at(1));
    let now = at(10) + Duration::from_millis(1);
    assert_eq!(
        leases.final_checkpoints(now, 10),
        [(LeaseId(9), 1), (LeaseId(11), 11), (LeaseId(8), 40), (A, 50)],
        "run out, though not revoked; soonest first; not what nobody would count longer"
    );
    assert!(
        leases
            .due_checkpoints(at(55), 10)
            .iter()
            .all(|(id, _)| *id == LeaseId(10))
    );
    consistent(&leases);
}

#[test]
fn final_checkpoint_notes_no_more_leases_than_asked_for() {
    let mut leases = Leases::default();
    (1..=5).for_each(|id| leases.grant(LeaseId(id), 100 - id, 0, at(0)));
    assert_eq!(
        leases.final_checkpoints(at(10), 2),
        [(LeaseId(5), 85), (LeaseId(4), 86)]
    );
}

#[test]
fn a_renewal_clears_what_a_final_checkpoint_notes() {
    let mut leases = one(60);
    assert_eq!(leases.final_checkpoints(at(10), 10), [(A, 50)]);
    assert!(leases.renew(A, at(11)).unwrap().clear_checkpoint);
}

#[test]
fn a_renewal_clears_a_checkpoint_also_one_under_way() {
    let mut leases = one(60);
    assert_eq!(leases.due_checkpoints(at(30), 10).len(), 1);
    assert!(leases.renew(A, at(31)).unwrap().clear_checkpoint, "under way");
    leases.checkpoint(A, 30, at(32));
    assert!(leases.renew(A, at(33)).unwrap().clear_checkpoint, "noted");
    leases.checkpoint(A, 0, at(34));
    assert!(!leases.renew(A, at(35)).unwrap().clear_checkpoint);
    consistent(&leases);
}

#[test]
fn a_restart_neither_extends_a_lease_for_ever_nor_expires_it_early() {
    let mut leases = Leases::default();
    leases.grant(A, 60, 25, at(0));
    assert!(leases.expired(at(24), 10).is_empty());
    assert_eq!(leases.expired(at(25), 10), [A]);
}

#[test]
fn a_longer_note_than_the_time_to_live_is_not_believed() {
    let mut leases = Leases::default();
    leases.grant(A, 60, 100, at(0));
    assert_eq!(leases.info(A, at(0), false).unwrap().remaining, Duration::from_secs(60));
}

#[test]
fn keys_move_between_leases() {
    let mut leases = one(10);
    leases.grant(LeaseId(8), 10, 0, at(0));
    leases.attach(A, Bytes::from_static(b"k"));
    leases.detach(A, &Bytes::from_static(b"k"));
    leases.attach(LeaseId(8), Bytes::from_static(b"k"));
    assert_eq!(leases.attached(A).count(), 0);
    assert_eq!(
        leases.info(LeaseId(8), at(1), true).unwrap().keys,
        [Bytes::from_static(b"k")]
    );
    assert!(leases.info(LeaseId(8), at(1), false).unwrap().keys.is_empty());
    assert_eq!(leases.info(A, at(10), true), None, "run out");
}

#[test]
fn lease_that_has_lost_keys_is_not_renewed_by_another_leader() {
    let mut leases = Leases::default();
    leases.grant(A, 10, 0, at(0));
    assert_eq!(leases.expired(at(11), 9), [A]);
    leases.checkpoint(A, ENDING_CHECKPOINT, at(11));
    assert_eq!(leases.final_checkpoints(at(12), 9), []);
    leases.promote(at(12));
    assert_eq!(leases.renew(A, at(12)), None);
    assert_eq!(leases.expired(at(12), 9), [A]);
}

#[test]
fn lease_that_is_granted_again_keeps_its_keys() {
    let mut leases = one(10);
    let granted = leases.bytes();
    leases.attach(A, "key".into());
    let attached = leases.bytes();
    leases.grant(A, 60, 0, at(5));
    assert_eq!((leases.attached_count(A), leases.bytes()), (1, attached));
    assert_eq!(leases.stored(A), Some((60, 0)));
    assert!(leases.expired(at(64), 500).is_empty());
    consistent(&leases);
    leases.detach(A, &"key".into());
    assert_eq!(leases.bytes(), granted);
    leases.revoke(A);
    assert_eq!(leases.bytes(), 0);
    consistent(&leases);
}
