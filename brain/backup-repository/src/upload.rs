//! Makes a backup of a snapshot as it arrives.
//!
//! A thread compresses, encrypts and splits it; each part is complete in a temporary file before it is stored, so that storing it can be
//! repeated. Memory holds a few MiB, whatever the size. A few parts wait on disk while the destination is slower than the member.

use std::fs::File;
use std::io::BufWriter;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use anyhow::ensure;
use backup::snapshot::{Spool, SpoolFile};
use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::{Stream, StreamExt as _};
use object_store::path::Path;
use object_store::{MultipartUpload, PutMultipartOptions, PutPayload};
use runtime::log_once::LogBackoff;
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::download::PROGRESS_LOG_INTERVAL;
use crate::key::{EncryptionKey, to_hex};
use crate::manifest::{
    Algorithm, BackupKind, BackupName, Compression, Encryption, FORMAT, Manifest, PartSummary, RunId, Sha256Digest,
    SnapshotSummary,
};
use crate::part::{FinishedPart, PartPlace, PartWriter};
use crate::repository::Repository;

/// Bytes of an object that holds a part, about.
const PART_BYTES: u64 = 64 << 20;

/// A part ends this much earlier: the compressor may hold as much.
const UNWRITTEN_BYTES: u64 = 1 << 20;

/// Bytes that are sent in a request. A longer part is stored in several; S3 accepts no fewer bytes.
pub(crate) const REQUEST_BYTES: usize = 5 << 20;

/// Parts that wait on disk to be stored. While there are more, no more of the snapshot is received.
const WAITING_PARTS: usize = 4;

/// Pieces of the snapshot that wait to be compressed; a member sends 32 KiB in each.
const WAITING_PIECES: usize = 16;

/// Bytes that are written to disk at a time.
const WRITE_BUFFER_BYTES: usize = 256 << 10;

/// Bytes of the checksum at the end of a snapshot.
const CHECKSUM_BYTES: usize = 32;

/// The store that a snapshot comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotOrigin {
    pub cluster_id: u64,
    pub revision: i64,
    /// The version of etcd's format.
    pub version: String,
    /// The present time.
    pub time: DateTime<Utc>,
}

/// How a backup is made.
#[derive(Debug, Clone)]
pub struct CreateOptions {
    /// Encrypts the parts.
    pub key: Option<EncryptionKey>,
    /// The directory of temporary files, for up to 320 MiB.
    pub spool: Spool,
    /// The request that the backup is made for.
    pub request_id: Option<String>,
    pub(crate) part_bytes: u64,
}

impl CreateOptions {
    #[must_use]
    pub fn new(key: Option<EncryptionKey>, spool: Spool) -> Self {
        Self {
            key,
            spool,
            request_id: None,
            part_bytes: PART_BYTES,
        }
    }
}

/// A part on disk.
struct SpooledPart {
    file: Arc<File>,
    summary: PartSummary,
}

impl Repository {
    /// Makes a backup of a snapshot. Fails, after it deleted what it has stored, if the snapshot fails or is damaged, if there is no space
    /// for temporary files, or if the destination fails.
    pub async fn create(
        &self,
        origin: SnapshotOrigin,
        snapshot: impl Stream<Item = anyhow::Result<Bytes>>,
        options: &CreateOptions,
    ) -> anyhow::Result<Manifest> {
        let name = BackupName::new(origin.time, origin.revision);
        let run = RunId(rand::random());
        info!(%name, "making a backup");
        let uploaded = self.upload(&name, run, origin, snapshot, options).await;
        let failed = match uploaded {
            Ok(manifest) => match self.put_manifest(&manifest).await {
                Ok(()) => return Ok(manifest),
                Err(error) => {
                    // It may be stored: then its parts must stay.
                    if let Err(left) = self.delete_objects(vec![name.manifest()]).await {
                        warn!(
                            error = &left as &dyn std::error::Error,
                            "the backup may be complete, or its parts are left"
                        );
                        return Err(error.into());
                    }
                    error.into()
                }
            },
            Err(error) => error,
        };
        self.delete_run(&name, run).await;
        Err(failed)
    }

