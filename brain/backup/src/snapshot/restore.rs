//! Makes a new store of a snapshot: its versions become records of the log, in the order of their revisions, as if they were written anew,
//! and rows are flushed from them as usual. So watches and compaction find in the log what they need.
//!
//! Nothing here decides whether the target may be used: the caller keeps servers away until all is done.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::compare::{verify, verify_users};
use super::schema::{self, LeaseValue, VersionKey, content};
use super::version_sum::{SummedVersion, VersionChecksum};
use super::{SnapshotFile, Spool, users};
use bbolt::Reader;
use engine::LogAndRows;
use engine::log::DynLog;
use engine::log::frame::Candidate;
use engine::log::writer::Writer;
use engine::rows::DynRows;
use etcd_types::pb::mvccpb;
use etcd_types::types::{LeaseId, Revision};
use mvcc::auth::longest_value;
use mvcc::keys;
use mvcc::lease::MAX_TTL;
use mvcc::record::{Change, Checkpoint, Compact, Entry, Grant, KeyChange, Keys, Record};
use mvcc::row::{Manifest, OBJECT_HEADER_BYTES, size_of};
use runtime::log_once::LogBackoff;
use runtime::tasks::Owned;
use store::flush::{Flusher, FlusherContext};
use store::replica::{FlushResult, ImmutableMemtable, Replica, TakeOver};
use telemetry::metrics::Metrics;

/// Bytes and changes of one record.
const RECORD_BYTES: usize = 1 << 20;
const RECORD_CHANGES: usize = 4_096;

/// Leases of one record.
pub(super) const LEASES_PER_RECORD: usize = 4_096;

/// Bytes of versions that are flushed together.
const FLUSH_BYTES: usize = 8 << 20;

/// Memtables on their way to the flush and back.
const MEMTABLE_QUEUE_CAPACITY: usize = 2;

/// The time for which log or rows may take nothing, because storage is full or away.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

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

/// Revisions that are written together.
#[derive(Debug, Default)]
pub(super) struct RestoreBatch {
    pub(super) revisions: Vec<RevisionChanges>,
    pub(super) changes: usize,
    pub(super) bytes: usize,
}

impl RestoreBatch {
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= RECORD_BYTES || self.changes >= RECORD_CHANGES
    }
}

/// The version of a key before a change.
#[derive(Debug, Clone, Copy, Default)]
struct LiveVersion {
    mod_revision: Revision,
    create_revision: Revision,
    version: i64,
    lease: i64,
    size: u32,
}

/// Fails if a change of a key does not follow its version before.
fn check_follows(before: Option<LiveVersion>, kv: &mvccpb::KeyValue, revision: Revision) -> anyhow::Result<()> {
    let follows = match (kv.version, before) {
        (0, before) => before.is_some(),
        (1, None) => kv.create_revision == revision,
        (version, Some(before)) => version == before.version + 1 && kv.create_revision == before.create_revision,
        _ => false,
    };
    let found = before.map_or(0, |before| before.version);
    ensure!(
        follows,
        UnfitSnapshot(format!(
            "at revision {revision} a key becomes version {}, and is of version {found} before: these changes are of another store",
            kv.version
        ))
    );
    Ok(())
}

/// The new store.
pub(super) struct RestoreTarget {
    log: DynLog,
    pub(super) replica: Replica,
    writer: Writer,
    immutable: mpsc::Sender<Arc<ImmutableMemtable>>,
    flushed: mpsc::Receiver<FlushResult>,
    flusher: Owned<anyhow::Result<()>>,
    longest_key: usize,
    longest_value: usize,
    /// The directory whose medium must keep free space.
    spool: Option<Spool>,
    /// True if each version must follow the one before it of the same key.
    pub(super) checks_versions: bool,
}

impl RestoreTarget {
    async fn begin(log: DynLog, rows: DynRows, options: &RestoreOptions) -> anyhow::Result<Self> {
        let this = Self::open(log, rows, options).await?;
        let replica = &this.replica;
        let is_new =
            replica.revision() == 1 && replica.compacted() < 0 && replica.state().leases().ids().next().is_none();
        ensure!(is_new, "a store already exists");
        Ok(this)
    }

