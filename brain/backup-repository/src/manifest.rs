//! Manifests: one for each backup, in JSON. It is written last, so parts without one are no backup.

use std::str::FromStr;

use chrono::{DateTime, NaiveDateTime, SecondsFormat, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::ObjectError;
use crate::key::{KeyId, from_hex};

/// The newest format that is read, and the one that is written.
pub(crate) const FORMAT: u32 = 1;

/// The folders of manifests and of parts. They are part of the format.
pub(crate) const MANIFESTS: &str = "manifests";
pub(crate) const PARTS: &str = "parts";

/// The form of the time in a name, to the second.
const NAME_TIME: &str = "%Y%m%dT%H%M%S";

/// Digits of the revision in a name, so that names are ordered as revisions are.
const REVISION_DIGITS: usize = 19;

/// The name of a backup: its time and its revision. Names are ordered by both.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackupName {
    time: DateTime<Utc>,
    revision: i64,
}

impl BackupName {
    /// Returns the name of the backup at a revision. The time is rounded down to milliseconds.
    #[must_use]
    pub fn new(time: DateTime<Utc>, revision: i64) -> Self {
        let time = DateTime::from_timestamp_millis(time.timestamp_millis()).unwrap_or(time);
        Self { time, revision }
    }

    /// Returns the time at which the backup began.
    #[must_use]
    pub fn time(&self) -> DateTime<Utc> {
        self.time
    }

    /// Returns the revision of its content.
    #[must_use]
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Returns the object of its manifest.
    pub(crate) fn manifest(&self) -> String {
        format!("{MANIFESTS}/{self}.json")
    }

    /// Returns the folder of its parts.
    pub(crate) fn parts(&self) -> String {
        format!("{PARTS}/{self}")
    }
}

impl std::fmt::Display for BackupName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (time, millis) = (self.time.format(NAME_TIME), self.time.timestamp_subsec_millis());
        let revision = self.revision;
        f.pad(&format!("{time}.{millis:03}Z-{revision:0REVISION_DIGITS$}"))
    }
}

/// A text is not the name of a backup.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the name of a backup: see `kubebrain backup list`")]
pub struct NotAName(String);

impl FromStr for BackupName {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        let parse = || {
            let (time, revision) = text.split_once("Z-")?;
            let time = NaiveDateTime::parse_from_str(time, &format!("{NAME_TIME}%.3f")).ok()?;
            let name = Self::new(time.and_utc(), revision.parse().ok()?);
            // Each backup has one name.
            (name.revision >= 0 && name.to_string() == text).then_some(name)
        };
        parse().ok_or_else(|| NotAName(text.to_owned()))
    }
}

impl Serialize for BackupName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for BackupName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// The content of a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum BackupKind {
    /// A whole snapshot.
    Base,
}

/// How parts are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Compression {
    Zstd,
}

/// How parts are encrypted, and with which key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Encryption {
    pub algorithm: Algorithm,
    pub key_id: KeyId,
}

/// An algorithm that encrypts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Algorithm {
    #[serde(rename = "AES-256-GCM")]
    Aes256Gcm,
}

/// A digest, in hexadecimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sha256Digest(pub [u8; 32]);

impl std::fmt::Display for Sha256Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Serialize for Sha256Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Sha256Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = from_hex(&text).and_then(|bytes| bytes.try_into().ok());
        let digest = bytes.map(Sha256Digest);
        digest.ok_or_else(|| serde::de::Error::custom(format!("{text:?} is not a SHA-256")))
    }
}

/// The snapshot as the member sent it: a database of etcd, and its checksum.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotSummary {
    pub bytes: u64,
    pub sha256: Sha256Digest,
    /// The version of etcd's format.
    pub version: String,
}

/// An object that holds a part of the snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PartSummary {
    /// The object, below the destination.
    pub object: String,
    /// Its length.
    pub bytes: u64,
    pub sha256: Sha256Digest,
    /// Bytes of the snapshot in it.
    pub snapshot_bytes: u64,
}

