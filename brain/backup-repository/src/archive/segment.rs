//! The format of a segment: a header in JSON, marks and content, compressed and perhaps encrypted, and the SHA-256 of all that.
//!
//! An encrypted segment has a key of its own, as a part of a backup has. Its header, which is authenticated with it, is not encrypted: it
//! shows the cluster, revisions and times.

use std::io::Read as _;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::marks::Mark;
use super::name::SegmentName;
use crate::ObjectError;
use crate::key::{EncryptionKey, KeyId, from_hex, to_hex};
use crate::manifest::{Algorithm, Compression};
use crate::part::{self, MAX_WINDOW_LOG, SALT_BYTES};

/// The newest format that is read, and the one that is written.
pub(super) const FORMAT: u32 = 1;

/// The first bytes of a segment. They are the same in all formats.
const MAGIC: [u8; 8] = *b"KBSEGMNT";

/// Bytes before the header: [`MAGIC`], and the length of the header.
const PREFIX_BYTES: usize = MAGIC.len() + 4;

/// Bytes of the checksum at the end.
const CHECKSUM_BYTES: usize = 32;

/// Bytes of an object that hold any header.
pub(super) const HEADER_READ_BYTES: u64 = 4 << 10;

/// The longest header.
const MAX_HEADER_BYTES: usize = HEADER_READ_BYTES as usize - PREFIX_BYTES;

/// The description of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SegmentHeader {
    pub format: u32,
    /// The id of the cluster, in hexadecimal.
    pub cluster_id: String,
    /// Its revisions.
    pub first: i64,
    pub last: i64,
    /// The end of the segment before it; `None` if the archive begins here, or begins anew after a gap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<i64>,
    /// The times of the first and of the last mark, in milliseconds since 1970.
    pub first_time: i64,
    pub last_time: i64,
    /// The time up to which nothing was committed after its last revision, if it is later than the last mark; 0 if it is not known.
    pub until: i64,
    /// Bytes of marks and content before they are compressed.
    pub bytes: u64,
    pub compression: Compression,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<SegmentEncryption>,
}

/// How a segment is encrypted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SegmentEncryption {
    pub algorithm: Algorithm,
    pub key_id: KeyId,
    /// Random bytes that the key of the segment is derived from, in hexadecimal.
    pub salt: String,
}

/// A segment that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    pub header: SegmentHeader,
    pub marks: Vec<Mark>,
    /// The changes.
    pub content: Bytes,
}

/// Encodes a segment. The header's `bytes` and `encryption` are set here.
pub(super) fn encode(
    mut header: SegmentHeader,
    marks: &[Mark],
    content: &[u8],
    key: Option<&EncryptionKey>,
) -> Vec<u8> {
    let marks = serde_json::to_vec(marks).expect("marks are JSON");
    let mut body = Vec::with_capacity(4 + marks.len() + content.len());
    body.extend_from_slice(&u32::try_from(marks.len()).unwrap_or(u32::MAX).to_be_bytes());
    body.extend_from_slice(&marks);
    body.extend_from_slice(content);
    header.bytes = body.len() as u64;
    let salt = rand::random::<[u8; SALT_BYTES]>();
    header.encryption = key.map(|key| SegmentEncryption {
        algorithm: Algorithm::Aes256Gcm,
        key_id: key.id(),
        salt: to_hex(&salt),
    });
    let compressed = zstd::bulk::compress(&body, zstd::DEFAULT_COMPRESSION_LEVEL).expect("memory takes all");
    drop(body);
    let header = serde_json::to_vec(&header).expect("a header is JSON");
    let mut object = MAGIC.to_vec();
    object.extend_from_slice(&u32::try_from(header.len()).unwrap_or(u32::MAX).to_be_bytes());
    object.extend_from_slice(&header);
    match key {
        Some(key) => {
            let context = object.clone();
            part::seal(key, &salt, &context, &compressed, &mut object);
        }
        None => object.extend_from_slice(&compressed),
    }
    let digest = Sha256::digest(&object);
    object.extend_from_slice(&digest);
    object
}

/// The object of a segment, for errors about it.
pub(super) struct SegmentObject<'a> {
    pub(super) cluster: &'a str,
    pub(super) name: SegmentName,
}

