//! The files of a listener's TLS, and their contents.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::sign::CertifiedKey;
use rustls_pki_types::CertificateDer;
use sha2::{Digest as _, Sha256};

use super::allowed::AllowedNames;
use super::certificate::{ParsedCertificate, Validity};
use super::chain::TrustedRoots;
use super::keys::signing_key;
use super::revoked::RevocationLists;
use super::verifier::AcceptedCertificates;
use super::{TlsError, bad, pair, pem};
use crate::TlsOptions;

/// The contents of the files. Equal contents mean equal TLS.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    cert: Vec<u8>,
    key: Vec<u8>,
    ca: Option<Vec<u8>>,
    crl: Option<Vec<u8>>,
}

impl std::fmt::Debug for TlsFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsFiles(..)") // the key must not get into logs
    }
}

/// The certificates for outgoing connections: this member's pair, and those by which servers are verified.
#[derive(Debug)]
pub(super) struct ClientMaterial {
    pub(super) pair: Option<Arc<CertifiedKey>>,
    pub(super) accepted: AcceptedCertificates,
}

impl ClientMaterial {
    pub(super) fn read(options: &TlsOptions) -> Result<ClientMaterial, TlsError> {
        let pair = options.dial_pair.as_ref().or(options.pair.as_ref());
        let load = |pair: &(PathBuf, PathBuf)| certified(pair, &read(&pair.0)?, &read(&pair.1)?);
        let pair = pair.map(load).transpose()?;
        let Some(ca) = &options.trusted_ca else {
            if options.system_roots {
                let accepted = AcceptedCertificates {
                    roots: system_roots()?,
                    revoked: RevocationLists::default(),
                    names: AllowedNames::of(options),
                };
                return Ok(ClientMaterial { pair, accepted });
            }
            return Err(TlsError(
                "certificates of peers cannot be verified without a trusted CA".to_owned(),
            ));
        };
        let cas = authorities(ca, &read(ca)?)?;
        let chain = pair.iter().flat_map(|pair| &pair.cert);
        let revoked = match &options.crl {
            // Its oddities were logged when the listeners read it.
            Some(path) => RevocationLists::read(path, &read(path)?, cas.iter().chain(chain))?.0,
            None => RevocationLists::default(),
        };
        let accepted = AcceptedCertificates {
            roots: roots(ca, cas)?,
            revoked,
            names: AllowedNames::of(options),
        };
        Ok(ClientMaterial { pair, accepted })
    }
}

/// Certificates for incoming connections, as read from the files.
#[derive(Debug)]
pub(super) struct ServerMaterial {
    pub(super) pair: Arc<CertifiedKey>,
    /// The certificates of clients that are accepted; `None`: clients need none.
    pub(super) accepted: Option<AcceptedCertificates>,
    pub(super) validity: Validity,
    /// The digest of the trusted CAs; empty if there are none.
    pub(super) trust_bundle: String,
    /// Oddities of the files that are no reason to refuse them.
    pub(super) odd: Vec<TlsError>,
}

/// Returns the SHA-256 in hex digits over certificates: their DER, sorted and concatenated.
pub(super) fn digest<'a>(certificates: impl IntoIterator<Item = &'a CertificateDer<'static>>) -> String {
    let mut sorted: Vec<&[u8]> = certificates.into_iter().map(AsRef::as_ref).collect();
    sorted.sort_unstable();
    let mut hasher = Sha256::new();
    sorted.iter().for_each(|certificate| hasher.update(certificate));
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

impl TlsFiles {
    pub(super) fn read(options: &TlsOptions) -> Result<TlsFiles, TlsError> {
        let (cert, key) = pair(options)?;
        let optional = |path: &Option<_>| path.as_deref().map(read).transpose();
        Ok(TlsFiles {
            cert: read(cert)?,
            key: read(key)?,
            ca: optional(&options.trusted_ca)?,
            crl: optional(&options.crl)?,
        })
    }

