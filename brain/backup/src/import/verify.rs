//! Compares all keys of the copy with those of the source, at one revision.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::ensure;
use bytes::Bytes;
use tokio::time::Instant;

use super::source::{PROGRESS_LOG_INTERVAL, Source, TooLong};
use crate::snapshot::{Importer, NewestVersions, SummedVersion, VersionChecksum};
use etcd_types::pb::etcdserverpb as pb;
use etcd_types::pb::mvccpb;
use etcd_types::types::{LeaseId, Revision};
use runtime::log_once::LogBackoff;

/// Keys of the first page, and of the largest one. etcd does not bound the bytes of an answer: small keys may be followed by large ones.
const FIRST_PAGE_KEYS: i64 = 64;
const MAX_PAGE_KEYS: i64 = 256;

/// Bytes of a page that are aimed at.
const PAGE_TARGET_BYTES: usize = 2 << 20;

/// The time after which a younger snapshot of the copy's rows is read.
const MAX_VIEW_AGE: Duration = Duration::from_secs(30);

/// Reads all keys of both stores at the copy's revision. Returns their checksum. Fails at the first key that differs, and with
/// `SourceCompacted` if the source has deleted the revision.
pub(super) async fn compare(source: &mut Source, importer: &mut Importer) -> anyhow::Result<VersionChecksum> {
    let mut walk = Comparison {
        from: Bytes::from_static(b"\0"),
        limit: FIRST_PAGE_KEYS,
        checksum: VersionChecksum::default(),
        lost: HashSet::new(),
        log: LogBackoff::every(PROGRESS_LOG_INTERVAL),
    };
    while !walk.compare(source, importer).await? {
        importer.refresh();
    }
    if !walk.lost.is_empty() {
        tracing::warn!(
            leases = walk.lost.len(),
            "keys name leases that neither the source nor the copy has: these keys do not expire, as in the source"
        );
    }
    Ok(walk.checksum)
}

struct Comparison {
    /// The key at which the walk continues.
    from: Bytes,
    /// Keys of a page.
    limit: i64,
    checksum: VersionChecksum,
    /// Leases of keys that neither the source nor the copy has.
    lost: HashSet<i64>,
    log: LogBackoff,
}

impl Comparison {
    /// Compares until the end, or until the snapshot of the copy's rows is old; returns true at the end.
    async fn compare(&mut self, source: &mut Source, importer: &Importer) -> anyhow::Result<bool> {
        let (view, begun) = (importer.view(), Instant::now());
        let mut stored = NewestVersions::from(&view, &self.from);
        loop {
            let range = pb::RangeRequest {
                key: self.from.clone(),
                range_end: b"\0".as_slice().into(),
                revision: view.revision,
                limit: self.limit,
                serializable: true,
                ..pb::RangeRequest::default()
            };
            let page = match source.range("read the keys of the source", range).await {
                Err(error) if error.is::<TooLong>() && self.limit > 1 => {
                    self.limit = (self.limit / 8).max(1);
                    continue;
                }
                page => page?,
            };
            for kv in &page.kvs {
                self.checksum.add(&SummedVersion {
                    key: &kv.key,
                    revision: kv.mod_revision,
                    put: Some((kv.create_revision, kv.version, kv.lease, &kv.value)),
                });
                let own = stored.next().await?;
                let is_equal = own.is_some_and(|(key, meta, value)| {
                    let own = (meta.create_revision, meta.mod_revision, meta.version, meta.lease.0);
                    let expected = (kv.create_revision, kv.mod_revision, kv.version, kv.lease);
                    key == kv.key && own == expected && value == kv.value
                });
                ensure!(
                    is_equal,
                    "the copy differs from the source at revision {}: {}; --restart copies it again",
                    view.revision,
                    name(&kv.key)
                );
                self.check_lease(source, importer, kv).await?;
            }
            self.log(view.revision);
            match page.kvs.last() {
                Some(last) if page.more => self.from = [&last.key[..], &[0]].concat().into(),
                _ => break,
            }
            self.adapt(page.kvs.iter().map(|kv| kv.key.len() + kv.value.len()).sum());
            if begun.elapsed() >= MAX_VIEW_AGE {
                return Ok(false);
            }
        }
        if let Some((key, ..)) = stored.next().await? {
            let (name, revision) = (name(&key), view.revision);
            anyhow::bail!("the copy has {name}, which the source does not have at revision {revision}");
        }
        Ok(true)
    }

    /// Fails if the copy lacks the lease of a key, unless the source does, too.
    async fn check_lease(
        &mut self,
        source: &mut Source,
        importer: &Importer,
        kv: &mvccpb::KeyValue,
    ) -> anyhow::Result<()> {
        if importer.has_lease(LeaseId(kv.lease)) || self.lost.contains(&kv.lease) {
            return Ok(());
        }
        ensure!(
            source.lease_times(&[kv.lease]).await?.is_empty(),
            "the copy has no lease {:x} for {}",
            kv.lease,
            name(&kv.key)
        );
        self.lost.insert(kv.lease);
        Ok(())
    }

    /// Sets the number of keys of the next page by the bytes of the last one.
    fn adapt(&mut self, bytes: usize) {
        if bytes < PAGE_TARGET_BYTES / 2 {
            self.limit = (self.limit * 2).min(MAX_PAGE_KEYS);
        } else if bytes > PAGE_TARGET_BYTES * 2 {
            self.limit = (self.limit / 2).max(1);
        }
    }

    fn log(&mut self, revision: Revision) {
        if self.log.is_due() {
            let keys = self.checksum.versions;
            tracing::info!(keys, revision, "comparing the copy with the source");
        }
    }
}

/// Names a key in an error, without all of a long one.
fn name(key: &[u8]) -> String {
    let start = &key[..key.len().min(256)];
    format!("the key \"{}\"", start.escape_ascii())
}
