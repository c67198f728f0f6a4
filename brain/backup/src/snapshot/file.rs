//! A snapshot on disk: a database, followed by its checksum.

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use prost::Message as _;
use sha2::{Digest as _, Sha256};

use super::FileError;
use super::restore::compacted;
use super::schema::{self, VersionKey};
use bbolt::{Reader, VisitedPart};
use etcd_types::pb::mvccpb;
use etcd_types::types::Revision;

/// Bytes of the checksum, SHA-256.
pub(crate) const CHECKSUM_BYTES: u64 = 32;

/// The length of a database is a multiple of this, so the rest tells whether a checksum follows.
const DATABASE_ALIGNMENT: u64 = 512;

/// A file that is open and complete.
#[derive(Debug)]
pub struct SnapshotFile {
    file: File,
    /// Without the checksum.
    len: u64,
    /// SHA-256 of the database, if it was verified.
    digest: Option<[u8; 32]>,
}

/// The summary of a snapshot, as etcd gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotStatus {
    /// The checksum of all buckets, keys and values.
    pub hash: u32,
    /// The newest revision of any key.
    pub revision: Revision,
    /// The number of keys at that revision.
    pub total_keys: u64,
    /// Bytes of the database.
    pub total_size: u64,
    /// The version of etcd that wrote it; empty for one before 3.6.
    pub version: String,
}

impl SnapshotFile {
    /// Opens a file and verifies its checksum, unless `skip_hash_check`. Fails if it has none, if it does not match, or if the file
    /// cannot be read.
    pub fn open(path: &Path, skip_hash_check: bool) -> Result<Self, FileError> {
        Self::of(File::open(path)?, skip_hash_check)
    }

    /// As [`open`](Self::open), of a file that is open.
    pub fn of(file: File, skip_hash_check: bool) -> Result<Self, FileError> {
        let total = file.metadata()?.len();
        let has_checksum = total % DATABASE_ALIGNMENT == CHECKSUM_BYTES;
        let len = if has_checksum { total - CHECKSUM_BYTES } else { total };
        if !has_checksum && !skip_hash_check {
            return Err(FileError::NoChecksum);
        }
        let mut digest = None;
        if !skip_hash_check {
            let found = hash(&file, len)?;
            let mut expected = vec![0; CHECKSUM_BYTES as usize];
            file.read_exact_at(&mut expected, len)?;
            if found != expected[..] {
                return Err(FileError::Checksum {
                    found: hex(&found),
                    expected: hex(&expected),
                });
            }
            digest = Some(found);
        }
        Ok(Self { file, len, digest })
    }

    /// Returns the SHA-256 of the database. Fails if the file cannot be read.
    pub fn digest(&self) -> Result<[u8; 32], FileError> {
        match self.digest {
            Some(digest) => Ok(digest),
            None => hash(&self.file, self.len),
        }
    }

    /// Returns the bytes of the database.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.len
    }

    /// Reads the whole database, and returns the revision that a store made of it has as well. Fails if it is damaged.
    pub fn check(&self) -> anyhow::Result<(SnapshotStatus, Revision)> {
        let status = self.status()?;
        let compacted = compacted(&self.database()?)?;
        let revision = status.revision.max(compacted).max(1);
        Ok((status, revision))
    }

    /// Opens the database. Fails if it is none.
    pub(super) fn database(&self) -> Result<Reader<'_, File>, FileError> {
        Ok(Reader::open(&self.file, self.len)?)
    }

    /// Reads the whole database. Fails if it is damaged.
    pub fn status(&self) -> Result<SnapshotStatus, FileError> {
        let database = self.database()?;
        let (mut hash, mut revision) = (0, 0);
        // Hashes of keys, which may be long.
        let mut live = HashSet::new();
        database.visit(|visited| {
            let (bucket, key, value) = match visited {
                VisitedPart::Bucket(name) => {
                    hash = crc32c::crc32c_append(hash, name);
                    return Ok(());
                }
                VisitedPart::Pair { bucket, key, value } => (bucket, key, value),
            };
            hash = crc32c::crc32c_append(hash, &key);
            hash = crc32c::crc32c_append(hash, &value);
            if bucket != schema::KEY {
                return Ok(());
            }
            let version = VersionKey::decode(&key)?;
            revision = version.revision;
            let kv = mvccpb::KeyValue::decode(value).map_err(|error| {
                schema::content(format!("a version at revision {revision} does not decode: {error}"))
            })?;
            let key = xxhash_rust::xxh3::xxh3_128(&kv.key);
            if version.is_tombstone {
                live.remove(&key);
            } else {
                live.insert(key);
            }
            Ok::<(), FileError>(())
        })?;
        let version = database.get(schema::META, schema::STORAGE_VERSION)?;
        Ok(SnapshotStatus {
            hash,
            revision,
            total_keys: live.len() as u64,
            total_size: database.size(),
            version: version.map_or_else(String::new, |version| String::from_utf8_lossy(&version).into_owned()),
        })
    }
}

impl std::fmt::Display for SnapshotStatus {
    /// As `etcdutl snapshot status -w simple`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            hash,
            revision,
            total_keys,
            total_size,
            version,
        } = self;
        write!(
            f,
            "{hash:x}, {revision}, {total_keys}, {}, {version}",
            human(*total_size)
        )
    }
}

/// Formats bytes as etcd's tools do: decimal units, and one decimal place for values below ten.
fn human(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    if bytes < 10 {
        return format!("{bytes} B");
    }
    let exponent = usize::try_from(bytes.ilog(1000)).unwrap_or_default();
    let value = (bytes as f64 / 1000_f64.powf(exponent as f64) * 10.0 + 0.5).floor() / 10.0;
    let unit = UNITS.get(exponent).copied().unwrap_or_default();
    if value < 10.0 {
        format!("{value:.1} {unit}")
    } else {
        format!("{value:.0} {unit}")
    }
}

/// Returns the SHA-256 of the first `len` bytes.
fn hash(file: &File, len: u64) -> Result<[u8; 32], FileError> {
    let mut hasher = Sha256::new();
    let (mut at, mut buffer) = (0, vec![0; 1 << 20]);
    while at < len {
        let most = usize::try_from(len - at).unwrap_or(usize::MAX).min(buffer.len());
        file.read_exact_at(&mut buffer[..most], at)?;
        hasher.update(&buffer[..most]);
        at += most as u64;
    }
    Ok(hasher.finalize().into())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::human;

    #[test]
    fn sizes_are_printed_as_by_etcd() {
        for (bytes, text) in [
            (0, "0 B"),
            (9, "9 B"),
            (10, "10 B"),
            (999, "999 B"),
            (1_000, "1.0 kB"),
            (20_480, "20 kB"),
            (2_097_152, "2.1 MB"),
            (82_854_982, "83 MB"),
            (8_589_934_592, "8.6 GB"),
        ] {
            assert_eq!(human(bytes), text);
        }
    }
}
