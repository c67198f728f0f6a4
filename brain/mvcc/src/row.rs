//! The values of rows: index rows, object rows, leases, and the manifest.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

use super::sizes::StoredSizes;
use crate::dictionaries::Dictionaries;
use crate::keys::KeyError;
use engine::log::{LogId, LogOrigin, Slot};
use engine::rows::RowsError;
use etcd_types::types::{LeaseId, Revision};
use runtime::compression;

impl From<KeyError> for RowsError {
    fn from(error: KeyError) -> Self {
        RowsError::Corrupt(error.to_string())
    }
}

/// A key's state without its value, which is enough for compares and counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KeyMeta {
    /// Revision of the put that brought the key into being.
    pub create_revision: Revision,
    /// Revision of the put that made this version.
    pub mod_revision: Revision,
    /// Puts since the key came into being.
    pub version: i64,
    /// The lease the key is attached to.
    pub lease: LeaseId,
    /// Bytes of the value.
    pub size: u32,
}

const META_BYTES: usize = 32;
/// Bytes of an index row's value.
pub const INDEX_ROW_BYTES: usize = META_BYTES + 4;
const TOMBSTONE_TAG: u8 = 0;
const OBJECT_TAG: u8 = 1;
const COMPRESSED_OBJECT_TAG: u8 = 2;

/// Bytes of an object row's value beside the value that it holds.
pub const OBJECT_HEADER_BYTES: usize = 1 + META_BYTES;

/// The value of an index row.
#[must_use]
pub fn encode_index(meta: &KeyMeta) -> Bytes {
    let mut bytes = BytesMut::with_capacity(INDEX_ROW_BYTES);
    put_meta(&mut bytes, meta);
    bytes.put_u32(meta.size);
    bytes.freeze()
}

/// Decodes the value of the index row of `key`. Returns [`RowsError::Corrupt`] if it is none.
pub fn decode_index(key: &[u8], bytes: &[u8]) -> Result<KeyMeta, RowsError> {
    if bytes.len() != INDEX_ROW_BYTES {
        return Err(damaged("index", key, bytes));
    }
    let (meta, mut size) = bytes.split_at(META_BYTES);
    Ok(get_meta(meta, size.get_u32()))
}

/// The value of an object row: a version with its value, or a tombstone.
#[must_use]
pub fn encode_object(version: Option<(&KeyMeta, &[u8])>) -> Bytes {
    let Some((meta, value)) = version else {
        return Bytes::from_static(&[TOMBSTONE_TAG]);
    };
    let mut bytes = BytesMut::with_capacity(OBJECT_HEADER_BYTES + value.len());
    bytes.put_u8(OBJECT_TAG);
    put_meta(&mut bytes, meta);
    bytes.put_slice(value);
    bytes.freeze()
}

/// The same with a long value compressed, if it compresses well. Only for rows that no other version of this program reads.
#[must_use]
pub fn encode_object_compressed(version: Option<(&KeyMeta, &[u8])>, dictionaries: &Dictionaries) -> Bytes {
    let compressed = version.and_then(|(meta, value)| Some((meta, dictionaries.compress(value)?)));
    let Some((meta, compressed)) = compressed else {
        return encode_object(version);
    };
    let mut bytes = BytesMut::with_capacity(OBJECT_HEADER_BYTES + compressed.len());
    bytes.put_u8(COMPRESSED_OBJECT_TAG);
    put_meta(&mut bytes, meta);
    bytes.put_slice(&compressed);
    bytes.freeze()
}

/// An object row that is not a tombstone. Its value may still be compressed.
#[derive(Debug)]
pub struct ObjectRow {
    /// The version.
    pub meta: KeyMeta,
    row: Bytes,
}

impl ObjectRow {
    /// Decodes the object row of `key`; `None` is a tombstone. Returns [`RowsError::Corrupt`] if it is neither.
    pub fn decode(key: &[u8], row: &Bytes) -> Result<Option<Self>, RowsError> {
        let size = match row.first() {
            Some(&TOMBSTONE_TAG) if row.len() == 1 => return Ok(None),
            Some(&OBJECT_TAG) if row.len() >= OBJECT_HEADER_BYTES => Some(size_of(&row[OBJECT_HEADER_BYTES..])),
            Some(&COMPRESSED_OBJECT_TAG) if row.len() > OBJECT_HEADER_BYTES => {
                compression::content_size(&row[OBJECT_HEADER_BYTES..])
            }
            _ => None,
        };
        let size = size.ok_or_else(|| damaged("object", key, row))?;
        let meta = get_meta(&row[1..], size);
        Ok(Some(Self { meta, row: row.clone() }))
    }

