//! Appends archived changes to a store that was restored from a snapshot.

use std::collections::HashMap;

use anyhow::ensure;
use bytes::Bytes;

use super::content::{ArchivedRevision, decode_next};
use crate::snapshot::{
    Importer, LeaseTime, RestoreOptions, RestoreSummary, RevisionEvents, UnfitSnapshot, VersionChecksum, bumped,
    sum_revision, verify_since,
};
use engine::LogAndRows;
use etcd_types::types::Revision;

/// Bytes of changes that are appended together.
const BATCH_BYTES: usize = 1 << 20;

/// The time to live of a lease that had ended before the source was asked for it, in seconds: its keys stay for as long after the start.
const UNKNOWN_TTL: i64 = 60;

/// How changes are appended.
#[derive(Debug, Clone)]
pub struct ReplayOptions {
    /// How the store was made; it must have been made without a bump.
    pub restore: RestoreOptions,
    /// The revision of the snapshot.
    pub base: Revision,
    /// The revision to reach.
    pub goal: Revision,
    /// The number by which the newest revision is raised in the end, which becomes the compacted one then; 0 changes nothing.
    pub bump_revision: u64,
}

/// A store that archived changes are appended to. It can be interrupted at any time: all changes after the snapshot are then given to
/// another one, which appends those that the store lacks.
pub struct Replay {
    importer: Importer,
    options: ReplayOptions,
    /// The newest revision that was given.
    given: Revision,
    /// Of all versions that were given.
    checksum: VersionChecksum,
    /// The times to live of leases that were given.
    ttls: HashMap<i64, i64>,
}

impl Replay {
    /// Returns the revision that an interrupted restore has reached. Deposes one that is still under way.
    pub async fn reached(engine: LogAndRows, restore: &RestoreOptions) -> anyhow::Result<Revision> {
        let importer = Importer::open(engine.log, engine.rows, restore).await?;
        Ok(importer.revision())
    }

    /// Opens a store that was restored, and that may have got some of the changes.
    pub async fn open(engine: LogAndRows, options: ReplayOptions) -> anyhow::Result<Self> {
        let importer = Importer::open(engine.log, engine.rows, &options.restore).await?;
        let (reached, base) = (importer.revision(), options.base);
        ensure!(
            reached >= base,
            UnfitSnapshot(format!(
                "the store is at revision {reached}, and the backup at {base}: it is not restored yet"
            ))
        );
        Ok(Self {
            importer: importer.checking_versions(),
            given: base,
            checksum: VersionChecksum::default(),
            ttls: HashMap::new(),
            options,
        })
    }

    /// Appends the changes of a segment up to the goal, as far as the store lacks them. Fails if there is something missing before them.
    pub async fn apply(&mut self, mut content: Bytes) -> anyhow::Result<()> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while let Some(ArchivedRevision { events, leases }) = decode_next(&mut content)? {
            if events.revision <= self.given {
                continue;
            }
            if events.revision > self.options.goal {
                break;
            }
            ensure!(
                events.revision == self.given + 1,
                UnfitSnapshot(format!(
                    "revision {} follows revision {} in the archive",
                    events.revision, self.given
                ))
            );
            self.given = events.revision;
            self.ttls.extend(leases);
            sum_revision(events.revision, &events.kvs, &mut self.checksum);
            if events.revision <= self.importer.revision() {
                continue;
            }
            bytes += events.kvs.iter().map(|kv| kv.key.len() + kv.value.len()).sum::<usize>();
            batch.push(events);
            if bytes >= BATCH_BYTES {
                self.append(std::mem::take(&mut batch)).await?;
                bytes = 0;
            }
        }
        self.append(batch).await
    }

    async fn append(&mut self, batch: Vec<RevisionEvents>) -> anyhow::Result<()> {
        let missing = self.importer.missing_leases(&batch);
        let granted: Vec<_> = missing.into_iter().map(|id| self.lease(id)).collect();
        self.importer.grant(&granted).await?;
        self.importer.append(batch).await
    }

    /// Returns a lease with all of its time.
    fn lease(&self, id: i64) -> LeaseTime {
        let ttl = self.ttls.get(&id).copied().unwrap_or(UNKNOWN_TTL);
        LeaseTime {
            id,
            ttl,
            remaining: ttl,
        }
    }

    /// Compares what is stored with what was given, and ends. Fails if the goal is not reached.
    pub async fn finish(mut self) -> anyhow::Result<RestoreSummary> {
        let ReplayOptions {
            base,
            goal,
            bump_revision,
            ..
        } = self.options;
        let given = self.given;
        ensure!(
            given == goal,
            UnfitSnapshot(format!("the changes end at revision {given}, not at {goal}"))
        );
        let revision = bumped(goal, bump_revision)?;
        if goal > base && self.importer.revision() <= goal {
            // Keep-alives are not archived: no lease ends sooner than its holder may expect.
            let leases = self.importer.leases().into_iter();
            let leases: Vec<_> = leases
                .map(|(id, ttl)| LeaseTime {
                    id,
                    ttl,
                    remaining: ttl,
                })
                .collect();
            self.importer.set_leases(&leases).await?;
        }
        let mut versions = self.checksum.versions;
        // A compaction comes after the comparison, and may have deleted versions.
        if bump_revision == 0 || self.importer.compacted() < revision {
            self.importer.flush().await?;
            tracing::info!(revision = goal, "comparing the new store with the archive");
            versions = verify_since(&self.importer.view(), base, self.checksum).await?;
        }
        if revision > self.importer.revision() {
            self.importer.raise(revision).await?;
        }
        ensure!(
            self.importer.revision() == revision,
            UnfitSnapshot(format!(
                "the store is at revision {}, expected {revision}",
                self.importer.revision()
            ))
        );
        if bump_revision > 0 && self.importer.compacted() < revision {
            self.importer.compact(revision).await?;
        }
        let summary = RestoreSummary {
            revision,
            compacted: self.importer.compacted(),
            versions,
            leases: self.importer.leases().len(),
        };
        self.importer.finish().await?;
        Ok(summary)
    }
}
