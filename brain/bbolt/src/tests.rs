use std::io::Cursor;

use super::page::{BUCKET_LEAF_FLAG, LEAF_PAGE_FLAG, META_PAGE_FLAG, MetaPage, PageHeader};
use super::{Error, ReadAt, Reader, VisitedPart, Writer};

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
    let mut buckets: Vec<(Vec<u8>, Pairs)> = Vec::new();
    reader.visit(|visited| {
        match visited {
            VisitedPart::Bucket(name) => buckets.push((name.to_vec(), Vec::new())),
            VisitedPart::Pair { key, value, .. } => buckets.last_mut().unwrap().1.push((key.to_vec(), value.to_vec())),
        }
        Ok::<(), Error>(())
    })?;
    for (name, expected) in &buckets {
        let (mut pairs, mut found) = (reader.bucket(name)?.unwrap(), Vec::new());
        while let Some((key, value)) = pairs.next()? {
            found.push((key.to_vec(), value.to_vec()));
        }
        assert!(found == *expected);
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

/// Sets a number of four bytes of an element of a page.
fn set_number(bytes: &mut [u8], page: usize, (element, number): (usize, usize), to: u32) {
    let at = page * 4096 + 16 + element * 16 + number * 4;
    bytes[at..at + 4].copy_from_slice(&to.to_le_bytes());
}

fn pages_of_kind(bytes: &[u8], kind: u8) -> impl Iterator<Item = usize> {
    (2..bytes.len() / 4096).filter(move |page| bytes[page * 4096 + 8] == kind)
}

/// Elements whose values are the same bytes: a small file would have the content of a very large one.
#[test]
fn elements_that_share_bytes_are_damage() {
    let bytes = written(&[(b"key", numbered(30, 90))]);
    let leaf = pages_of_kind(&bytes, 2)
        .find(|page| bytes[page * 4096 + 10] == 30)
        .unwrap();
    let mut other = bytes.clone();
    for element in 0..30_u32 {
        // Each value extends to the end of the page.
        let key = u32::from_le_bytes(
            other[leaf * 4096 + 16 + element as usize * 16 + 4..][..4]
                .try_into()
                .unwrap(),
        );
        let rest = 4096 - 16 - element * 16 - key - 4;
        set_number(&mut other, leaf, (element as usize, 3), rest);
    }
    let error = read(&other).unwrap_err().to_string();
    assert!(error.contains("overlap"), "{error}");
}

#[test]
fn page_that_two_buckets_share_is_damage() {
    let mut bytes = written(&[(b"a", numbered(2_000, 10)), (b"b", numbered(2_000, 10))]);
    let branches: Vec<usize> = pages_of_kind(&bytes, 1).collect();
    let [first, second] = branches[..] else {
        panic!("{branches:?}")
    };
    let child = first * 4096 + 16 + 8;
    let child = u64::from_le_bytes(bytes[child..child + 8].try_into().unwrap());
    redirect(&mut bytes, second, child);
    let reader = Reader::open(&bytes[..], bytes.len() as u64).unwrap();
    let error = reader.visit(|_| Ok::<(), Error>(())).unwrap_err().to_string();
    assert!(error.contains("twice"), "{error}");
}

/// A file in memory that counts what is read of it.
struct Counted(Vec<u8>, std::sync::atomic::AtomicUsize, std::sync::atomic::AtomicUsize);

impl ReadAt for Counted {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        use std::sync::atomic::Ordering::Relaxed;
        self.1.fetch_add(buffer.len(), Relaxed);
        self.2.fetch_max(buffer.len(), Relaxed);
        self.0.read_at(buffer, offset)
    }
}

#[test]
fn visit_of_many_buckets_reads_each_page_once() {
    let names: Vec<Vec<u8>> = (0..3_000_u32).map(|n| format!("bucket-{n:05}").into_bytes()).collect();
    let buckets: Vec<(&[u8], Pairs)> = names.iter().map(|name| (&name[..], numbered(2, 8))).collect();
    let bytes = written(&buckets);
    let len = bytes.len();
    let file = Counted(bytes, 0.into(), 0.into());
    let reader = Reader::open(&file, len as u64).unwrap();
    let mut found = 0;
    let counted: Result<(), Error> = reader.visit(|visited| {
        found += usize::from(matches!(visited, VisitedPart::Bucket(_)));
        Ok(())
    });
    counted.unwrap();
    let read = file.1.into_inner();
    assert!(
        found == names.len() && read < 2 * len,
        "{found} buckets: {read} bytes are read of {len}"
    );
}

/// A leaf page of one page and its overflow.
fn leaf(id: u64, flags: u32, pairs: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut content: Vec<u8> = Vec::new();
    let mut elements = Vec::new();
    for (at, (key, value)) in pairs.iter().enumerate() {
        let position = (pairs.len() - at) * 16 + content.len();
        for number in [flags as usize, position, key.len(), value.len()] {
            elements.extend_from_slice(&u32::try_from(number).unwrap().to_le_bytes());
        }
        content.extend_from_slice(key);
        content.extend_from_slice(value);
    }
    let len = (16 + elements.len() + content.len()).next_multiple_of(4096);
    let header = PageHeader {
        id,
        flags: LEAF_PAGE_FLAG,
        count: u16::try_from(pairs.len()).unwrap(),
        overflow: u32::try_from(len / 4096 - 1).unwrap(),
    };
    let mut page = [&header.encode()[..], &elements, &content].concat();
    page.resize(len, 0);
    page
}

#[test]
fn of_a_long_page_one_value_is_held_at_a_time() {
    const LONG: usize = 8 << 20;
    let value = vec![7; LONG];
    let bucket = [3_u64.to_le_bytes(), [0; 8]].concat();
    let root = leaf(2, BUCKET_LEAF_FLAG, &[(b"key", &bucket)]);
    let long = leaf(3, 0, &[(b"a", &value), (b"b", &value), (b"c", &value)]);
    let meta = MetaPage {
        page_size: 4096,
        root: 2,
        high_water: (long.len() / 4096 + 3) as u64,
        txid: 1,
    };
    let header = PageHeader {
        id: 0,
        flags: META_PAGE_FLAG,
        count: 0,
        overflow: 0,
    };
    let mut first = [&header.encode()[..], &meta.encode()].concat();
    first.resize(2 * 4096, 0);
    let bytes = [first, root, long].concat();
    let len = bytes.len() as u64;
    let file = Counted(bytes, 0.into(), 0.into());
    let reader = Reader::open(&file, len).unwrap();
    let mut entries = reader.bucket(b"key").unwrap().unwrap();
    let mut found = 0;
    while let Some((_, read)) = entries.next().unwrap() {
        assert!(read == value);
        found += 1;
    }
    let longest = file.2.into_inner();
    assert!(found == 3 && longest <= LONG, "{longest} bytes at once");
}