    /// Returns the value of the version of `key`. Returns [`RowsError::Corrupt`] if it does not decompress, or only with another dictionary.
    pub fn value(&self, key: &[u8], dictionaries: &Dictionaries) -> Result<Bytes, RowsError> {
        let stored = self.row.slice(OBJECT_HEADER_BYTES..);
        if self.row[0] == OBJECT_TAG {
            return Ok(stored);
        }
        dictionaries
            .decompress(&stored)
            .ok_or_else(|| match dictionaries.missing(&stored) {
                Some(id) => {
                    let key = key.escape_ascii().to_string();
                    RowsError::Corrupt(format!(
                        "an object row of {key:?} needs the dictionary {id}, which is missing"
                    ))
                }
                None => damaged("object", key, &self.row),
            })
    }
}

/// Decodes the value of an object row of `key`; `None` is a tombstone. Returns [`RowsError::Corrupt`] if it is neither.
pub fn decode_object(
    key: &[u8],
    row: &Bytes,
    dictionaries: &Dictionaries,
) -> Result<Option<(KeyMeta, Bytes)>, RowsError> {
    match ObjectRow::decode(key, row)? {
        Some(object) => Ok(Some((object.meta, object.value(key, dictionaries)?))),
        None => Ok(None),
    }
}

fn damaged(kind: &str, key: &[u8], bytes: &[u8]) -> RowsError {
    let key = key.escape_ascii().to_string();
    RowsError::Corrupt(format!("an {kind} row of {key:?} has {} bytes", bytes.len()))
}

fn put_meta(bytes: &mut BytesMut, meta: &KeyMeta) {
    bytes.put_i64(meta.create_revision);
    bytes.put_i64(meta.mod_revision);
    bytes.put_i64(meta.version);
    bytes.put_i64(meta.lease.0);
}

fn get_meta(mut bytes: &[u8], size: u32) -> KeyMeta {
    KeyMeta {
        create_revision: bytes.get_i64(),
        mod_revision: bytes.get_i64(),
        version: bytes.get_i64(),
        lease: LeaseId(bytes.get_i64()),
        size,
    }
}

/// Bytes of a value. No row takes more than this counts.
#[must_use]
pub fn size_of(value: &[u8]) -> u32 {
    u32::try_from(value.len()).unwrap_or(u32::MAX)
}

/// The value of a lease row.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct LeaseRow {
    /// Time to live, in seconds.
    #[prost(int64, tag = "1")]
    pub ttl: i64,
    /// Remaining time as of the last checkpoint, in seconds; 0 means the whole time to live.
    #[prost(int64, tag = "2")]
    pub remaining: i64,
}

