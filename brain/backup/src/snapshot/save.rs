//! Writes the state of a running store as a file of etcd.
//!
//! A view never changes, so writes continue while it is saved. Reading takes as long as the disk needs, whatever the speed of the client:
//! the file is complete before any of it is sent.

use std::fs::File;
use std::io::BufWriter;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::schema::{self, LeaseValue, VersionKey};
use super::sort::{SortedVersion, VersionSorter};
use super::spool::{Spool, SpoolFile, to_save_error};
use super::{SaveError, users};
use bbolt::Writer;
use engine::rows::RowsError;
use etcd_types::pb::mvccpb;
use etcd_types::types::Revision;
use mvcc::auth::AuthChange;
use mvcc::dictionaries::Dictionaries;
use mvcc::lease::{ENDING_CHECKPOINT, StoredLease};
use mvcc::view::{KeyVersion, View};

/// Bytes that are written to disk at once.
const WRITE_BUFFER_BYTES: usize = 1 << 20;

/// Pages of versions on their way from rows to the disk.
const PAGE_QUEUE_CAPACITY: usize = 2;

/// Versions between two checks for a cancelled request.
const VERSIONS_PER_CANCEL_CHECK: u64 = 1_024;

/// The state to save.
pub struct SnapshotContents {
    /// The keys.
    pub view: Arc<View>,
    /// The leases as of the view's revision.
    pub leases: Vec<StoredLease>,
    /// The users and roles as of it, all of them.
    pub auth: AuthChange,
    /// The position in the log, for etcd's raft index.
    pub index: u64,
    /// The epoch, for etcd's raft term.
    pub term: u64,
    /// The id of this member.
    pub member: u64,
    /// Bytes of all versions, about.
    pub bytes: u64,
    /// Bytes that they take in rows, about.
    pub stored: u64,
}

/// A database in a temporary file, which is gone when this is dropped.
#[derive(Debug)]
pub struct SavedSnapshot {
    /// The file, without a checksum.
    pub file: Arc<File>,
    /// Its length in bytes.
    pub len: u64,
    /// The revision of its content.
    pub revision: Revision,
    /// The number of versions, deletions included.
    pub versions: u64,
}

enum VersionPage {
    Page(Vec<KeyVersion>),
    /// All versions were sent.
    End,
}

/// The part of the contents that the writing thread needs.
struct SnapshotMeta {
    dictionaries: Arc<Dictionaries>,
    revision: Revision,
    compacted: Revision,
    leases: Vec<StoredLease>,
    auth: AuthChange,
    index: u64,
    term: u64,
    member: u64,
}

/// Writes the state to a temporary file. Stops early if the future is dropped. Fails if rows cannot be read, or if there is no space.
pub async fn save(contents: SnapshotContents, spool: &Spool) -> Result<SavedSnapshot, SaveError> {
    // Sorted runs, which are compressed as rows are, and the database.
    spool.check(contents.bytes.saturating_add(contents.stored.min(contents.bytes)))?;
    let view = contents.view;
    let positions = SnapshotMeta {
        dictionaries: view.dictionaries.clone(),
        revision: view.revision,
        compacted: view.compacted,
        leases: contents.leases,
        auth: contents.auth,
        index: contents.index,
        term: contents.term,
        member: contents.member,
    };
    let (pages, received) = mpsc::channel(PAGE_QUEUE_CAPACITY);
    let cancelled = CancellationToken::new();
    let _cancels = cancelled.clone().drop_guard();
    let spool = spool.clone();
    let writing = tokio::task::spawn_blocking(move || write(positions, received, spool, &cancelled));
    // The view is not needed while the file is written.
    send(view, pages).await?;
    writing
        .await
        .map_err(|error| SaveError::Io(std::io::Error::other(error)))?
}

/// Sends all versions of a view, and the end.
async fn send(view: Arc<View>, pages: mpsc::Sender<VersionPage>) -> Result<(), SaveError> {
    let mut versions = view.versions(view.revision);
    while let Some(page) = versions.next().await? {
        // The receiver is gone if it failed.
        if pages.send(VersionPage::Page(page)).await.is_err() {
            break;
        }
    }
    let _failed = pages.send(VersionPage::End).await;
    Ok(())
}

