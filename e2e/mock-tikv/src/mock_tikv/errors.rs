//! Reasons that a mock does not start, or does not carry out a command.

use std::path::PathBuf;

use crate::engine::Failure;
use crate::journal::JournalError;
use crate::regions::RegionsError;
use crate::server::EndpointError;

/// Reason that a mock does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("at least one store is required")]
    NoStores,
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("the data belongs to cluster {found}, not {wanted}")]
    Cluster { found: u64, wanted: u64 },
    #[error("the data is of {found} stores, not {wanted}")]
    Stores { found: usize, wanted: usize },
    #[error("cannot read {path}", path = path.display())]
    Credentials { path: PathBuf, source: std::io::Error },
    #[error("the certificates cannot be used")]
    Tls(#[source] tonic::transport::Error),
    #[error("the first write failed: {0}")]
    FirstWrite(String),
}

/// Reason that a command to a running mock is not done.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error(transparent)]
    Regions(#[from] RegionsError),
    #[error("there is no process {0}: PD is 0, stores count from 1")]
    NoProcess(u64),
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error("the mock rejected it: {0}")]
    Refused(String),
}

impl From<Failure> for CommandError {
    fn from(failure: Failure) -> Self {
        Self::Refused(describe(failure))
    }
}

pub(super) fn describe(failure: Failure) -> String {
    match failure {
        Failure::Region(error) => error.message,
        Failure::Call(status) => status.message().to_owned(),
    }
}