/// The manifest of the rows: the part of the log that is in them, and the writer that may write them.
#[derive(Clone, PartialEq, Message)]
pub struct Manifest {
    /// Version of everything stored. A brain refuses a version newer than its own.
    #[prost(uint32, tag = "1")]
    pub format: u32,
    /// The epoch whose leader writes the rows.
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    /// The next slot that is not in the rows yet.
    #[prost(uint64, tag = "3")]
    pub applied_slot: u64,
    /// The store's revision before that slot.
    #[prost(int64, tag = "4")]
    pub revision: Revision,
    /// The compacted revision before that slot; -1 if there was no compaction.
    #[prost(int64, tag = "5")]
    pub compacted: Revision,
    /// Versions that were superseded up to this revision are gone.
    #[prost(int64, tag = "6")]
    pub deleted_up_to: Revision,
    /// The slot from which to read the log to delete more: the first that may hold a later revision.
    #[prost(uint64, tag = "7")]
    pub deleted_slot: u64,
    /// Alarms that are raised: member and kind.
    #[prost(message, repeated, tag = "8")]
    pub alarms: Vec<super::record::Alarm>,
    /// Makes every manifest differ from the one before it.
    #[prost(uint64, tag = "9")]
    pub number: u64,
    /// While a flush is under way: the revision that it will reach, up to which rows may be newer than the applied slot says.
    #[prost(int64, tag = "10")]
    pub flushing_revision: Revision,
    /// The lock that this leader holds: see [`Barrier`](engine::log::frame::Barrier).
    #[prost(uint64, tag = "11")]
    pub lock: u64,
    /// Length of this leader's read lease after a renewal of its lock, in milliseconds.
    #[prost(uint32, tag = "12")]
    pub lease: u32,
    /// Longest read lease of earlier leaders that a new leader must still wait out, in milliseconds.
    #[prost(uint32, tag = "13")]
    pub prior_lease_ms: u32,
    /// Id of the log that the rows come from; empty where log and rows are in one store.
    #[prost(bytes = "vec", tag = "20")]
    pub log_id: Vec<u8>,
    /// The last taken slot that any row comes from, those of a flush under way included; 0 if there is none.
    #[prost(uint64, tag = "21")]
    pub log_last: u64,
    /// Stored bytes before the applied slot.
    #[prost(message, required, tag = "30")]
    pub sizes: StoredSizes,
}

/// The version of everything that this brain stores, as long as there are no users.
pub const STORED_FORMAT: u32 = 2;

/// The same once there were users or roles: a brain that does not know them must not open the rows, because it would check nothing.
pub const STORED_FORMAT_WITH_AUTH: u32 = 3;

impl Manifest {
    /// The newest revision that may be in the rows.
    #[must_use]
    pub fn reached(&self) -> Revision {
        self.revision.max(self.flushing_revision)
    }

    /// Returns this manifest with the leader of `leading`.
    #[must_use]
    pub fn taken_by(self, leading: &Self) -> Self {
        Manifest {
            epoch: leading.epoch,
            lock: leading.lock,
            lease: leading.lease,
            prior_lease_ms: leading.prior_lease_ms,
            log_id: leading.log_id.clone(),
            ..self
        }
    }

    /// The manifest of an empty store.
    #[must_use]
    pub fn fresh() -> Self {
        Manifest {
            format: STORED_FORMAT,
            epoch: 0,
            applied_slot: engine::log::Slot::FIRST.0,
            revision: 1,
            compacted: -1,
            deleted_up_to: 0,
            deleted_slot: engine::log::Slot::FIRST.0,
            alarms: Vec::new(),
            number: 0,
            flushing_revision: 0,
            lock: 0,
            lease: 0,
            prior_lease_ms: 0,
            log_id: Vec::new(),
            log_last: 0,
            sizes: StoredSizes::default(),
        }
    }

