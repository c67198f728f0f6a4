//! Certificates that their CAs have revoked.
//!
//! As in etcd, a chain is refused if any certificate of it has a serial number in a list, no matter who signed the list.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{CertificateRevocationList, FromDer as _};

use super::certificate::{ParsedCertificate, signature_algorithm};
use super::chain::CertificateRefusal;
use super::{TlsError, algorithms, bad, pem};

/// The revocations in the lists of a file.
#[derive(Debug, Clone, Default)]
pub(super) struct RevocationLists {
    /// Big-endian, without leading zeros.
    serials: Arc<HashSet<Vec<u8>>>,
}

impl RevocationLists {
    /// Reads PEM, or one list in DER. Returns it with what is odd about it: lists that no certificate of `known` has signed.
    pub(super) fn read<'a>(
        path: &Path,
        bytes: &[u8],
        known: impl Iterator<Item = &'a CertificateDer<'static>>,
    ) -> Result<(RevocationLists, Vec<String>), TlsError> {
        let known: Vec<_> = known
            .filter_map(|certificate| ParsedCertificate::parse(certificate).ok())
            .collect();
        let (mut serials, mut odd) = (HashSet::new(), Vec::new());
        for der in lists(path, bytes)? {
            let parsed = CertificateRevocationList::from_der(&der);
            let (_, list) = parsed.map_err(|error| bad(path, format!("not a revocation list: {error}")))?;
            let algorithm = signature_algorithm(&der).map_err(|error| bad(path, error))?;
            let is_signed = |by: &&ParsedCertificate<'_>| {
                let signed = list.tbs_cert_list.as_ref();
                algorithms::verify(by.key(), algorithm, signed, &list.signature_value.data).is_ok()
            };
            let of_issuer = known.iter().filter(|known| known.subject() == list.issuer().as_raw());
            if !of_issuer.clone().any(|known| is_signed(&known)) {
                let issuer = list.issuer();
                odd.push(match of_issuer.count() {
                    0 => format!("the issuer of the revocation list, {issuer}, is not among the CAs"),
                    _ => format!("the revocation list is not signed by its issuer, {issuer}"),
                });
            }
            let revoked = list.iter_revoked_certificates();
            serials.extend(revoked.map(|entry| entry.user_certificate.to_bytes_be()));
        }
        let serials = Arc::new(serials);
        Ok((RevocationLists { serials }, odd))
    }

    /// Refuses a chain that contains a revoked certificate.
    pub(super) fn check<'a>(
        &self,
        mut chain: impl Iterator<Item = &'a ParsedCertificate<'a>>,
    ) -> Result<(), CertificateRefusal> {
        if self.serials.is_empty() {
            return Ok(());
        }
        match chain.find(|certificate| self.serials.contains(&certificate.serial())) {
            Some(revoked) => Err(CertificateRefusal::Revoked { name: revoked.name() }),
            None => Ok(()),
        }
    }
}

fn lists(path: &Path, bytes: &[u8]) -> Result<Vec<Vec<u8>>, TlsError> {
    let blocks = pem::blocks(bytes).into_iter();
    let lists: Vec<_> = blocks
        .filter(|block| block.label.ends_with("CRL"))
        .map(|block| block.der)
        .collect();
    match lists {
        lists if !lists.is_empty() => Ok(lists),
        _ if bytes.is_empty() => Err(bad(path, "no revocation list")),
        _ => Ok(vec![bytes.to_vec()]),
    }
}
