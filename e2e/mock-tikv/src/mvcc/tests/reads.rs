//! Reads beside other transactions.

use super::*;

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
    let found = scan_lock(&store.tables, &request, b"b", b"");
    assert_eq!(
        found.locks.iter().map(|lock| &lock.key[..]).collect::<Vec<_>>(),
        [b"d", b"e"]
    );
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
        .locks
        .is_empty()
    );
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
    let locks = |max_version| {
        let request = kv::ScanLockRequest {
            max_version,
            ..Default::default()
        };
        scan_lock(&store.tables, &request, b"", b"")
    };
    assert!(locks(10).error.is_some(), "whoever would end it has to come again");
    assert!(locks(9).error.is_none());
}