    /// Becomes the only writer of a store, new or not.
    pub(super) async fn open(log: DynLog, rows: DynRows, options: &RestoreOptions) -> anyhow::Result<Self> {
        let mut replica = Replica::load(&log, &rows).await?;
        let candidate = Candidate {
            member: options.member,
            ..Candidate::default()
        };
        let leadership = replica.lead(&log, &rows, TakeOver::after_expiry(candidate)).await?;
        let (immutable, to_flush) = mpsc::channel(MEMTABLE_QUEUE_CAPACITY);
        let (flushed, from_flush) = mpsc::channel(MEMTABLE_QUEUE_CAPACITY);
        let (longest_key, longest_value) = (
            keys::longest(rows.max_key_len()),
            rows.max_value_len().saturating_sub(OBJECT_HEADER_BYTES),
        );
        let flusher = Flusher::new(
            LogAndRows { log: log.clone(), rows },
            replica.state().clone(),
            leadership.manifest,
            std::iter::empty(),
            to_flush,
            flushed,
            FlusherContext {
                metrics: Arc::new(Metrics::new(false)),
                stop: CancellationToken::new(),
            },
        )
        .over(leadership.stored);
        Ok(Self {
            log,
            replica,
            writer: leadership.writer,
            immutable,
            flushed: from_flush,
            flusher: Owned::start(flusher.run()),
            longest_key,
            longest_value,
            spool: options.spool.clone(),
            checks_versions: false,
        })
    }

    pub(super) fn check_lengths(&self, kv: &mvccpb::KeyValue) -> anyhow::Result<()> {
        let (key, value) = (kv.key.len(), kv.value.len());
        ensure!(
            key <= self.longest_key && value <= self.longest_value,
            UnfitSnapshot(format!(
                "a key of {key} bytes with a value of {value}: this storage takes {} and {}",
                self.longest_key, self.longest_value
            ))
        );
        Ok(())
    }

    pub(super) async fn append_versions(&mut self, batch: RestoreBatch) -> anyhow::Result<()> {
        self.take_flushed();
        let mut live = self.live(&batch).await?;
        let mut entries = Vec::with_capacity(batch.revisions.len());
        for RevisionChanges { revision, kvs } in batch.revisions {
            let mut changes = Vec::with_capacity(kvs.len());
            for kv in kvs {
                let is_put = kv.version > 0;
                let after = is_put.then(|| LiveVersion {
                    mod_revision: revision,
                    create_revision: kv.create_revision,
                    version: kv.version,
                    lease: kv.lease,
                    size: size_of(&kv.value),
                });
                let before = match after {
                    Some(after) => live.insert(kv.key.clone(), after),
                    None => live.remove(&kv.key),
                };
                if self.checks_versions {
                    check_follows(before, &kv, revision)?;
                }
                let before = before.unwrap_or_default();
                changes.push(KeyChange {
                    key: kv.key,
                    value: kv.value,
                    create_revision: kv.create_revision,
                    version: kv.version,
                    lease: kv.lease,
                    prev_mod: before.mod_revision,
                    prev_lease: before.lease,
                    prev_size: before.size,
                });
            }
            entries.push(Change::Keys(Keys { revision, changes }).into());
        }
        self.append(entries).await
    }

