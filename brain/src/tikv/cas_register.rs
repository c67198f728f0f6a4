//! A register in TiKV: one key, read at a fresh timestamp, written in one phase.

use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;

use super::{Limits, Tikv};
use crate::cas_register::{Cas, CasRegister};

/// A [`CasRegister`] in TiKV.
#[derive(Debug, Clone)]
pub struct TikvRegister {
    tikv: Tikv,
    key: Bytes,
    limits: Limits,
}

impl TikvRegister {
    pub(super) fn new(tikv: Tikv, key: Bytes, timeout: Duration) -> TikvRegister {
        let limits = Limits {
            attempt: timeout / 2,
            total: timeout,
        };
        TikvRegister { tikv, key, limits }
    }

    /// The same register, with another limit on how long a request may take.
    #[must_use]
    pub fn within(&self, timeout: Duration) -> TikvRegister {
        TikvRegister::new(self.tikv.clone(), self.key.clone(), timeout)
    }
}

impl CasRegister for TikvRegister {
    async fn get(&self) -> anyhow::Result<Option<Bytes>> {
        self.tikv
            .get_now(&self.key, self.limits)
            .await
            .context("read a register of TiKV")
    }

    async fn compare_and_set(&self, expected: Option<Bytes>, new: Option<Bytes>) -> Cas {
        self.tikv
            .swap(&self.key, expected.as_ref(), new.as_ref(), self.limits)
            .await
    }
}
