//! The authority: created once, kept, renewed, replaced in phases, and never silently recreated.

use std::collections::BTreeMap;

use crds::cluster::status::CaStatus;

use super::recorded::{self, AuthorityOrigin};
use super::{AuthorityView, CertificateInput, Plan, PlanStep, issue, live, members, texts};
use crate::certificates::rotation::{self, RotationGates, RotationStep};
use crate::certificates::{
    Authority, AuthorityChange, AuthorityState, CaBundle, CertificateError, CertificatePair, InspectedCertificate,
    Leaf, RotationPhase, to_pkcs8,
};
use crate::names::CA_ADVANCE;
use crate::objects::{ObjectKey, ObjectKind};
use crate::spec::HoldReason;
use crate::steps::owned;

/// Plans the authority and the certificates it signs.
pub(super) fn plan(plan: &mut Plan, scope: CertificateInput<'_>) -> Result<(), serde_json::Error> {
    let key = ObjectKey::new(ObjectKind::Secret, scope.desired.names.authority());
    issue::look(plan, scope);
    let given = match given(scope) {
        Ok(given) => given,
        Err((reason, message)) => {
            plan.certificates.stall(reason, message);
            None
        }
    };
    let stored = scope.secret(&key.name).map(texts);
    let recorded = scope.cluster.status.as_ref().and_then(|status| status.ca.as_ref());
    adopt(plan, scope, &key, recorded);
    if plan.foreign.contains(&key) || plan.former.contains(&key) {
        return Ok(());
    }
    let Some(mut data) = stored else {
        absent(plan, scope, recorded, given.as_ref());
        return Ok(());
    };
    if scope
        .secret(&key.name)
        .is_some_and(|secret| secret.metadata.deletion_timestamp.is_some())
    {
        plan.certificates
            .stall("AuthorityMissing", format!("{key} is being deleted"));
        return Ok(());
    }
    if let Some(given) = &given {
        remove_former_key(&mut data, given);
    }
    let state = match AuthorityState::read(&data, recorded.map_or(1, |recorded| recorded.generation)) {
        Ok(state) => state,
        Err(error) => {
            unusable(plan, &key, &error.to_string());
            return Ok(());
        }
    };
    match recorded::origin(scope, &state, given.as_ref()) {
        AuthorityOrigin::Known => {}
        AuthorityOrigin::Unrecorded => {
            let secret = scope.secret(&key.name).filter(|_| scope.desired.held.is_none());
            if let Some(secret) = secret.filter(|secret| !recorded::may_be_recorded(secret, scope.observed.now)) {
                plan.steps.push(PlanStep::DiscardAuthority { live: live(secret) });
            }
            return Ok(());
        }
        AuthorityOrigin::Unknown => {
            unusable(plan, &key, "its key is not the one that this cluster recorded");
            return Ok(());
        }
    }
    let published = is_published(scope, &state);
    plan.certificates.authority = Some(AuthorityView::new(&state, published));
    if let Some(change) = upkeep(plan, scope, &state, given.as_ref()) {
        write(plan, scope, Some(state), change);
        return Ok(());
    }
    let Ok(bundle) = state.bundle() else { return Ok(()) };
    let kept = scope.renderer.authority_secret(&state.data())?;
    let differs = if scope.desired.held.is_some() {
        owned::data_differs(&kept, scope.observed)
    } else {
        owned::differs(&kept, scope.observed)?
    };
    if differs {
        write(plan, scope, Some(state), AuthorityChange::Keep);
        return Ok(());
    }
    let bundle = bundle.to_pem();
    scope.apply(plan, scope.renderer.bundle(&bundle)?)?;
    issue::plan(plan, scope, &state, given.as_ref(), &bundle)
}

/// Plans the next phase of a replacement, or returns the reason why it waits.
pub(super) fn advance(plan: &mut Plan, scope: CertificateInput<'_>) -> Option<String> {
    let secret = scope.secret(&scope.desired.names.authority())?;
    plan.certificates.authority.as_ref()?;
    let state = AuthorityState::read(&texts(secret), 1).ok()?;
    let tls = &scope.cluster.spec.tls;
    let digest = state.bundle().ok()?.digest();
    let leaves = &plan.certificates.leaves;
    let print = |leaf| {
        leaves
            .get(&leaf)
            .map(|stored| stored.certificate.certificate_fingerprint())
    };
    let outdated = match (print(Leaf::Server), print(Leaf::Peer)) {
        (Some(server), Some(peer)) => members::outdated(scope.observed, &server, &peer),
        _ => Some("they are not issued yet".to_owned()),
    };
    let issued = leaves.values().map(|stored| stored.certificate.issued()).max();
    let gates = RotationGates {
        wanted: if tls.ca_secret_ref.is_some() {
            state.generation
        } else {
            tls.generation()
        },
        advance: tls.ca_advance.unwrap_or_default(),
        asked: scope
            .cluster
            .metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(CA_ADVANCE).cloned()),
        propagation: scope.desired.ca_propagation,
        held: scope.desired.held.as_ref().map(HoldReason::why),
        published: is_published(scope, &state),
        distrust: members::distrust(scope.observed, &digest),
        outdated,
        issued: issued.unwrap_or(state.since),
    };
    match rotation::next(&state, &gates, scope.observed.now) {
        RotationStep::Nothing => None,
        RotationStep::Wait(why) => {
            let phase = state.phase.as_str();
            Some(format!("the authority's key is being replaced, phase {phase}: {why}"))
        }
        RotationStep::Do(change) => {
            write(plan, scope, Some(state), change);
            None
        }
    }
}

