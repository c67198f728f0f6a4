//! gzip in gRPC messages, as grpc-go's servers have it: a request may be compressed, and then its answer is, too.
//!
//! Services see plain messages. Work is done in small parts between which other tasks run, and all memory is charged.

use std::io::{self, Write as _};

use bytes::{Buf as _, Bytes};
use flate2::Compression;
use flate2::write::{GzDecoder, GzEncoder};
use http::{HeaderMap, HeaderName, HeaderValue};
use tonic::Status;

use super::framing::{MESSAGE_PREFIX_BYTES, announced};
use etcd_types::errors::Error;
use runtime::budget::{BudgetExceeded, Charge};

mod answer;
mod request;

pub(super) use answer::DeflatedBody;
pub(super) use request::{InflatedMessages, inflate};

/// The header that names the encoding of a request's messages, or of an answer's.
const ENCODING_HEADER: HeaderName = HeaderName::from_static("grpc-encoding");

/// The name of the encoding.
pub(super) const GZIP: HeaderValue = HeaderValue::from_static("gzip");

/// The encoding of a request's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageEncoding {
    Identity,
    Gzip,
}

impl MessageEncoding {
    /// Takes the encoding of a request from its headers. Fails with grpc-go's status if it is unknown.
    pub(super) fn take(headers: &mut HeaderMap) -> Result<Self, Status> {
        let Some(name) = headers.remove(ENCODING_HEADER) else {
            return Ok(Self::Identity);
        };
        match name.as_bytes() {
            b"" | b"identity" => Ok(Self::Identity),
            b"gzip" => Ok(Self::Gzip),
            other => Err(Status::unimplemented(format!(
                "grpc: Decompressor is not installed for grpc-encoding {:?}",
                String::from_utf8_lossy(other)
            ))),
        }
    }

    /// Checks a message that is compressed according to its header.
    fn check(self) -> Result<(), Status> {
        match self {
            Self::Gzip => Ok(()),
            Self::Identity => Err(Status::internal(
                "grpc: compressed flag set with identity or empty encoding",
            )),
        }
    }
}

/// Names gzip as the encoding of an answer's messages.
pub(super) fn announce(headers: &mut HeaderMap) {
    headers.insert(ENCODING_HEADER, GZIP);
}

/// The reason why a message was not decompressed.
#[derive(Debug)]
pub(super) enum InflateError {
    Exceeded(BudgetExceeded),
    Status(Status),
}

impl From<BudgetExceeded> for InflateError {
    fn from(exceeded: BudgetExceeded) -> Self {
        Self::Exceeded(exceeded)
    }
}

impl From<Status> for InflateError {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

impl InflateError {
    fn into_status(self) -> Status {
        match self {
            Self::Exceeded(_) => Error::TooManyRequests.status(),
            Self::Status(status) => status,
        }
    }
}

/// The memory of a decoder in bytes: its window, its buffer and its tables.
const DECODER_BYTES: usize = 96 << 10;

/// The memory of an encoder in bytes.
const ENCODER_BYTES: usize = 384 << 10;

/// Compressed bytes that are decompressed at a time. They become a thousand times as many at most, and may need many tables.
const INFLATE_STEP_BYTES: usize = 4 << 10;

/// Plain bytes that are compressed at a time.
const DEFLATE_STEP_BYTES: usize = 64 << 10;

/// Shorter messages of answers are not compressed.
const MIN_DEFLATED_BYTES: usize = 1 << 10;

/// Decompresses one message, a part at a time.
struct Inflater {
    compressed: Bytes,
    decoder: GzDecoder<InflatedPart>,
}

/// The decompressed part of a message, after its header.
struct InflatedPart {
    bytes: Vec<u8>,
    /// The longest message in bytes.
    limit: usize,
    /// Covers the decoder, too, while there is one.
    charge: Charge,
    /// The reason why the last write failed.
    refused: Option<InflateError>,
}

impl Inflater {
    /// Creates one for a message, without its header.
    fn new(compressed: Bytes, limit: usize, mut charge: Charge) -> Result<Self, BudgetExceeded> {
        charge.set(DECODER_BYTES)?;
        let plain = InflatedPart {
            bytes: vec![0; MESSAGE_PREFIX_BYTES],
            limit,
            charge,
            refused: None,
        };
        Ok(Self {
            compressed,
            decoder: GzDecoder::new(plain),
        })
    }