    /// Stores the parts; returns the manifest, which is not stored.
    async fn upload(
        &self,
        name: &BackupName,
        run: RunId,
        origin: SnapshotOrigin,
        snapshot: impl Stream<Item = anyhow::Result<Bytes>>,
        options: &CreateOptions,
    ) -> anyhow::Result<Manifest> {
        let (pieces, received) = mpsc::channel(WAITING_PIECES);
        let (finished, mut waiting) = mpsc::channel(WAITING_PARTS);
        let splitter = Splitter {
            name: name.clone(),
            run,
            options: options.clone(),
            finished,
            hasher: SnapshotHasher::default(),
        };
        let splitting = tokio::task::spawn_blocking(move || splitter.run(received));
        let receive = async move {
            let mut snapshot = std::pin::pin!(snapshot);
            while let Some(piece) = snapshot.next().await {
                // The splitter has ended if it failed.
                if pieces.send(piece?).await.is_err() {
                    break;
                }
            }
            anyhow::Ok(())
        };
        let store = async {
            let (mut parts, mut stored, mut log) = (Vec::new(), 0, LogBackoff::every(PROGRESS_LOG_INTERVAL));
            while let Some(SpooledPart { file, summary }) = waiting.recv().await {
                self.put_part(&file, &summary).await?;
                stored += summary.bytes;
                parts.push(summary);
                if log.is_due() {
                    info!(parts = parts.len(), stored, "storing the parts of a backup");
                }
            }
            anyhow::Ok(parts)
        };
        let ((), parts) = tokio::try_join!(receive, store)?;
        let (bytes, sha256) = splitting.await??;
        Ok(Manifest {
            format: FORMAT,
            kind: BackupKind::Base,
            name: name.clone(),
            time: Manifest::time_of(name),
            revision: origin.revision,
            cluster_id: format!("{:x}", origin.cluster_id),
            run_id: run,
            snapshot: SnapshotSummary {
                bytes,
                sha256,
                version: origin.version,
            },
            compression: Compression::Zstd,
            encryption: options.key.as_ref().map(|key| Encryption {
                algorithm: Algorithm::Aes256Gcm,
                key_id: key.id(),
            }),
            request_id: options.request_id.clone(),
            parts,
        })
    }

    async fn put_part(&self, file: &Arc<File>, part: &PartSummary) -> anyhow::Result<()> {
        let path = self.path(&part.object);
        let put = self.attempt(&part.object, async || self.put_file(&path, file, part.bytes).await);
        Ok(put.await?)
    }

    async fn put_file(&self, path: &Path, file: &Arc<File>, len: u64) -> object_store::Result<()> {
        if len <= REQUEST_BYTES as u64 {
            let all = read(file, 0, len).await?;
            let options = self.attributes.clone().into();
            return self.store.put_opts(path, all, options).await.map(drop);
        }
        let options = PutMultipartOptions::from(self.attributes.clone());
        let mut upload = self.store.put_multipart_opts(path, options).await?;
        let put = put_pieces(upload.as_mut(), file, len).await;
        if put.is_err()
            && let Err(error) = upload.abort().await
        {
            warn!(%path, %error, "an unfinished upload is left to the lifecycle rules of the destination");
        }
        put
    }

    /// Deletes the parts of an attempt that failed.
    async fn delete_run(&self, name: &BackupName, run: RunId) {
        let deleted = async {
            let suffix = format!("-{}", to_hex(&run.0[..4]));
            let found = self.list_folder(&name.parts()).await?;
            let parts = found.iter().map(|meta| self.object(meta));
            self.delete_objects(parts.filter(|object| object.ends_with(&suffix)).collect())
                .await
        };
        if let Err(error) = deleted.await {
            let error = &error as &dyn std::error::Error;
            warn!(
                error,
                "could not delete the parts of a failed backup: `kubebrain backup delete --orphans` does"
            );
        }
    }
}

async fn put_pieces(upload: &mut dyn MultipartUpload, file: &Arc<File>, len: u64) -> object_store::Result<()> {
    let mut at = 0;
    while at < len {
        let bytes = (len - at).min(REQUEST_BYTES as u64);
        upload.put_part(read(file, at, bytes).await?).await?;
        at += bytes;
    }
    upload.complete().await.map(drop)
}

async fn read(file: &Arc<File>, at: u64, len: u64) -> object_store::Result<PutPayload> {
    let file = Arc::clone(file);
    let read = tokio::task::spawn_blocking(move || {
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(REQUEST_BYTES)];
        file.read_exact_at(&mut bytes, at).map(|()| Bytes::from(bytes).into())
    });
    read.await?.map_err(|error| object_store::Error::Generic {
        store: "temporary file",
        source: Box::new(error),
    })
}