    /// Returns the current versions of the keys of a batch, as far as there are any.
    async fn live(&self, batch: &RestoreBatch) -> anyhow::Result<HashMap<Bytes, LiveVersion>> {
        let view = self.replica.state().view();
        let (mut live, mut wanted) = (HashMap::new(), Vec::new());
        let mut keys: Vec<&Bytes> = batch
            .revisions
            .iter()
            .flat_map(|changes| &changes.kvs)
            .map(|kv| &kv.key)
            .collect();
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            match view.memtables.get(key, view.revision) {
                Some((mod_revision, version)) => {
                    if let Some(value) = &version.value {
                        let found = LiveVersion {
                            mod_revision,
                            create_revision: version.create_revision,
                            version: version.version,
                            lease: version.lease.0,
                            size: size_of(value),
                        };
                        live.insert(key.clone(), found);
                    }
                }
                None => wanted.push(key.clone()),
            }
        }
        for kv in view.get_many_without_values(&wanted).await?.into_iter().flatten() {
            let found = LiveVersion {
                mod_revision: kv.mod_revision,
                create_revision: kv.create_revision,
                version: kv.version,
                lease: kv.lease.0,
                size: kv.size,
            };
            live.insert(kv.key, found);
        }
        Ok(live)
    }

    /// Appends a record, applies it, and hands full memtables to the flush.
    pub(super) async fn append(&mut self, entries: Vec<Entry>) -> anyhow::Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        let record = Record {
            base: self.replica.revision(),
            entries,
        };
        let first = self.writer.next();
        if let Some(spool) = &self.spool {
            // In the log, and in rows.
            spool.check(2 * record.encoded_len() as u64)?;
        }
        let mut bytes = self.writer.buffer(record.encoded_len());
        record.encode_raw(&mut bytes);
        let slots = self.writer.take_slots(bytes);
        let append = self.writer.append(&self.log, slots);
        tokio::select! {
        appended = append => appended?,
        () = full(&self.writer) => bail!("there is no space left for the log"),
        () = tokio::time::sleep(STALL_TIMEOUT) => bail!("the log has accepted nothing for {STALL_TIMEOUT:?}"),
        }
        // There are no watchers.
        drop(self.replica.apply(record, Vec::new(), first..self.writer.next()));
        self.take_flushed();
        if self.replica.active_bytes() >= FLUSH_BYTES {
            self.rotate().await?;
        }
        Ok(())
    }

    /// Takes over what was flushed, and younger snapshots of the rows.
    pub(super) fn take_flushed(&mut self) {
        while let Ok(flushed) = self.flushed.try_recv() {
            self.replica.swap_rows(flushed);
        }
    }

    /// Hands the active memtable to the flush.
    async fn rotate(&mut self) -> anyhow::Result<()> {
        let Some(immutable) = self.replica.rotate() else {
            return Ok(());
        };
        let sender = self.immutable.clone();
        loop {
            tokio::select! {
            room = sender.reserve() => match room {
            Ok(room) => {
            room.send(immutable);
            return Ok(());
            }
            Err(_) => return self.flush_failed().await,
            },
            swapped = Self::swap(&mut self.replica, &mut self.flushed) => if !swapped? {
            return self.flush_failed().await;
            },
            }
        }
    }

    /// Waits until everything is in rows.
    pub(super) async fn flush(&mut self) -> anyhow::Result<()> {
        self.rotate().await?;
        while self.replica.immutables().next().is_some() {
            if !Self::swap(&mut self.replica, &mut self.flushed).await? {
                return self.flush_failed().await;
            }
        }
        Ok(())
    }

    /// Flushes, deletes what is compacted, and ends.
    pub(super) async fn finish(mut self) -> anyhow::Result<()> {
        self.flush().await?;
        drop(self.immutable);
        while Self::swap(&mut self.replica, &mut self.flushed).await? {}
        self.flusher.end().await.context("the flush")?.context("the flush")
    }

    /// Takes flushed rows over; returns false if the flush has ended.
    async fn swap(replica: &mut Replica, flushed: &mut mpsc::Receiver<FlushResult>) -> anyhow::Result<bool> {
        let state = replica.state().clone();
        loop {
            match tokio::time::timeout(STALL_TIMEOUT, flushed.recv()).await {
                Ok(Some(flushed)) => {
                    replica.swap_rows(flushed);
                    return Ok(true);
                }
                Ok(None) => return Ok(false),
                Err(_) if state.writing_rows().is_some_and(|since| since >= STALL_TIMEOUT) => {
                    bail!(
                        "the rows have accepted nothing for {STALL_TIMEOUT:?}: no space left, or storage is unreachable"
                    )
                }
                Err(_) if state.is_flush_refused() => {
                    bail!(UnfitSnapshot("the rows refuse a version of the snapshot".to_owned()))
                }
                Err(_) => {}
            }
        }
    }

    async fn flush_failed(&mut self) -> anyhow::Result<()> {
        self.flusher.end().await.context("the flush")?.context("the flush")?;
        bail!("the flush ended early")
    }
}

/// Returns as soon as the log has no space for an append.
async fn full(writer: &Writer) {
    loop {
        tokio::time::sleep(Duration::from_millis(200)).await;
        if writer.is_full() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bbolt::Writer as DatabaseWriter;
    use engine::log::MemLog;
    use engine::rows::mem::MemRows;

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
