//! Makes the certificates and keys that steps ask for, and the Secrets that hold them. Stores nothing.

use k8s_openapi::jiff::Timestamp;

use crate::certificates::{self, Authority, Change, Inspected, Leaf, Pair, Request, State};
use crate::event::Event;
use crate::names::Names;
use crate::objects::{Key, Kind, Object, Renderer};
use crate::steps::{AuthorityView, Stored};

/// Reason why a certificate could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("it could not be signed")]
    Certificate(#[from] certificates::Error),
    #[error("it does not serialise")]
    Serialise(#[from] serde_json::Error),
}

/// Returns the Secret of an authority after `change`, and its view for the status.
///
/// # Errors
/// `change` does not follow from `before`, or a key cannot be created.
pub fn authority(
    renderer: &Renderer<'_>,
    before: Option<&State>,
    change: &Change,
    (names, now): (&Names, Timestamp),
) -> Result<(Object, AuthorityView), Error> {
    let state = State::after(before, change, &names.cluster, now)?;
    let object = renderer.authority_secret(&state.data())?;
    Ok((object, AuthorityView::new(&state, false)))
}

/// Returns a new certificate for `leaf`: its Secret, and its view for the status.
///
/// # Errors
/// It cannot be signed.
pub fn leaf(
    renderer: &Renderer<'_>,
    (leaf, request): (Leaf, &Request),
    (signer, bundle): (&Pair, &str),
    (names, now): (&Names, Timestamp),
) -> Result<(Object, Stored), Error> {
    let authority = Authority::load(signer.clone())?;
    let pair = authority.issue(leaf, request, now)?;
    let object = renderer.leaf_secret(leaf, &pair, bundle)?;
    let certificate = Inspected::read(&pair.certificate)?;
    let stored = Stored {
        secret: names.leaf(leaf),
        renewal: request.renewal_before(authority.inspected().not_after, &certificate),
        generation: None,
        certificate,
    };
    Ok((object, stored))
}

/// Returns the Event of a change of the authority.
pub fn event(change: &Change, names: &Names) -> Option<Event> {
    let authority = names.authority();
    let (reason, note) = match change {
        Change::Create { .. } | Change::Recreate { .. } => (
            "AuthorityCreated",
            format!("created the certificate authority {authority}"),
        ),
        Change::Adopt { .. } => (
            "AuthorityAdopted",
            format!("imported the given certificate authority into {authority}"),
        ),
        Change::Renew | Change::Renewed { .. } => (
            "AuthorityRenewed",
            format!("renewed the certificate authority {authority}"),
        ),
        Change::Replace { generation } => (
            "AuthorityPublishing",
            format!("publishing a new certificate of {authority}, generation {generation}"),
        ),
        Change::Issue => (
            "AuthorityIssuing",
            format!("the new key of {authority} now signs certificates"),
        ),
        Change::Retire => (
            "AuthorityRetiring",
            format!("the former certificate of {authority} is no longer trusted"),
        ),
        Change::Finish => ("AuthorityReplaced", format!("replaced the key of {authority}")),
        Change::Published | Change::Keep => return None,
    };
    Some(Event::normal(reason, "IssueCertificate", note).about(Key::new(Kind::Secret, authority).reference()))
}
