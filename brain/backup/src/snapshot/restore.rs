//! Makes a new store of a snapshot: its versions become records of the log, in the order of their revisions, as if they were written anew,
//! and rows are flushed from them as usual. So watches and compaction find in the log what they need.
//!
//! Nothing here decides whether the target may be used: the caller keeps servers away until all is done.

use std::collections::HashMap;
use std::fs::File;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use prost::Message as _;

use super::compare::{verify, verify_users};
use super::restore_target::{RestoreBatch, RestoreTarget};
use super::schema::{self, LeaseValue, VersionKey, content};
use super::version_sum::{SummedVersion, VersionChecksum};
use super::{SnapshotFile, Spool, users};
use bbolt::Reader;
use engine::LogAndRows;
use engine::rows::DynRows;
use etcd_types::pb::mvccpb;
use etcd_types::types::{LeaseId, Revision};
use mvcc::auth::longest_value;
use mvcc::lease::MAX_TTL;
use mvcc::record::{Change, Checkpoint, Compact, Entry, Grant, Keys};
use mvcc::row::Manifest;
use runtime::log_once::LogBackoff;

/// Bytes of one record.
pub(super) const RECORD_BYTES: usize = 1 << 20;
/// Leases of one record.
pub(super) const LEASES_PER_RECORD: usize = 4_096;

/// Interval between log lines about the progress.
const PROGRESS_LOG_INTERVAL: Duration = Duration::from_secs(5);

/// The content of the new store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestoreSummary {
    /// The revision.
    pub revision: Revision,
    /// The compacted revision; -1 if there was no compaction.
    pub compacted: Revision,
    /// The number of versions, deletions included.
    pub versions: u64,
    /// The number of leases.
    pub leases: usize,
}

/// The snapshot cannot be restored here, or the new store is not what it says.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UnfitSnapshot(pub(crate) String);

/// How a store is made of a snapshot.
#[derive(Debug, Clone, Default)]
pub struct RestoreOptions {
    /// The id of the member that writes it.
    pub member: u64,
    /// The number by which the newest revision is raised, which becomes the compacted one then; 0 changes nothing.
    pub bump_revision: u64,
    /// The directory whose medium must keep free space, if the store is on local disk.
    pub spool: Option<Spool>,
}

/// Writes the content of `file` to log and rows, which must both be new. At the end versions and leases are read back and compared. Fails
/// if the file is damaged, if it has content that cannot be stored here, or if log or rows fail; log and rows are useless then, except for
/// [`resume`]. The error is a [`FileError`](super::FileError) or an [`UnfitSnapshot`] if another attempt would fail, too.
pub async fn restore(
    file: &SnapshotFile,
    LogAndRows { log, rows }: LogAndRows,
    options: &RestoreOptions,
) -> anyhow::Result<RestoreSummary> {
    let target = RestoreTarget::begin(log, rows.clone(), options).await?;
    fill(file, target, (rows, options.bump_revision)).await
}

/// Goes on with log and rows that a [`restore`] of the same file, by the same member, has begun. Deposes one that is still under way. Fails
/// as that one, and if it was another file.
pub async fn resume(
    file: &SnapshotFile,
    LogAndRows { log, rows }: LogAndRows,
    options: &RestoreOptions,
) -> anyhow::Result<RestoreSummary> {
    let target = RestoreTarget::open(log, rows.clone(), options).await?;
    tracing::info!(
        revision = target.replica.revision(),
        "continuing an interrupted restore"
    );
    fill(file, target, (rows, options.bump_revision)).await
}

/// Writes what the store does not have yet. It has all of the snapshot up to its revision: a record holds whole revisions.
async fn fill(
    file: &SnapshotFile,
    mut target: RestoreTarget,
    (rows, bump): (DynRows, u64),
) -> anyhow::Result<RestoreSummary> {
    let database = file.database()?;
    let users = users::read(&database)?;
    let compacted = compacted(&database)?;
    let leases = leases(&database)?;
    let begun = target.replica.revision();
    let stored = target.replica.state().clone();
    let missing = leases
        .iter()
        .filter(|lease| !stored.leases().contains(LeaseId(lease.id)));
    let missing: Vec<LeaseValue> = missing.copied().collect();
    for some in missing.chunks(LEASES_PER_RECORD) {
        target
            .append(some.iter().flat_map(lease_changes).map(Entry::from).collect())
            .await?;
    }
    let (newest, written) = write_versions(&database, &mut target, compacted).await?;
    let revision = bumped(newest.max(compacted).max(1), bump)?;
    let compacted = if bump > 0 { revision } else { compacted };
    // It compacts once all is compared.
    let is_compared = compacted > 0 && target.replica.compacted() >= compacted;
    ensure!(
        begun <= revision,
        UnfitSnapshot(format!(
            "the store is at revision {begun}, the snapshot at {revision}: it is a part of another snapshot"
        ))
    );
    if revision > target.replica.revision() {
        // etcd has deleted all versions after the last one here, or there never were any.
        let nothing = Keys {
            revision,
            changes: Vec::new(),
        };
        target.append(vec![Change::Keys(nothing).into()]).await?;
    }
    if let Some(users) = &users {
        ensure!(
            longest_value(users) <= rows.max_value_len(),
            UnfitSnapshot("a user or a role is longer than this storage takes".to_owned())
        );
        target.append(vec![Change::Auth(users.clone()).into()]).await?;
    }
    target.flush().await?;
    target.take_flushed();
    if !is_compared {
        tracing::info!(versions = written.versions, "comparing the new store with the snapshot");
        verify(&target.replica, written, &leases).await?;
        verify_users(&target.replica, users.as_ref()).await?;
    }
    if compacted > 0 {
        target
            .append(vec![Change::Compact(Compact { revision: compacted }).into()])
            .await?;
    }
    target.finish().await?;
    let stored = rows.fence().await?.context("the new store has no manifest")?;
    let manifest = Manifest::decode(stored).context("decode the manifest of the new store")?;
    let stored = (manifest.revision, manifest.compacted);
    let expected = (revision, if compacted > 0 { compacted } else { -1 });
    ensure!(
        stored == expected,
        UnfitSnapshot(format!(
            "the new store is at revision {} and compacted to {}, expected {expected:?}",
            stored.0, stored.1
        ))
    );
    Ok(RestoreSummary {
        revision,
        compacted: expected.1,
        versions: written.versions,
        leases: leases.len(),
    })
}

