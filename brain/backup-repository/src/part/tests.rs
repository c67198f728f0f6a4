use super::reader::PartError;
use super::*;
use crate::ObjectError;
use crate::manifest::tests::name;
use crate::manifest::{PartSummary, Sha256Digest};
use sha2::{Digest as _, Sha256};

fn place(number: u32) -> PartPlace {
    PartPlace {
        name: name(),
        run: RunId([3; 16]),
        number,
    }
}

fn key(byte: u8) -> EncryptionKey {
    EncryptionKey::new(&[byte; 32])
}

/// Bytes that do not compress, and some that do.
fn snapshot(len: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let noise = std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    });
    let mut bytes: Vec<u8> = noise.take(len).collect();
    bytes[len / 3..len / 2].fill(7);
    bytes
}

fn write(place: &PartPlace, key: Option<&EncryptionKey>, snapshot: &[u8]) -> (Vec<u8>, PartSummary) {
    let mut writer = PartWriter::begin(Vec::new(), place, key).unwrap();
    for bytes in snapshot.chunks(32 << 10) {
        writer.write(bytes).unwrap();
    }
    let finished = writer.finish().unwrap();
    let summary = PartSummary {
        object: "parts/it".to_owned(),
        bytes: finished.bytes,
        sha256: finished.sha256,
        snapshot_bytes: finished.snapshot_bytes,
    };
    assert_eq!(finished.out.len() as u64, summary.bytes);
    (finished.out, summary)
}

fn read_in(
    chunk: usize,
    object: &[u8],
    place: &PartPlace,
    summary: &PartSummary,
    keys: &[EncryptionKey],
) -> Result<Vec<u8>, PartError> {
    let mut reader = PartReader::begin(Vec::new(), place.clone(), summary, keys)?;
    for bytes in object.chunks(chunk) {
        reader.push(bytes)?;
    }
    reader.finish()
}

fn read(object: &[u8], summary: &PartSummary, keys: &[EncryptionKey]) -> Result<Vec<u8>, PartError> {
    read_in(100_000, object, &place(0), summary, keys)
}

/// A summary that vouches for other bytes: only the object itself can show that they are wrong.
fn vouch(object: &[u8], summary: &PartSummary) -> PartSummary {
    PartSummary {
        bytes: object.len() as u64,
        sha256: Sha256Digest(Sha256::digest(object).into()),
        ..summary.clone()
    }
}

fn damage(read: Result<Vec<u8>, PartError>) -> String {
    match read {
        Err(PartError::Object(error @ ObjectError::Damaged { .. })) => error.to_string(),
        other => panic!("{:?}", other.map(|bytes| bytes.len())),
    }
}

#[test]
fn part_is_read_back_in_pieces_of_any_size() {
    for len in [0, 1, 1_000, 3 << 20] {
        let snapshot = if len < 3 { vec![5; len] } else { snapshot(len) };
        for key in [None, Some(key(1))] {
            let (object, summary) = write(&place(0), key.as_ref(), &snapshot);
            let keys: Vec<_> = key.into_iter().collect();
            for chunk in [7, 4_096, FRAME_BYTES + TAG_BYTES, usize::MAX] {
                let found = read_in(chunk, &object, &place(0), &summary, &keys).unwrap();
                assert!(found == snapshot, "{len} bytes in pieces of {chunk}");
            }
        }
    }
}

#[test]
fn encrypted_part_shows_nothing_and_no_two_are_equal() {
    let snapshot = vec![b'a'; 100_000];
    let (one, _) = write(&place(0), Some(&key(1)), &snapshot);
    let (other, _) = write(&place(0), Some(&key(1)), &snapshot);
    let header = PLAIN_HEADER_BYTES + ENCRYPTION_BYTES;
    assert!(one[header..] != other[header..]);
    assert!(!one.windows(8).any(|bytes| bytes == [b'a'; 8]));
}

#[test]
fn each_flipped_bit_is_refused() {
    let snapshot = snapshot(20_000);
    for key in [None, Some(key(1))] {
        let (object, summary) = write(&place(0), key.as_ref(), &snapshot);
        let keys: Vec<_> = key.into_iter().collect();
        for at in (0..100)
            .chain((100..object.len()).step_by(97))
            .chain([object.len() - 1])
        {
            let mut flipped = object.clone();
            flipped[at] ^= 1 << (at % 8);
            let error = read(&flipped, &summary, &keys).unwrap_err().to_string();
            assert!(error.starts_with("parts/it is "), "{at}: {error}");
        }
    }
}

