//! Keys that encrypt backups, read from files.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::{hkdf, hmac};
use serde::{Deserialize, Serialize};

/// Bytes of a key, and of those that are derived of it.
pub(crate) const KEY_BYTES: usize = 32;

/// Bytes of a [`KeyId`].
pub(crate) const KEY_ID_BYTES: usize = 8;

/// The text whose authentication code is the id of a key. It is part of the format.
const ID_LABEL: &[u8] = b"kubebrain backup key id";

/// The purpose of a derived key. It is part of the format.
const PART_LABEL: &[u8] = b"kubebrain backup part";

/// The id of a key, which does not reveal it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyId(pub(crate) [u8; KEY_ID_BYTES]);

impl std::fmt::Display for KeyId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for KeyId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyId({self})")
    }
}

impl Serialize for KeyId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for KeyId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = from_hex(&text).and_then(|bytes| bytes.try_into().ok());
        bytes
            .map(KeyId)
            .ok_or_else(|| serde::de::Error::custom(format!("{text:?} is not the id of a key")))
    }
}

/// A key. It encrypts nothing itself: each part of a backup has a key that is derived of it.
#[derive(Clone)]
pub struct EncryptionKey {
    id: KeyId,
    derive: Arc<hkdf::Prk>,
}

impl std::fmt::Debug for EncryptionKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EncryptionKey({})", self.id)
    }
}

impl EncryptionKey {
    /// Makes a key of 32 random bytes.
    #[must_use]
    pub fn new(bytes: &[u8; KEY_BYTES]) -> Self {
        let code = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, bytes), ID_LABEL);
        let mut id = [0; KEY_ID_BYTES];
        id.copy_from_slice(&code.as_ref()[..KEY_ID_BYTES]);
        Self {
            id: KeyId(id),
            derive: Arc::new(hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, bytes)),
        }
    }

    /// Reads a key: 32 bytes, or their base64 or hexadecimal form in a line. Fails if the file has anything else.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let content = fs::read(path).with_context(|| format!("read the encryption key {}", path.display()))?;
        let key = decode(&content).with_context(|| {
            format!(
                "the encryption key {} must be {KEY_BYTES} random bytes, as they are, in base64 or in hexadecimal",
                path.display()
            )
        })?;
        Ok(Self::new(&key))
    }

    /// Returns its id.
    #[must_use]
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// Derives the key of a part from its random salt.
    pub(crate) fn derive(&self, salt: &[u8]) -> [u8; KEY_BYTES] {
        let mut key = [0; KEY_BYTES];
        let derived = self
            .derive
            .expand(&[PART_LABEL, salt], hkdf::HKDF_SHA256)
            .and_then(|derived| derived.fill(&mut key));
        derived.expect("HKDF with SHA-256 gives 32 bytes");
        key
    }
}

fn decode(content: &[u8]) -> Option<[u8; KEY_BYTES]> {
    if let Ok(key) = content.try_into() {
        return Some(key);
    }
    let text = std::str::from_utf8(content).ok()?.trim();
    let bytes = from_hex(text).or_else(|| STANDARD.decode(text).ok())?;
    bytes.try_into().ok()
}

pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn from_hex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let bytes = (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok());
    bytes.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_read_in_each_of_its_forms() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("key");
        let bytes: [u8; 32] = std::array::from_fn(|at| at as u8 * 7);
        let id = EncryptionKey::new(&bytes).id();
        let forms = [
            bytes.to_vec(),
            format!("{}\n", STANDARD.encode(bytes)).into_bytes(),
            to_hex(&bytes).into_bytes(),
            format!(" {}\r\n", to_hex(&bytes).to_uppercase()).into_bytes(),
        ];
        for form in forms {
            fs::write(&path, &form).unwrap();
            assert_eq!(EncryptionKey::read(&path).unwrap().id(), id, "{form:?}");
        }
        for wrong in ["", "password", &to_hex(&bytes[1..]), &STANDARD.encode(&bytes[1..])] {
            fs::write(&path, wrong).unwrap();
            let error = format!("{:#}", EncryptionKey::read(&path).unwrap_err());
            assert!(error.contains("must be 32 random bytes"), "{error}");
        }
    }

    /// Stored backups name it.
    #[test]
    fn id_of_a_key_stays() {
        assert_eq!(EncryptionKey::new(&[7; 32]).id().to_string(), "1886b8d8afa00451");
    }
}
