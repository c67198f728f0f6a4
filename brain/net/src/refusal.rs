//! The reason why a member does not serve: a stable code for programs, and a line for people.
//!
//! `/member` returns it as long as there is no store, and a process that ends writes it to the file that Kubernetes reads.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;

use serde::Serialize;

/// The file of a container from which Kubernetes reads the reason of its termination.
pub const TERMINATION_LOG: &str = "/dev/termination-log";

/// The reason why a member does not serve, for programs. The codes are part of the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum RefusalCode {
    /// The member has just started.
    Starting,
    /// There is no leader yet.
    NoLeader,
    /// Storage does not answer.
    StorageUnreachable,
    /// The key prefix belongs to another cluster.
    PrefixTaken,
    /// A wipe of the key prefix is in progress, or was interrupted.
    PrefixWiping,
    /// PD belongs to another TiKV cluster than the one that holds the data, or that is configured.
    ClusterIDMismatch,
    /// The data directory holds another store than the configured one, or none.
    StoreMismatch,
    /// A newer version stored the data.
    FormatTooNew,
    /// An older version stored the data, in a format that is no longer supported.
    FormatTooOld,
    /// Stored bytes are not what was written, or a part is missing.
    Corrupt,
    /// There is no store where one must be.
    StoreMissing,
    /// The Lease of the election is stored here.
    LeaseStoredHere,
    /// Any other reason.
    Failed,
}

/// The reason why a member does not serve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The code for programs.
    pub code: RefusalCode,
    /// The message for people.
    pub message: String,
}

impl Refusal {
    /// Creates a reason with a message that is not that of an error.
    #[must_use]
    pub fn new(code: RefusalCode, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { code, message }
    }

    /// Writes it into an existing file, and creates none. Fails if the file does not exist, or cannot be written.
    pub fn leave_in(&self, path: &Path) -> io::Result<()> {
        let line = serde_json::to_vec(self)?;
        OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(path)?
            .write_all(&line)
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn reason_of_the_end_is_left_only_where_it_is_looked_for() {
        let dir = tempfile::TempDir::new().unwrap();
        let file = dir.path().join("termination-log");
        let refusal = Refusal::new(RefusalCode::Corrupt, "slot 7");
        assert!(refusal.leave_in(&file).context("write").is_err());
        assert!(!file.exists());
        std::fs::write(&file, "what stood there before, which is longer than the reason").unwrap();
        refusal.leave_in(&file).unwrap();
        assert_eq!(
            std::fs::read_to_string(&file).unwrap(),
            r#"{"code":"Corrupt","message":"slot 7"}"#
        );
    }
}
