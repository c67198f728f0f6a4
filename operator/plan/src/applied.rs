//! The outcome of a pass's steps, as far as the status needs it.

use std::collections::BTreeMap;

use crate::certificates::Leaf;
use crate::steps::{AuthorityView, StoredCertificate};

/// The outcome of the steps.
#[derive(Default)]
pub struct AppliedSteps {
    /// Certificates that were issued.
    pub leaves: BTreeMap<Leaf, StoredCertificate>,
    /// The authority, if it was written.
    pub authority: Option<AuthorityView>,
    /// Claims that the API server does not let grow, with its message. This does not hold up other steps.
    pub refused_claims: BTreeMap<String, String>,
    /// Number of applies that changed nothing, because admission replaces what the operator wants.
    pub unchanged: usize,
    /// Message of the API server if it forbids the pod in which a new template is tried.
    pub refused_trial: Option<String>,
    /// Pod that the API server forbids the resources of the template, with its message.
    pub refused_resize: Option<String>,
    /// A leadership transfer was requested.
    pub asked: bool,
    /// The leadership transfer succeeded.
    pub handed_over: bool,
    /// A pod was not replaced, because the state differs from the one that the plan was made from.
    pub stale: bool,
    /// Number of steps that were carried out.
    pub done: usize,
    /// The first step that failed, if the status reports it.
    pub failure: Option<StepFailure>,
}

/// A step that failed.
pub struct StepFailure {
    /// The step in words.
    pub step: String,
    /// The reason in words; in the API server's own words if there are any.
    pub message: String,
    /// The API server rejects the object itself as invalid, so that a retry does not help.
    pub is_invalid: bool,
}
