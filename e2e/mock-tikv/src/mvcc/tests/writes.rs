//! Writing, and who loses.

use super::*;

#[test]
fn a_second_writer_meets_lock_conflict_or_existing_key() {
    let mut store = Store::new();
    store.prewrite(&prewrite_at(10, vec![put("a", "1"), put("b", "1")]));
    let blocked = store.prewrite(&prewrite_at(11, vec![put("a", "2"), put("b", "2"), put("c", "2")]));
    let locks = blocked.errors.iter().filter(|error| error.locked.is_some()).count();
    assert_eq!((locks, blocked.errors.len()), (2, 2), "both locks are told at once");
    assert!(
        !store.tables.locks.contains_key(&b"c"[..]),
        "nothing is locked by a prewrite that fails"
    );
    store.commit(10, 20, "a");
    store.commit(10, 20, "b");
    assert_eq!(
        conflict_reason(&store.prewrite(&prewrite_at(11, vec![put("a", "2")]))),
        Some(Reason::Optimistic)
    );
    let exists = store.prewrite(&prewrite_at(21, vec![mutation(Op::Insert, "a", "2")]));
    assert!(exists.errors[0].already_exist.is_some());
    let newer = store.prewrite(&prewrite_at(11, vec![mutation(Op::Insert, "a", "2")]));
    assert_eq!(
        conflict_reason(&newer),
        Some(Reason::Optimistic),
        "the conflict counts first"
    );
    store.write(30, 40, vec![mutation(Op::Del, "a", "")]);
    assert!(
        store
            .prewrite(&prewrite_at(41, vec![mutation(Op::Insert, "a", "3")]))
            .errors
            .is_empty()
    );
}

#[test]
fn a_check_without_a_write_takes_no_lock() {
    let mut store = Store::new();
    let check = || vec![put("p", "1"), mutation(Op::CheckNotExists, "a", "")];
    assert!(store.prewrite(&prewrite_at(10, check())).errors.is_empty());
    assert!(!store.tables.locks.contains_key(&b"a"[..]));
    store.write(20, 30, vec![put("a", "1")]);
    assert_eq!(
        conflict_reason(&store.prewrite(&prewrite_at(10, check()))),
        Some(Reason::Optimistic)
    );
    store.rollback(10, "p");
    assert!(
        store.prewrite(&prewrite_at(40, check())).errors[0]
            .already_exist
            .is_some()
    );
}

#[test]
fn a_one_phase_commit_lies_above_every_read_and_answers_the_same_when_repeated() {
    let mut store = Store::new();
    store.max_ts = 99;
    let request = one_phase(10, vec![mutation(Op::Insert, "a", "1"), put("b", "2")]);
    let reply = store.prewrite(&request);
    assert_eq!((reply.one_pc_commit_ts, reply.errors.len()), (100, 0));
    assert!(store.tables.locks.is_empty());
    assert_eq!(
        (store.get("a", 99), store.get("b", 100)),
        (Ok(None), Ok(Some("2".to_owned())))
    );
    store.max_ts = 500;
    assert_eq!(
        store.prewrite(&request).one_pc_commit_ts,
        100,
        "a retry finds its own commit"
    );
    assert_eq!(store.scan(1000, false, 10), ["a=1", "b=2"]);
}

#[test]
fn commits_are_repeatable_and_refused_after_a_rollback() {
    let mut store = Store::new();
    store.write(10, 20, vec![put("a", "1")]);
    assert_eq!(store.commit(10, 20, "a"), None);
    assert!(store.commit(11, 21, "a").unwrap().retryable.contains("no lock"));
    store.prewrite(&prewrite_at(30, vec![put("a", "2")]));
    assert_eq!(store.rollback(30, "a"), None);
    assert_eq!(store.rollback(30, "a"), None, "repeatable too");
    assert!(!store.commit(30, 40, "a").unwrap().retryable.is_empty());
    let late = store.prewrite(&prewrite_at(30, vec![put("a", "2")]));
    assert_eq!(
        conflict_reason(&late),
        Some(Reason::SelfRolledBack),
        "a late duplicate brings nothing back"
    );
    let refused = store.rollback(10, "a").unwrap();
    assert!(refused.abort.contains("Committed"), "{refused:?}");
    assert_eq!(store.get("a", 100), Ok(Some("1".to_owned())));
}

