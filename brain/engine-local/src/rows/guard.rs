//! The edge to lsm-tree: its errors and panics become ours, and after a failed write nothing is written any more.

use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use anyhow::anyhow;
use lsm_tree::Error;

use super::RowsError;

/// Says if the tree can still be trusted with writes. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct RowsHealth {
    failure: Arc<OnceLock<String>>,
}

impl RowsHealth {
    /// An error once a write has failed.
    pub(super) fn check(&self) -> Result<(), RowsError> {
        match self.failure.get() {
            None => Ok(()),
            Some(failure) => Err(RowsError::Failed(anyhow!("an earlier write failed: {failure}"))),
        }
    }

    /// A write failed.
    pub(super) fn fail(&self, error: &RowsError) {
        self.failure.get_or_init(|| describe(error));
    }
}

/// Runs a call into lsm-tree; a panic in it is damage that it does not expect.
pub(super) fn caught<T>(call: impl FnOnce() -> lsm_tree::Result<T>) -> Result<T, RowsError> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(reaction),
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
            Err(RowsError::Corrupt(format!("lsm-tree gave up: {text}")))
        }
    }
}

/// Runs blocking work on a thread for it.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RowsError> + Send + 'static,
) -> Result<T, RowsError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(RowsError::Failed(anyhow::Error::new(error))))
}

/// The reaction that an error of lsm-tree asks for.
fn reaction(error: Error) -> RowsError {
    match error {
        Error::Io(error) => io(error),
        error => RowsError::Corrupt(format!("{error:?}")),
    }
}

/// The reaction that an error of the file system asks for.
pub(super) fn io(error: std::io::Error) -> RowsError {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => RowsError::Full(error.into()),
        ErrorKind::NotFound | ErrorKind::UnexpectedEof | ErrorKind::InvalidData => {
            RowsError::Corrupt(error.to_string())
        }
        _ => RowsError::Failed(error.into()),
    }
}

/// Adds the place to damage that lsm-tree found and does not name.
pub(super) fn within(dir: &Path, error: RowsError) -> RowsError {
    match error {
        RowsError::Corrupt(text) => RowsError::Corrupt(format!("{}: {text}", dir.display())),
        other => other,
    }
}

pub(super) fn describe(error: &RowsError) -> String {
    match error {
        RowsError::Full(source) | RowsError::Failed(source) => format!("{error}: {source:#}"),
        _ => error.to_string(),
    }
}
