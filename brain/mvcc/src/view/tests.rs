use super::*;
use crate::dictionaries::Dictionaries;
use crate::op::SortOrder;
use crate::row::{encode_index, encode_object_compressed};
use engine::rows::RowChange;
use engine::rows::Rows as _;
use engine::rows::mem::MemRows;
use etcd_types::types::LeaseId;

/// Keys in order, each with the revision that made it.
async fn view(keys: &[(String, Revision)]) -> View {
    let memtables = MemtableSet::new();
    let mut made: Vec<_> = keys.iter().collect();
    made.sort_by_key(|(_, revision)| *revision);
    for (key, revision) in made {
        let version = Version {
            value: Some(Bytes::from_static(b"v")),
            create_revision: *revision,
            version: 1,
            lease: LeaseId(0),
            prev_mod: 0,
        };
        memtables.active().insert(Bytes::from(key.clone()), *revision, version);
    }
    View {
        revision: keys.iter().map(|(_, revision)| *revision).max().unwrap(),
        compacted: -1,
        memtables,
        rows: MemRows::new().snapshot().await.unwrap(),
        dictionaries: Arc::default(),
        rows_revision: 0,
        page_counts: Arc::default(),
        hot: Arc::default(),
        key_index: Arc::default(),
    }
}

fn behind(key: &str) -> RangeOp {
    RangeOp::all(Span {
        key: Bytes::copy_from_slice(key.as_bytes()),
        end: Bytes::from_static(&[0]),
    })
}

#[tokio::test]
async fn count_behind_pairs_of_another_order_is_not_taken_for_that_of_a_page() {
    let keys = [("k1", 9), ("k2", 3), ("k3", 4), ("k4", 5), ("k5", 6), ("k6", 7)];
    let view = view(&keys.map(|(key, revision)| (key.to_owned(), revision))).await;
    let by_revision = RangeOp {
        limit: 2,
        target: SortTarget::Mod,
        ..behind("k1")
    };
    let found = view.range(&by_revision).await.unwrap();
    let names: Vec<_> = found.kvs.iter().map(|kv| &kv.key[..]).collect();
    assert_eq!((names, found.count), (vec![&b"k2"[..], b"k3"], 6));
    let page = RangeOp {
        limit: 1,
        ..behind("k3\0")
    };
    assert_eq!(view.range(&page).await.unwrap().count, 3);
}

#[tokio::test]
async fn many_pairs_are_sorted_as_few_are() {
    let keys: Vec<_> = (0..20_000).map(|n| (format!("{n:05}"), 2 + (n * 7) % 20_000)).collect();
    let view = view(&keys).await;
    let newest = RangeOp {
        order: SortOrder::Descend,
        target: SortTarget::Mod,
        ..behind("0")
    };
    let found = view.range(&newest).await.unwrap();
    let revisions = found.kvs.iter().map(|kv| kv.mod_revision);
    assert!(revisions.eq((2..20_002).rev()), "{} pairs", found.kvs.len());
}

/// A view of `keys` keys in rows, each with two versions of `size` bytes that compress well.
async fn compressed(keys: usize, size: u32) -> View {
    let rows = MemRows::new();
    let mut changes = Vec::new();
    let value = b"four".repeat(size as usize / 4);
    for revision in 2..2 + 2 * keys as Revision {
        let key = Bytes::from(format!("key-{:03}", revision as usize % keys));
        let meta = KeyMeta {
            create_revision: 2,
            mod_revision: revision,
            version: 1,
            lease: LeaseId(0),
            size,
        };
        let row = keys::object_key(&key, revision);
        changes.push(RowChange::Put(
            row,
            encode_object_compressed(Some((&meta, &value)), &Dictionaries::default()),
        ));
        changes.push(RowChange::Put(keys::index_key(&key), encode_index(&meta)));
    }
    rows.apply(None, Bytes::from_static(b"f"), changes).await.unwrap();
    View {
        revision: 1 + 2 * keys as Revision,
        rows: rows.snapshot().await.unwrap(),
        dictionaries: Arc::default(),
        rows_revision: 1 + 2 * keys as Revision,
        memtables: MemtableSet::new(),
        ..view(&[("key".to_owned(), 1)]).await
    }
}

/// Rows of a few bytes may have values that are a thousand times as long.
#[tokio::test]
async fn compressed_values_are_read_in_short_pages() {
    const KEYS: usize = 40;
    const SIZE: u32 = 100_000;
    let view = compressed(KEYS, SIZE).await;
    let span = behind("key").span;
    for at in [view.revision, view.revision - KEYS as Revision] {
        let (mut cursor, mut found) = (view.cursor(&span, at, true), 0);
        while let Some(page) = cursor.page(1_000).await.unwrap() {
            let bytes: usize = page.iter().map(|kv| kv.value.len()).sum();
            assert!(bytes <= SCAN_PAGE_BYTES, "{bytes} bytes at once");
            found += page.len();
            for kv in cursor.load(page).await.unwrap() {
                assert_eq!(kv.value.len(), SIZE as usize);
            }
        }
        assert_eq!(found, KEYS, "at {at}");
    }
    let (mut walk, mut found) = (view.versions(view.revision), 0);
    while let Some(step) = walk.next().await.unwrap() {
        let values = step.iter().filter_map(|version| version.put.as_ref());
        let bytes: usize = values.map(|(_, value)| value.len()).sum();
        // One of the step before is in it.
        assert!(bytes <= SCAN_PAGE_BYTES + SIZE as usize, "{bytes} bytes at once");
        found += step.len();
    }
    assert_eq!(found, 2 * KEYS);
}
