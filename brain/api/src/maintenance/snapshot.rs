//! The RPC `Snapshot`: the store in etcd's file format, and its checksum.
//!
//! The file is written to disk completely before anything of it is sent: its length is in the first message. A client that reads slowly
//! holds that file, but no view of the store.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use async_stream::try_stream;
use bytes::Bytes;
use futures::Stream;
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tonic::Status;

use super::super::context::ApiContext;
use backup::snapshot::{SaveError, SavedSnapshot, SnapshotContents, Spool, save};
use engine::rows::RowsError;
use etcd_types::errors::Error;
use etcd_types::pb::etcdserverpb as pb;
use etcd_types::types::Revision;
use runtime::budget::Meter;

/// Snapshots that are written and sent at a time; further ones are refused.
const CONCURRENT_SNAPSHOTS: usize = 3;

/// Bytes that are read at once.
const READ_CHUNK_BYTES: usize = 1 << 20;

/// Bytes of a message, as with etcd.
const BLOB_BYTES: usize = 32 << 10;

/// Writes and sends snapshots.
#[derive(Debug)]
pub struct SnapshotSender {
    spool: Spool,
    /// Limits the files.
    files: Arc<Semaphore>,
    /// One is written at a time.
    writing: Semaphore,
}

impl SnapshotSender {
    /// With files in a directory.
    #[must_use]
    pub fn new(spool: Spool) -> Self {
        Self {
            spool,
            files: Arc::new(Semaphore::new(CONCURRENT_SNAPSHOTS)),
            writing: Semaphore::new(1),
        }
    }

    /// Writes the state of a store that occupies `size` bytes as it is now, and returns its revision and a stream of it. Fails if too many
    /// clients take snapshots, if there is no space, or if the store cannot be read.
    pub(super) async fn open(
        &self,
        store: &ApiContext,
        size: u64,
        meter: &Meter,
    ) -> Result<
        (
            Revision,
            impl Stream<Item = Result<pb::SnapshotResponse, Status>> + use<>,
        ),
        Status,
    > {
        let permit = self.files.clone().try_acquire_owned();
        let permit = permit.map_err(|_| Error::TooManyRequests)?;
        let charge = meter.hold(READ_CHUNK_BYTES).map_err(|_| Error::TooManyRequests)?;
        let saved = {
            let _turn = self.writing.acquire().await.map_err(|_| Error::Stopped)?;
            let began = Instant::now();
            // Refuses damaged data.
            drop(store.view()?);
            let (view, leases, auth) = store.state.consistent();
            let contents = SnapshotContents {
                view,
                leases,
                auth: auth.to_change(),
                index: store.state.committed().0,
                term: store.state.epoch(),
                member: store.member_id,
                bytes: store.state.sizes().in_use(),
                stored: size,
            };
            let saved = save(contents, &self.spool)
                .await
                .map_err(|error| failed(store, error))?;
            let (revision, bytes, took) = (saved.revision, saved.len, began.elapsed());
            tracing::info!(
                revision,
                bytes,
                versions = saved.versions,
                ?took,
                "sending a snapshot to a client"
            );
            saved
        };
        let sent = store.metrics.disk.backend_snapshot.clone();
        let SavedSnapshot {
            file, len, revision, ..
        } = saved;
        let stream = try_stream! {
        let _held = (permit, charge, sent.start_timer());
        let (mut sent, mut hasher) = (0, Sha256::new());
        while sent < len {
        let most = usize::try_from(len - sent).unwrap_or(usize::MAX).min(READ_CHUNK_BYTES);
        let mut chunk = read(file.clone(), sent, most).await?;
        while !chunk.is_empty() {
        let blob = chunk.split_to(BLOB_BYTES.min(chunk.len()));
        hasher.update(&blob);
        sent += blob.len() as u64;
        yield message(len - sent, blob);
        }
        }
        yield message(0, Bytes::copy_from_slice(&hasher.finalize()));
        };
        Ok((revision, stream))
    }
}

fn message(remaining_bytes: u64, blob: Bytes) -> pb::SnapshotResponse {
    pb::SnapshotResponse {
        header: None,
        remaining_bytes,
        blob,
        version: etcd_types::version::CLUSTER.to_owned(),
    }
}

async fn read(file: Arc<File>, from: u64, len: usize) -> Result<Bytes, Status> {
    let read = tokio::task::spawn_blocking(move || {
        let mut buffer = vec![0; len];
        file.read_exact_at(&mut buffer, from).map(|()| Bytes::from(buffer))
    });
    let read = read.await.map_err(|error| unreadable(&error))?;
    read.map_err(|error| unreadable(&error))
}

fn unreadable(error: &(dyn std::error::Error + 'static)) -> Status {
    tracing::warn!(error, "cannot read a snapshot back");
    Status::unknown(format!("etcdserver: cannot read the snapshot back: {error}"))
}

fn failed(store: &ApiContext, error: SaveError) -> Status {
    let text = match &error {
        SaveError::Rows(RowsError::Unavailable(source)) => format!("cannot read the store: {source:#}"),
        SaveError::Rows(error) => return store.rows_failed(error),
        SaveError::NoSpace(text) => text.clone(),
        SaveError::Io(source) => format!("cannot write the snapshot: {source}"),
        SaveError::Cancelled => return Error::Stopped.into(),
    };
    tracing::warn!(error = text, "no snapshot");
    let text = format!("etcdserver: {text}");
    match error {
        SaveError::NoSpace(_) => Status::resource_exhausted(text),
        SaveError::Rows(_) => Status::unavailable(text),
        SaveError::Io(_) | SaveError::Cancelled => Status::unknown(text),
    }
}
