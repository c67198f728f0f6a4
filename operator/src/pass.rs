//! The end of a pass over one cluster: its outcome, or the reason why it failed.

use std::time::Duration;

use crate::api_error::{self, FailureClass};
use crate::metrics::ReconcileOutcome;

/// Requeue interval while a change is in progress or a condition is bad.
pub(crate) const SOON_REQUEUE: Duration = Duration::from_secs(5);

/// Reason why a pass failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PassError {
    #[error("{0} failed")]
    Api(&'static str, #[source] Box<kube::Error>),
    #[error("an object does not serialise")]
    Serialise(#[from] serde_json::Error),
    #[error("could not {what}: {words}")]
    Step {
        what: String,
        words: String,
        class: FailureClass,
    },
    #[error("the pass took longer than {0:?}")]
    Timeout(Duration),
    #[error("the pass panicked: {0}")]
    Panic(String),
}

impl PassError {
    /// Returns the class of the error, which decides how a reconcile reacts.
    pub(crate) fn class(&self) -> FailureClass {
        match self {
            Self::Api(_, source) => FailureClass::of(source),
            Self::Step { class, .. } => *class,
            Self::Serialise(_) | Self::Timeout(_) | Self::Panic(_) => FailureClass::Transient,
        }
    }

    /// Returns the error in words for the status; in the API server's own words if there are any.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Api(what, source) => format!("{what} failed: {}", api_error::message(source)),
            other => other.to_string(),
        }
    }
}

pub(crate) fn api(what: &'static str) -> impl FnOnce(kube::Error) -> PassError {
    move |error| PassError::Api(what, Box::new(error))
}

/// The outcome of a reconcile, with the time until the next one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PassOutcome {
    pub(crate) outcome: ReconcileOutcome,
    /// The API server refused an object, so an immediate pass would not help.
    pub(crate) is_refused: bool,
    pub(crate) again: Duration,
}
