//! The fate of transactions that others meet.

use super::*;

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
