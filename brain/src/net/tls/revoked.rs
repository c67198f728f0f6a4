//! Certificates that their CAs have revoked.
//!
//! As in etcd, a chain is refused if any certificate of it has a serial number in a list. In addition, rustls looks up every
//! certificate of the chain in the list of its issuer. A list of an unknown issuer is refused when it is read: rustls would never
//! use it.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use rustls::{CertificateError, Error};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer};
use x509_parser::prelude::{CertificateRevocationList, FromDer as _, X509Certificate};

use super::{TlsError, bad};

/// The revocations in the lists of a file.
#[derive(Debug, Clone, Default)]
pub(super) struct Revoked {
    lists: Vec<CertificateRevocationListDer<'static>>,
    /// Big-endian, without leading zeros.
    serials: Arc<HashSet<Vec<u8>>>,
}

impl Revoked {
    /// Reads PEM, or one list in DER. Issuers must be among the certificates of `known`, which begin with those of a file.
    pub(super) fn read<'a>(
        path: &Path,
        bytes: &[u8],
        (ca, known): (&Path, impl Iterator<Item = &'a CertificateDer<'static>>),
    ) -> Result<Revoked, TlsError> {
        let known: Vec<_> = known
            .filter_map(|certificate| Some(X509Certificate::from_der(certificate).ok()?.1))
            .filter(|certificate| certificate.is_ca() || is_self_issued(certificate))
            .collect();
        let lists = lists(path, bytes)?;
        let mut serials = HashSet::new();
        for list in &lists {
            let parsed = CertificateRevocationList::from_der(list);
            let (_, list) = parsed.map_err(|error| bad(path, format!("not a revocation list: {error}")))?;
            let mut named = known.iter().filter(|known| known.subject() == list.issuer()).peekable();
            if named.peek().is_none() {
                let unknown = format!(
                    "the issuer of the revocation list, {}, is not among the CAs",
                    list.issuer()
                );
                return Err(bad(
                    path,
                    format!("{unknown} in {}: it would revoke nothing", ca.display()),
                ));
            }
            if !named.any(|known| list.verify_signature(known.public_key()).is_ok()) {
                let wrong = format!("the revocation list is not signed by its issuer, {}", list.issuer());
                return Err(bad(path, format!("{wrong}, whose certificate is in {}", ca.display())));
            }
            let revoked = list.iter_revoked_certificates();
            serials.extend(revoked.map(|entry| entry.user_certificate.to_bytes_be()));
        }
        Ok(Revoked {
            lists,
            serials: Arc::new(serials),
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }

    /// Returns the lists, for rustls.
    pub(super) fn lists(&self) -> Vec<CertificateRevocationListDer<'static>> {
        self.lists.clone()
    }

    /// Refuses a chain that contains a revoked certificate.
    pub(super) fn check(&self, leaf: &CertificateDer<'_>, intermediates: &[CertificateDer<'_>]) -> Result<(), Error> {
        if self.serials.is_empty() {
            return Ok(());
        }
        for certificate in std::iter::once(leaf).chain(intermediates) {
            let parsed = X509Certificate::from_der(certificate);
            let (_, parsed) = parsed.map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
            if self.serials.contains(&parsed.serial.to_bytes_be()) {
                return Err(Error::InvalidCertificate(CertificateError::Revoked));
            }
        }
        Ok(())
    }
}

/// Returns true if issuer and subject are equal: roots of X.509 version 1 are not marked as CAs.
fn is_self_issued(certificate: &X509Certificate<'_>) -> bool {
    certificate.subject() == certificate.issuer()
}

fn lists(path: &Path, bytes: &[u8]) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    let lists: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(bytes).collect();
    match lists.map_err(|error| bad(path, error))? {
        lists if !lists.is_empty() => Ok(lists),
        _ if bytes.is_empty() => Err(bad(path, "no revocation list")),
        _ => Ok(vec![CertificateRevocationListDer::from(bytes.to_vec())]),
    }
}
