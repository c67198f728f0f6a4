//! Certificates: the authority first, then the certificates it signs, each reissued when it is no longer usable.
//!
//! A write of the authority's Secret is planned alone. The next pass plans what follows from it, based on the stored Secret.

use std::collections::BTreeMap;

use crds::KubeBrainCluster;
use crds::cluster::tls::TlsMode;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::core::DynamicObject;

use super::{Plan, PlanStep, owned};
use crate::certificates::{AuthorityState, CertificatePair, CertificateProblem, InspectedCertificate, Leaf};
use crate::objects::{Object, ObjectKey, ObjectKind, Renderer};
use crate::observed::Observed;
use crate::spec::Desired;

mod authority;
mod issue;
mod members;
mod provided;
mod recorded;

/// The status of the certificates.
#[derive(Debug, Default)]
pub struct CertificatesStatus {
    /// Reason why certificates cannot be issued, or why the given ones are unusable.
    pub problem: Option<CertificateProblem>,
    /// True if only a change of the spec or of the authority helps.
    pub stalled: bool,
    /// A certificate is missing and is not issued now: members that need it could not start.
    pub preparing: bool,
    /// The stored authority, if it is trusted.
    pub authority: Option<AuthorityView>,
    /// Fingerprint of the key that a deleted cluster left, if it could be taken over.
    pub adoptable: Option<String>,
    /// Reason why a replacement of the authority's key waits.
    pub waiting: Option<String>,
    /// Stored certificates, including those that this pass replaces.
    pub leaves: BTreeMap<Leaf, StoredCertificate>,
}

impl CertificatesStatus {
    fn stall(&mut self, reason: &'static str, message: String) {
        self.stalled = true;
        self.problem = Some(CertificateProblem::new(reason, message));
    }
}

/// An authority as the status describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthorityView {
    /// Generation of the key that signs.
    pub generation: i32,
    pub phase: &'static str,
    pub since: Timestamp,
    pub not_after: Option<Timestamp>,
    /// Digest of the bundle, once it is published.
    pub bundle: Option<String>,
    /// Fingerprint of the key that signs.
    pub fingerprint: Option<String>,
    /// Generation and fingerprint of the key that signs next.
    pub next: Option<(i32, String)>,
}

impl AuthorityView {
    /// `published` is true if clients can read the bundle of `state`.
    pub fn new(state: &AuthorityState, published: bool) -> Self {
        let signs = state.current.as_ref().or(state.next.as_ref().map(|(_, next)| next));
        Self {
            generation: state.generation,
            phase: state.phase.as_str(),
            since: state.since,
            not_after: signs
                .and_then(|entry| InspectedCertificate::read(&entry.certificate).ok())
                .map(|found| found.not_after),
            bundle: state.bundle().ok().filter(|_| published).map(|bundle| bundle.digest()),
            fingerprint: state.fingerprint(),
            next: state.next_fingerprint(),
        }
    }
}

/// One stored certificate.
#[derive(Debug, Clone)]
pub struct StoredCertificate {
    /// The Secret that holds it.
    pub secret: String,
    pub certificate: InspectedCertificate,
    /// Time of renewal by the operator; `None` if the operator did not issue it, or if it expires with its authority.
    pub renewal: Option<Timestamp>,
    /// Generation of the key that signed it, if that key is still known.
    pub generation: Option<i32>,
}

/// The identity of a live object, for a write that must not hit another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveObject {
    pub uid: String,
    /// Its resource version, so that older data never overwrites a stored authority.
    pub version: String,
}

/// The input of the plan.
#[derive(Clone, Copy)]
struct CertificateInput<'a> {
    cluster: &'a KubeBrainCluster,
    desired: &'a Desired,
    observed: &'a Observed,
    renderer: &'a Renderer<'a>,
}

impl CertificateInput<'_> {
    fn secret(&self, name: &str) -> Option<&DynamicObject> {
        self.observed.objects.get(&ObjectKey::new(ObjectKind::Secret, name))
    }

    /// Plans to write `object` if the live one differs; while nothing may change, only if its data differs.
    fn apply(&self, plan: &mut Plan, object: Object) -> Result<(), serde_json::Error> {
        if self.desired.held.is_none() {
            return owned::apply(plan, object, self.observed);
        }
        if !plan.foreign.contains(&object.key) && !plan.former.contains(&object.key) {
            owned::apply_data(plan, object, self.observed);
        }
        Ok(())
    }

    /// Returns the text values of a Secret of the user; other values are omitted.
    fn given(&self, name: &str) -> Option<BTreeMap<String, String>> {
        let secret = self.observed.given_secrets.get(name)?.as_ref()?;
        Some(as_texts(secret.data.clone()))
    }
}

/// Plans the steps for certificates.
///
/// # Errors
/// An object fails to serialise.
pub(super) fn plan(
    plan: &mut Plan,
    cluster: &KubeBrainCluster,
    desired: &Desired,
    observed: &Observed,
    renderer: &Renderer<'_>,
) -> Result<(), serde_json::Error> {
    let scope = CertificateInput {
        cluster,
        desired,
        observed,
        renderer,
    };
    match cluster.spec.tls.mode {
        TlsMode::Disabled => Ok(()),
        TlsMode::Secret => {
            provided::plan(plan, scope);
            Ok(())
        }
        TlsMode::Operator => {
            let before = plan.steps.len();
            authority::plan(plan, scope)?;
            let issued = |leaf| {
                plan.steps
                    .iter()
                    .any(|step| matches!(step, PlanStep::Issue { leaf: each, .. } if *each == leaf))
            };
            let mut wanted = desired.certificates.iter().flatten();
            plan.certificates.preparing =
                wanted.any(|(leaf, _)| !plan.certificates.leaves.contains_key(leaf) && !issued(*leaf));
            if plan.steps.len() == before && plan.certificates.problem.is_none() {
                plan.certificates.waiting = authority::advance(plan, scope);
            }
            Ok(())
        }
    }
}

fn live(object: &DynamicObject) -> LiveObject {
    LiveObject {
        uid: object.metadata.uid.clone().unwrap_or_default(),
        version: object.metadata.resource_version.clone().unwrap_or_default(),
    }
}

/// Returns the text values of a Secret; other values are omitted.
fn texts(secret: &DynamicObject) -> BTreeMap<String, String> {
    as_texts(secret.clone().try_parse::<Secret>().ok().and_then(|secret| secret.data))
}

fn as_texts(data: Option<BTreeMap<String, ByteString>>) -> BTreeMap<String, String> {
    data.into_iter()
        .flatten()
        .filter_map(|(key, bytes)| Some((key, String::from_utf8(bytes.0).ok()?)))
        .collect()
}

/// Returns certificate and key of a Secret, if both exist and are text.
pub fn pair(secret: &DynamicObject, certificate: &str, key: &str) -> Option<CertificatePair> {
    let mut data = texts(secret);
    Some(CertificatePair {
        certificate: data.remove(certificate)?,
        key: data.remove(key)?,
    })
}
