//! The certificates to trust, as a set: their order does not matter.

use std::collections::BTreeSet;

use sha2::{Digest, Sha256};
use x509_parser::certificate::X509Certificate;
use x509_parser::pem::Pem;
use x509_parser::prelude::FromDer;

use super::{CertificateError, InspectedCertificate};

/// Label of a certificate in PEM.
const PEM_LABEL: &str = "CERTIFICATE";

/// A set of certificates, each as its DER.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CaBundle(BTreeSet<Vec<u8>>);

impl CaBundle {
    /// Reads every certificate of a PEM text; other blocks are skipped.
    ///
    /// # Errors
    /// There is no certificate, or one does not decode.
    pub fn parse(pem: &str) -> Result<Self, CertificateError> {
        let mut certificates = BTreeSet::new();
        for block in Pem::iter_from_buffer(pem.as_bytes()) {
            let block = block.map_err(|_| CertificateError::Malformed)?;
            if block.label != PEM_LABEL {
                continue;
            }
            let (rest, _) = X509Certificate::from_der(&block.contents).map_err(|_| CertificateError::Malformed)?;
            if !rest.is_empty() {
                return Err(CertificateError::Malformed);
            }
            certificates.insert(block.contents);
        }
        if certificates.is_empty() {
            return Err(CertificateError::Malformed);
        }
        Ok(Self(certificates))
    }

    /// Adds the certificates of `other`.
    pub fn extend(&mut self, other: &Self) {
        self.0.extend(other.0.iter().cloned());
    }

    /// Removes the certificates of `other`.
    pub fn remove(&mut self, other: &Self) {
        self.0.retain(|certificate| !other.0.contains(certificate));
    }

    /// Returns the certificates that `keep` accepts.
    pub fn filter(&self, keep: impl Fn(&InspectedCertificate) -> bool) -> Self {
        let kept = self
            .0
            .iter()
            .filter(|der| InspectedCertificate::decode(der).is_ok_and(|certificate| keep(&certificate)));
        Self(kept.cloned().collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the set as PEM. Equal sets have equal texts.
    pub fn to_pem(&self) -> String {
        let config = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
        let encode = |der: &Vec<u8>| pem::encode_config(&pem::Pem::new(PEM_LABEL, der.clone()), config);
        self.0.iter().map(encode).collect()
    }

    /// Returns the SHA-256 over the sorted and joined DER, in hex digits. A brain reports the bundle it trusts in the same form.
    pub fn digest(&self) -> String {
        let mut hasher = Sha256::new();
        self.0.iter().for_each(|certificate| hasher.update(certificate));
        hex(&hasher.finalize())
    }
}

/// Returns true if a PEM text holds certificates and no other block, such as a key.
pub fn holds_only_certificates(text: &str) -> bool {
    let mut blocks = text
        .lines()
        .filter(|line| line.trim_start().starts_with("-----BEGIN "))
        .peekable();
    let wanted = format!("-----BEGIN {PEM_LABEL}-----");
    blocks.peek().is_some() && blocks.all(|line| line.trim() == wanted)
}

/// Returns the SHA-256 in hex digits.
pub fn fingerprint(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
