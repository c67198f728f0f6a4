//! The dictionaries that values of object rows are compressed with. Each is a row of its own, which is written before those that need it,
//! and is never removed.

use std::num::NonZeroU32;
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;

use crate::keys;
use engine::rows::{Order, RowsError, Scan, Snapshot};
use runtime::compression::{self, Dictionary};

/// Dictionaries that are read at once.
const DICTIONARIES_PER_SCAN: usize = 16;

/// The dictionaries of a store, in the order in which they were added. A store has few.
#[derive(Debug, Default)]
pub struct Dictionaries {
    known: RwLock<Vec<Arc<Dictionary>>>,
}

impl Dictionaries {
    /// Reads those that are stored. Returns [`RowsError::Corrupt`], which names the row, if one is none.
    pub async fn load(rows: &dyn Snapshot) -> Result<Self, RowsError> {
        let range = keys::dictionary_range();
        let (mut from, mut known) = (range.from, Vec::new());
        loop {
            let scan = Scan {
                from: from.clone(),
                to: Some(range.to.clone()),
                order: Order::Ascending,
                keys_only: false,
                max_rows: DICTIONARIES_PER_SCAN,
                max_bytes: usize::MAX,
            };
            let page = rows.scan(scan).await?;
            for (row, content) in &page.rows {
                known.push(Arc::new(decode_dictionary(row, content)?));
                from = keys::dictionary_key(keys::parse_dictionary(row)?.saturating_add(1));
            }
            if page.done || page.rows.is_empty() {
                let known = RwLock::new(known);
                return Ok(Self { known });
            }
        }
    }

    /// Adds one that was stored.
    pub fn add(&self, dictionary: Arc<Dictionary>) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.push(dictionary);
    }

    /// The number of them.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Returns true if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The newest one, which values are compressed with.
    #[must_use]
    pub fn newest(&self) -> Option<Arc<Dictionary>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.last().cloned()
    }

    /// Returns true if there is one with this dictionary's id.
    #[must_use]
    pub fn contains(&self, dictionary: &Dictionary) -> bool {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.iter().any(|known| known.id() == dictionary.id())
    }

    /// Returns the id of the dictionary that a frame needs, if that is not here.
    #[must_use]
    pub fn missing(&self, frame: &[u8]) -> Option<NonZeroU32> {
        let id = compression::dictionary_id(frame)?;
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        (!known.iter().any(|known| known.id() == id)).then_some(id)
    }

    /// Returns a frame with this value; `None` if it is short or does not compress well.
    #[must_use]
    pub fn compress(&self, value: &[u8]) -> Option<Bytes> {
        match self.newest() {
            Some(dictionary) => dictionary.compress(value),
            None => compression::compress(value),
        }
    }

    /// Returns the value of a frame; `None` if it is damaged, or compressed with a dictionary that is not here.
    #[must_use]
    pub fn decompress(&self, frame: &[u8]) -> Option<Bytes> {
        let Some(id) = compression::dictionary_id(frame) else {
            return compression::decompress(frame);
        };
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let dictionary = known.iter().rev().find(|dictionary| dictionary.id() == id).cloned();
        // Not held while a frame is decompressed.
        drop(known);
        dictionary?.decompress(frame)
    }
}

/// Decodes the row of a dictionary. Returns [`RowsError::Corrupt`], which names the row, if it is none.
pub fn decode_dictionary(row: &Bytes, content: &Bytes) -> Result<Dictionary, RowsError> {
    keys::parse_dictionary(row)?;
    let damaged = || RowsError::Corrupt(format!("the row \"{}\" holds no dictionary", row.escape_ascii()));
    Dictionary::new(content.clone()).ok_or_else(damaged)
}
