// Copyright 2019 TiKV Project Authors. Licensed under Apache-2.0.

use futures::executor::block_on;
use futures::future::ready;

use super::*;

#[test]
fn set_and_get_from_buffer() {
    let mut buffer = Buffer::new(false);
    buffer.put(b"key1".to_vec().into(), b"value1".to_vec());
    buffer.put(b"key2".to_vec().into(), b"value2".to_vec());
    assert_eq!(
        block_on(buffer.get_or_else(b"key1".to_vec().into(), move |_| ready(Err(internal_err!("")))))
            .unwrap()
            .unwrap(),
        b"value1".to_vec()
    );

    buffer.delete(b"key2".to_vec().into());
    buffer.put(b"key1".to_vec().into(), b"value".to_vec());
    assert_eq!(
        block_on(buffer.batch_get_or_else(
            vec![b"key2".to_vec().into(), b"key1".to_vec().into()].into_iter(),
            move |_| ready(Ok(vec![])),
        ))
        .unwrap()
        .collect::<Vec<_>>(),
        vec![KvPair(Key::from(b"key1".to_vec()), b"value".to_vec(),),]
    );
}

#[test]
fn insert_and_get_from_buffer() {
    let mut buffer = Buffer::new(false);
    buffer.insert(b"key1".to_vec().into(), b"value1".to_vec());
    buffer.insert(b"key2".to_vec().into(), b"value2".to_vec());
    assert_eq!(
        block_on(buffer.get_or_else(b"key1".to_vec().into(), move |_| ready(Err(internal_err!("")))))
            .unwrap()
            .unwrap(),
        b"value1".to_vec()
    );

    buffer.delete(b"key2".to_vec().into());
    buffer.insert(b"key1".to_vec().into(), b"value".to_vec());
    assert_eq!(
        block_on(buffer.batch_get_or_else(
            vec![b"key2".to_vec().into(), b"key1".to_vec().into()].into_iter(),
            move |_| ready(Ok(vec![])),
        ))
        .unwrap()
        .collect::<Vec<_>>(),
        vec![KvPair(Key::from(b"key1".to_vec()), b"value".to_vec()),]
    );
}

#[test]
fn repeat_reads_are_cached() {
    let k1: Key = b"key1".to_vec().into();
    let k1_ = k1.clone();
    let k2: Key = b"key2".to_vec().into();
    let k2_ = k2.clone();
    let v1: Value = b"value1".to_vec();
    let v1_ = v1.clone();
    let v1__ = v1.clone();
    let v2: Value = b"value2".to_vec();
    let v2_ = v2.clone();

    let mut buffer = Buffer::new(false);
    let r1 = block_on(buffer.get_or_else(k1.clone(), move |_| ready(Ok(Some(v1_)))));
    let r2 = block_on(buffer.get_or_else(k1.clone(), move |_| ready(Err(internal_err!("")))));
    assert_eq!(r1.unwrap().unwrap(), v1);
    assert_eq!(r2.unwrap().unwrap(), v1);

    let mut buffer = Buffer::new(false);
    let r1 = block_on(
        buffer.batch_get_or_else(vec![k1.clone(), k2.clone()].into_iter(), move |_| {
            ready(Ok(vec![(k1_, v1__).into(), (k2_, v2_).into()]))
        }),
    );
    let r2 = block_on(buffer.get_or_else(k2.clone(), move |_| ready(Err(internal_err!("")))));
    let r3 = block_on(buffer.batch_get_or_else(vec![k1.clone(), k2.clone()].into_iter(), move |_| ready(Ok(vec![]))));
    assert_eq!(
        r1.unwrap().collect::<Vec<_>>(),
        vec![KvPair(k1.clone(), v1.clone()), KvPair(k2.clone(), v2.clone())]
    );
    assert_eq!(r2.unwrap().unwrap(), v2);
    assert_eq!(r3.unwrap().collect::<Vec<_>>(), vec![KvPair(k1, v1), KvPair(k2, v2)]);
}

#[test]
fn scan_and_fetch_redundant_limit_does_not_overflow() {
    let mut buffer = Buffer::new(false);
    buffer.delete(b"key1".to_vec().into());

    let range: BoundRange = (..).into();
    let res = block_on(
        buffer.scan_and_fetch(range, u32::MAX, false, false, |_, redundant_limit| {
            assert_eq!(redundant_limit, u32::MAX);
            ready(Ok(Vec::<KvPair>::new()))
        }),
    )
    .unwrap()
    .collect::<Vec<_>>();

    assert!(res.is_empty());
}

#[test]
fn another_value_at_the_same_timestamp_is_an_error() {
    let mut buffer = Buffer::new(false);
    let key: Key = b"key1".to_vec().into();
    block_on(buffer.get_or_else(key.clone(), move |_| ready(Ok(Some(b"1".to_vec()))))).unwrap();
    let other = KvPair::new(key, b"2".to_vec());
    let scanned = block_on(buffer.scan_and_fetch((..).into(), 10, true, false, |_, _| ready(Ok(vec![other]))));
    assert!(scanned.is_err());
}

// Check that multiple writes to the same key combine in the correct way.
#[test]
fn state_machine() {
    let mut buffer = Buffer::new(false);

    macro_rules! assert_entry {
        ($key: ident, $p: pat) => {
            assert!(matches!(buffer.entry_map.get(&$key), Some(&$p),))
        };
    }

    macro_rules! assert_entry_none {
        ($key: ident) => {
            assert!(buffer.entry_map.get(&$key).is_none())
        };
    }

    // Insert + Delete = CheckNotExists
    let key: Key = b"key1".to_vec().into();
    buffer.insert(key.clone(), b"value1".to_vec());
    buffer.delete(key.clone());
    assert_entry!(key, BufferEntry::CheckNotExist);

    // CheckNotExists + Delete = CheckNotExists
    buffer.delete(key.clone());
    assert_entry!(key, BufferEntry::CheckNotExist);

    // CheckNotExists + Put = Insert
    buffer.put(key.clone(), b"value2".to_vec());
    assert_entry!(key, BufferEntry::Insert(_));

    // Insert + Put = Insert
    let key: Key = b"key2".to_vec().into();
    buffer.insert(key.clone(), b"value1".to_vec());
    buffer.put(key.clone(), b"value2".to_vec());
    assert_entry!(key, BufferEntry::Insert(_));

    // Delete + Insert = Put
    let key: Key = b"key3".to_vec().into();
    buffer.delete(key.clone());
    buffer.insert(key.clone(), b"value1".to_vec());
    assert_entry!(key, BufferEntry::Put(_));

    // Lock + Unlock = None
    let key: Key = b"key4".to_vec().into();
    buffer.lock(key.clone());
    buffer.unlock(&key);
    assert_entry_none!(key);

    // Cached + Lock + Unlock = Cached
    let key: Key = b"key5".to_vec().into();
    let val: Value = b"value5".to_vec();
    let val_ = val.clone();
    let r = block_on(buffer.get_or_else(key.clone(), move |_| ready(Ok(Some(val_)))));
    assert_eq!(r.unwrap().unwrap(), val);
    buffer.lock(key.clone());
    buffer.unlock(&key);
    assert_entry!(key, BufferEntry::Cached(Some(_)));
    assert_eq!(
        block_on(buffer.get_or_else(key, move |_| ready(Err(internal_err!("")))))
            .unwrap()
            .unwrap(),
        val
    );
}