/// Plans for a missing authority: the first one is created, but a lost one is replaced only on request.
fn absent(plan: &mut Plan, scope: CertificateInput<'_>, recorded: Option<&CaStatus>, given: Option<&Authority>) {
    let tls = &scope.cluster.spec.tls;
    let name = scope.desired.names.authority();
    let held = scope.desired.held.is_some();
    if held && recorded.is_none() {
        return;
    }
    let trusted = recorded.map_or_else(CaBundle::default, |recorded| recorded::published(scope, recorded));
    if tls.ca_secret_ref.is_some() {
        if let Some(given) = given {
            let change = AuthorityChange::Adopt {
                certificate: given.pair().certificate.clone(),
                former: recorded.map_or(0, |recorded| recorded.generation),
                trusted,
            };
            write(plan, scope, None, change);
        }
        return;
    }
    let Some(recorded) = recorded else {
        let generation = tls.generation();
        write(plan, scope, None, AuthorityChange::Create { generation });
        return;
    };
    if recorded::is_new(recorded, scope.observed.now) {
        return;
    }
    let newest = recorded
        .next
        .as_ref()
        .map_or(recorded.generation, |next| next.generation);
    if tls.generation() > newest.max(recorded.generation) && !held {
        let change = AuthorityChange::Recreate {
            former: recorded.generation,
            generation: tls.generation(),
            trusted,
        };
        write(plan, scope, None, change);
        return;
    }
    plan.certificates.stall(
        "AuthorityMissing",
        format!(
            "Secret {name} with the certificate authority is gone: restore it from a backup, or set tls.caGeneration to {} to get a new key; until then no certificate can be issued",
            newest.max(recorded.generation) + 1
        ),
    );
}

/// Returns the change that the stored authority needs before anything is published or signed. While nothing may change, that is only its
/// renewal.
fn upkeep(
    plan: &mut Plan,
    scope: CertificateInput<'_>,
    state: &AuthorityState,
    given: Option<&Authority>,
) -> Option<AuthorityChange> {
    let tls = &scope.cluster.spec.tls;
    let held = scope.desired.held.is_some();
    let trusted = || state.bundle().unwrap_or_default();
    if tls.ca_secret_ref.is_some() {
        let given = given?;
        let own = given.inspected().fingerprint();
        let signs = match (state.phase, &state.next) {
            (RotationPhase::Publishing, Some((_, next))) => Some(next),
            _ => state.current.as_ref(),
        }?;
        let same_key = match (state.phase, state.next_fingerprint()) {
            (RotationPhase::Publishing, Some((_, next))) => next == own,
            _ => state.fingerprint() == Some(own),
        };
        if !same_key || signs.key.is_some() {
            return (!held).then(|| AuthorityChange::Adopt {
                certificate: given.pair().certificate.clone(),
                former: state.generation,
                trusted: trusted(),
            });
        }
        let renewed = signs.certificate != given.pair().certificate && state.phase != RotationPhase::Publishing;
        return renewed.then(|| AuthorityChange::Renewed {
            certificate: given.pair().certificate.clone(),
        });
    }
    let Some(current) = &state.current else { return None };
    match current.authority(None) {
        Ok(authority) => (scope.observed.now >= authority.renewal()).then_some(AuthorityChange::Renew),
        Err(_) if tls.generation() > state.generation && !held => Some(AuthorityChange::Recreate {
            former: state.generation,
            generation: tls.generation(),
            trusted: trusted(),
        }),
        Err(_) => {
            let key = ObjectKey::new(ObjectKind::Secret, scope.desired.names.authority());
            let message = format!(
                "{key} has no key because it came from tls.caSecretRef: set that field again, or set tls.caGeneration to {} to get a new key",
                state.generation + 1
            );
            plan.certificates.stall("AuthorityMissing", message);
            None
        }
    }
}

