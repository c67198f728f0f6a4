//! A cell in TiKV: one key, read at a fresh timestamp, written in one phase.

use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;

use super::{Limits, Tikv};
use crate::cell::{Cell, Swap};

/// A [`Cell`] in TiKV.
#[derive(Debug, Clone)]
pub struct TikvCell {
    tikv: Tikv,
    key: Bytes,
    limits: Limits,
}

impl TikvCell {
    pub(super) fn new(tikv: Tikv, key: Bytes, timeout: Duration) -> TikvCell {
        let limits = Limits {
            attempt: timeout / 2,
            total: timeout,
        };
        TikvCell { tikv, key, limits }
    }

    /// The same cell, with another limit on how long a request may take.
    #[must_use]
    pub fn within(&self, timeout: Duration) -> TikvCell {
        TikvCell::new(self.tikv.clone(), self.key.clone(), timeout)
    }
}

impl Cell for TikvCell {
    async fn get(&self) -> anyhow::Result<Option<Bytes>> {
        self.tikv
            .get_now(&self.key, self.limits)
            .await
            .context("read a cell of TiKV")
    }

    async fn compare_and_set(&self, expected: Option<Bytes>, new: Option<Bytes>) -> Swap {
        self.tikv
            .swap(&self.key, expected.as_ref(), new.as_ref(), self.limits)
            .await
    }
}
