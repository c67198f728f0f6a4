//! Checks of certificates that the operator did not issue: do they meet the needs of the brains?

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use rcgen::KeyPair;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::server::WebPkiClientVerifier;
use rustls::{CertificateError, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use super::{CertificatePair, InspectedCertificate, Leaf};

/// Problem that makes a given certificate unusable. The reason is part of the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateProblem {
    pub reason: &'static str,
    pub message: String,
}

impl CertificateProblem {
    pub fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}

/// Requirements for a given certificate.
#[derive(Debug, Clone)]
pub struct CertificatePurpose {
    pub leaf: Leaf,
    /// Names that a server certificate must cover.
    pub hosts: Vec<String>,
    /// The common name that the brains check, if any.
    pub common_name: Option<&'static str>,
}

/// Checks the certificate in the Secret `secret` against the trusted ones.
///
/// # Errors
/// The problem, with the names of the Secret and its key.
pub fn check(
    secret: &str,
    pair: &CertificatePair,
    purpose: &CertificatePurpose,
    bundle: &str,
    now: Timestamp,
) -> Result<InspectedCertificate, CertificateProblem> {
    let wrong =
        |key: &str, what: &str| CertificateProblem::new("SecretInvalid", format!("Secret {secret}, key {key}: {what}"));
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(pair.certificate.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|_| wrong("tls.crt", "it is not a certificate in PEM"))?;
    let (first, rest) = chain
        .split_first()
        .ok_or_else(|| wrong("tls.crt", "it holds no certificate in PEM"))?;
    let inspected =
        InspectedCertificate::read(&pair.certificate).map_err(|error| wrong("tls.crt", &error.to_string()))?;
    if !fits(&pair.key, &inspected).ok_or_else(|| wrong("tls.key", "it is not a private key in PEM"))? {
        return Err(wrong("tls.key", "it does not belong to the certificate in tls.crt"));
    }
    if purpose.common_name.is_some_and(|name| name != inspected.common_name) {
        let name = purpose.common_name.unwrap_or_default();
        let what = format!("its common name is {:?}, and {name:?} is needed", inspected.common_name);
        return Err(wrong("tls.crt", &what));
    }
    let refused = |error: &rustls::Error, host: Option<&str>| refusal(secret, error, host, &inspected);
    let roots = roots(bundle).ok_or_else(|| {
        CertificateProblem::new(
            "NotTrusted",
            "the given bundle holds no certificate that can be trusted",
        )
    })?;
    let at = UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(now.as_second()).unwrap_or_default()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    if purpose.leaf != Leaf::Server {
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|error| {
                CertificateProblem::new("NotTrusted", format!("the given bundle cannot be used: {error}"))
            })?;
        verifier
            .verify_client_cert(first, rest, at)
            .map_err(|error| refused(&error, None))?;
    }
    if purpose.hosts.is_empty() {
        return Ok(inspected);
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider)
        .build()
        .map_err(|error| CertificateProblem::new("NotTrusted", format!("the given bundle cannot be used: {error}")))?;
    for host in &purpose.hosts {
        let name = ServerName::try_from(host.as_str())
            .map_err(|_| wrong("tls.crt", &format!("{host:?} is not a DNS name")))?;
        verifier
            .verify_server_cert(first, rest, &name, &[], at)
            .map_err(|error| refused(&error, Some(host)))?;
    }
    Ok(inspected)
}

/// Returns true if a key belongs to a certificate; `None` if the key cannot be read.
fn fits(key: &str, certificate: &InspectedCertificate) -> Option<bool> {
    if let Ok(key) = KeyPair::from_pem(key) {
        return Some(certificate.has_key(&key));
    }
    // PKCS#1 and SEC1, which cert-manager writes by default.
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).ok()?;
    let key = rustls::crypto::ring::sign::any_supported_type(&key).ok()?;
    let public = key.public_key()?;
    Some(certificate.has_public_key(public.as_ref()))
}

fn roots(bundle: &str) -> Option<Arc<RootCertStore>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(certificate.ok()?).ok()?;
    }
    (!roots.is_empty()).then(|| Arc::new(roots))
}

fn refusal(
    secret: &str,
    error: &rustls::Error,
    host: Option<&str>,
    certificate: &InspectedCertificate,
) -> CertificateProblem {
    let at = format!("Secret {secret}, key tls.crt");
    let rustls::Error::InvalidCertificate(error) = error else {
        return CertificateProblem::new("NotTrusted", format!("{at}: {error}"));
    };
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => CertificateProblem::new(
            "Expired",
            format!(
                "{at}: it or its issuer has expired; it was valid until {}",
                certificate.not_after
            ),
        ),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => CertificateProblem::new(
            "NotTrusted",
            format!("{at}: it is valid only from {}", certificate.not_before),
        ),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => CertificateProblem::new(
            "NamesNotCovered",
            format!(
                "{at}: it is not valid for {}; add that DNS name",
                host.unwrap_or_default()
            ),
        ),
        CertificateError::UnknownIssuer => CertificateProblem::new(
            "NotTrusted",
            format!("{at}: no certificate of tls.secrets.caBundle signed it"),
        ),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => CertificateProblem::new(
            "SecretInvalid",
            format!(
                "{at}: its extended key usage does not allow {}",
                if host.is_some() { "server auth" } else { "client auth" }
            ),
        ),
        other => CertificateProblem::new("NotTrusted", format!("{at}: {other}")),
    }
}
