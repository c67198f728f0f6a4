//! Certificates: the authority first, then what it signs, each issued anew when it does not serve any more.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::core::DynamicObject;

use super::{Plan, Step, owned};
use crate::certificates::{Authority, Inspected, Leaf, Pair};
use crate::objects::{Key, Kind, Renderer};
use crate::observe::Observed;
use crate::spec::Desired;

/// What the status says of certificates.
#[derive(Debug, Default)]
pub(crate) struct Certificates {
    /// Why the stored authority cannot sign.
    pub(crate) unusable: Option<String>,
    /// The stored authority, if it can.
    pub(crate) authority: Option<Inspected>,
    /// Stored certificates, also those that this pass replaces.
    pub(crate) leaves: BTreeMap<Leaf, Stored>,
}

/// One stored certificate.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) certificate: Inspected,
    pub(crate) renewal: Timestamp,
}

pub(super) fn plan(
    plan: &mut Plan,
    desired: &Desired,
    observed: &Observed,
    renderer: &Renderer<'_>,
) -> Result<(), serde_json::Error> {
    let Some(wanted) = &desired.certificates else {
        return Ok(());
    };
    let key = Key::new(Kind::Secret, desired.names.authority());
    if plan.foreign.contains(&key) || plan.former.contains(&key) {
        return Ok(());
    }
    let Some(secret) = observed.objects.get(&key) else {
        plan.steps.push(Step::CreateAuthority);
        return fresh(plan, desired, observed, None, renderer);
    };
    let authority = match pair(secret, "ca.crt", "ca.key").map(Authority::load) {
        Some(Ok(authority)) => authority,
        Some(Err(error)) => return unusable(plan, &key, &error.to_string()),
        None => return unusable(plan, &key, "it has no text in ca.crt and ca.key"),
    };
    plan.certificates.authority = Some(authority.inspected().clone());
    if observed.now >= authority.renewal() {
        plan.steps.push(Step::RenewAuthority {
            uid: uid(secret).unwrap_or_default(),
        });
        return fresh(plan, desired, observed, Some(&authority), renderer);
    }
    owned::apply(plan, renderer.authority_secret(authority.pair())?, observed)?;
    owned::apply(plan, renderer.bundle(&authority.pair().certificate)?, observed)?;
    for (leaf, request) in wanted {
        issue_or_keep(plan, *leaf, request, observed, &authority, (desired, renderer))?;
    }
    Ok(())
}

/// The authority is being made or prolonged in this very pass. A prolonged one leaves what it signed alone.
fn fresh(
    plan: &mut Plan,
    desired: &Desired,
    observed: &Observed,
    prolonged: Option<&Authority>,
    renderer: &Renderer<'_>,
) -> Result<(), serde_json::Error> {
    let bundle = Key::new(Kind::ConfigMap, desired.names.bundle());
    if !plan.foreign.contains(&bundle) && !plan.former.contains(&bundle) {
        plan.steps.push(Step::PublishBundle {
            uid: observed.objects.get(&bundle).and_then(uid),
        });
    }
    for (leaf, request) in desired.certificates.iter().flatten() {
        if let Some(authority) = prolonged {
            issue_or_keep(plan, *leaf, request, observed, authority, (desired, renderer))?;
            continue;
        }
        let key = Key::new(Kind::Secret, desired.names.leaf(*leaf));
        if !plan.foreign.contains(&key) && !plan.former.contains(&key) {
            let live = observed.objects.get(&key);
            let why = if live.is_some() {
                "its authority is gone"
            } else {
                "there was none"
            };
            plan.steps.push(Step::Issue {
                leaf: *leaf,
                request: request.clone(),
                uid: live.and_then(uid),
                why: why.to_owned(),
            });
        }
    }
    Ok(())
}

fn issue_or_keep(
    plan: &mut Plan,
    leaf: Leaf,
    request: &crate::certificates::Request,
    observed: &Observed,
    authority: &Authority,
    (desired, renderer): (&Desired, &Renderer<'_>),
) -> Result<(), serde_json::Error> {
    let key = Key::new(Kind::Secret, desired.names.leaf(leaf));
    if plan.foreign.contains(&key) || plan.former.contains(&key) {
        return Ok(());
    }
    let live = observed.objects.get(&key);
    if live.is_some_and(|live| live.metadata.deletion_timestamp.is_some()) {
        return Ok(());
    }
    let stored = live.and_then(|secret| pair(secret, "tls.crt", "tls.key"));
    let why = match &stored {
        None => Some(
            if live.is_some() {
                "it has no text in tls.crt and tls.key"
            } else {
                "there was none"
            }
            .to_owned(),
        ),
        Some(pair) => request.objection(leaf, pair, authority, observed.now),
    };
    if let Some(Ok(certificate)) = stored.as_ref().map(|pair| Inspected::read(&pair.certificate)) {
        let renewal = request.renewal(&certificate);
        plan.certificates.leaves.insert(leaf, Stored { certificate, renewal });
    }
    match (why, stored) {
        (None, Some(pair)) => owned::apply(
            plan,
            renderer.leaf_secret(leaf, &pair, &authority.pair().certificate)?,
            observed,
        ),
        (why, _) => {
            let why = why.unwrap_or_default();
            plan.steps.push(Step::Issue {
                leaf,
                request: request.clone(),
                uid: live.and_then(uid),
                why,
            });
            Ok(())
        }
    }
}

/// Signing with another key would cut off every client: only the user may decide that.
fn unusable(plan: &mut Plan, key: &Key, why: &str) -> Result<(), serde_json::Error> {
    plan.certificates.unusable = Some(format!(
        "{key} holds no usable authority ({why}): restore it, or delete it to have a new one made"
    ));
    Ok(())
}

fn uid(object: &DynamicObject) -> Option<String> {
    object.metadata.uid.clone()
}

/// Certificate and key of a Secret, if both are there and are text.
pub(crate) fn pair(secret: &DynamicObject, certificate: &str, key: &str) -> Option<Pair> {
    let secret: Secret = secret.clone().try_parse().ok()?;
    let mut data = secret.data?;
    let mut text = |key: &str| String::from_utf8(data.remove(key)?.0).ok();
    Some(Pair {
        certificate: text(certificate)?,
        key: text(key)?,
    })
}
