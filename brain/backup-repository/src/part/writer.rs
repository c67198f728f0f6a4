//! Writes a part.

use std::io::{self, Write};

use sha2::{Digest as _, Sha256};
use zstd::stream::write::Encoder;

use super::{FRAME_BYTES, FrameCipher, Header, PartPlace, SALT_BYTES, TAG_BYTES};
use crate::key::EncryptionKey;
use crate::manifest::Sha256Digest;

/// The level of compression: zstd's default, which is faster than networks are.
const LEVEL: i32 = zstd::DEFAULT_COMPRESSION_LEVEL;

/// Writes one part to `W`.
pub(crate) struct PartWriter<W: Write> {
    encoder: Encoder<'static, FrameWriter<W>>,
    snapshot_bytes: u64,
}

/// A complete part.
#[derive(Debug)]
pub(crate) struct FinishedPart<W> {
    pub(crate) out: W,
    pub(crate) bytes: u64,
    pub(crate) sha256: Sha256Digest,
    pub(crate) snapshot_bytes: u64,
}

impl<W: Write> PartWriter<W> {
    /// Begins a part, which is encrypted if there is a key.
    pub(crate) fn begin(out: W, place: &PartPlace, key: Option<&EncryptionKey>) -> io::Result<Self> {
        let encryption = key.map(|key| (key.id(), rand::random::<[u8; SALT_BYTES]>()));
        let header = Header {
            run: place.run.0,
            number: place.number,
            encryption,
        };
        let header = header.encode();
        let mut out = ObjectWriter {
            out,
            hasher: Sha256::new(),
            bytes: 0,
        };
        out.write_all(&header)?;
        let cipher = match (key, &encryption) {
            (Some(key), Some((_, salt))) => Some(FrameCipher::new(key, salt, place.context(&header))),
            _ => None,
        };
        let frames = FrameWriter {
            out,
            cipher,
            frame: Vec::new(),
        };
        let encoder = Encoder::new(frames, LEVEL)?;
        Ok(Self {
            encoder,
            snapshot_bytes: 0,
        })
    }

    /// Appends bytes of the snapshot.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.snapshot_bytes += bytes.len() as u64;
        self.encoder.write_all(bytes)
    }

    /// Returns the bytes of the part so far; a few more follow when it is finished.
    pub(crate) fn written(&self) -> u64 {
        let frames = self.encoder.get_ref();
        frames.out.bytes + frames.frame.len() as u64
    }

    /// Writes the rest.
    pub(crate) fn finish(self) -> io::Result<FinishedPart<W>> {
        let mut frames = self.encoder.finish()?;
        frames.seal(true)?;
        let ObjectWriter { mut out, hasher, bytes } = frames.out;
        out.flush()?;
        Ok(FinishedPart {
            out,
            bytes,
            sha256: Sha256Digest(hasher.finalize().into()),
            snapshot_bytes: self.snapshot_bytes,
        })
    }
}

/// Seals what it is given in frames, if there is a cipher.
struct FrameWriter<W: Write> {
    out: ObjectWriter<W>,
    cipher: Option<FrameCipher>,
    /// The next frame, which is not known to be the last one before more follows.
    frame: Vec<u8>,
}

impl<W: Write> FrameWriter<W> {
    fn seal(&mut self, is_last: bool) -> io::Result<()> {
        let Some(cipher) = &mut self.cipher else { return Ok(()) };
        cipher.seal(&mut self.frame, is_last);
        self.out.write_all(&self.frame)?;
        self.frame.clear();
        Ok(())
    }
}

impl<W: Write> Write for FrameWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.cipher.is_none() {
            return self.out.write(bytes);
        }
        if self.frame.len() == FRAME_BYTES && !bytes.is_empty() {
            self.seal(false)?;
        }
        if self.frame.capacity() == 0 {
            self.frame.reserve_exact(FRAME_BYTES + TAG_BYTES);
        }
        let most = bytes.len().min(FRAME_BYTES - self.frame.len());
        self.frame.extend_from_slice(&bytes[..most]);
        Ok(most)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Counts and hashes the bytes of the object.
struct ObjectWriter<W: Write> {
    out: W,
    hasher: Sha256,
    bytes: u64,
}

impl<W: Write> Write for ObjectWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
