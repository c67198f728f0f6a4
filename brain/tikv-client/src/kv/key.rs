// Copyright 2019 TiKV Project Authors. Licensed under Apache-2.0.

use std::fmt;

use super::codec;
use super::HexRepr;

/// The key part of a key/value pair: any sequence of bytes.
///
/// Many functions which accept a `Key` accept an `Into<Key>`, which means that strings and vectors of bytes can be passed
/// directly to those functions.
#[derive(Default, Clone, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct Key(pub(crate) Vec<u8>);

impl Key {
    /// The empty key.
    pub(crate) const EMPTY: Self = Key(Vec::new());

    /// Return whether the key is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Push a zero to the end of the key.
    ///
    /// Extending a zero makes the new key the smallest key that is greater than than the original one.
    pub(crate) fn next_key(mut self) -> Self {
        self.0.push(0);
        self
    }

    /// Return the MVCC-encoded representation of a key.
    pub(crate) fn encode(key: &[u8]) -> Key {
        Key(codec::encode_bytes(key))
    }
}

impl From<Vec<u8>> for Key {
    fn from(v: Vec<u8>) -> Self {
        Key(v)
    }
}

impl From<String> for Key {
    fn from(v: String) -> Key {
        Key(v.into_bytes())
    }
}

impl From<Key> for Vec<u8> {
    fn from(key: Key) -> Self {
        key.0
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Key({})", HexRepr(&self.0))
    }
}
