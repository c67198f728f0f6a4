use bytes::Bytes;

use super::*;
use crate::proto::kvrpcpb::{
    self as kv, Action, KeyError, Mutation, Op, PrewriteRequest, PrewriteResponse, write_conflict::Reason,
};
use crate::regions::Regions;

/// Tables to which decisions are applied at once.
struct Store {
    tables: Tables,
    max_ts: u64,
}

fn mutation(op: Op, key: &'static str, value: &'static str) -> Mutation {
    Mutation {
        op: op.into(),
        key: key.into(),
        value: value.into(),
        ..Default::default()
    }
}

fn put(key: &'static str, value: &'static str) -> Mutation {
    mutation(Op::Put, key, value)
}

/// The first key is the primary.
fn prewrite_at(start_version: u64, mutations: Vec<Mutation>) -> PrewriteRequest {
    let primary_lock = mutations[0].key.clone();
    PrewriteRequest {
        start_version,
        primary_lock,
        mutations,
        lock_ttl: 3000,
        ..Default::default()
    }
}

fn one_phase(start_version: u64, mutations: Vec<Mutation>) -> PrewriteRequest {
    PrewriteRequest {
        try_one_pc: true,
        ..prewrite_at(start_version, mutations)
    }
}

impl Store {
    fn new() -> Self {
        Self {
            tables: Tables::new(Regions::new(vec![1])),
            max_ts: 0,
        }
    }

    fn apply<R>(&mut self, decision: Decision<R>) -> R {
        decision
            .changes
            .into_iter()
            .for_each(|change| self.tables.apply(change));
        decision.reply
    }

    fn prewrite(&mut self, request: &PrewriteRequest) -> PrewriteResponse {
        let decision = prewrite(&self.tables, request, self.max_ts);
        self.apply(decision)
    }

    /// Prewrites and commits; panics on any error.
    fn write(&mut self, start_ts: u64, commit_ts: u64, mutations: Vec<Mutation>) {
        let keys: Vec<_> = mutations.iter().map(|mutation| mutation.key.clone()).collect();
        let reply = self.prewrite(&prewrite_at(start_ts, mutations));
        assert!(reply.errors.is_empty(), "{:?}", reply.errors);
        for key in keys {
            assert_eq!(
                self.commit(start_ts, commit_ts, std::str::from_utf8(&key).unwrap()),
                None
            );
        }
    }

    fn commit(&mut self, start_version: u64, commit_version: u64, key: &str) -> Option<KeyError> {
        let keys = vec![Bytes::copy_from_slice(key.as_bytes())];
        let decision = commit(
            &self.tables,
            &kv::CommitRequest {
                start_version,
                commit_version,
                keys,
                ..Default::default()
            },
        );
        self.apply(decision).error
    }

    fn rollback(&mut self, start_version: u64, key: &'static str) -> Option<KeyError> {
        let keys = vec![key.into()];
        let request = kv::BatchRollbackRequest {
            start_version,
            keys,
            ..Default::default()
        };
        let decision = batch_rollback(&self.tables, &request);
        self.apply(decision).error
    }

    fn status(&mut self, request: &kv::CheckTxnStatusRequest) -> kv::CheckTxnStatusResponse {
        let decision = check_txn_status(&self.tables, request);
        self.apply(decision)
    }

    fn get(&self, key: &'static str, version: u64) -> Result<Option<String>, Box<KeyError>> {
        let reply = get(
            &self.tables,
            &kv::GetRequest {
                key: key.into(),
                version,
                ..Default::default()
            },
        );
        match reply.error {
            Some(error) => Err(error),
            None if reply.not_found => Ok(None),
            None => Ok(Some(String::from_utf8(reply.value.to_vec()).unwrap())),
        }
    }

