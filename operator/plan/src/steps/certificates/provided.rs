//! Certificates in Secrets that the user provides: they are checked, and none is issued.

use crds::cluster::tls::TlsSecrets;
use kube::ResourceExt;

use super::{CertificateInput, Plan, StoredCertificate};
use crate::certificates::provided::{CertificatePurpose, check};
use crate::certificates::{CertificatePair, CertificateProblem, Leaf};
use crate::spec::is_external;

pub(super) fn plan(plan: &mut Plan, scope: CertificateInput<'_>) {
    let Some(secrets) = &scope.cluster.spec.tls.secrets else {
        return;
    };
    let bundle = match bundle(scope, secrets) {
        Ok(bundle) => bundle,
        Err(problem) => {
            plan.certificates.problem = Some(problem);
            return;
        }
    };
    for (name, purpose) in purposes(scope, secrets) {
        match one(scope, name, &purpose, &bundle) {
            Ok(stored) => drop(plan.certificates.leaves.insert(purpose.leaf, stored)),
            Err(problem) => drop(plan.certificates.problem.get_or_insert(problem)),
        }
    }
}

fn one(
    scope: CertificateInput<'_>,
    name: &str,
    purpose: &CertificatePurpose,
    bundle: &str,
) -> Result<StoredCertificate, CertificateProblem> {
    let mut data = scope.given(name).ok_or_else(|| absent(name))?;
    let mut text = |key| data.remove(key).ok_or_else(|| no_key(name, key));
    let pair = CertificatePair {
        certificate: text("tls.crt")?,
        key: text("tls.key")?,
    };
    let certificate = check(name, &pair, purpose, bundle, scope.observed.now)?;
    Ok(StoredCertificate {
        secret: name.to_owned(),
        certificate,
        renewal: None,
        generation: None,
    })
}

fn bundle(scope: CertificateInput<'_>, secrets: &TlsSecrets) -> Result<String, CertificateProblem> {
    let (name, key) = (&secrets.ca_bundle.name, &secrets.ca_bundle.key);
    let mut data = scope.given(name).ok_or_else(|| absent(name))?;
    let text = data.remove(key).ok_or_else(|| no_key(name, key))?;
    crate::certificates::CaBundle::parse(&text).map_err(|_| {
        CertificateProblem::new(
            "SecretInvalid",
            format!("Secret {name}, key {key}: it holds no certificates in PEM"),
        )
    })?;
    if !crate::certificates::holds_only_certificates(&text) {
        return Err(CertificateProblem::new(
            "SecretInvalid",
            format!(
                "Secret {name}, key {key}: it holds more than certificates; clients read it, so it must hold nothing else"
            ),
        ));
    }
    Ok(text)
}

/// Returns the purpose of each Secret.
fn purposes<'a>(scope: CertificateInput<'_>, secrets: &'a TlsSecrets) -> [(&'a str, CertificatePurpose); 3] {
    let names = &scope.desired.names;
    let pods: Vec<String> = if is_external(scope.cluster) {
        scope.observed.pods.iter().map(ResourceExt::name_any).collect()
    } else {
        (0..scope.desired.replicas.max(1))
            .map(|ordinal| names.pod(ordinal))
            .collect()
    };
    let members: Vec<String> = pods.iter().map(|pod| names.member_host(pod)).collect();
    let mut hosts = members.clone();
    hosts.push(names.host(&names.client()));
    if scope.cluster.spec.services.leader.enabled {
        hosts.push(names.host(&names.leader()));
    }
    let purpose = |leaf, hosts, common_name| CertificatePurpose {
        leaf,
        hosts,
        common_name,
    };
    [
        (&secrets.server.name, purpose(Leaf::Server, hosts, None)),
        (&secrets.peer.name, purpose(Leaf::Peer, members, Some("kubebrain-peer"))),
        (
            &secrets.operator_client.name,
            purpose(Leaf::OperatorClient, Vec::new(), Some("kubebrain-operator")),
        ),
    ]
}

fn absent(name: &str) -> CertificateProblem {
    CertificateProblem::new(
        "SecretMissing",
        format!("Secret {name} of tls.secrets does not exist: create it"),
    )
}

fn no_key(name: &str, key: &str) -> CertificateProblem {
    CertificateProblem::new(
        "SecretMissing",
        format!("Secret {name} of tls.secrets has no text in {key}"),
    )
}
