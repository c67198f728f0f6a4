//! Reads the snapshot of a backup back.

use std::io::Write;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use futures::TryStreamExt as _;
use object_store::{GetOptions, GetRange};
use runtime::log_once::LogBackoff;
use tokio::sync::mpsc;
use tracing::info;

use crate::ObjectError;
use crate::key::EncryptionKey;
use crate::manifest::{Manifest, PartSummary};
use crate::part::{PartError, PartPlace, PartReader};
use crate::repository::Repository;

/// Interval between log lines about the progress.
pub(crate) const PROGRESS_LOG_INTERVAL: Duration = Duration::from_secs(5);

/// Pieces of an object that wait to be decoded.
const WAITING_PIECES: usize = 8;

/// A message to the decoding thread.
enum Piece {
    Bytes(Bytes),
    /// The part is complete.
    End,
}

impl Repository {
    /// Reads all parts of a backup, and writes the snapshot in them to `out`. Fails with an [`ObjectError`] that names the object if one is
    /// missing or not what was written, or if its key is not among `keys`.
    pub async fn read_snapshot<W: Write + Send + 'static>(
        &self,
        manifest: &Manifest,
        keys: &[EncryptionKey],
        out: W,
    ) -> anyhow::Result<W> {
        if let Some(encryption) = &manifest.encryption
            && !keys.iter().any(|key| key.id() == encryption.key_id)
        {
            return Err(ObjectError::no_key(&manifest.name.manifest(), encryption.key_id, keys).into());
        }
        let (pieces, received) = mpsc::channel(WAITING_PIECES);
        let (of, keys) = (manifest.clone(), keys.to_vec());
        let decoding = tokio::task::spawn_blocking(move || decode(&of, &keys, received, out));
        let fetched = self.fetch(manifest, pieces).await;
        // The reason why the thread has ended early comes first.
        let decoded = decoding.await?;
        match (fetched, decoded) {
            (Err(error), Ok(None)) => Err(error.into()),
            (_, Err(error)) => Err(error),
            (Err(error), Ok(Some(_))) => Err(error.into()),
            (Ok(()), Ok(written)) => written.context("the parts of a backup ended early"),
        }
    }

    /// Sends all parts to the thread, in order. Returns early if it is gone.
    async fn fetch(&self, manifest: &Manifest, pieces: mpsc::Sender<Piece>) -> Result<(), ObjectError> {
        let (mut read, mut log) = (0, LogBackoff::every(PROGRESS_LOG_INTERVAL));
        let total = manifest.stored_bytes();
        for part in &manifest.parts {
            self.fetch_part(part, &pieces).await?;
            if pieces.send(Piece::End).await.is_err() {
                return Ok(());
            }
            read += part.bytes;
            if log.is_due() {
                let percent = (u128::from(read) * 100).checked_div(total.into()).unwrap_or_default();
                info!(read, total, percent, "reading the parts of a backup");
            }
        }
        Ok(())
    }

    async fn fetch_part(&self, part: &PartSummary, pieces: &mpsc::Sender<Piece>) -> Result<(), ObjectError> {
        let (mut sent, mut retry) = (0, self.retry(&part.object));
        loop {
            let before = sent;
            match self.fetch_rest(part, &mut sent, pieces).await {
                Ok(done) => return done,
                Err(error) => {
                    if sent > before {
                        retry.reset();
                    }
                    if let Err(error) = retry.pause(error).await {
                        return Err(self.or_missing(error).await);
                    }
                }
            }
        }
    }

    /// Sends the rest of a part. The outer error is one of the store.
    async fn fetch_rest(
        &self,
        part: &PartSummary,
        sent: &mut u64,
        pieces: &mpsc::Sender<Piece>,
    ) -> object_store::Result<Result<(), ObjectError>> {
        if *sent > 0 && *sent >= part.bytes {
            return Ok(Ok(()));
        }
        let options = GetOptions {
            range: (*sent > 0).then_some(GetRange::Offset(*sent)),
            ..GetOptions::default()
        };
        let got = self.store.get_opts(&self.path(&part.object), options).await?;
        if got.meta.size != part.bytes {
            let (size, expected) = (got.meta.size, part.bytes);
            return Ok(Err(ObjectError::Damaged {
                object: part.object.clone(),
                what: format!("it has {size} bytes, expected {expected}"),
            }));
        }
        let mut stream = got.into_stream();
        while let Some(bytes) = stream.try_next().await? {
            let len = bytes.len() as u64;
            // The thread is gone if it failed.
            if pieces.send(Piece::Bytes(bytes)).await.is_err() {
                return Ok(Ok(()));
            }
            *sent += len;
        }
        Ok(Ok(()))
    }
}

/// Decodes the parts. Returns `None` if the sender was gone before the end.
fn decode<W: Write>(
    manifest: &Manifest,
    keys: &[EncryptionKey],
    mut received: mpsc::Receiver<Piece>,
    mut out: W,
) -> anyhow::Result<Option<W>> {
    for (part, number) in manifest.parts.iter().zip(0..) {
        let place = PartPlace {
            name: manifest.name.clone(),
            run: manifest.run_id,
            number,
        };
        let mut reader = PartReader::begin(out, place, part, keys).map_err(PartError::into_error)?;
        loop {
            match received.blocking_recv() {
                Some(Piece::Bytes(bytes)) => reader.push(&bytes).map_err(PartError::into_error)?,
                Some(Piece::End) => break,
                None => return Ok(None),
            }
        }
        out = reader.finish().map_err(PartError::into_error)?;
    }
    out.flush()?;
    Ok(Some(out))
}
