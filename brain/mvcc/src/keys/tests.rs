use std::cmp::Reverse;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Few different bytes, the dangerous ones among them, so that keys are often prefixes of each other.
fn key() -> impl Strategy<Value = Vec<u8>> {
    vec(
        prop_oneof![Just(0x00u8), Just(0x01), Just(0x02), Just(b'a'), Just(0xfe), Just(0xff)],
        0..6,
    )
}

/// A plain implementation of etcd's ranges: returns true if the range contains `candidate`.
fn names(key: &[u8], range_end: &[u8], candidate: &[u8]) -> bool {
    match range_end {
        [] => candidate == key,
        [0] => candidate >= key,
        end => candidate >= key && candidate < end,
    }
}

fn holds(range: &RowRange, row: &Bytes) -> bool {
    *row >= range.from && *row < range.to
}

proptest! {
    #[test]
    fn rows_are_ordered_as_keys_and_newest_first(a in key(), b in key(), ra in 0..i64::MAX, rb in 0..i64::MAX) {
        prop_assert_eq!(index_key(&a).cmp(&index_key(&b)), a.cmp(&b));
        let rows = object_key(&a, ra).cmp(&object_key(&b, rb));
        prop_assert_eq!(rows, (&a, Reverse(ra)).cmp(&(&b, Reverse(rb))));
        prop_assert_eq!(object_key(&a, ra).cmp(&object_key(&b, ra)), a.cmp(&b));
    }

    #[test]
    fn attachments_are_ordered_by_lease_and_key(a in key(), b in key(), ia: i64, ib: i64) {
        let rows = attachment_key(LeaseId(ia), &a).cmp(&attachment_key(LeaseId(ib), &b));
        prop_assert_eq!(rows, (ia, &a).cmp(&(ib, &b)));
        prop_assert_eq!(lease_key(LeaseId(ia)).cmp(&lease_key(LeaseId(ib))), ia.cmp(&ib));
        let mine = attachment_range(LeaseId(ia));
        prop_assert_eq!(holds(&mine, &attachment_key(LeaseId(ib), &b)), ia == ib);
        prop_assert!(holds(&mine, &attachment_key(LeaseId(ia), &a)));
        prop_assert!(holds(&attachments_range(), &attachment_key(LeaseId(ia), &a)));
    }

    #[test]
    fn keys_round_trip(key in vec(any::<u8>(), 0..40), revision in 0..i64::MAX, id: i64) {
        let bytes = Bytes::from(key.clone());
        prop_assert_eq!(parse_index(&index_key(&key)), Ok(bytes.clone()));
        prop_assert_eq!(parse_object(&object_key(&key, revision)), Ok((bytes.clone(), revision)));
        prop_assert_eq!(parse_lease(&lease_key(LeaseId(id))), Ok(LeaseId(id)));
        prop_assert_eq!(parse_attachment(&attachment_key(LeaseId(id), &key)), Ok((LeaseId(id), bytes)));
    }

    #[test]
    fn etcds_ranges_become_ranges_of_rows(key in key(), end in key(), other in key(), revision in 0..i64::MAX) {
        let named = names(&key, &end, &other);
        prop_assert_eq!(holds(&index_range(&key, &end), &index_key(&other)), named);
        prop_assert_eq!(holds(&object_range(&key, &end), &object_key(&other, revision)), named);
    }

    #[test]
    fn the_first_version_of_a_range_is_the_newest_not_after_the_revision(
        key in key(), other in key(), at in 0..10i64, revisions in vec(0..10i64, 1..8),
    ) {
        let range = object_versions(&key, at);
        let mut rows: Vec<Bytes> = revisions
            .iter()
            .flat_map(|&r| [object_key(&key, r), object_key(&other, r)])
            .filter(|row| holds(&range, row))
            .collect();
        rows.sort();
        let found = rows.first().map(|row| parse_object(row).unwrap());
        let wanted = revisions.iter().copied().filter(|&r| r <= at).max();
        prop_assert_eq!(found, wanted.map(|r| (Bytes::from(key), r)));
    }

    #[test]
    fn any_bytes_are_read_or_refused_and_never_read_two_ways(bytes in vec(any::<u8>(), 0..24), first in 0..6usize) {
        let mut row = bytes;
        if let (Some(kind), Some(byte)) = (b"iosamx".get(first), row.first_mut()) {
            *byte = *kind;
        }
        let row = Bytes::from(row);
        if let Ok(key) = parse_index(&row) {
            prop_assert_eq!(index_key(&key), row.clone());
        }
        if let Ok((key, revision)) = parse_object(&row) {
            prop_assert_eq!(object_key(&key, revision), row.clone());
        }
        if let Ok(id) = parse_lease(&row) {
            prop_assert_eq!(lease_key(id), row.clone());
        }
        if let Ok((id, key)) = parse_attachment(&row) {
            prop_assert_eq!(attachment_key(id, &key), row.clone());
        }
    }
}