/// Makes parts of a snapshot.
struct Splitter {
    name: BackupName,
    run: RunId,
    options: CreateOptions,
    finished: mpsc::Sender<SpooledPart>,
    hasher: SnapshotHasher,
}

type SpooledWriter = PartWriter<BufWriter<SpoolFile>>;

impl Splitter {
    /// Takes all of the snapshot; returns its length and its checksum. Fails if it is truncated or damaged.
    fn run(mut self, mut received: mpsc::Receiver<Bytes>) -> anyhow::Result<(u64, Sha256Digest)> {
        let mut number = 0;
        let mut part: Option<SpooledWriter> = None;
        while let Some(piece) = received.blocking_recv() {
            self.hasher.update(&piece);
            let writer = match &mut part {
                Some(writer) => writer,
                None => part.insert(self.begin(number)?),
            };
            writer.write(&piece)?;
            if writer.written() + UNWRITTEN_BYTES.min(self.options.part_bytes / 2) >= self.options.part_bytes
                && let Some(complete) = part.take()
            {
                self.finish(number, complete)?;
                number += 1;
            }
        }
        if let Some(complete) = part {
            self.finish(number, complete)?;
        }
        self.hasher.finish()
    }

    fn place(&self, number: u32) -> PartPlace {
        PartPlace {
            name: self.name.clone(),
            run: self.run,
            number,
        }
    }

    fn begin(&self, number: u32) -> anyhow::Result<SpooledWriter> {
        let file = BufWriter::with_capacity(WRITE_BUFFER_BYTES, self.options.spool.file()?);
        Ok(PartWriter::begin(file, &self.place(number), self.options.key.as_ref())?)
    }

    fn finish(&self, number: u32, part: SpooledWriter) -> anyhow::Result<()> {
        let FinishedPart {
            out,
            bytes,
            sha256,
            snapshot_bytes,
        } = part.finish()?;
        let file = out
            .into_inner()
            .map_err(std::io::IntoInnerError::into_error)?
            .into_file();
        let spooled = SpooledPart {
            file: Arc::new(file),
            summary: PartSummary {
                object: self.run.part(&self.name, number),
                bytes,
                sha256,
                snapshot_bytes,
            },
        };
        // The receiver is gone if it failed.
        let _failed = self.finished.blocking_send(spooled);
        Ok(())
    }
}

/// Compares a snapshot with the checksum at its end.
#[derive(Default)]
struct SnapshotHasher {
    database: Sha256,
    /// The last bytes, which may be the checksum.
    tail: Vec<u8>,
    bytes: u64,
}

impl SnapshotHasher {
    fn update(&mut self, piece: &[u8]) {
        self.bytes += piece.len() as u64;
        // Of the bytes so far all are of the database but the last ones.
        let from_tail = (self.tail.len() + piece.len())
            .saturating_sub(CHECKSUM_BYTES)
            .min(self.tail.len());
        self.database.update(&self.tail[..from_tail]);
        self.tail.drain(..from_tail);
        let from_piece = piece.len().saturating_sub(CHECKSUM_BYTES - self.tail.len());
        self.database.update(&piece[..from_piece]);
        self.tail.extend_from_slice(&piece[from_piece..]);
    }

    fn finish(self) -> anyhow::Result<(u64, Sha256Digest)> {
        let found = self.database.finalize();
        ensure!(
            self.tail.len() == CHECKSUM_BYTES && found.as_slice() == self.tail,
            "the snapshot of the member is damaged: its checksum is {}, expected {}",
            to_hex(&found),
            to_hex(&self.tail)
        );
        Ok((self.bytes, Sha256Digest(found.into())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_is_found_however_the_snapshot_is_cut() {
        let database: Vec<u8> = (0..1_000_u32).map(|n| (n % 251) as u8).collect();
        let digest: [u8; 32] = Sha256::digest(&database).into();
        let snapshot = [database.as_slice(), &digest].concat();
        for len in [1, 5, 31, 32, 33, 500, 2_000] {
            let mut hasher = SnapshotHasher::default();
            snapshot.chunks(len).for_each(|piece| hasher.update(piece));
            assert_eq!(
                hasher.finish().unwrap(),
                (1_032, Sha256Digest(digest)),
                "pieces of {len}"
            );
        }
        for len in [0, 31, 32, 1_031] {
            let mut hasher = SnapshotHasher::default();
            hasher.update(&snapshot[..len]);
            let error = hasher.finish().unwrap_err().to_string();
            assert!(error.starts_with("the snapshot of the member is damaged"), "{error}");
        }
    }
}