/// Returns the newest revision, raised by `bump`.
pub(crate) fn bumped(newest: Revision, bump: u64) -> anyhow::Result<Revision> {
    let raised = Revision::try_from(bump).ok().and_then(|bump| newest.checked_add(bump));
    let raised = raised.filter(|raised| *raised <= schema::MAX_REVISION);
    raised.ok_or_else(|| {
        UnfitSnapshot(format!(
            "revision {newest} cannot be raised by {bump}: that is more than a store can have"
        ))
        .into()
    })
}

/// Returns the revision up to which the snapshot is compacted, whether etcd has deleted all of that or not; 0 for none.
pub(super) fn compacted(database: &Reader<'_, File>) -> anyhow::Result<Revision> {
    let mut newest = 0;
    for name in [schema::SCHEDULED_COMPACTION, schema::FINISHED_COMPACTION] {
        if let Some(revision) = database.get(schema::META, name)? {
            newest = schema::decode_revision(&revision)?.0.max(newest);
        }
    }
    Ok(newest)
}

fn leases(database: &Reader<'_, File>) -> anyhow::Result<Vec<LeaseValue>> {
    let mut leases = Vec::new();
    let Some(mut pairs) = database.bucket(schema::LEASE)? else {
        return Ok(leases);
    };
    while let Some((key, value)) = pairs.next()? {
        let lease = LeaseValue::decode_pair(&key, value)?;
        if !(1..=MAX_TTL).contains(&lease.ttl) || !(0..=lease.ttl).contains(&lease.remaining) {
            let LeaseValue { id, ttl, remaining } = lease;
            return Err(content(format!("the lease {id:x} has a TTL of {ttl} s and {remaining} s left")).into());
        }
        leases.push(lease);
    }
    Ok(leases)
}

fn lease_changes(lease: &LeaseValue) -> impl Iterator<Item = Change> + use<> {
    let LeaseValue { id, ttl, remaining } = *lease;
    let checkpoint = (remaining > 0).then_some(Change::Checkpoint(Checkpoint { id, remaining }));
    std::iter::once(Change::Grant(Grant { id, ttl })).chain(checkpoint)
}

/// The changes of one revision, as the snapshot has them: deletions have version 0.
#[derive(Debug, Default)]
pub(super) struct RevisionChanges {
    pub(super) revision: Revision,
    pub(super) kvs: Vec<mvccpb::KeyValue>,
}

