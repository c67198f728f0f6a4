//! Checks single rows: each has a key and a value that a brain writes.

use bytes::Bytes;
use prost::Message;

use super::auth::{AUTH_ROW, AuthRow, Role, User};
use super::dictionaries::{Dictionaries, decode_dictionary};
use super::keys;
use super::row::{LeaseRow, ObjectRow, decode_index};
use engine::rows::RowsError;

/// Returns [`RowsError::Corrupt`], which names the row, if a row is not one that a brain of this version writes with these dictionaries.
pub fn check_row(row: &Bytes, value: &Bytes, dictionaries: &Dictionaries) -> Result<(), RowsError> {
    match row.first() {
        Some(b'a') => {
            keys::parse_attachment(row)?;
            expect(value.is_empty(), row, "has a value")
        }
        Some(b'd') => decode_dictionary(row, value).map(drop),
        Some(b'i') => {
            let meta = decode_index(&keys::parse_index(row)?, value)?;
            let is_sane = meta.create_revision <= meta.mod_revision && meta.version > 0;
            expect(is_sane, row, "holds revisions or a version that no key has")
        }
        Some(b'o') => {
            let (key, revision) = keys::parse_object(row)?;
            let object = ObjectRow::decode(&key, value)?;
            let is_sane = object
                .as_ref()
                .is_none_or(|object| object.meta.mod_revision == revision);
            expect(is_sane, row, "holds another revision than its key")?;
            object.map_or(Ok(()), |object| object.value(&key, dictionaries).map(drop))
        }
        Some(b's') => {
            keys::parse_lease(row)?;
            decode::<LeaseRow>(row, value)
        }
        Some(b'r') => {
            keys::parse_role(row)?;
            decode::<Role>(row, value)
        }
        Some(b'u') => {
            keys::parse_user(row)?;
            decode::<User>(row, value)
        }
        Some(b'm') if *row == keys::meta_key(AUTH_ROW) => decode::<AuthRow>(row, value),
        // A newer version may have added a kind.
        _ => Ok(()),
    }
}

fn decode<T: Message + Default>(row: &Bytes, value: &Bytes) -> Result<(), RowsError> {
    let decoded = T::decode(value.clone());
    decoded
        .map(drop)
        .map_err(|error| damaged(row, format_args!("does not decode: {error}")))
}

fn expect(is_sane: bool, row: &Bytes, what: &str) -> Result<(), RowsError> {
    if is_sane {
        Ok(())
    } else {
        Err(damaged(row, format_args!("{what}")))
    }
}

fn damaged(row: &Bytes, what: std::fmt::Arguments<'_>) -> RowsError {
    RowsError::Corrupt(format!("the row \"{}\" {what}", row.escape_ascii()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::{KeyMeta, encode_index, encode_object};
    use etcd_types::types::LeaseId;

    fn meta() -> KeyMeta {
        KeyMeta {
            create_revision: 2,
            mod_revision: 5,
            version: 3,
            lease: LeaseId(7),
            size: 1,
        }
    }

    fn rows() -> Vec<(Bytes, Bytes)> {
        let lease = LeaseRow { ttl: 9, remaining: 1 };
        vec![
            (keys::attachment_key(LeaseId(7), b"k"), Bytes::new()),
            (keys::index_key(b"k"), encode_index(&meta())),
            (keys::object_key(b"k", 5), encode_object(Some((&meta(), b"v")))),
            (keys::object_key(b"k", 6), encode_object(None)),
            (keys::lease_key(LeaseId(7)), lease.encode_to_vec().into()),
            (keys::role_key("r"), Role::default().encode_to_vec().into()),
            (keys::user_key("u"), User::default().encode_to_vec().into()),
            (keys::meta_key(AUTH_ROW), AuthRow::default().encode_to_vec().into()),
        ]
    }

    #[test]
    fn rows_that_are_written_pass() {
        let newer = (Bytes::from_static(b"x"), Bytes::new());
        for (row, value) in rows().into_iter().chain([newer]) {
            check_row(&row, &value, &Dictionaries::default()).unwrap();
        }
    }

    #[test]
    fn damaged_rows_are_named() {
        let other = Bytes::from_static(b"\x0f\xff");
        let mut damaged: Vec<(Bytes, Bytes)> = rows().into_iter().map(|(row, _)| (row, other.clone())).collect();
        let early = KeyMeta {
            mod_revision: 1,
            ..meta()
        };
        damaged.extend([
            (keys::index_key(b"k"), encode_index(&early)),
            (keys::index_key(b"k"), encode_index(&KeyMeta { version: 0, ..meta() })),
            (keys::object_key(b"k", 6), encode_object(Some((&meta(), b"v")))),
            (keys::dictionary_key(1), other.clone()),
            (Bytes::from_static(b"ikey without an end"), encode_index(&meta())),
        ]);
        for (row, value) in damaged {
            let found = check_row(&row, &value, &Dictionaries::default());
            assert!(matches!(found, Err(RowsError::Corrupt(_))), "{row:?}: {found:?}");
        }
    }
}
