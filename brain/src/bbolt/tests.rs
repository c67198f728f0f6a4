use std::io::Cursor;

use super::{Error, Reader, Writer};

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn written(buckets: &[(&[u8], Pairs)]) -> Vec<u8> {
    let mut writer = Writer::new(Cursor::new(Vec::new())).unwrap();
    for (name, pairs) in buckets {
        writer.begin_bucket(name).unwrap();
        for (key, value) in pairs {
            writer.put(key, value).unwrap();
        }
    }
    let (out, len) = writer.finish().unwrap();
    let bytes = out.into_inner();
    assert_eq!(bytes.len() as u64, len);
    bytes
}

fn read(bytes: &[u8]) -> Result<Vec<(Vec<u8>, Pairs)>, Error> {
    let reader = Reader::open(bytes, bytes.len() as u64)?;
    let mut buckets = Vec::new();
    for name in reader.buckets()? {
        let (mut pairs, mut found) = (reader.bucket(&name)?.unwrap(), Vec::new());
        while let Some((key, value)) = pairs.next()? {
            found.push((key.to_vec(), value.to_vec()));
        }
        buckets.push((name.to_vec(), found));
    }
    Ok(buckets)
}

fn numbered(count: u32, value: usize) -> Pairs {
    let pair = |n: u32| (n.to_be_bytes().to_vec(), vec![n.to_le_bytes()[0]; value]);
    (0..count).map(pair).collect()
}

#[test]
fn buckets_of_any_size_survive_the_round_trip() {
    // Inline, one leaf, two levels, and three.
    for count in [0, 1, 2, 100, 300, 2_000, 60_000] {
        for value in [0, 1, 100] {
            let buckets = [
                (&b"a"[..], numbered(count, value)),
                (b"b", Vec::new()),
                (b"key", numbered(3, 7)),
            ];
            let found = read(&written(&buckets)).unwrap();
            let expected: Vec<_> = buckets
                .iter()
                .map(|(name, pairs)| (name.to_vec(), pairs.clone()))
                .collect();
            assert!(found == expected, "{count} values of {value} bytes");
        }
    }
}

#[test]
fn keys_of_which_two_take_more_than_a_page_survive_the_round_trip() {
    for lens in [vec![4_045, 4], vec![2_100; 2], vec![2_100; 3], vec![5_000; 7]] {
        let keys = lens.iter().zip(b'a'..);
        let pairs: Pairs = keys.map(|(len, name)| (vec![name; *len], vec![name])).collect();
        let found = read(&written(&[(b"authUsers", pairs.clone())])).unwrap();
        assert!(found == [(b"authUsers".to_vec(), pairs)], "{lens:?}");
    }
}

#[test]
fn long_values_and_keys_survive_the_round_trip() {
    let pairs: Pairs = [0, 1, 4_000, 4_064, 4_065, 4_096, 10_000, 3 << 20, 5]
        .iter()
        .zip(0_u8..)
        .map(|(len, n)| (vec![n + 1; 1 + usize::from(n) * 500], vec![n; *len]))
        .collect();
    let found = read(&written(&[(b"key", pairs.clone())])).unwrap();
    assert!(found == [(b"key".to_vec(), pairs)]);
}

#[test]
fn keys_and_buckets_are_taken_in_order_only() {
    let mut writer = Writer::new(Cursor::new(Vec::new())).unwrap();
    writer.put(b"a", b"").unwrap_err();
    writer.begin_bucket(b"b").unwrap();
    writer.put(b"b", b"").unwrap();
    for key in [&b"b"[..], b"a", b""] {
        writer.put(key, b"").unwrap_err();
    }
    writer.begin_bucket(b"a").unwrap_err();
}

#[test]
fn file_cut_anywhere_is_damaged() {
    let bytes = written(&[(b"key", numbered(300, 40)), (b"meta", numbered(1, 1))]);
    for len in (0..bytes.len()).step_by(97).chain([bytes.len() - 1]) {
        let error = read(&bytes[..len]).unwrap_err();
        assert!(matches!(error, Error::Damaged(_)), "{len} bytes: {error}");
    }
}

#[test]
fn every_damaged_byte_ends_in_an_error_or_in_other_content() {
    let bytes = written(&[(b"key", numbered(250, 10)), (b"meta", numbered(1, 1))]);
    let expected = read(&bytes).unwrap();
    let (mut damaged, mut harmless) = (0, 0);
    for at in 0..bytes.len() {
        let mut other = bytes.clone();
        other[at] ^= 1 << (at % 8);
        match read(&other) {
            Err(Error::Damaged(_)) => damaged += 1,
            Err(error) => panic!("byte {at}: {error}"),
            Ok(found) => harmless += usize::from(found == expected),
        }
    }
    assert!(damaged > 1_000 && harmless > 1_000, "{damaged}, {harmless}");
}

/// Replaces the page number of the first element of the branch page `page`.
fn redirect(bytes: &mut [u8], page: usize, to: u64) {
    let at = page * 4096 + 16 + 8;
    bytes[at..at + 8].copy_from_slice(&to.to_le_bytes());
}

#[test]
fn pages_that_lead_in_circles_or_out_of_the_file_are_damage() {
    let bytes = written(&[(b"key", numbered(2_000, 10))]);
    let branch = (2..bytes.len() / 4096)
        .find(|page| bytes[page * 4096 + 8] == 1)
        .unwrap();
    for (to, what) in [
        (branch as u64, "twice"),
        (3, "twice"),
        (0, "outside"),
        (1, "outside"),
        (1 << 40, "outside"),
        (u64::MAX, "outside"),
    ] {
        let mut other = bytes.clone();
        redirect(&mut other, branch, to);
        let error = read(&other).unwrap_err().to_string();
        assert!(error.contains(what) || error.contains("order"), "{to}: {error}");
    }
}
