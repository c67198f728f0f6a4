//! The store that a restore or an import writes to: batches become records, and rows are flushed from them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Spool;
use super::restore::{RECORD_BYTES, RestoreOptions, RevisionChanges, UnfitSnapshot};
use engine::LogAndRows;
use engine::log::DynLog;
use engine::log::frame::Candidate;
use engine::log::writer::Writer;
use engine::rows::DynRows;
use etcd_types::pb::mvccpb;
use etcd_types::types::Revision;
use mvcc::keys;
use mvcc::record::{Change, Entry, KeyChange, Keys, Record};
use mvcc::row::{OBJECT_HEADER_BYTES, size_of};
use runtime::tasks::Owned;
use store::flush::{Flusher, FlusherContext};
use store::replica::{FlushResult, ImmutableMemtable, Replica, TakeOver};
use telemetry::metrics::Metrics;

/// Bytes of versions that are flushed together.
const FLUSH_BYTES: usize = 8 << 20;

/// Memtables on their way to the flush and back.
const MEMTABLE_QUEUE_CAPACITY: usize = 2;

/// Changes of one record.
const RECORD_CHANGES: usize = 4_096;

/// The time for which log or rows may take nothing, because storage is full or away.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

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
    pub(super) async fn begin(log: DynLog, rows: DynRows, options: &RestoreOptions) -> anyhow::Result<Self> {
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