#[test]
fn damaged_keys_say_what_is_wrong() {
    let kind = |expected, found| KeyError::Kind { expected, found };
    assert_eq!(parse_index(&Bytes::new()), Err(kind('i', None)));
    assert_eq!(parse_index(&object_key(b"a", 1)), Err(kind('i', Some(b'o'))));
    assert_eq!(parse_index(&Bytes::from_static(b"ia")), Err(KeyError::Escape(2)));
    assert_eq!(parse_index(&Bytes::from_static(b"ia\0")), Err(KeyError::Escape(2)));
    assert_eq!(parse_index(&Bytes::from_static(b"ia\0\x03")), Err(KeyError::Escape(2)));
    let length = |expected, found| KeyError::Length { expected, found };
    assert_eq!(parse_index(&Bytes::from_static(b"ia\0\x01b")), Err(length(0, 1)));
    assert_eq!(parse_object(&Bytes::from_static(b"oa\0\x01b")), Err(length(8, 1)));
    assert_eq!(
        parse_object(&Bytes::from_static(b"oa\0\x01\0\0\0\0\0\0\0\0")),
        Err(KeyError::Revision)
    );
    assert_eq!(parse_lease(&Bytes::from_static(b"s1234")), Err(length(8, 4)));
    assert_eq!(parse_attachment(&Bytes::from_static(b"a1234")), Err(length(8, 4)));
}

#[test]
fn meta_rows_are_found_by_name() {
    let row = meta_key("fence");
    assert_eq!(row, Bytes::from_static(b"mfence"));
    assert_eq!(parse_meta(&row), Ok(Bytes::from_static(b"fence")));
    assert!(holds(&meta_range(), &row));
    assert!(!holds(&lease_range(), &row));
    assert!(
        holds(&lease_range(), &lease_key(LeaseId(i64::MIN))) && holds(&lease_range(), &lease_key(LeaseId(i64::MAX)))
    );
}

#[test]
fn dictionaries_are_in_the_order_of_their_numbers() {
    let rows = [0, 1, 255, 256, u64::MAX].map(dictionary_key);
    assert!(rows.is_sorted());
    for row in &rows {
        assert!(holds(&dictionary_range(), row) && !holds(&lease_range(), row));
    }
    assert_eq!(parse_dictionary(&rows[3]), Ok(256));
    let length = KeyError::Length { expected: 8, found: 3 };
    assert_eq!(parse_dictionary(&Bytes::from_static(b"d123")), Err(length));
}

#[test]
fn users_and_roles_are_found_by_name() {
    let (user, role) = (user_key("a"), role_key("a"));
    assert_eq!((user.as_ref(), role.as_ref()), (&b"ua"[..], &b"ra"[..]));
    assert_eq!(
        (parse_user(&user), parse_role(&role)),
        (Ok("a".to_owned()), Ok("a".to_owned()))
    );
    assert!(holds(&user_range(), &user) && holds(&role_range(), &role));
    assert!(!holds(&user_range(), &role) && !holds(&role_range(), &user));
    assert_eq!(parse_user(&Bytes::from_static(b"u\xff")), Err(KeyError::Name));
    assert!(matches!(parse_user(&role), Err(KeyError::Kind { .. })));
}

#[test]
fn row_keys_keep_their_stored_form() {
    assert_eq!(index_key(b"a\0b"), Bytes::from_static(b"ia\0\xffb\0\x01"));
    assert_eq!(
        object_key(b"a", 1),
        Bytes::from_static(b"oa\0\x01\xff\xff\xff\xff\xff\xff\xff\xfe")
    );
    assert_eq!(lease_key(LeaseId(1)), Bytes::from_static(b"s\x80\0\0\0\0\0\0\x01"));
    assert_eq!(
        attachment_key(LeaseId(-1), b"k"),
        Bytes::from_static(b"a\x7f\xff\xff\xff\xff\xff\xff\xffk\0\x01")
    );
}