/// Writes all versions that are not there yet. Returns the newest revision, 0 for none, and the checksum of the versions.
async fn write_versions(
    database: &Reader<'_, File>,
    target: &mut RestoreTarget,
    compacted: Revision,
) -> anyhow::Result<(Revision, VersionChecksum)> {
    let missing = || content("it has no bucket \"key\"");
    let mut pairs = database.bucket(schema::KEY)?.ok_or_else(missing)?;
    let (total, mut log, mut read, mut rested) = (database.size(), LogBackoff::every(PROGRESS_LOG_INTERVAL), 0, 0);
    let (mut checksum, mut newest, begun) = (VersionChecksum::default(), 0, target.replica.revision());
    let mut batch = RestoreBatch::default();
    loop {
        let pair = pairs.next()?;
        let decoded = match &pair {
            Some((key, value)) => Some(decode_version(key, value)?),
            None => None,
        };
        let is_next = |(key, _): &(VersionKey, _)| key.revision > newest;
        if decoded.as_ref().is_none_or(is_next) {
            // The revision before is complete.
            if let Some(complete) = batch.revisions.last() {
                sum_revision(complete.revision, &complete.kvs, &mut checksum);
                if complete.revision <= begun {
                    // An earlier attempt wrote this revision and all before it.
                    batch = RestoreBatch::default();
                    if read >= rested + RECORD_BYTES as u64 {
                        rested = read;
                        target.take_flushed();
                        // Lets other tasks handle signals and the claim on a key prefix.
                        tokio::task::yield_now().await;
                    }
                }
            }
            if batch.is_full() || decoded.is_none() {
                target.append_versions(std::mem::take(&mut batch)).await?;
            }
        }
        let (Some((key, kv)), Some((_, value))) = (decoded, &pair) else {
            return Ok((newest, checksum));
        };
        if key.revision < 2 {
            return Err(content(format!("a version at revision {}, where none can be", key.revision)).into());
        }
        if key.revision > newest {
            if newest >= compacted.max(1) && key.revision != newest + 1 {
                return Err(content(format!("nothing happened at revision {}", newest + 1)).into());
            }
            newest = key.revision;
            batch.revisions.push(RevisionChanges {
                revision: newest,
                kvs: Vec::new(),
            });
        }
        read += value.len() as u64;
        batch.bytes += value.len();
        batch.changes += 1;
        // Etcd's own restore makes room in its revisions by a version without a key.
        if let (Some(last), false) = (batch.revisions.last_mut(), kv.key.is_empty()) {
            target.check_lengths(&kv)?;
            last.kvs.push(kv);
        }
        if log.is_due() {
            let percent = (read * 100).checked_div(total).unwrap_or_default();
            tracing::info!(revision = newest, versions = checksum.versions, percent, "restoring");
        }
    }
}

/// Decodes a pair of the bucket of versions.
fn decode_version(key: &[u8], value: &Bytes) -> anyhow::Result<(VersionKey, mvccpb::KeyValue)> {
    let key = VersionKey::decode(key)?;
    let revision = key.revision;
    let undecodable = |error| content(format!("a version at revision {revision} does not decode: {error}"));
    let kv = mvccpb::KeyValue::decode(value.clone()).map_err(undecodable)?;
    if key.is_tombstone {
        let deleted = mvccpb::KeyValue {
            key: kv.key,
            ..mvccpb::KeyValue::default()
        };
        return Ok((key, deleted));
    }
    let is_whole = kv.mod_revision == revision
        && (1..=schema::MAX_REVISION).contains(&kv.version)
        && (1..=revision).contains(&kv.create_revision);
    if !is_whole && !kv.key.is_empty() {
        return Err(content(format!(
            "the key at revision {revision} is of version {}, modified at {}, created at {}",
            kv.version, kv.mod_revision, kv.create_revision
        ))
        .into());
    }
    Ok((key, kv))
}

/// Adds the versions that a revision leaves of its keys.
pub(crate) fn sum_revision(revision: Revision, kvs: &[mvccpb::KeyValue], checksum: &mut VersionChecksum) {
    let last: HashMap<&Bytes, usize> = kvs.iter().enumerate().map(|(at, kv)| (&kv.key, at)).collect();
    for (at, kv) in kvs.iter().enumerate() {
        if last.get(&kv.key) == Some(&at) {
            let put = (kv.create_revision, kv.version, kv.lease, kv.value.as_ref());
            checksum.add(&SummedVersion {
                key: &kv.key,
                revision,
                put: (kv.version > 0).then_some(put),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bbolt::Writer as DatabaseWriter;
    use engine::log::MemLog;
    use engine::rows::mem::MemRows;
    use std::sync::Arc;

    /// A snapshot of `count` versions of 100 bytes.
    fn file(count: i64) -> SnapshotFile {
        let mut database = DatabaseWriter::new(tempfile::tempfile().unwrap()).unwrap();
        database.begin_bucket(schema::KEY).unwrap();
        for revision in 2..count + 2 {
            let kv = mvccpb::KeyValue {
                key: format!("key-{revision}").into(),
                create_revision: revision,
                mod_revision: revision,
                version: 1,
                value: vec![7; 100].into(),
                ..mvccpb::KeyValue::default()
            };
            let key = [&revision.to_be_bytes()[..], b"_", &[0; 8]].concat();
            database.put(&key, &kv.encode_to_vec()).unwrap();
        }
        SnapshotFile::of(database.finish().unwrap().0, true).unwrap()
    }

    #[tokio::test]
    async fn restore_leaves_the_reserve_of_the_medium_alone() {
        let mut spool = Spool::new(&std::env::temp_dir());
        for (kept, is_room) in [(0, true), (u64::MAX, false)] {
            spool.kept = Some(kept);
            let options = RestoreOptions {
                spool: Some(spool.clone()),
                ..RestoreOptions::default()
            };
            let engine = LogAndRows {
                log: Arc::new(MemLog::new()),
                rows: Arc::new(MemRows::new()),
            };
            let restored = restore(&file(20), engine.clone(), &options).await;
            assert_eq!(restored.is_ok(), is_room, "{restored:?}");
            if let Err(error) = restored {
                assert!(format!("{error:#}").contains("no space"), "{error:#}");
                // The same command continues once space is free.
                assert!(!error.is::<UnfitSnapshot>());
                let restored = resume(&file(20), engine, &RestoreOptions::default()).await.unwrap();
                assert_eq!(restored.versions, 20);
            }
        }
    }
}