#[test]
fn a_rollback_whose_place_is_taken_by_a_commit_is_remembered() {
    let mut store = Store::new();
    store.write(10, 20, vec![put("a", "1")]);
    store.rollback(20, "a");
    let late = store.prewrite(&prewrite_at(20, vec![put("a", "2")]));
    assert_eq!(conflict_reason(&late), Some(Reason::SelfRolledBack));
    assert_eq!(store.get("a", 20), Ok(Some("1".to_owned())), "the commit stands");
    store.prewrite(&prewrite_at(25, vec![put("b", "1")]));
    store.rollback(30, "b");
    assert_eq!(store.commit(25, 30, "b"), None);
    assert_eq!(
        conflict_reason(&store.prewrite(&prewrite_at(30, vec![put("b", "2")]))),
        Some(Reason::SelfRolledBack)
    );
}

#[test]
fn a_pessimistic_lock_keeps_others_out_and_can_be_given_back() {
    let mut store = Store::new();
    let request = |start_version, for_update_ts| kv::PessimisticLockRequest {
        mutations: vec![mutation(Op::PessimisticLock, "a", "")],
        primary_lock: "a".into(),
        start_version,
        for_update_ts,
        lock_ttl: 3000,
        return_values: true,
        ..Default::default()
    };
    store.write(10, 20, vec![put("a", "1")]);
    let refused = pessimistic_lock(&store.tables, &request(15, 15)).reply;
    assert_eq!(
        refused.errors[0].conflict.as_ref().unwrap().reason(),
        Reason::PessimisticRetry
    );
    let decision = pessimistic_lock(&store.tables, &request(15, 25));
    let reply = store.apply(decision);
    assert_eq!((reply.values, reply.not_founds), (vec![Bytes::from("1")], vec![false]));
    assert!(
        pessimistic_lock(&store.tables, &request(16, 30)).reply.errors[0]
            .locked
            .is_some()
    );
    assert_eq!(store.get("a", 100), Ok(Some("1".to_owned())), "readers pass");
    let prewrite = PrewriteRequest {
        for_update_ts: 25,
        pessimistic_actions: vec![1],
        ..prewrite_at(15, vec![put("a", "2")])
    };
    let give_back = kv::PessimisticRollbackRequest {
        start_version: 15,
        for_update_ts: 25,
        keys: vec!["a".into()],
        ..Default::default()
    };
    let decision = pessimistic_rollback(&store.tables, &give_back);
    store.apply(decision);
    assert!(store.prewrite(&prewrite).errors[0].abort.contains("not found"));
    let decision = pessimistic_lock(&store.tables, &request(15, 25));
    store.apply(decision);
    assert!(store.prewrite(&prewrite).errors.is_empty());
    assert_eq!(store.commit(15, 40, "a"), None);
    assert_eq!(store.get("a", 40), Ok(Some("2".to_owned())));
}

#[test]
fn a_heartbeat_makes_a_lock_live_longer() {
    let mut store = Store::new();
    store.prewrite(&prewrite_at(10, vec![put("a", "1")]));
    let request = |start_version, advise_lock_ttl| kv::TxnHeartBeatRequest {
        primary_lock: "a".into(),
        start_version,
        advise_lock_ttl,
        ..Default::default()
    };
    for (advised, lives) in [(9000, 9000), (5000, 9000)] {
        let decision = heart_beat(&store.tables, &request(10, advised));
        assert_eq!(store.apply(decision).lock_ttl, lives);
    }
    assert!(
        heart_beat(&store.tables, &request(11, 1))
            .reply
            .error
            .unwrap()
            .txn_not_found
            .is_some()
    );
}
