//! The limit of open files.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open files as far as possible, and returns it. Files of the log stay open, so raise it before a store is opened.
///
/// # Errors
/// The kernel's, which leaves the limit as it is.
pub fn raise() -> io::Result<u64> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, raised)?;
    Ok(limit())
}

/// Returns the limit of open files.
#[must_use]
pub fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