/// Takes over a Secret without any owner, restored by hand or left by a deleted cluster, if its key is the recorded one.
fn adopt(plan: &mut Plan, scope: CertificateInput<'_>, key: &ObjectKey, recorded: Option<&CaStatus>) {
    let Some(secret) = scope.secret(&key.name) else {
        return;
    };
    let unowned = secret.metadata.owner_references.as_ref().is_none_or(Vec::is_empty);
    let fingerprint = AuthorityState::read(&texts(secret), recorded.map_or(1, |recorded| recorded.generation))
        .ok()
        .filter(|state| state.current.as_ref().is_some_and(|current| current.key.is_some()))
        .and_then(|state| state.fingerprint());
    let known = match recorded {
        Some(recorded) => recorded.fingerprint.as_ref(),
        None => recorded::adopted(scope.cluster),
    };
    if unowned && fingerprint.is_some() && fingerprint.as_ref() == known {
        plan.foreign.retain(|foreign| foreign != key);
    } else if unowned && recorded.is_none() {
        plan.certificates.adoptable = fingerprint;
    }
}

/// Returns the user's own authority, if the spec names one.
///
/// # Errors
/// Reason and message if it cannot sign.
fn given(scope: CertificateInput<'_>) -> Result<Option<Authority>, (&'static str, String)> {
    let Some(reference) = &scope.cluster.spec.tls.ca_secret_ref else {
        return Ok(None);
    };
    let name = &reference.name;
    let missing = |what: &str| ("AuthorityMissing", format!("Secret {name} of tls.caSecretRef {what}"));
    let invalid = |what: String| ("AuthorityInvalid", format!("Secret {name} of tls.caSecretRef: {what}"));
    let mut data = scope
        .given(name)
        .ok_or_else(|| missing("does not exist: create it with ca.crt and ca.key, or let cert-manager create it"))?;
    // These are the keys of a Secret of cert-manager, where ca.crt is the certificate of the issuer of this authority.
    let [certificate, key] = if data.contains_key("ca.key") {
        ["ca.crt", "ca.key"]
    } else {
        ["tls.crt", "tls.key"]
    };
    let (Some(chain), Some(stored)) = (data.remove(certificate), data.remove(key)) else {
        return Err(missing("has no text in ca.crt and ca.key, nor in tls.crt and tls.key"));
    };
    let found = CertificatePair {
        certificate: first_certificate(&chain),
        key: to_pkcs8(&stored),
    };
    let authority = Authority::load(found).map_err(|error| {
        invalid(format!(
            "{error}; {key} must be a private key in PEM (PKCS#8, PKCS#1 or SEC1), {certificate} the certificate of an authority"
        ))
    })?;
    let (inspected, now) = (authority.inspected(), scope.observed.now);
    if now >= inspected.not_after {
        return Err(invalid(format!(
            "the certificate in {certificate} expired at {}",
            inspected.not_after
        )));
    }
    if now < inspected.not_before {
        return Err(invalid(format!(
            "the certificate in {certificate} is valid only from {}",
            inspected.not_before
        )));
    }
    Ok(Some(authority))
}

/// Returns the first certificate of a chain; the others belong to its issuers.
fn first_certificate(chain: &str) -> String {
    const END: &str = "-----END CERTIFICATE-----";
    chain
        .find(END)
        .map_or_else(|| chain.to_owned(), |end| format!("{}\n", &chain[..end + END.len()]))
}

/// Removes a key that does not match the stored certificate, if that certificate is the user's own. Older operators left the key of the
/// former authority next to it, and the user's own key is never stored.
fn remove_former_key(data: &mut BTreeMap<String, String>, given: &Authority) {
    let (Some(certificate), Some(key)) = (data.get("ca.crt"), data.get("ca.key")) else {
        return;
    };
    let is_given = InspectedCertificate::read(certificate)
        .is_ok_and(|found| found.fingerprint() == given.inspected().fingerprint());
    let pair = CertificatePair {
        certificate: certificate.clone(),
        key: key.clone(),
    };
    if is_given && matches!(Authority::load(pair), Err(CertificateError::Mismatch)) {
        data.remove("ca.key");
    }
}

fn unusable(plan: &mut Plan, key: &ObjectKey, why: &str) {
    let message = format!(
        "{key} holds no usable authority ({why}): restore it from a backup, or delete it and raise tls.caGeneration to get a new key"
    );
    plan.certificates.stall("AuthorityInvalid", message);
}

/// Returns true if clients can read the bundle of `state`.
fn is_published(scope: CertificateInput<'_>, state: &AuthorityState) -> bool {
    let map = scope
        .observed
        .objects
        .get(&ObjectKey::new(ObjectKind::ConfigMap, scope.desired.names.bundle()));
    let text = map.and_then(|map| map.data["data"]["ca.crt"].as_str());
    text.is_some() && text == state.bundle().ok().map(|bundle| bundle.to_pem()).as_deref()
}

fn write(plan: &mut Plan, scope: CertificateInput<'_>, before: Option<AuthorityState>, change: AuthorityChange) {
    let secret = scope.secret(&scope.desired.names.authority());
    plan.steps.push(PlanStep::WriteAuthority {
        change,
        before: before.map(Box::new),
        live: secret.map(live),
    });
}