#[test]
fn truncated_and_extended_parts_are_refused() {
    let (object, summary) = write(&place(0), None, &snapshot(50_000));
    for len in [0, 5, 40, object.len() - 1] {
        let error = damage(read(&object[..len], &summary, &[]));
        assert!(error.contains(&format!("it has {len} bytes, expected ")), "{error}");
    }
    let longer = [object.as_slice(), b"x"].concat();
    assert!(damage(read(&longer, &summary, &[])).contains("it is longer than "));
}

/// An attacker who can write to the store can also write manifests, but has no key.
#[test]
fn frames_and_parts_cannot_be_cut_or_moved_even_with_another_manifest() {
    let (keys, snapshot) = ([key(1)], snapshot(5 << 20));
    let (object, summary) = write(&place(0), Some(&keys[0]), &snapshot);
    let (header, frame) = (PLAIN_HEADER_BYTES + ENCRYPTION_BYTES, FRAME_BYTES + TAG_BYTES);
    let cut = &object[..header + 2 * frame];
    assert!(damage(read(cut, &vouch(cut, &summary), &keys)).contains("its frame 1 is not what was encrypted"));
    let empty = &object[..header];
    assert!(damage(read(empty, &vouch(empty, &summary), &keys)).contains("bytes of the snapshot are missing"));
    let mut swapped = object.clone();
    swapped[header..header + 2 * frame].rotate_left(frame);
    assert!(damage(read(&swapped, &vouch(&swapped, &summary), &keys)).contains("its frame 0 is not"));

    let mut renumbered = object.clone();
    renumbered[PLAIN_HEADER_BYTES - 1] = 1;
    let found = read_in(4_096, &renumbered, &place(1), &vouch(&renumbered, &summary), &keys);
    assert!(damage(found).contains("its frame 0 is not"));
    let renamed = PartPlace {
        name: BackupName::new(name().time(), 99),
        ..place(0)
    };
    let found = read_in(4_096, &object, &renamed, &summary, &keys);
    assert!(damage(found).contains("its frame 0 is not"));
}

#[test]
fn foreign_parts_are_refused() {
    for key in [None, Some(key(1))] {
        let (object, summary) = write(&place(0), key.as_ref(), b"snapshot");
        let keys: Vec<_> = key.into_iter().collect();
        let found = read_in(9, &object, &place(1), &summary, &keys);
        assert!(damage(found).contains("it is part 0 of the backup, expected 1"));
        let other = PartPlace {
            run: RunId([4; 16]),
            ..place(0)
        };
        let found = read_in(9, &object, &other, &summary, &keys);
        assert!(damage(found).contains("it is a part of another backup"));
        let mut unknown = object.clone();
        unknown[MAGIC.len()] = 9;
        assert!(damage(read(&unknown, &summary, &keys)).contains("encrypted in a way"));
    }
    let text = b"no part at all, but long enough to be one";
    let (_, summary) = write(&place(0), None, b"snapshot");
    assert!(damage(read(text, &vouch(text, &summary), &[])).contains("it is not a part of a backup"));
}

#[test]
fn part_that_holds_more_than_the_manifest_says_is_refused_as_it_grows() {
    let (object, summary) = write(&place(0), None, &vec![0; 10 << 20]);
    let less = PartSummary {
        snapshot_bytes: 1 << 20,
        ..summary
    };
    assert!(damage(read(&object, &less, &[])).contains("it holds more of the snapshot than it should"));
}

#[test]
fn key_is_found_among_several_and_a_missing_one_is_named() {
    let (object, summary) = write(&place(0), Some(&key(2)), b"snapshot");
    assert_eq!(read(&object, &summary, &[key(1), key(2)]).unwrap(), b"snapshot");
    let (one, two, three) = (key(1).id(), key(2).id(), key(3).id());
    for (keys, given) in [
        (vec![key(1), key(3)], format!("only the keys {one}, {three} were")),
        (vec![], "no key was".to_owned()),
    ] {
        let error = read(&object, &summary, &keys).unwrap_err().to_string();
        assert_eq!(
            error,
            format!("parts/it is encrypted with the key {two}, and {given} given")
        );
    }
}

#[test]
fn failure_to_write_is_not_taken_for_damage() {
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let (object, summary) = write(&place(0), None, &snapshot(3 << 20));
    let mut reader = PartReader::begin(Full, place(0), &summary, &[]).unwrap();
    let failed = object.chunks(4_096).find_map(|bytes| reader.push(bytes).err());
    assert!(matches!(failed, Some(PartError::Io(error)) if error.kind() == std::io::ErrorKind::StorageFull));
}
