//! The format of a part: a header, and a piece of the snapshot, compressed and perhaps encrypted.
//!
//! An encrypted part has a key of its own, which is derived from the key of the user and a random salt in the header. Its compressed bytes
//! are in frames of 1 MiB, each sealed with AES-256-GCM. The nonce holds the number of the frame and whether it is the last one; the
//! header and the name of the backup are authenticated with each. So frames and parts are not cut, moved or taken from another backup.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use crate::key::{EncryptionKey, KEY_ID_BYTES, KeyId};
use crate::manifest::{BackupName, RunId};

pub(crate) use reader::{PartError, PartReader};
pub(crate) use writer::{FinishedPart, PartWriter};

mod reader;
#[cfg(test)]
mod tests;
mod writer;

/// The first bytes of a part: the last one is the format.
const MAGIC: [u8; 9] = *b"KBBACKUP\x01";

/// The byte after them.
const NOT_ENCRYPTED: u8 = 0;
const ENCRYPTED: u8 = 1;

/// Bytes of a header, and of the rest of it that only encrypted parts have.
const PLAIN_HEADER_BYTES: usize = MAGIC.len() + 1 + 16 + 4;
pub(crate) const SALT_BYTES: usize = 32;
const ENCRYPTION_BYTES: usize = KEY_ID_BYTES + SALT_BYTES;

/// Bytes of a whole frame before it is sealed.
const FRAME_BYTES: usize = 1 << 20;

/// Bytes that a frame gets more when it is sealed.
const TAG_BYTES: usize = 16;

/// The largest window of compressed data that is accepted, as a power of two: more than [`writer`] ever uses.
pub(crate) const MAX_WINDOW_LOG: u32 = 23;

/// The place of a part.
#[derive(Debug, Clone)]
pub(crate) struct PartPlace {
    pub(crate) name: BackupName,
    pub(crate) run: RunId,
    pub(crate) number: u32,
}

impl PartPlace {
    /// Returns what is authenticated with each frame of a part.
    fn context(&self, header: &[u8]) -> Vec<u8> {
        [header, self.name.to_string().as_bytes()].concat()
    }
}

/// The header of a part.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Header {
    run: [u8; 16],
    number: u32,
    encryption: Option<(KeyId, [u8; SALT_BYTES])>,
}

impl Header {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.push(if self.encryption.is_some() {
            ENCRYPTED
        } else {
            NOT_ENCRYPTED
        });
        bytes.extend_from_slice(&self.run);
        bytes.extend_from_slice(&self.number.to_be_bytes());
        if let Some((key, salt)) = &self.encryption {
            bytes.extend_from_slice(&key.0);
            bytes.extend_from_slice(salt);
        }
        bytes
    }

    /// Decodes the beginning of a part. Returns `None` until it is long enough, and the length of the header with it.
    fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, &'static str> {
        let begin = bytes.len().min(MAGIC.len());
        if bytes[..begin] != MAGIC[..begin] {
            return Err("it is not a part of a backup, or of a format that this program does not read");
        }
        let Some((head, rest)) = bytes.split_at_checked(PLAIN_HEADER_BYTES) else {
            return Ok(None);
        };
        let (mut run, mut number) = ([0; 16], [0; 4]);
        let fields = &head[MAGIC.len() + 1..];
        run.copy_from_slice(&fields[..16]);
        number.copy_from_slice(&fields[16..]);
        let mut header = Self {
            run,
            number: u32::from_be_bytes(number),
            encryption: None,
        };
        match head[MAGIC.len()] {
            NOT_ENCRYPTED => Ok(Some((header, PLAIN_HEADER_BYTES))),
            ENCRYPTED => {
                let Some((fields, _)) = rest.split_at_checked(ENCRYPTION_BYTES) else {
                    return Ok(None);
                };
                let (mut key, mut salt) = ([0; KEY_ID_BYTES], [0; SALT_BYTES]);
                key.copy_from_slice(&fields[..KEY_ID_BYTES]);
                salt.copy_from_slice(&fields[KEY_ID_BYTES..]);
                header.encryption = Some((KeyId(key), salt));
                Ok(Some((header, PLAIN_HEADER_BYTES + ENCRYPTION_BYTES)))
            }
            _ => Err("it is encrypted in a way that this program does not know"),
        }
    }
}

/// Appends bytes to `out` in sealed frames, the context authenticated with each.
pub(crate) fn seal(key: &EncryptionKey, salt: &[u8; SALT_BYTES], context: &[u8], bytes: &[u8], out: &mut Vec<u8>) {
    let mut cipher = FrameCipher::new(key, salt, context.to_vec());
    let mut rest = bytes;
    loop {
        let (frame, later) = rest.split_at(rest.len().min(FRAME_BYTES));
        let mut frame = frame.to_vec();
        cipher.seal(&mut frame, later.is_empty());
        out.extend_from_slice(&frame);
        if later.is_empty() {
            return;
        }
        rest = later;
    }
}

/// Opens what [`seal`] wrote; returns `None` if it is something else.
pub(crate) fn open(key: &EncryptionKey, salt: &[u8; SALT_BYTES], context: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
    let mut cipher = FrameCipher::new(key, salt, context.to_vec());
    let (mut opened, mut rest) = (Vec::with_capacity(sealed.len()), sealed);
    loop {
        let (frame, later) = rest.split_at(rest.len().min(FRAME_BYTES + TAG_BYTES));
        opened.extend_from_slice(cipher.open(&mut frame.to_vec(), later.is_empty())?);
        if later.is_empty() {
            return Some(opened);
        }
        rest = later;
    }
}

/// Seals and opens the frames of one part.
struct FrameCipher {
    key: LessSafeKey,
    /// Authenticated with each frame.
    context: Vec<u8>,
    /// The number of the next frame.
    next: u64,
}

impl FrameCipher {
    fn new(key: &EncryptionKey, salt: &[u8; SALT_BYTES], context: Vec<u8>) -> Self {
        let derived = key.derive(salt);
        let derived = UnboundKey::new(&AES_256_GCM, &derived).expect("a key of AES-256 has 32 bytes");
        Self {
            key: LessSafeKey::new(derived),
            context,
            next: 0,
        }
    }

    fn nonce(&mut self, is_last: bool) -> Nonce {
        let mut nonce = [0; NONCE_LEN];
        nonce[..8].copy_from_slice(&self.next.to_be_bytes());
        nonce[NONCE_LEN - 1] = u8::from(is_last);
        self.next += 1;
        Nonce::assume_unique_for_key(nonce)
    }

    fn seal(&mut self, frame: &mut Vec<u8>, is_last: bool) {
        let nonce = self.nonce(is_last);
        let sealed = self
            .key
            .seal_in_place_append_tag(nonce, Aad::from(&self.context), frame);
        sealed.expect("a frame is short enough for AES-GCM");
    }

    /// Opens a frame; returns its content, or `None` if it is not what was sealed.
    fn open<'a>(&mut self, frame: &'a mut [u8], is_last: bool) -> Option<&'a [u8]> {
        let nonce = self.nonce(is_last);
        let opened = self.key.open_in_place(nonce, Aad::from(&self.context), frame);
        opened.ok().map(|opened| &*opened)
    }
}
