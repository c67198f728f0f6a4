//! A snapshot of a store, which comes in many messages: what is true of each, and what those of two servers have in common.

use sha2::{Digest as _, Sha256};
use wire::etcdserverpb as pb;

/// Bytes of all blobs but the last two.
const BLOB_BYTES: usize = 32 << 10;
/// The file consists of whole ones.
const SECTOR_BYTES: usize = 512;

/// The parts of a snapshot that are compared. The file itself differs from server to server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The version of the storage, in every message.
    pub version: String,
    /// True if the messages have headers.
    pub has_headers: bool,
}

/// Reads the messages of a snapshot.
#[derive(Debug, Default)]
pub struct Reader {
    seen: Snapshot,
    hash: Sha256,
    /// Bytes that were hashed.
    read: usize,
    /// Bytes of the file.
    whole: usize,
    /// The newest message: the last one of all is the hash.
    last: Option<pb::SnapshotResponse>,
    /// True if the newest blob that was hashed was not a whole one: only the hash may follow.
    ended: bool,
}

impl Reader {
    /// Takes the next message.
    ///
    /// # Errors
    ///
    /// It cannot follow those before.
    pub fn push(&mut self, message: pb::SnapshotResponse) -> Result<(), String> {
        let seen = Snapshot {
            version: message.version.clone(),
            has_headers: message.header.is_some(),
        };
        match self.last.replace(message) {
            None => self.seen = seen,
            Some(before) => {
                if seen != self.seen {
                    return Err(format!("{:?} of one snapshot and {seen:?}", self.seen));
                }
                self.hash(&before)?;
            }
        }
        Ok(())
    }

    /// Returns what is compared, when all messages have come.
    ///
    /// # Errors
    ///
    /// They are not a whole snapshot.
    pub fn end(self) -> Result<Snapshot, String> {
        let Self {
            seen,
            hash,
            read,
            whole,
            last,
            ..
        } = self;
        let last = last.ok_or("a snapshot without a message")?;
        if read == 0 || read != whole || !read.is_multiple_of(SECTOR_BYTES) {
            return Err(format!("{read} of {whole} bytes of a snapshot"));
        }
        if last.remaining_bytes != 0 || last.blob != hash.finalize().as_slice() {
            return Err(format!("the last message of a snapshot is not its hash: {last:?}"));
        }
        Ok(seen)
    }

    fn hash(&mut self, message: &pb::SnapshotResponse) -> Result<(), String> {
        let blob = &message.blob;
        if self.ended || blob.len() > BLOB_BYTES {
            return Err(format!("a blob of {} bytes behind {}", blob.len(), self.read));
        }
        self.hash.update(blob);
        self.read += blob.len();
        self.ended = blob.len() < BLOB_BYTES;
        let whole = usize::try_from(message.remaining_bytes).map_or(usize::MAX, |remaining| self.read + remaining);
        if self.whole != 0 && whole != self.whole {
            return Err(format!("{} bytes of a snapshot, then {whole}", self.whole));
        }
        self.whole = whole;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Change<'a> = &'a dyn Fn(&mut Vec<pb::SnapshotResponse>);

    /// The messages of a snapshot of `whole` bytes.
    fn messages(whole: usize) -> Vec<pb::SnapshotResponse> {
        let file = vec![7; whole];
        let mut messages: Vec<_> = file
            .chunks(BLOB_BYTES)
            .scan(whole, |remaining, blob| {
                *remaining -= blob.len();
                Some(message(*remaining, blob))
            })
            .collect();
        messages.push(message(0, &Sha256::digest(&file)));
        messages
    }

    fn message(remaining: usize, blob: &[u8]) -> pb::SnapshotResponse {
        pb::SnapshotResponse {
            remaining_bytes: remaining as u64,
            blob: blob.to_vec().into(),
            version: "3.6.0".to_owned(),
            header: None,
        }
    }

    fn read(messages: Vec<pb::SnapshotResponse>) -> Result<Snapshot, String> {
        let mut reader = Reader::default();
        for message in messages {
            reader.push(message)?;
        }
        reader.end()
    }

    #[test]
    fn whole_snapshot_is_told_from_others() {
        let seen = read(messages(3 * BLOB_BYTES + SECTOR_BYTES)).unwrap();
        assert_eq!(
            seen,
            Snapshot {
                version: "3.6.0".to_owned(),
                has_headers: false
            }
        );
        assert_eq!(read(messages(2 * BLOB_BYTES)), Ok(seen));
        let broken = |change: Change<'_>| {
            let mut messages = messages(3 * BLOB_BYTES + SECTOR_BYTES);
            change(&mut messages);
            read(messages).unwrap_err()
        };
        let cases: [(Change<'_>, &str); 8] = [
            (&|all| all.clear(), "without a message"),
            (&|all| all.truncate(4), "bytes of a snapshot"),
            (&|all| drop(all.remove(1)), "bytes of a snapshot, then"),
            (&|all| all[1].remaining_bytes = 1, "bytes of a snapshot, then"),
            (&|all| all[2].version.clear(), "of one snapshot and"),
            (
                &|all| all.insert(0, message(3 * BLOB_BYTES + SECTOR_BYTES, b"")),
                "a blob of 32768 bytes behind",
            ),
            (&|all| all[4].blob = vec![0; 32].into(), "is not its hash"),
            (&|all| all[4].remaining_bytes = 1, "is not its hash"),
        ];
        for (change, wanted) in cases {
            let error = broken(change);
            assert!(error.contains(wanted), "{error}");
        }
        assert!(read(messages(SECTOR_BYTES + 1)).is_err());
    }
}