fn write(
    positions: SnapshotMeta,
    mut received: mpsc::Receiver<VersionPage>,
    spool: Spool,
    cancelled: &CancellationToken,
) -> Result<SavedSnapshot, SaveError> {
    let mut sorter = VersionSorter::new(spool.clone(), positions.dictionaries.clone());
    loop {
        match received.blocking_recv() {
            Some(VersionPage::Page(page)) => {
                for version in page {
                    push(&mut sorter, version).map_err(to_save_error)?;
                }
            }
            Some(VersionPage::End) => break,
            None => return Err(SaveError::Cancelled),
        }
    }
    let mut sorted = sorter.finish().map_err(to_save_error)?;
    let out = BufWriter::with_capacity(WRITE_BUFFER_BYTES, spool.file().map_err(to_save_error)?);
    let mut file = Writer::new(out).map_err(to_save_error)?;
    write_cluster(&mut file, &positions.auth).map_err(to_save_error)?;
    file.begin_bucket(schema::KEY).map_err(to_save_error)?;
    let (mut versions, mut newest, mut sub) = (0_u64, 0, 0);
    while let Some(entry) = sorted.next().map_err(to_save_error)? {
        if versions.is_multiple_of(VERSIONS_PER_CANCEL_CHECK) && cancelled.is_cancelled() {
            return Err(SaveError::Cancelled);
        }
        sub = if entry.revision == newest { sub + 1 } else { 0 };
        newest = entry.revision;
        let key = VersionKey {
            revision: entry.revision,
            sub,
            is_tombstone: !entry.is_put,
        };
        file.put(&key.encode(), &entry.value).map_err(to_save_error)?;
        versions += 1;
    }
    drop(sorted);
    // Etcd takes the newest version, or the compacted revision, for the revision of the store.
    if newest < positions.revision && positions.compacted.max(1) < positions.revision {
        let revision = positions.revision;
        return Err(RowsError::Corrupt(format!("the newest revision, {revision}, is missing")).into());
    }
    write_positions(&mut file, &positions).map_err(to_save_error)?;
    let (out, len) = file.finish().map_err(to_save_error)?;
    let out: SpoolFile = out.into_inner().map_err(|error| to_save_error(error.into_error()))?;
    Ok(SavedSnapshot {
        file: Arc::new(out.file),
        len,
        revision: positions.revision,
        versions,
    })
}

fn push(sorter: &mut VersionSorter, version: KeyVersion) -> std::io::Result<()> {
    let KeyVersion {
        key,
        revision,
        put,
        recreated,
    } = version;
    // Rows that were read together share memory, which is not to be held.
    let key = Bytes::copy_from_slice(&key);
    let tombstone = mvccpb::KeyValue {
        key: key.clone(),
        ..mvccpb::KeyValue::default()
    };
    if put.is_none() || recreated {
        sorter.push(SortedVersion {
            revision,
            key: key.clone(),
            is_put: false,
            value: tombstone.encode_to_vec().into(),
        })?;
    }
    let Some((meta, value)) = put else { return Ok(()) };
    let value = mvccpb::KeyValue {
        create_revision: meta.create_revision,
        mod_revision: revision,
        version: meta.version,
        value,
        lease: meta.lease.0,
        ..tombstone
    };
    sorter.push(SortedVersion {
        revision,
        key,
        is_put: true,
        value: value.encode_to_vec().into(),
    })
}

type SnapshotWriter = Writer<BufWriter<SpoolFile>>;

/// Writes the buckets in front of the keys. Alarms are about members.
fn write_cluster(file: &mut SnapshotWriter, auth: &AuthChange) -> std::io::Result<()> {
    file.begin_bucket(schema::ALARM)?;
    users::write(file, auth)?;
    file.begin_bucket(schema::CLUSTER)?;
    file.put(schema::CLUSTER_VERSION, schema::FORMAT_VERSION.as_bytes())
}

/// Writes the buckets that follow the keys.
fn write_positions(file: &mut SnapshotWriter, positions: &SnapshotMeta) -> std::io::Result<()> {
    file.begin_bucket(schema::LEASE)?;
    let mut leases = positions.leases.clone();
    leases.sort_unstable_by_key(|lease| lease.id.0.to_be_bytes());
    for StoredLease { id, ttl, remaining } in leases {
        // etcd knows none that is ending.
        let remaining = if remaining == ENDING_CHECKPOINT { 1 } else { remaining };
        let value = LeaseValue {
            id: id.0,
            ttl,
            remaining,
        };
        file.put(&id.0.to_be_bytes(), &value.encode_to_vec())?;
    }
    file.begin_bucket(schema::MEMBERS)?;
    file.begin_bucket(schema::MEMBERS_REMOVED)?;
    file.begin_bucket(schema::META)?;
    let members = serde_json::json!({ "voters": [positions.member], "auto_leave": false }).to_string();
    file.put(schema::CONF_STATE, members.as_bytes())?;
    file.put(schema::CONSISTENT_INDEX, &positions.index.to_be_bytes())?;
    if positions.compacted > 0 {
        let compacted = schema::encode_revision(positions.compacted, 0);
        file.put(schema::FINISHED_COMPACTION, &compacted)?;
        file.put(schema::SCHEDULED_COMPACTION, &compacted)?;
    }
    file.put(schema::STORAGE_VERSION, schema::FORMAT_VERSION.as_bytes())?;
    file.put(schema::TERM, &positions.term.to_be_bytes())
}
