//! Makes the certificates and keys that steps ask for, and the Secrets that hold them. Stores nothing.

use k8s_openapi::jiff::Timestamp;

use crate::certificates::{
    self, Authority, AuthorityChange, AuthorityState, CertificatePair, CertificateRequest, InspectedCertificate, Leaf,
};
use crate::event::ClusterEvent;
use crate::names::Names;
use crate::objects::{Object, ObjectKey, ObjectKind, Renderer};
use crate::steps::{AuthorityView, StoredCertificate};

/// Reason why a certificate could not be made.
#[derive(Debug, thiserror::Error)]
pub enum IssuanceError {
    #[error("it could not be signed")]
    Certificate(#[from] certificates::CertificateError),
    #[error("it does not serialise")]
    Serialise(#[from] serde_json::Error),
}

/// Returns the Secret of an authority after `change`, and its view for the status.
///
/// # Errors
/// `change` does not follow from `before`, or a key cannot be created.
pub fn authority(
    renderer: &Renderer<'_>,
    before: Option<&AuthorityState>,
    change: &AuthorityChange,
    (names, now): (&Names, Timestamp),
) -> Result<(Object, AuthorityView), IssuanceError> {
    let state = AuthorityState::after(before, change, &names.cluster, now)?;
    let object = renderer.authority_secret(&state.data())?;
    Ok((object, AuthorityView::new(&state, false)))
}

/// Returns a new certificate for `leaf`: its Secret, and its view for the status.
///
/// # Errors
/// It cannot be signed.
pub fn leaf(
    renderer: &Renderer<'_>,
    (leaf, request): (Leaf, &CertificateRequest),
    (signer, bundle): (&CertificatePair, &str),
    (names, now): (&Names, Timestamp),
) -> Result<(Object, StoredCertificate), IssuanceError> {
    let authority = Authority::load(signer.clone())?;
    let pair = authority.issue(leaf, request, now)?;
    let object = renderer.leaf_secret(leaf, &pair, bundle)?;
    let certificate = InspectedCertificate::read(&pair.certificate)?;
    let stored = StoredCertificate {
        secret: names.leaf(leaf),
        renewal: request.renewal_before(authority.inspected().not_after, &certificate),
        generation: None,
        certificate,
    };
    Ok((object, stored))
}

/// Returns the Event of a change of the authority.
pub fn event(change: &AuthorityChange, names: &Names) -> Option<ClusterEvent> {
    let authority = names.authority();
    let (reason, note) = match change {
        AuthorityChange::Create { .. } | AuthorityChange::Recreate { .. } => (
            "AuthorityCreated",
            format!("created the certificate authority {authority}"),
        ),
        AuthorityChange::Adopt { .. } => (
            "AuthorityAdopted",
            format!("imported the given certificate authority into {authority}"),
        ),
        AuthorityChange::Renew | AuthorityChange::Renewed { .. } => (
            "AuthorityRenewed",
            format!("renewed the certificate authority {authority}"),
        ),
        AuthorityChange::Replace { generation } => (
            "AuthorityPublishing",
            format!("publishing a new certificate of {authority}, generation {generation}"),
        ),
        AuthorityChange::Issue => (
            "AuthorityIssuing",
            format!("the new key of {authority} now signs certificates"),
        ),
        AuthorityChange::Retire => (
            "AuthorityRetiring",
            format!("the former certificate of {authority} is no longer trusted"),
        ),
        AuthorityChange::Finish => ("AuthorityReplaced", format!("replaced the key of {authority}")),
        AuthorityChange::Published | AuthorityChange::Keep => return None,
    };
    Some(
        ClusterEvent::normal(reason, "IssueCertificate", note)
            .about(ObjectKey::new(ObjectKind::Secret, authority).reference()),
    )
}
