//! Converts the contents of the files to a configuration of rustls.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{ALL_CIPHER_SUITES, default_provider};
use rustls::server::NoServerSessionStorage;
use rustls::sign::SingleCertAndKey;
use rustls::{ServerConfig, SupportedCipherSuite, SupportedProtocolVersion};

use super::TlsError;
use super::files::ServerMaterial;
use super::verifier::ClientVerifier;
use crate::{TlsPolicy, TlsVersion};

/// Go's names of TLS 1.2 suites that are not offered, all of them weaker. They are skipped.
const WEAK_SUITES: &[&str] = &[
    "TLS_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
];

pub(super) fn server(material: ServerMaterial, policy: &TlsPolicy) -> Result<ServerConfig, TlsError> {
    let builder = ServerConfig::builder_with_provider(Arc::new(provider(policy)?))
        .with_protocol_versions(&versions(policy))
        .map_err(|error| TlsError(format!("no TLS version is left: {error}")))?;
    let shows_certificates = material.accepted.is_some();
    let builder = match material.accepted {
        Some(accepted) => builder.with_client_cert_verifier(ClientVerifier::new(accepted)),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(material.pair)));
    if shows_certificates {
        // A resumed session would have the client's certificate of its first handshake, whose dates, CA and revocation are not checked
        // again.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

pub(super) fn versions(policy: &TlsPolicy) -> Vec<&'static SupportedProtocolVersion> {
    let known = [
        (TlsVersion::Tls12, &rustls::version::TLS12),
        (TlsVersion::Tls13, &rustls::version::TLS13),
    ];
    known
        .into_iter()
        .filter(|(version, _)| (policy.min..=policy.max).contains(version))
        .map(|(_, version)| version)
        .collect()
}

pub(super) fn provider(policy: &TlsPolicy) -> Result<CryptoProvider, TlsError> {
    let mut provider = default_provider();
    if policy.cipher_suites.is_empty() {
        return Ok(provider);
    }
    for name in &policy.cipher_suites {
        if find(name).is_none() && !WEAK_SUITES.contains(&name.as_str()) {
            return Err(TlsError(format!(
                "unexpected TLS cipher suite {name:?} in --cipher-suites"
            )));
        }
    }
    let listed: Vec<_> = policy.cipher_suites.iter().filter_map(|name| find(name)).collect();
    // As in Go, the suites of TLS 1.3 are not configurable.
    provider
        .cipher_suites
        .retain(|suite| suite.tls13().is_some() || listed.contains(suite));
    if policy.max == TlsVersion::Tls12 && listed.iter().all(|suite| suite.tls13().is_some()) {
        return Err(TlsError("none of --cipher-suites is offered for TLS1.2".to_owned()));
    }
    Ok(provider)
}

pub(super) fn skipped_suites(policy: &TlsPolicy) -> Vec<String> {
    policy
        .cipher_suites
        .iter()
        .filter(|name| WEAK_SUITES.contains(&name.as_str()))
        .cloned()
        .collect()
}

/// Returns the suite with this name in Go.
fn find(name: &str) -> Option<SupportedCipherSuite> {
    ALL_CIPHER_SUITES.iter().copied().find(|suite| {
        let ours = format!("{:?}", suite.suite()).replace("TLS13_", "TLS_");
        // Go first named the ChaCha20 suites without their hash.
        ours == name
            || ours
                .strip_suffix("_SHA256")
                .is_some_and(|old| old == name && old.ends_with("POLY1305"))
    })
}
