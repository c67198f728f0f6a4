//! Reads a part, and refuses one that is not what was written.

use std::io::{self, Write};

use sha2::{Digest as _, Sha256};
use zstd::stream::write::Decoder;

use super::{FRAME_BYTES, FrameCipher, Header, MAX_WINDOW_LOG, PartPlace, TAG_BYTES};
use crate::ObjectError;
use crate::key::EncryptionKey;
use crate::manifest::{PartSummary, Sha256Digest};

/// Takes the bytes of an object, and writes those of the snapshot in it.
pub(crate) struct PartReader<'a, W: Write> {
    place: PartPlace,
    part: &'a PartSummary,
    keys: &'a [EncryptionKey],
    hasher: Sha256,
    received: u64,
    /// Bytes of a header, or of a frame, that is not complete.
    pending: Vec<u8>,
    body: Option<Body>,
    decoder: Decoder<'static, BoundedWriter<W>>,
}

enum Body {
    Plain,
    Encrypted(Box<FrameCipher>),
}

/// The reason why a part could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PartError {
    #[error(transparent)]
    Object(#[from] ObjectError),
    #[error("write the snapshot")]
    Io(#[source] io::Error),
}

impl PartError {
    /// Returns the error of the object itself, for a caller that tells it from others.
    pub(crate) fn into_error(self) -> anyhow::Error {
        match self {
            PartError::Object(error) => error.into(),
            error @ PartError::Io(_) => error.into(),
        }
    }
}

impl<'a, W: Write> PartReader<'a, W> {
    /// Begins to read the part that a manifest describes so.
    pub(crate) fn begin(
        out: W,
        place: PartPlace,
        part: &'a PartSummary,
        keys: &'a [EncryptionKey],
    ) -> Result<Self, PartError> {
        let out = BoundedWriter {
            out,
            left: part.snapshot_bytes,
            failed: None,
        };
        let mut decoder = Decoder::new(out).map_err(PartError::Io)?;
        decoder.window_log_max(MAX_WINDOW_LOG).map_err(PartError::Io)?;
        Ok(Self {
            place,
            part,
            keys,
            hasher: Sha256::new(),
            received: 0,
            pending: Vec::new(),
            body: None,
            decoder,
        })
    }

    fn damaged(&self, what: impl Into<String>) -> PartError {
        let object = self.part.object.clone();
        ObjectError::Damaged {
            object,
            what: what.into(),
        }
        .into()
    }

    /// Takes the next bytes of the object.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), PartError> {
        self.hasher.update(bytes);
        self.received += bytes.len() as u64;
        if self.received > self.part.bytes {
            return Err(self.damaged(format!("it is longer than {} bytes", self.part.bytes)));
        }
        match self.body {
            Some(Body::Plain) => self.decode(bytes),
            Some(Body::Encrypted(_)) => self.open(bytes),
            None => {
                self.pending.extend_from_slice(bytes);
                let decoded = Header::decode(&self.pending).map_err(|what| self.damaged(what))?;
                let Some((header, len)) = decoded else { return Ok(()) };
                let rest = self.pending.split_off(len);
                let head = std::mem::take(&mut self.pending);
                self.body = Some(self.begin_body(&header, &head)?);
                match self.body {
                    Some(Body::Encrypted(_)) => self.open(&rest),
                    _ => self.decode(&rest),
                }
            }
        }
    }

    fn begin_body(&self, header: &Header, head: &[u8]) -> Result<Body, PartError> {
        if header.run != self.place.run.0 {
            return Err(self.damaged("it is a part of another backup"));
        }
        if header.number != self.place.number {
            let (found, expected) = (header.number, self.place.number);
            return Err(self.damaged(format!("it is part {found} of the backup, expected {expected}")));
        }
        let Some((id, salt)) = &header.encryption else {
            return Ok(Body::Plain);
        };
        let Some(key) = self.keys.iter().find(|key| key.id() == *id) else {
            return Err(ObjectError::no_key(&self.part.object, *id, self.keys).into());
        };
        let cipher = FrameCipher::new(key, salt, self.place.context(head));
        Ok(Body::Encrypted(Box::new(cipher)))
    }

    /// Opens the frames that are complete.
    fn open(&mut self, mut bytes: &[u8]) -> Result<(), PartError> {
        loop {
            // All frames are whole but the last one.
            let arrived = (self.pending.len() + bytes.len()) as u64;
            let to_come = self.part.bytes - self.received + arrived;
            let whole = FRAME_BYTES + TAG_BYTES;
            let is_last = to_come <= whole as u64;
            let len = if is_last {
                usize::try_from(to_come).unwrap_or(whole)
            } else {
                whole
            };
            let (now, later) = bytes.split_at(bytes.len().min(len - self.pending.len()));
            self.pending.extend_from_slice(now);
            bytes = later;
            if self.pending.len() < len || len == 0 {
                return Ok(());
            }
            let mut frame = std::mem::take(&mut self.pending);
            let Some(Body::Encrypted(cipher)) = &mut self.body else {
                return Ok(());
            };
            let number = cipher.next;
            let Some(opened) = cipher.open(&mut frame, is_last) else {
                return Err(self.damaged(format!("its frame {number} is not what was encrypted")));
            };
            self.decode(opened)?;
            frame.clear();
            self.pending = frame;
        }
    }

    /// Decompresses bytes.
    fn decode(&mut self, bytes: &[u8]) -> Result<(), PartError> {
        let decoded = self.decoder.write_all(bytes);
        decoded.map_err(|error| self.failed(&error))
    }

    fn failed(&mut self, error: &io::Error) -> PartError {
        match self.decoder.get_mut().failed.take() {
            Some(error) => PartError::Io(error),
            None => self.damaged(format!("it does not decompress: {error}")),
        }
    }

    /// Ends the part. Fails if it is not what the manifest says.
    pub(crate) fn finish(mut self) -> Result<W, PartError> {
        let (received, expected) = (self.received, self.part.bytes);
        if received != expected {
            return Err(self.damaged(format!("it has {received} bytes, expected {expected}")));
        }
        let found = Sha256Digest(std::mem::take(&mut self.hasher).finalize().into());
        if found != self.part.sha256 {
            let expected = self.part.sha256;
            return Err(self.damaged(format!("its SHA-256 is {found}, expected {expected}")));
        }
        if let Err(error) = self.decoder.flush() {
            return Err(self.failed(&error));
        }
        let left = self.decoder.get_ref().left;
        if left > 0 {
            return Err(self.damaged(format!("{left} bytes of the snapshot are missing in it")));
        }
        Ok(self.decoder.into_inner().out)
    }
}

/// Accepts as many bytes as the part has, and remembers a failure of what is below.
struct BoundedWriter<W: Write> {
    out: W,
    left: u64,
    failed: Option<io::Error>,
}

impl<W: Write> BoundedWriter<W> {
    fn note<T>(&mut self, done: io::Result<T>) -> io::Result<T> {
        done.map_err(|error| {
            let copy = io::Error::from(error.kind());
            self.failed = Some(error);
            copy
        })
    }
}

impl<W: Write> Write for BoundedWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.left {
            return Err(io::Error::other("it holds more of the snapshot than it should"));
        }
        let written = self.out.write(bytes);
        let written = self.note(written)?;
        self.left -= written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.out.flush();
        self.note(flushed)
    }
}