/// A backup: what it holds, and the objects that it consists of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    pub format: u32,
    pub kind: BackupKind,
    pub name: BackupName,
    /// The time at which it began, for readers: the name holds it, too.
    pub time: String,
    pub revision: i64,
    /// The id of the cluster, in hexadecimal.
    pub cluster_id: String,
    /// In the header of each part, so that parts of different attempts are not mixed.
    pub run_id: RunId,
    pub snapshot: SnapshotSummary,
    pub compression: Compression,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<Encryption>,
    /// The request that it was made for. Programs that do not know this field can read the backup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    pub parts: Vec<PartSummary>,
}

/// The id of one attempt to make a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunId(pub [u8; 16]);

impl RunId {
    /// Returns the object of a part. Two attempts have no object in common.
    pub(crate) fn part(self, name: &BackupName, number: u32) -> String {
        let attempt = crate::key::to_hex(&self.0[..4]);
        format!("{}/{number:06}-{attempt}", name.parts())
    }
}

impl Serialize for RunId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&crate::key::to_hex(&self.0))
    }
}

impl<'de> Deserialize<'de> for RunId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = from_hex(&text).and_then(|bytes| bytes.try_into().ok());
        bytes
            .map(RunId)
            .ok_or_else(|| serde::de::Error::custom(format!("{text:?} is not the id of a run")))
    }
}

impl Manifest {
    /// Returns the time as the manifest holds it.
    pub(crate) fn time_of(name: &BackupName) -> String {
        name.time().to_rfc3339_opts(SecondsFormat::Millis, true)
    }

