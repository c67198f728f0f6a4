//! A compare-and-set register: one small value in storage that several members share.
//!
//! A successful write proves that no other write came in between. An election needs nothing else of its storage.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

/// A register of any engine. Clones share it.
pub type DynRegister = Arc<dyn CasRegister>;

/// One value, or none, that several members read and replace.
///
/// Laws, proved for every implementation by `cas_register::laws`:
/// 1. `get` returns the newest value: everything that was set, by any member, before the call.
/// 2. `compare_and_set` sets the value only if the register holds `expected` at that very moment.
/// 3. `Swapped` and `Mismatch` are final. `Unknown` promises nothing: the value may have been set, or may yet be set as long as the
///    register holds `expected`; only `get` can resolve it, and only a value other than `expected` does.
#[async_trait]
pub trait CasRegister: Send + Sync + 'static {
    /// Returns the value; `None` if there is none.
    /// # Errors
    /// The register cannot be reached.
    async fn get(&self) -> anyhow::Result<Option<Bytes>>;

    /// Makes the next [`CasRegister::compare_and_set`] that expects `expected` quick, if it can: what it would do before it sends
    /// the new value is done now. Does not fail; the register is not changed.
    async fn prepare(&self, expected: Option<&Bytes>) {
        let _ = expected;
    }

    /// Sets the value to `new`, or removes it, if the register holds `expected`.
    async fn compare_and_set(&self, expected: Option<Bytes>, new: Option<Bytes>) -> Cas;
}

/// The result of a [`CasRegister::compare_and_set`].
#[derive(Debug)]
pub enum Cas {
    /// The register holds the new value.
    Swapped,
    /// The register held something else and is as it was.
    Mismatch,
    /// Lost contact before the outcome was known.
    Unknown(anyhow::Error),
}

/// Attempts of [`set`].
const SET_ATTEMPTS: u32 = 5;

/// Sets the value of a register that no other member sets at the same time. Fails if the register cannot be reached, or if another member
/// changes it.
pub async fn set(register: &dyn CasRegister, new: Option<Bytes>) -> anyhow::Result<()> {
    let mut failed = None;
    for _ in 0..SET_ATTEMPTS {
        let stored = register.get().await?;
        if stored == new {
            return Ok(());
        }
        if let Cas::Unknown(error) = register.compare_and_set(stored, new.clone()).await {
            failed = Some(error);
        }
    }
    Err(failed.unwrap_or_else(|| anyhow::anyhow!("another writer keeps changing the register")))
}

#[cfg(any(test, feature = "laws"))]
pub mod laws;
pub mod mem;