    /// Decompresses the next part. At the end, returns the plain message with its header, and its charge.
    fn step(&mut self) -> Result<Option<(Bytes, Charge)>, InflateError> {
        let part = self.compressed.split_to(self.compressed.len().min(INFLATE_STEP_BYTES));
        let mut outcome = self.decoder.write_all(&part);
        if outcome.is_ok() {
            if !self.compressed.is_empty() {
                return Ok(None);
            }
            outcome = self.decoder.try_finish();
        }
        let plain = self.decoder.get_mut();
        if let Err(error) = outcome {
            return Err(plain.refused.take().unwrap_or_else(|| {
                Status::internal(format!("grpc: failed to decompress the message: {error}")).into()
            }));
        }
        let mut bytes = std::mem::take(&mut plain.bytes);
        let len = u32::try_from(bytes.len() - MESSAGE_PREFIX_BYTES).map_err(|_| plain.too_large())?;
        bytes[1..MESSAGE_PREFIX_BYTES].copy_from_slice(&len.to_be_bytes());
        plain.charge.shrink(DECODER_BYTES);
        let charge = plain.charge.split(usize::MAX);
        Ok(Some((bytes.into(), charge)))
    }
}

impl InflatedPart {
    fn take(&mut self, part: &[u8]) -> Result<(), InflateError> {
        let len = self.bytes.len() + part.len();
        if len > MESSAGE_PREFIX_BYTES + self.limit {
            return Err(self.too_large());
        }
        let capacity = self.bytes.capacity();
        if capacity < len {
            // The buffer doubles, but not beyond the limit.
            let larger = len.max((MESSAGE_PREFIX_BYTES + self.limit).min(2 * capacity));
            self.charge.grow(larger - capacity)?;
            self.bytes.reserve_exact(larger - self.bytes.len());
        }
        self.bytes.extend_from_slice(part);
        Ok(())
    }

    fn too_large(&self) -> InflateError {
        let text = "grpc: received message after decompression larger than max";
        Status::resource_exhausted(format!("{text} {}", self.limit)).into()
    }
}

impl io::Write for InflatedPart {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        match self.take(part) {
            Ok(()) => Ok(part.len()),
            Err(refused) => {
                self.refused = Some(refused);
                Err(io::ErrorKind::Other.into())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Compresses messages, a part at a time.
struct Deflater {
    plain: Bytes,
    /// The messages that are compressed already; none while there is an encoder.
    done: Vec<u8>,
    encoder: Option<DeflatingMessage>,
    is_encoder_charged: bool,
    charge: Charge,
}

/// A message that is being compressed, after the finished ones.
struct DeflatingMessage {
    gzip: GzEncoder<Vec<u8>>,
    /// The place of its header.
    at: usize,
    /// The plain bytes that are not compressed yet.
    left: usize,
}

impl Deflater {
    /// Creates one for whole messages with their headers.
    fn new(plain: Bytes, mut charge: Charge) -> Result<Self, BudgetExceeded> {
        charge.set(plain.len())?;
        Ok(Self {
            plain,
            done: Vec::new(),
            encoder: None,
            is_encoder_charged: false,
            charge,
        })
    }

    /// Compresses the next part. At the end, returns all messages.
    fn step(&mut self) -> Result<Option<Bytes>, InflateError> {
        let mut room = DEFLATE_STEP_BYTES;
        while room > 0 {
            match self.encoder.take() {
                Some(encoder) => room -= self.go_on(encoder, room)?,
                None if self.plain.is_empty() => return Ok(Some(std::mem::take(&mut self.done).into())),
                None => room -= self.begin()?.min(room),
            }
        }
        Ok(None)
    }

    /// Begins with the next message, or copies it. Returns the bytes that were copied.
    fn begin(&mut self) -> Result<usize, InflateError> {
        let len = announced(&self.plain).filter(|len| self.plain.len() - MESSAGE_PREFIX_BYTES >= *len);
        let len = len.ok_or_else(|| Status::internal("etcdserver: an answer is not a complete message"))?;
        // Where there is no memory for an encoder, the message goes as it is: a client that asked for gzip takes both.
        let is_copied =
            len < MIN_DEFLATED_BYTES || !self.is_encoder_charged && self.charge.grow(ENCODER_BYTES).is_err();
        if is_copied {
            let message = self.plain.split_to(MESSAGE_PREFIX_BYTES + len);
            self.charge.grow(message.len())?;
            self.done.extend_from_slice(&message);
            return Ok(message.len());
        }
        self.is_encoder_charged = true;
        self.plain.advance(MESSAGE_PREFIX_BYTES);
        let (at, mut done) = (self.done.len(), std::mem::take(&mut self.done));
        done.extend_from_slice(&[1, 0, 0, 0, 0]);
        let gzip = GzEncoder::new(done, Compression::fast());
        self.encoder = Some(DeflatingMessage { gzip, at, left: len });
        Ok(0)
    }

    /// Compresses the next bytes of a message. Returns their number.
    fn go_on(&mut self, mut encoder: DeflatingMessage, room: usize) -> Result<usize, InflateError> {
        let failed = |error: io::Error| Status::internal(format!("grpc: error while compressing: {error}"));
        let part = self.plain.split_to(encoder.left.min(room));
        let before = encoder.gzip.get_ref().capacity();
        encoder.gzip.write_all(&part).map_err(failed)?;
        encoder.left -= part.len();
        let after = if encoder.left > 0 {
            let after = encoder.gzip.get_ref().capacity();
            self.encoder = Some(encoder);
            after
        } else {
            let mut done = encoder.gzip.finish().map_err(failed)?;
            let len = done.len() - encoder.at - MESSAGE_PREFIX_BYTES;
            let len = u32::try_from(len).map_err(|_| Status::resource_exhausted("grpc: message too large"))?;
            done[encoder.at + 1..encoder.at + MESSAGE_PREFIX_BYTES].copy_from_slice(&len.to_be_bytes());
            self.done = done;
            self.done.capacity()
        };
        self.charge.grow(after.saturating_sub(before))?;
        Ok(part.len())
    }
}

#[cfg(test)]
mod tests;