impl SegmentObject<'_> {
    fn damaged(&self, what: impl Into<String>) -> ObjectError {
        ObjectError::Damaged {
            object: self.name.object(self.cluster),
            what: what.into(),
        }
    }

    /// Decodes the header from the first bytes of the object; returns its end, too.
    pub(super) fn header(&self, object: &[u8]) -> Result<(SegmentHeader, usize), ObjectError> {
        /// The field that all formats have.
        #[derive(Deserialize)]
        struct AnyFormat {
            format: u32,
        }
        let undecodable = |error: serde_json::Error| self.damaged(format!("its header does not decode: {error}"));
        let not_one = || self.damaged("it is not a segment of an archive");
        let (prefix, rest) = object.split_at_checked(PREFIX_BYTES).ok_or_else(not_one)?;
        let length = prefix.strip_prefix(&MAGIC).ok_or_else(not_one)?;
        let length = <[u8; 4]>::try_from(length).map_err(|_| not_one())?;
        let length = u32::from_be_bytes(length) as usize;
        let header = rest
            .get(..length)
            .filter(|_| length <= MAX_HEADER_BYTES)
            .ok_or_else(not_one)?;
        let AnyFormat { format } = serde_json::from_slice(header).map_err(undecodable)?;
        if format > FORMAT {
            return Err(ObjectError::Newer {
                object: self.name.object(self.cluster),
                found: format,
                newest: FORMAT,
            });
        }
        let header: SegmentHeader = serde_json::from_slice(header).map_err(undecodable)?;
        let found = SegmentName {
            first: header.first,
            last: header.last,
        };
        if found != self.name || header.cluster_id != self.cluster {
            return Err(self.damaged(format!("it is the segment {}", found.object(&header.cluster_id))));
        }
        Ok((header, PREFIX_BYTES + length))
    }

    /// Decodes the whole object. Fails if it is not what was written, or if its key is not among `keys`.
    pub(super) fn decode(&self, object: &Bytes, keys: &[EncryptionKey]) -> Result<Segment, ObjectError> {
        let (header, begin) = self.header(object)?;
        let end = object.len().checked_sub(CHECKSUM_BYTES).filter(|end| *end >= begin);
        let end = end.ok_or_else(|| self.damaged("it is truncated"))?;
        let digest = Sha256::digest(&object[..end]);
        if digest[..] != object[end..] {
            return Err(self.damaged("its SHA-256 is not that at its end"));
        }
        let sealed = &object[begin..end];
        let opened = match &header.encryption {
            None => None,
            Some(encryption) => Some(self.open(encryption, &object[..begin], sealed, keys)?),
        };
        let body = self.decompress(opened.as_deref().unwrap_or(sealed), header.bytes)?;
        let (marks, content) = body
            .split_first_chunk()
            .and_then(|(length, rest)| {
                let marks = u32::from_be_bytes(*length) as usize;
                rest.get(..marks).map(|json| (json, 4 + marks))
            })
            .ok_or_else(|| self.damaged("it has no marks"))?;
        let marks: Vec<Mark> =
            serde_json::from_slice(marks).map_err(|error| self.damaged(format!("its marks do not decode: {error}")))?;
        let is_whole = marks.last().is_some_and(|mark| mark.revision == header.last);
        if !is_whole || !marks.is_sorted_by_key(|mark| (mark.time, mark.revision)) {
            return Err(self.damaged("its marks are not those of its revisions"));
        }
        let content = Bytes::from(body).slice(content..);
        Ok(Segment { header, marks, content })
    }

    fn open(
        &self,
        encryption: &SegmentEncryption,
        header: &[u8],
        sealed: &[u8],
        keys: &[EncryptionKey],
    ) -> Result<Vec<u8>, ObjectError> {
        let SegmentEncryption { key_id, salt, .. } = encryption;
        let Some(key) = keys.iter().find(|key| key.id() == *key_id) else {
            return Err(ObjectError::no_key(&self.name.object(self.cluster), *key_id, keys));
        };
        let salt = from_hex(salt).and_then(|salt| <[u8; SALT_BYTES]>::try_from(salt).ok());
        let opened = salt.and_then(|salt| part::open(key, &salt, header, sealed));
        opened.ok_or_else(|| self.damaged("it is not what was encrypted"))
    }

    fn decompress(&self, compressed: &[u8], len: u64) -> Result<Vec<u8>, ObjectError> {
        let mut body = Vec::new();
        let read = zstd::stream::read::Decoder::with_buffer(compressed).and_then(|mut decoder| {
            decoder.window_log_max(MAX_WINDOW_LOG)?;
            // One byte more shows that it is too long.
            decoder.take(len.saturating_add(1)).read_to_end(&mut body)
        });
        match read {
            Ok(_) if body.len() as u64 == len => Ok(body),
            Ok(read) => Err(self.damaged(format!("it holds {read} bytes, expected {len}"))),
            Err(error) => Err(self.damaged(format!("it does not decompress: {error}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: SegmentName = SegmentName { first: 5, last: 9 };
    const OBJECT: SegmentObject<'static> = SegmentObject {
        cluster: "1f",
        name: NAME,
    };

    fn header() -> SegmentHeader {
        SegmentHeader {
            format: FORMAT,
            cluster_id: "1f".to_owned(),
            first: NAME.first,
            last: NAME.last,
            previous: Some(4),
            first_time: 1_000,
            last_time: 2_000,
            until: 2_500,
            bytes: 0,
            compression: Compression::Zstd,
            encryption: None,
        }
    }

    fn marks() -> [Mark; 2] {
        [(7, 1_000, Some(0)), (9, 2_000, None)].map(|(revision, time, after)| Mark { revision, time, after })
    }

    fn content() -> Vec<u8> {
        (0..3_000_000_u32)
            .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect()
    }

    fn key(byte: u8) -> EncryptionKey {
        EncryptionKey::new(&[byte; 32])
    }

    #[test]
    fn segment_is_read_back_and_says_what_it_is_before_it_is_read() {
        for key in [None, Some(key(1))] {
            let object = Bytes::from(encode(header(), &marks(), &content(), key.as_ref()));
            let (found, _) = OBJECT.header(&object[..HEADER_READ_BYTES as usize]).unwrap();
            let keys: Vec<_> = key.into_iter().collect();
            let segment = OBJECT.decode(&object, &keys).unwrap();
            assert_eq!((segment.header, segment.marks), (found.clone(), marks().to_vec()));
            assert!(segment.content == content());
            assert_eq!(
                found.encryption.map(|it| it.key_id),
                keys.first().map(EncryptionKey::id)
            );
        }
    }

    #[test]
    fn empty_content_is_read_back_encrypted() {
        let object = Bytes::from(encode(header(), &marks(), &[], Some(&key(1))));
        assert_eq!(OBJECT.decode(&object, &[key(2), key(1)]).unwrap().content, Bytes::new());
    }

    #[test]
    fn damaged_and_foreign_segments_are_refused_by_name() {
        for key in [None, Some(key(1))] {
            let object = encode(header(), &marks(), &content(), key.as_ref());
            let keys: Vec<_> = key.clone().into_iter().collect();
            let flip = |at: usize| {
                let mut flipped = object.clone();
                flipped[at] ^= 4;
                flipped
            };
            let cut = |len: usize| object[..len].to_vec();
            let foreign = SegmentHeader { last: 8, ..header() };
            let other_cluster = SegmentHeader {
                cluster_id: "2".to_owned(),
                ..header()
            };
            let marks_of_others = [Mark {
                revision: 8,
                time: 0,
                after: None,
            }];
            let damaged = [
                flip(3),
                flip(30),
                flip(object.len() / 2),
                flip(object.len() - 1),
                cut(object.len() - 1),
                cut(40),
                cut(5),
                Vec::new(),
                encode(foreign, &marks(), &content(), key.as_ref()),
                encode(other_cluster, &marks(), &content(), key.as_ref()),
                encode(header(), &marks_of_others, &content(), key.as_ref()),
            ];
            for damaged in damaged {
                let error = OBJECT.decode(&damaged.into(), &keys).unwrap_err().to_string();
                let text = "archive/1f/0000000000000000005-0000000000000000009 is damaged: ";
                assert!(error.starts_with(text), "{error}");
            }
        }
    }

    /// A writer of objects that lacks the key cannot make another segment of one.
    #[test]
    fn header_of_an_encrypted_segment_is_authenticated() {
        let object = encode(header(), &marks(), &content(), Some(&key(1)));
        let text = String::from_utf8_lossy(&object[..400]).into_owned();
        let at = text.find("\"previous\":4").unwrap() + "\"previous\":".len();
        let mut forged = object[..object.len() - CHECKSUM_BYTES].to_vec();
        forged[at] = b'3';
        let digest = Sha256::digest(&forged);
        forged.extend_from_slice(&digest);
        let error = OBJECT.decode(&forged.into(), &[key(1)]).unwrap_err().to_string();
        assert!(error.ends_with("is damaged: it is not what was encrypted"), "{error}");
        let error = OBJECT.decode(&object.into(), &[key(2)]).unwrap_err();
        assert!(matches!(error, ObjectError::NoKey { .. }), "{error}");
    }

    #[test]
    fn segment_of_a_newer_format_is_refused() {
        let newer = SegmentHeader {
            format: FORMAT + 1,
            ..header()
        };
        let object = encode(newer, &marks(), &[], None);
        let error = OBJECT.decode(&object.into(), &[]).unwrap_err().to_string();
        assert!(
            error.ends_with("has format 2, and this program reads formats up to 1"),
            "{error}"
        );
    }

    /// A format that users have stored. Other programs have made the fixture, by the description of the format.
    #[test]
    fn format_stays() {
        let stored = include_bytes!("segment/fixture");
        let segment = OBJECT.decode(&Bytes::from_static(stored), &[key(7)]).unwrap();
        assert_eq!(
            (segment.marks, &segment.content[..]),
            (marks().to_vec(), &b"content"[..])
        );
        let encryption = segment.header.encryption.clone();
        let bytes = segment.header.bytes;
        assert_eq!(
            segment.header,
            SegmentHeader {
                encryption,
                bytes,
                ..header()
            }
        );
    }
}
