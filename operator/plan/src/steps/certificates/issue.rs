//! Plans the issuance of leaf certificates.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use super::{CertificateInput, Plan, PlanStep, StoredCertificate, pair};
use crate::certificates::{Authority, AuthorityState, CertificatePair, CertificateRequest, InspectedCertificate, Leaf};
use crate::objects::{ObjectKey, ObjectKind};

/// Divisor of the time for renewals: only in this last part of it, a key that is still being published may sign a certificate.
const LAST_PART_DIVISOR: u32 = 4;

/// Records which certificates are stored.
pub(super) fn look(plan: &mut Plan, scope: CertificateInput<'_>) {
    let recorded = scope.cluster.status.as_ref().and_then(|status| status.ca.as_ref());
    let end = recorded.and_then(|recorded| recorded.not_after.as_ref());
    let end = end.map_or(Timestamp::MAX, |end| end.0);
    for (leaf, request) in scope.desired.certificates.iter().flatten() {
        let found = stored(scope, *leaf).and_then(|pair| InspectedCertificate::read(&pair.certificate).ok());
        if let Some(certificate) = found {
            let stored = StoredCertificate {
                secret: scope.desired.names.leaf(*leaf),
                renewal: request.renewal_before(end, &certificate),
                generation: None,
                certificate,
            };
            plan.certificates.leaves.insert(*leaf, stored);
        }
    }
}

/// Plans every certificate: it is issued, or kept and stored with the newest bundle.
pub(super) fn plan(
    plan: &mut Plan,
    scope: CertificateInput<'_>,
    state: &AuthorityState,
    given: Option<&Authority>,
    bundle: &str,
) -> Result<(), serde_json::Error> {
    let current = state.current.as_ref().and_then(|entry| entry.authority(given).ok());
    let next = state.next.as_ref().and_then(|(_, entry)| entry.authority(given).ok());
    for (leaf, request) in scope.desired.certificates.iter().flatten() {
        let Some(stored) = plan.certificates.leaves.get_mut(leaf) else {
            continue;
        };
        let signed = |authority: &&Authority| stored.certificate.is_signed_by(authority.inspected());
        let coming = state.next.as_ref().map(|(generation, _)| *generation);
        let signers = [(current.as_ref(), Some(state.generation)), (next.as_ref(), coming)];
        let signer = signers
            .into_iter()
            .find_map(|(authority, generation)| Some((authority.filter(signed)?, generation)));
        if let Some((authority, generation)) = signer {
            stored.generation = generation;
            stored.renewal = request.renewal_before(authority.inspected().not_after, &stored.certificate);
        }
    }
    for (leaf, request) in scope.desired.certificates.iter().flatten() {
        one(plan, scope, (*leaf, request), (current.as_ref(), next.as_ref()), bundle)?;
    }
    Ok(())
}

fn one(
    plan: &mut Plan,
    scope: CertificateInput<'_>,
    (leaf, request): (Leaf, &CertificateRequest),
    (current, next): (Option<&Authority>, Option<&Authority>),
    bundle: &str,
) -> Result<(), serde_json::Error> {
    let key = ObjectKey::new(ObjectKind::Secret, scope.desired.names.leaf(leaf));
    if plan.foreign.contains(&key) || plan.former.contains(&key) {
        return Ok(());
    }
    let live = scope.secret(&key.name);
    if live.is_some_and(|live| live.metadata.deletion_timestamp.is_some()) {
        return Ok(());
    }
    let stored = stored(scope, leaf);
    let inspected = stored
        .as_ref()
        .and_then(|pair| InspectedCertificate::read(&pair.certificate).ok());
    let request = match (&inspected, scope.desired.held.is_some()) {
        // It is renewed without changes.
        (Some(certificate), true) => &CertificateRequest::kept(certificate, request.renew_before),
        (None, true) if live.is_none() => return Ok(()),
        _ => request,
    };
    let left = inspected.map(|certificate| certificate.not_after.duration_since(scope.observed.now));
    // A lost key cannot sign. The coming key signs only a certificate that would soon expire otherwise, because not all clients may trust
    // it yet.
    let last = request.renew_before / LAST_PART_DIVISOR;
    let serves = left.is_some_and(|left| Duration::try_from(left).is_ok_and(|left| left > last));
    let signer = current.or(next.filter(|_| !serves));
    let why = match (&stored, signer) {
        (_, None) => None,
        (None, Some(_)) if live.is_some() => Some("it has no text in tls.crt and tls.key".to_owned()),
        (None, Some(_)) => Some("there was none".to_owned()),
        (Some(pair), Some(signer)) => request.objection(leaf, pair, signer, scope.observed.now),
    };
    match (why, signer, stored) {
        (Some(why), Some(signer), _) => {
            plan.steps.push(PlanStep::Issue {
                leaf,
                request: request.clone(),
                uid: live.and_then(|live| live.metadata.uid.clone()),
                why,
                signer: signer.pair().clone(),
                bundle: bundle.to_owned(),
            });
            Ok(())
        }
        (_, _, Some(pair)) => scope.apply(plan, scope.renderer.leaf_secret(leaf, &pair, bundle)?),
        (_, _, None) => Ok(()),
    }
}

fn stored(scope: CertificateInput<'_>, leaf: Leaf) -> Option<CertificatePair> {
    let secret = scope.secret(&scope.desired.names.leaf(leaf))?;
    pair(secret, "tls.crt", "tls.key")
}