    fn scan(&self, version: u64, reverse: bool, limit: u32) -> Vec<String> {
        let request = kv::ScanRequest {
            version,
            reverse,
            limit,
            ..Default::default()
        };
        let pairs = scan(&self.tables, &request, b"", b"").pairs.into_iter();
        let show = |pair: kv::KvPair| {
            let what = if pair.error.is_some() {
                "locked".into()
            } else {
                pair.value
            };
            format!(
                "{}={}",
                String::from_utf8_lossy(&pair.key),
                String::from_utf8_lossy(&what)
            )
        };
        pairs.map(show).collect()
    }
}

fn conflict_reason(reply: &PrewriteResponse) -> Option<Reason> {
    reply.errors.first()?.conflict.as_ref().map(kv::WriteConflict::reason)
}

fn check_status(primary: &'static str, lock_ts: u64, current_ts: u64) -> kv::CheckTxnStatusRequest {
    kv::CheckTxnStatusRequest {
        primary_key: primary.into(),
        lock_ts,
        current_ts,
        ..Default::default()
    }
}

#[test]
fn reads_see_what_was_committed_at_or_before_their_time() {
    let mut store = Store::new();
    store.write(10, 20, vec![put("a", "1")]);
    store.write(30, 40, vec![mutation(Op::Del, "a", "")]);
    store.write(50, 60, vec![mutation(Op::Lock, "a", "")]);
    assert_eq!(store.get("a", 19), Ok(None));
    assert_eq!(store.get("a", 20), Ok(Some("1".to_owned())));
    assert_eq!(store.get("a", 39), Ok(Some("1".to_owned())));
    assert_eq!(store.get("a", 70), Ok(None));
}

