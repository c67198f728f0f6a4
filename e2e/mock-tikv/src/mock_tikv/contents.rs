//! The stored contents, for tests that compare them, and damage to them.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{CommandError, MockTikv};
use crate::change::{ChangeContent, Kind, Version, Write};
use crate::mvcc::Tables;

impl MockTikv {
    /// The newest value of every key that has one, and the timestamp of its commit.
    #[must_use]
    pub fn contents(&self) -> BTreeMap<Bytes, (u64, Bytes)> {
        let tables = self.shared.engine.read();
        let newest = |(key, versions): (&Bytes, &Vec<Version>)| {
            let version = Tables::visible(versions, u64::MAX).filter(|version| version.kind() == Kind::Put)?;
            Some((key.clone(), (version.commit_ts, version.value.clone())))
        };
        tables.writes.iter().filter_map(newest).collect()
    }

    /// Replaces the bytes of a key's newest value, as a disk does that returns wrong data. Returns true if the key has a value.
    pub async fn damage(&self, key: &[u8], value: impl Into<Bytes>) -> Result<bool, CommandError> {
        let key = Bytes::copy_from_slice(key);
        let newest = Tables::visible(self.shared.engine.read().versions(&key), u64::MAX).cloned();
        let Some(newest) = newest.filter(|version| version.kind() == Kind::Put) else {
            return Ok(false);
        };
        let version = Version {
            value: value.into(),
            ..newest
        };
        let written = ChangeContent::Write(Write { key, version });
        self.shared.engine.change(vec![written]).await?;
        Ok(true)
    }
}
