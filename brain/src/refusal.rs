//! Why a member does not serve: a word for programs, which stays as it is, and a line for people.
//!
//! `/member` answers with it as long as there is no store, and a process that ends leaves it where Kubernetes looks for it.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;

use serde::Serialize;

/// The file of a container in which Kubernetes looks for the reason of its end.
pub const TERMINATION_LOG: &str = "/dev/termination-log";

/// Why a member does not serve, for programs. The words are part of the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Code {
    /// It has just begun.
    Starting,
    /// Nobody leads yet.
    NoLeader,
    /// Storage does not answer.
    StorageUnreachable,
    /// The key prefix belongs to another cluster.
    PrefixTaken,
    /// The key prefix is being wiped, or was and not to the end.
    PrefixWiping,
    /// PD leads to another TiKV cluster than the one that holds the data, or that is wanted.
    ClusterIDMismatch,
    /// A newer version stored the data.
    FormatTooNew,
    /// An older version stored the data, in a format that is not read any more.
    FormatTooOld,
    /// Stored bytes are not what was written, or a part is missing.
    Corrupt,
    /// The Lease that is competed for is stored here.
    LeaseStoredHere,
    /// Anything else.
    Failed,
}

/// Why a member does not serve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// For programs.
    pub code: Code,
    /// For people.
    pub message: String,
}

impl Refusal {
    /// A reason in other words than those of an error.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { code, message }
    }

    /// Writes it into a file that is there, and makes none.
    ///
    /// # Errors
    /// The file is not there, or cannot be written.
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
        let refusal = Refusal::new(Code::Corrupt, "slot 7");
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