#[test]
fn a_lock_blocks_reads_after_its_start_and_only_those() {
    let mut store = Store::new();
    store.write(10, 20, vec![put("a", "1")]);
    store.prewrite(&prewrite_at(30, vec![put("a", "2")]));
    assert_eq!(store.get("a", 29), Ok(Some("1".to_owned())));
    let locked = store.get("a", 30).unwrap_err().locked.unwrap();
    assert_eq!(
        (locked.lock_version, &locked.primary_lock[..], locked.lock_ttl),
        (30, &b"a"[..], 3000)
    );
    // A lock without a value hides nothing.
    store.prewrite(&prewrite_at(40, vec![mutation(Op::Lock, "b", "")]));
    assert_eq!(store.get("b", 50), Ok(None));
    // A reader that knows the transaction to commit later, or never, reads on.
    let context = Some(kv::Context {
        resolved_locks: vec![30],
        ..Default::default()
    });
    let reply = get(
        &store.tables,
        &kv::GetRequest {
            key: "a".into(),
            version: 50,
            context,
        },
    );
    assert_eq!(reply.value, "1");
}

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
fn a_pending_one_phase_commit_is_a_lock_for_those_who_read_after_it() {
    let mut store = Store::new();
    let decision = prewrite(&store.tables, &one_phase(10, vec![put("a", "1")]), 50);
    assert_eq!(decision.pending.len(), 1);
    let info = decision.pending[0].clone();
    store.tables.pending.insert(info.key.clone(), info);
    assert_eq!(store.get("a", 50), Ok(None), "its commit timestamp lies above");
    assert!(store.get("a", 51).unwrap_err().locked.is_some());
    let request = kv::ScanRequest {
        version: 51,
        limit: 10,
        ..Default::default()
    };
    assert!(scan(&store.tables, &request, b"", b"").error.is_some());
    assert!(scan(&store.tables, &request, b"b", b"").error.is_none());
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
fn the_status_of_a_transaction_is_told_by_its_primary() {
    let mut store = Store::new();
    store.write(10, 20, vec![put("a", "1")]);
    assert_eq!(store.status(&check_status("a", 10, 1000)).commit_version, 20);
    let unknown = store.status(&check_status("a", 5, 1000));
    assert!(unknown.error.unwrap().txn_not_found.is_some());
    let ended = store.status(&kv::CheckTxnStatusRequest {
        rollback_if_not_exist: true,
        ..check_status("a", 5, 1000)
    });
    assert_eq!((ended.action(), ended.error), (Action::LockNotExistRollback, None));
    assert_eq!(
        conflict_reason(&store.prewrite(&prewrite_at(5, vec![put("a", "2")]))),
        Some(Reason::SelfRolledBack)
    );
    // Within its time to live a transaction is left alone; after it, ended.
    let start_ts = 7 << 18;
    store.prewrite(&prewrite_at(start_ts, vec![put("b", "1"), put("c", "1")]));
    let alive = store.status(&check_status("b", start_ts, (7 + 3000) << 18));
    assert_eq!((alive.lock_ttl, alive.lock_info.unwrap().key), (3000, Bytes::from("b")));
    let mismatch = kv::CheckTxnStatusRequest {
        verify_is_primary: true,
        ..check_status("c", start_ts, 0)
    };
    assert!(store.status(&mismatch).error.unwrap().primary_mismatch.is_some());
    let dead = store.status(&check_status("b", start_ts, (7 + 3001) << 18));
    assert_eq!((dead.action(), dead.lock_ttl), (Action::TtlExpireRollback, 0));
    assert!(!store.commit(start_ts, start_ts + 1, "b").unwrap().retryable.is_empty());
}

#[test]
fn a_status_check_pushes_the_commit_of_a_lock_that_allows_it() {
    let mut store = Store::new();
    store.prewrite(&PrewriteRequest {
        min_commit_ts: 11,
        ..prewrite_at(10, vec![put("a", "1")])
    });
    let pushed = store.status(&kv::CheckTxnStatusRequest {
        caller_start_ts: 50,
        ..check_status("a", 10, 40)
    });
    assert_eq!(pushed.action(), Action::MinCommitTsPushed);
    assert_eq!(store.get("a", 50), Ok(None), "the reader goes before the commit");
    let expired = store.commit(10, 45, "a").unwrap().commit_ts_expired.unwrap();
    assert_eq!((expired.attempted_commit_ts, expired.min_commit_ts), (45, 51));
    assert_eq!(store.commit(10, 51, "a"), None);
}

#[test]
fn an_async_commit_is_decided_by_its_secondaries() {
    let mut store = Store::new();
    store.max_ts = 30;
    let request = PrewriteRequest {
        use_async_commit: true,
        secondaries: vec!["b".into()],
        ..prewrite_at(10, vec![put("a", "1"), put("b", "2")])
    };
    assert_eq!(store.prewrite(&request).min_commit_ts, 31);
    let status = store.status(&check_status("a", 10, u64::MAX));
    assert_eq!(
        status.lock_info.unwrap().secondaries,
        [Bytes::from("b")],
        "not ended by time"
    );
    let secondaries = |keys: Vec<Bytes>| kv::CheckSecondaryLocksRequest {
        keys,
        start_version: 10,
        ..Default::default()
    };
    let decision = check_secondary_locks(&store.tables, &secondaries(vec!["b".into()]));
    let locks = store.apply(decision).locks;
    assert_eq!((locks.len(), locks[0].min_commit_ts), (1, 31));
    let decision = check_secondary_locks(&store.tables, &secondaries(vec!["b".into(), "c".into()]));
    let missing = store.apply(decision);
    assert_eq!((missing.locks.len(), missing.commit_ts), (0, 0));
    assert_eq!(
        store.tables.fate(b"c", 10),
        tables::Fate::RolledBack,
        "it can never be prewritten now"
    );
}

#[test]
fn resolving_carries_the_fate_to_the_locks_that_are_left() {
    let mut store = Store::new();
    store.prewrite(&prewrite_at(10, vec![put("a", "1"), put("b", "1")]));
    store.prewrite(&prewrite_at(11, vec![put("c", "2"), put("d", "2")]));
    store.prewrite(&prewrite_at(12, vec![put("e", "3")]));
    let txn_infos = vec![
        kv::TxnInfo {
            txn: 10,
            status: 20,
            ..Default::default()
        },
        kv::TxnInfo {
            txn: 11,
            status: 0,
            ..Default::default()
        },
    ];
    let fates = fates(&kv::ResolveLockRequest {
        txn_infos,
        ..Default::default()
    });
    let keys = store.tables.locked_by(&store.tables.regions.all[0].clone(), &fates);
    assert_eq!(keys, ["a", "b", "c", "d"]);
    let decision = resolve(&store.tables, &keys, &fates);
    store.apply(decision);
    assert_eq!(store.scan(100, false, 10), ["a=1", "b=1", "e=locked"]);
    assert_eq!(store.tables.fate(b"c", 11), tables::Fate::RolledBack);
}

#[test]
fn scans_merge_values_and_locks_in_both_directions() {
    let mut store = Store::new();
    store.write(10, 20, vec![put("b", "1"), put("d", "2")]);
    store.prewrite(&prewrite_at(30, vec![put("a", "x"), put("d", "x"), put("e", "x")]));
    assert_eq!(store.scan(100, false, 10), ["a=locked", "b=1", "d=locked", "e=locked"]);
    assert_eq!(store.scan(100, true, 3), ["e=locked", "d=locked", "b=1"]);
    assert_eq!(store.scan(25, false, 10), ["b=1", "d=2"]);
    let request = kv::ScanLockRequest {
        max_version: 30,
        limit: 2,
        ..Default::default()
    };
    let locks = scan_lock(&store.tables, &request, b"b", b"");
    assert_eq!(locks.iter().map(|lock| &lock.key[..]).collect::<Vec<_>>(), [b"d", b"e"]);
    assert!(
        scan_lock(
            &store.tables,
            &kv::ScanLockRequest {
                max_version: 29,
                ..request
            },
            b"",
            b""
        )
        .is_empty()
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

#[test]
fn collection_keeps_what_reads_above_the_safe_point_need_and_no_more() {
    let mut store = Store::new();
    for (start_ts, value) in [(10, "1"), (20, "2"), (30, "3")] {
        store.write(start_ts, start_ts + 5, vec![put("a", value)]);
    }
    store.write(10, 15, vec![put("gone", "1")]);
    store.write(20, 25, vec![mutation(Op::Del, "gone", "")]);
    store.rollback(12, "never");
    store.tables.apply(What::SafePoint(29));
    store.tables.apply(What::Collect(Default::default()));
    assert_eq!(store.tables.versions(b"a").len(), 2);
    assert_eq!(store.get("a", 29), Ok(Some("2".to_owned())));
    assert_eq!(store.get("a", 24), Ok(None), "below the safe point there are holes");
    assert!(store.tables.versions(b"gone").is_empty() && store.tables.versions(b"never").is_empty());
    assert_eq!(store.tables.writes.len(), 1);
}

#[test]
fn keys_are_counted_off_for_collection() {
    let mut store = Store::new();
    store.write(10, 20, vec![put("a", ""), put("b", ""), put("c", ""), put("d", "")]);
    assert_eq!(store.tables.nth_key_after(b"", 2), Some(Bytes::from("c")));
    assert_eq!(store.tables.nth_key_after(b"b", 1), Some(Bytes::from("c")));
    assert_eq!(store.tables.nth_key_after(b"b", 3), None);
}

#[test]
fn erasing_takes_everything_in_the_span() {
    let mut store = Store::new();
    store.write(10, 20, vec![put("a", "1"), put("b", "1"), put("c", "1")]);
    store.prewrite(&prewrite_at(30, vec![put("b2", "1"), put("c", "2")]));
    let span = crate::change::Span {
        start: "b".into(),
        end: "c".into(),
    };
    store.tables.apply(What::Erase(span));
    assert_eq!(store.scan(100, false, 10), ["a=1", "c=locked"]);
    store.tables.apply(What::Erase(crate::change::Span {
        start: "b".into(),
        end: Bytes::new(),
    }));
    assert_eq!(store.scan(100, false, 10), ["a=1"]);
    assert!(store.tables.locks.is_empty());
}
