//! Compares a stored authority with the one that the status recorded.
//!
//! Another client may have created a Secret under the authority's name, with this cluster as its owner. So a new authority is recorded in
//! the status before anything is published or signed, and one that is not recorded is never used.

use crds::KubeBrainCluster;
use crds::cluster::status::CaStatus;
use k8s_openapi::jiff::Timestamp;
use kube::core::DynamicObject;

use super::{CertificateInput, texts};
use crate::certificates::{Authority, AuthorityState, CaBundle, InspectedCertificate, Leaf};
use crate::names::ADOPT_CA;
use crate::objects::{ObjectKey, ObjectKind};

/// Seconds for which a newly created Secret may not be visible yet.
const UNSEEN_SECRET_SECONDS: i64 = 10;

/// Seconds within which the operator that created an authority records it: longer than a pass takes. Until then another operator, which
/// does not know yet that it no longer leads, must not discard it.
const UNRECORDED_SECRET_SECONDS: i64 = 60;

/// Origin of a stored authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AuthorityOrigin {
    /// It is the recorded one, or its successor.
    Known,
    /// It was never recorded and published nothing, so it can be recreated.
    Unrecorded,
    /// Its key is not the recorded one.
    Unknown,
}

/// Returns the origin of the authority `state`. `given` is the user's own.
pub(super) fn origin(
    scope: CertificateInput<'_>,
    state: &AuthorityState,
    given: Option<&Authority>,
) -> AuthorityOrigin {
    let recorded = scope.cluster.status.as_ref().and_then(|status| status.ca.as_ref());
    let Some(recorded) = recorded else {
        let found = state.fingerprint();
        return if found.is_some() && found.as_ref() == adopted(scope.cluster) {
            AuthorityOrigin::Known
        } else if is_published(scope) {
            AuthorityOrigin::Unknown
        } else {
            AuthorityOrigin::Unrecorded
        };
    };
    let Some(fingerprint) = &recorded.fingerprint else {
        // An operator that did not know fingerprints recorded it, or it was lost and not replaced yet.
        return match (&state.current, &recorded.next, state.next_fingerprint()) {
            (Some(_), _, _) => AuthorityOrigin::Known,
            (None, Some(next), Some((_, found))) if next.fingerprint == found => AuthorityOrigin::Known,
            (None, _, _) => AuthorityOrigin::Unrecorded,
        };
    };
    let own = given.map(|given| given.inspected().fingerprint());
    let next = recorded.next.as_ref().map(|next| &next.fingerprint);
    let is_known = |found: &String| found == fingerprint || Some(found) == next || own.as_ref() == Some(found);
    match (state.fingerprint(), state.next_fingerprint()) {
        (Some(found), _) if is_known(&found) => AuthorityOrigin::Known,
        (None, Some((_, found))) if is_known(&found) => AuthorityOrigin::Known,
        (None, _) => AuthorityOrigin::Unrecorded,
        (Some(_), _) => AuthorityOrigin::Unknown,
    }
}

/// Returns the fingerprint of the key that the user wants to take over from a deleted cluster.
pub(super) fn adopted(cluster: &KubeBrainCluster) -> Option<&String> {
    cluster.metadata.annotations.as_ref()?.get(ADOPT_CA)
}

/// Returns true if anything exists that clients may rely on.
fn is_published(scope: CertificateInput<'_>) -> bool {
    let names = &scope.desired.names;
    let bundle = ObjectKey::new(ObjectKind::ConfigMap, names.bundle());
    scope.observed.objects.contains_key(&bundle)
        || Leaf::ALL.iter().any(|leaf| scope.secret(&names.leaf(*leaf)).is_some())
}

/// Returns true if the authority was created so recently that it may not be visible yet.
pub(super) fn is_new(recorded: &CaStatus, now: Timestamp) -> bool {
    let since = recorded.since.as_ref().map(|since| since.0.as_second());
    since.is_some_and(|since| (since..since + UNSEEN_SECRET_SECONDS).contains(&now.as_second()))
}

/// Returns true if an authority was created so recently that an operator may be about to record it. If the clocks differ by more than that,
/// this is unknown, and false.
pub(super) fn may_be_recorded(secret: &DynamicObject, now: Timestamp) -> bool {
    let created = secret.metadata.creation_timestamp.as_ref();
    created.is_some_and(|created| (now.as_second() - created.0.as_second()).abs() < UNRECORDED_SECRET_SECONDS)
}

/// Returns the published part of an authority whose Secret is missing: the recorded bundle, or at least the certificates of the recorded
/// keys.
pub(super) fn published(scope: CertificateInput<'_>, recorded: &CaStatus) -> CaBundle {
    let names = &scope.desired.names;
    let map = scope
        .observed
        .objects
        .get(&ObjectKey::new(ObjectKind::ConfigMap, names.bundle()));
    let map = map.and_then(|map| map.data["data"]["ca.crt"].as_str().map(str::to_owned));
    let leaves = Leaf::ALL
        .iter()
        .filter_map(|leaf| texts(scope.secret(&names.leaf(*leaf))?).remove("ca.crt"));
    let found: Vec<CaBundle> = map
        .into_iter()
        .chain(leaves)
        .filter_map(|text| CaBundle::parse(&text).ok())
        .collect();
    if let Some(whole) = found.iter().find(|bundle| Some(bundle.digest()) == recorded.bundle) {
        return whole.clone();
    }
    let next = recorded.next.as_ref().map(|next| &next.fingerprint);
    let is_recorded = |certificate: &InspectedCertificate| {
        let found = Some(certificate.fingerprint());
        found == recorded.fingerprint || found.as_ref() == next
    };
    let mut known = CaBundle::default();
    for bundle in &found {
        known.extend(&bundle.filter(is_recorded));
    }
    known
}