    /// Returns the bytes of all its parts.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).fold(0, u64::saturating_add)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut json = serde_json::to_vec_pretty(self).expect("a manifest is JSON");
        json.push(b'\n');
        json
    }

    /// Decodes the manifest of `name`. Fails if it is of a newer format, of another backup, or contradicts itself.
    pub(crate) fn decode(name: &BackupName, json: &[u8]) -> Result<Self, ObjectError> {
        /// The field that all formats have.
        #[derive(Deserialize)]
        struct AnyFormat {
            format: u32,
        }
        let damaged = |what: String| ObjectError::Damaged {
            object: name.manifest(),
            what,
        };
        let undecodable = |error: serde_json::Error| damaged(format!("it does not decode: {error}"));
        let AnyFormat { format } = serde_json::from_slice(json).map_err(undecodable)?;
        if format > FORMAT {
            return Err(ObjectError::Newer {
                object: name.manifest(),
                found: format,
                newest: FORMAT,
            });
        }
        let manifest: Self = serde_json::from_slice(json).map_err(undecodable)?;
        match manifest.contradiction(name) {
            Some(what) => Err(damaged(what)),
            None => Ok(manifest),
        }
    }

    fn contradiction(&self, name: &BackupName) -> Option<String> {
        if self.name != *name {
            return Some(format!("it is the manifest of the backup {}", self.name));
        }
        if self.revision != name.revision() || self.time != Self::time_of(name) {
            let Self { time, revision, .. } = self;
            return Some(format!("it is of revision {revision} at {time}, unlike its name"));
        }
        for (number, part) in self.parts.iter().enumerate() {
            let expected = u32::try_from(number).map(|number| self.run_id.part(name, number));
            if !expected.is_ok_and(|expected| expected == part.object) {
                return Some(format!("its part {number} is the object {:?}", part.object));
            }
        }
        let parts = self.parts.iter().map(|part| part.snapshot_bytes);
        let bytes = parts.fold(0, u64::saturating_add);
        let expected = self.snapshot.bytes;
        (bytes != expected).then(|| format!("its parts hold {bytes} bytes of the snapshot, expected {expected}"))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn name() -> BackupName {
        "20261129T113542.123Z-0000000000000012345".parse().unwrap()
    }

    fn manifest() -> Manifest {
        let run_id = RunId([0xab; 16]);
        Manifest {
            format: FORMAT,
            kind: BackupKind::Base,
            name: name(),
            time: Manifest::time_of(&name()),
            revision: 12_345,
            cluster_id: "1f".to_owned(),
            run_id,
            snapshot: SnapshotSummary {
                bytes: 30,
                sha256: Sha256Digest([1; 32]),
                version: "3.6.0".to_owned(),
            },
            compression: Compression::Zstd,
            encryption: Some(Encryption {
                algorithm: Algorithm::Aes256Gcm,
                key_id: KeyId([9; 8]),
            }),
            request_id: None,
            parts: [10, 20]
                .into_iter()
                .zip(0..)
                .map(|(snapshot_bytes, number)| PartSummary {
                    object: run_id.part(&name(), number),
                    bytes: 5,
                    sha256: Sha256Digest([2; 32]),
                    snapshot_bytes,
                })
                .collect(),
        }
    }

    #[test]
    fn names_are_ordered_by_time_and_revision() {
        let time = |text: &str| -> DateTime<Utc> { text.parse().unwrap() };
        let in_order = [
            BackupName::new(time("2026-11-29T11:35:42.122Z"), i64::MAX),
            BackupName::new(time("2026-11-29T11:35:42.123Z"), 9),
            BackupName::new(time("2026-11-29T11:35:42.123Z"), 10),
            BackupName::new(time("2026-11-29T11:35:43Z"), 1),
            BackupName::new(time("2027-01-01T00:00:00Z"), 0),
        ];
        let texts = in_order.each_ref().map(ToString::to_string);
        assert!(in_order.is_sorted() && texts.is_sorted(), "{texts:?}");
        for (name, text) in in_order.iter().zip(&texts) {
            assert_eq!(text.parse().as_ref(), Ok(name));
        }
        assert_eq!(texts[2], "20261129T113542.123Z-0000000000000000010");
    }

    #[test]
    fn other_texts_are_no_names() {
        for text in [
            "",
            "latest",
            "../manifests/x",
            "20261129T113542.123Z",
            "20261129T113542.123Z-12345",
            "20261129T113542.123Z--000000000000000001",
            "20261129T113542.123Z-+000000000000000001",
            "20261129T113542Z-0000000000000012345",
            "20261329T113542.123Z-0000000000000012345",
            "20261129T113542.123Z-0000000000000012345.json",
        ] {
            assert!(text.parse::<BackupName>().is_err(), "{text}");
        }
    }

    #[test]
    fn manifest_is_read_back() {
        let manifest = manifest();
        assert_eq!(Manifest::decode(&name(), &manifest.encode()).unwrap(), manifest);
        let plain = Manifest {
            encryption: None,
            request_id: Some("nightly".to_owned()),
            ..manifest
        };
        assert_eq!(Manifest::decode(&name(), &plain.encode()).unwrap(), plain);
    }

    /// A format that users have stored.
    #[test]
    fn format_stays() {
        let stored = include_str!("manifest/fixture.json");
        assert_eq!(String::from_utf8(manifest().encode()).unwrap(), stored);
    }

    #[test]
    fn manifest_of_a_newer_format_is_refused_whatever_it_holds() {
        let error = Manifest::decode(&name(), br#"{"format": 2, "kind": "other"}"#).unwrap_err();
        let text = "manifests/20261129T113542.123Z-0000000000000012345.json has format 2, and this program reads formats up to 1";
        assert_eq!(error.to_string(), text);
    }

    #[test]
    fn contradictions_are_damage() {
        type Change = fn(&mut Manifest);
        let changes: [(Change, &str); 6] = [
            (|m| m.name = BackupName::new(m.name.time(), 1), "of the backup"),
            (|m| m.revision = 1, "of revision 1"),
            (|m| m.time.clear(), "unlike its name"),
            (|m| m.parts.swap(0, 1), "its part 0 is the object"),
            (
                |m| m.parts[1].object = "parts/other".to_owned(),
                "its part 1 is the object",
            ),
            (|m| drop(m.parts.pop()), "hold 10 bytes"),
        ];
        for (change, text) in changes {
            let mut manifest = manifest();
            change(&mut manifest);
            let error = Manifest::decode(&name(), &manifest.encode()).unwrap_err().to_string();
            assert!(error.contains("is damaged") && error.contains(text), "{error}");
        }
        for json in ["", "{}", r#"{"format": 1}"#] {
            let error = Manifest::decode(&name(), json.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("does not decode"), "{error}");
        }
    }
}