    pub(super) fn parse(&self, options: &TlsOptions) -> Result<ServerMaterial, TlsError> {
        let files = pair(options)?;
        let pair = certified(files, &self.cert, &self.key)?;
        let validity = match pair.cert.first() {
            Some(leaf) => ParsedCertificate::parse(leaf)
                .map_err(|error| bad(&files.0, error))?
                .validity(),
            None => return Err(bad(&files.0, "no certificate in PEM")),
        };
        let (mut accepted, mut trust_bundle, mut odd) = (None, String::new(), Vec::new());
        if let (Some(path), Some(bytes)) = (&options.trusted_ca, &self.ca) {
            let cas = authorities(path, bytes)?;
            let mut revoked = RevocationLists::default();
            if let (Some(crl), Some(bytes)) = (&options.crl, &self.crl) {
                let (read, found) = RevocationLists::read(crl, bytes, cas.iter().chain(&pair.cert))?;
                odd.extend(found.into_iter().map(|odd| bad(crl, odd)));
                revoked = read;
            }
            trust_bundle = digest(&cas);
            accepted = Some(AcceptedCertificates {
                roots: roots(path, cas)?,
                revoked,
                names: AllowedNames::of(options),
            });
        }
        Ok(ServerMaterial {
            pair,
            accepted,
            validity,
            trust_bundle,
            odd,
        })
    }
}

/// Returns the CAs that the system trusts, as OpenSSL finds them: SSL_CERT_FILE and SSL_CERT_DIR name others. Fails if there are none.
fn system_roots() -> Result<TrustedRoots, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = TrustedRoots::default();
    for certificate in found.certs {
        // Some that systems have cannot be used.
        if let Err(error) = roots.add(certificate) {
            tracing::debug!(error, "ignored an unusable CA of this system");
        }
    }
    if roots.is_empty() {
        let why: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
        let why = if why.is_empty() {
            "no file has any".to_owned()
        } else {
            why.join("; ")
        };
        return Err(TlsError(format!(
            "this system trusts no CA, and no file of CAs is given: {why}"
        )));
    }
    Ok(roots)
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|error| bad(path, format!("cannot be read: {error}")))
}

/// Returns a certificate, with those that follow it, and its key.
fn certified((cert, key): &(PathBuf, PathBuf), cert_pem: &[u8], key_pem: &[u8]) -> Result<Arc<CertifiedKey>, TlsError> {
    let chain = certificates(cert, cert_pem, |label| label == "CERTIFICATE")?;
    let mut keys = pem::blocks(key_pem).into_iter();
    let found = keys.find(|block| block.label == "PRIVATE KEY" || block.label.ends_with(" PRIVATE KEY"));
    let none = "no private key in PEM (PKCS#8, SEC1 or PKCS#1, not encrypted)";
    let found = found.ok_or_else(|| bad(key, none))?;
    let signing = signing_key(&found.der).ok_or_else(|| match found.is_encrypted || found.label.contains("ENCRYPTED") {
        true => bad(key, none),
        false => bad(
            key,
            "the private key is damaged, or of a kind that is not supported: RSA of 1024 to 8192 bits, ECDSA with P-256, P-384 or P-521, Ed25519",
        ),
    })?;
    let leaf = chain.first().map_or(&[][..], AsRef::as_ref);
    let leaf = ParsedCertificate::from_der(leaf).map_err(|error| bad(cert, format!("the certificate is {error}")))?;
    let of_key = signing.public_key();
    if !of_key.is_some_and(|of_key| leaf.has_key(&of_key)) {
        let text = format!("the key does not belong to the certificate in {}", cert.display());
        return Err(bad(key, text));
    }
    Ok(Arc::new(CertifiedKey::new(chain, signing)))
}

/// Returns the certificates in the blocks with a label.
fn certificates(
    path: &Path,
    bytes: &[u8],
    is_wanted: impl Fn(&str) -> bool,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let blocks = pem::blocks(bytes).into_iter().filter(|block| is_wanted(&block.label));
    let chain: Vec<_> = blocks.map(|block| CertificateDer::from(block.der)).collect();
    if chain.is_empty() {
        return Err(bad(path, "no certificate in PEM"));
    }
    Ok(chain)
}

/// Returns the certificates of a file of CAs: of all labels of certificates, as etcd.
fn authorities(path: &Path, bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    certificates(path, bytes, |label| label.ends_with("CERTIFICATE"))
}

fn roots(path: &Path, certificates: Vec<CertificateDer<'static>>) -> Result<TrustedRoots, TlsError> {
    let mut roots = TrustedRoots::default();
    for (index, certificate) in certificates.into_iter().enumerate() {
        let added = roots.add(certificate);
        added.map_err(|error| bad(path, format!("certificate {} of the file is {error}", index + 1)))?;
    }
    Ok(roots)
}