    /// The log that the rows come from, where they name one.
    #[must_use]
    pub fn origin(&self) -> Option<LogOrigin> {
        let id = <[u8; 16]>::try_from(self.log_id.as_slice()).ok()?;
        Some(LogOrigin {
            id: LogId(id),
            last: Slot(self.log_last),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::compression::Dictionary;

    fn none() -> Dictionaries {
        Dictionaries::default()
    }

    #[test]
    fn rows_survive_the_round_trip() {
        let meta = KeyMeta {
            create_revision: 2,
            mod_revision: i64::MAX,
            version: 3,
            lease: LeaseId(-5),
            size: 5,
        };
        assert_eq!(decode_index(b"k", &encode_index(&meta)).unwrap(), meta);
        let object = encode_object(Some((&meta, b"value")));
        assert_eq!(
            decode_object(b"k", &object, &none()).unwrap(),
            Some((meta, Bytes::from_static(b"value")))
        );
        assert_eq!(decode_object(b"k", &encode_object(None), &none()).unwrap(), None);
        let empty = encode_object(Some((&meta, b"")));
        let meta = KeyMeta { size: 0, ..meta };
        assert_eq!(
            decode_object(b"k", &empty, &none()).unwrap(),
            Some((meta, Bytes::new()))
        );
    }

    /// Rows with a long value of random bytes, and with one that repeats itself.
    #[test]
    fn long_values_are_compressed_if_they_become_shorter() {
        let meta = |value: &[u8]| KeyMeta {
            create_revision: 2,
            mod_revision: 7,
            version: 3,
            lease: LeaseId(5),
            size: size_of(value),
        };
        let random: Vec<u8> = (0..20_000).map(|_| rand::random()).collect();
        let text = b"name: etcd, namespace: kube-system; ".repeat(500);
        for (value, shorter) in [(&text, true), (&random, false)] {
            for end in [0, 1, 1_000, 1_023, 1_024, 1_025, 10_000, value.len()] {
                let (meta, value) = (meta(&value[..end]), &value[..end]);
                let (row, plain) = (
                    encode_object_compressed(Some((&meta, value)), &none()),
                    encode_object(Some((&meta, value))),
                );
                if shorter && end >= 1_024 {
                    assert!(row.len() < plain.len() / 4, "{} of {}", row.len(), plain.len());
                } else {
                    assert_eq!(row, plain);
                }
                let decoded = decode_object(b"k", &row, &none()).unwrap();
                assert_eq!(decoded, Some((meta, Bytes::copy_from_slice(value))), "{end} bytes");
                let object = ObjectRow::decode(b"k", &row).unwrap().unwrap();
                assert_eq!(object.meta, meta);
            }
        }
        assert_eq!(encode_object_compressed(None, &none()), encode_object(None));
    }

    #[test]
    fn values_are_read_with_the_dictionary_that_they_were_written_with() {
        let values: Vec<Bytes> = (0..2_000)
            .map(|number| format!("name: pod-{number}, {}", "labels: app, node: none, ".repeat(60)).into())
            .collect();
        let reversed: Vec<Bytes> = values
            .iter()
            .map(|value| value.iter().rev().copied().collect())
            .collect();
        let dictionaries = none();
        let mut rows = Vec::new();
        for (samples, value) in [
            (&[][..], &values[0]),
            (&values[..], &values[1]),
            (&reversed[..], &values[2]),
        ] {
            if let Some(dictionary) = Dictionary::train(samples) {
                assert!(!dictionaries.contains(&dictionary));
                dictionaries.add(dictionary.into());
            }
            let meta = KeyMeta {
                size: size_of(value),
                ..KeyMeta::default()
            };
            rows.push((
                meta,
                value.clone(),
                encode_object_compressed(Some((&meta, value)), &dictionaries),
            ));
        }
        assert_eq!(dictionaries.len(), 2);
        for (meta, value, row) in &rows {
            assert!(row.len() < value.len() / 2, "{} of {} bytes", row.len(), value.len());
            assert_eq!(
                decode_object(b"k", row, &dictionaries).unwrap(),
                Some((*meta, value.clone()))
            );
        }
        let missing = decode_object(b"k", &rows[1].2, &none());
        let error = missing.unwrap_err().to_string();
        assert!(error.contains("which is missing"), "{error}");
    }

    #[test]
    fn damaged_frames_are_damage() {
        let meta = KeyMeta {
            size: 4_000,
            ..KeyMeta::default()
        };
        let row = encode_object_compressed(Some((&meta, &b"four".repeat(1_000))), &none());
        for damaged in OBJECT_HEADER_BYTES..row.len() {
            let mut bytes = row.to_vec();
            bytes[damaged] ^= 0xff;
            // Some bytes of a frame may have any value. Blocks of tables have checksums.
            let decoded = decode_object(b"k", &Bytes::from(bytes), &none());
            assert!(decoded.is_err() || decoded.unwrap().unwrap().1.len() <= 4_000);
            let cut = decode_object(b"k", &row.slice(..damaged), &none());
            assert!(matches!(cut, Err(RowsError::Corrupt(_))), "cut at {damaged}: {cut:?}");
        }
    }

    #[test]
    fn other_bytes_are_damage() {
        for bytes in [&b""[..], b"\x00\x00", b"\x01short", b"\x07"] {
            let named = |error: RowsError| error.to_string().contains("row of \"k\\\\xff\"");
            assert!(named(
                decode_object(b"k\xff", &Bytes::copy_from_slice(bytes), &none()).unwrap_err()
            ));
            assert!(named(decode_index(b"k\xff", bytes).unwrap_err()));
        }
    }
}
