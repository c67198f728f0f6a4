//! A checksum of versions that does not depend on their order: that of a file equals that of the store made of it.

use etcd_types::types::Revision;

/// A version as the checksum takes it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SummedVersion<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) revision: Revision,
    /// Create revision, version, lease and value; `None` for a deletion.
    pub(crate) put: Option<(Revision, i64, i64, &'a [u8])>,
}

/// The checksum, and the number of versions in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct VersionChecksum {
    pub(crate) versions: u64,
    pub(crate) sum: u128,
}

impl VersionChecksum {
    pub(crate) fn add(&mut self, version: &SummedVersion<'_>) {
        let mut hasher = xxhash_rust::xxh3::Xxh3::new();
        let mut field = |bytes: &[u8]| {
            hasher.update(&bytes.len().to_be_bytes());
            hasher.update(bytes);
        };
        field(version.key);
        field(&version.revision.to_be_bytes());
        if let Some((create_revision, number, lease, value)) = version.put {
            for number in [create_revision, number, lease] {
                field(&number.to_be_bytes());
            }
            field(value);
        }
        self.sum = self.sum.wrapping_add(hasher.digest128());
        self.versions += 1;
    }
}
