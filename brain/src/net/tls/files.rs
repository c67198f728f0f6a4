//! The files of a listener's TLS, and their contents.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::RootCertStore;
use rustls_pki_types::pem::{self, PemObject as _};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest as _, Sha256};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::revoked::Revoked;
use super::{TlsError, bad, pair};
use crate::flags::TlsOptions;

/// The contents of the files. Equal contents mean equal TLS.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Files {
    cert: Vec<u8>,
    key: Vec<u8>,
    ca: Option<Vec<u8>>,
    crl: Option<Vec<u8>>,
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Files(..)") // the key must not get into logs
    }
}

/// The certificates for outgoing connections: this member's pair, and the roots to verify servers.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) pair: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
    pub(super) roots: RootCertStore,
    pub(super) revoked: Revoked,
}

impl Shown {
    pub(super) fn read(options: &TlsOptions) -> Result<Shown, TlsError> {
        let load =
            |(cert, key): &(PathBuf, PathBuf)| Ok((certificates(cert, &read(cert)?)?, private_key(key, &read(key)?)?));
        let pair = options.dial_pair.as_ref().or(options.pair.as_ref());
        let pair = pair.map(load).transpose()?;
        let Some(ca) = &options.trusted_ca else {
            if options.system_roots {
                return Ok(Shown {
                    roots: system_roots()?,
                    pair,
                    revoked: Revoked::default(),
                });
            }
            return Err(TlsError(
                "certificates of peers cannot be told apart without a trusted CA".to_owned(),
            ));
        };
        let cas = certificates(ca, &read(ca)?)?;
        let chain = pair.iter().flat_map(|(chain, _)| chain);
        let revoked = match &options.crl {
            Some(path) => Revoked::read(path, &read(path)?, (ca, cas.iter().chain(chain)))?,
            None => Revoked::default(),
        };
        Ok(Shown {
            roots: roots(ca, cas)?,
            pair,
            revoked,
        })
    }
}

/// Certificates for incoming connections, as read from the files.
#[derive(Debug)]
pub(super) struct Material {
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
    pub(super) roots: Option<RootCertStore>,
    pub(super) revoked: Revoked,
    pub(super) not_after: i64,
    /// The digest of the trusted CAs; empty if there are none.
    pub(super) trust_bundle: String,
}

/// Returns the SHA-256 in hex digits over certificates: their DER, sorted and concatenated.
pub(super) fn digest<'a>(certificates: impl IntoIterator<Item = &'a CertificateDer<'static>>) -> String {
    let mut sorted: Vec<&[u8]> = certificates.into_iter().map(AsRef::as_ref).collect();
    sorted.sort_unstable();
    let mut hasher = Sha256::new();
    sorted.iter().for_each(|certificate| hasher.update(certificate));
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Files {
    pub(super) fn read(options: &TlsOptions) -> Result<Files, TlsError> {
        let (cert, key) = pair(options)?;
        let optional = |path: &Option<_>| path.as_deref().map(read).transpose();
        Ok(Files {
            cert: read(cert)?,
            key: read(key)?,
            ca: optional(&options.trusted_ca)?,
            crl: optional(&options.crl)?,
        })
    }

    pub(super) fn parse(&self, options: &TlsOptions) -> Result<Material, TlsError> {
        let (cert, key) = pair(options)?;
        let chain = certificates(cert, &self.cert)?;
        let not_after = check_dates(cert, &chain)?;
        let (mut known, mut revoked, mut trust_bundle) = (None, Revoked::default(), String::new());
        if let (Some(path), Some(bytes)) = (&options.trusted_ca, &self.ca) {
            let cas = certificates(path, bytes)?;
            if let (Some(crl), Some(bytes)) = (&options.crl, &self.crl) {
                revoked = Revoked::read(crl, bytes, (path, cas.iter().chain(&chain)))?;
            }
            trust_bundle = digest(&cas);
            known = Some(roots(path, cas)?);
        }
        let key = private_key(key, &self.key)?;
        Ok(Material {
            chain,
            key,
            roots: known,
            revoked,
            not_after,
            trust_bundle,
        })
    }
}

/// Returns the CAs that the system trusts, as OpenSSL finds them: SSL_CERT_FILE and SSL_CERT_DIR name others. Fails if there are none.
fn system_roots() -> Result<RootCertStore, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // Some that systems have cannot be used.
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        let why: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
        let why = if why.is_empty() {
            "no file has any".to_owned()
        } else {
            why.join("; ")
        };
        return Err(TlsError(format!(
            "this system trusts no CA, and --cacert names none: {why}"
        )));
    }
    Ok(roots)
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|error| bad(path, format!("cannot be read: {error}")))
}

fn private_key(path: &Path, bytes: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(bytes).map_err(|error| match error {
        pem::Error::NoItemsFound => bad(path, "no private key in PEM (PKCS#8, SEC1 or PKCS#1, not encrypted)"),
        error => bad(path, error),
    })
}

fn certificates(path: &Path, bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
    let chain = chain.map_err(|error| bad(path, error))?;
    if chain.is_empty() {
        return Err(bad(path, "no certificate in PEM"));
    }
    Ok(chain)
}

/// Checks that the leaf is valid now. Returns when it expires.
fn check_dates(path: &Path, chain: &[CertificateDer<'static>]) -> Result<i64, TlsError> {
    let leaf = chain.first().map_or(&[][..], |leaf| leaf.as_ref());
    let (_, leaf) =
        X509Certificate::from_der(leaf).map_err(|error| bad(path, format!("not a certificate: {error}")))?;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_err(|_| bad(path, "the clock stands before 1970"))?;
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let validity = leaf.validity();
    if now > validity.not_after.timestamp() {
        return Err(bad(path, format!("the certificate expired at {}", validity.not_after)));
    }
    if now < validity.not_before.timestamp() {
        return Err(bad(
            path,
            format!("the certificate is not valid before {}", validity.not_before),
        ));
    }
    Ok(validity.not_after.timestamp())
}

fn roots(path: &Path, certificates: Vec<CertificateDer<'static>>) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots
            .add(certificate)
            .map_err(|error| bad(path, format!("not a usable CA: {error}")))?;
    }
    Ok(roots)
}
