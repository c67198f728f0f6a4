//! Reads a stored certificate.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use rcgen::{ExtendedKeyUsagePurpose, KeyPair, PublicKeyData};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;

use super::{BACKDATE, CertificateError, bundle};

/// The parts of a certificate that decide whether it is still usable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InspectedCertificate {
    pub common_name: String,
    pub organization: Option<String>,
    pub sans: BTreeSet<String>,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    pub is_authority: bool,
    server: bool,
    client: bool,
    public_key: Vec<u8>,
    /// Name, as DER.
    subject: Vec<u8>,
    /// Name of the authority that signed it, as DER.
    issuer: Vec<u8>,
    /// The whole certificate, as DER.
    der: Vec<u8>,
}

impl InspectedCertificate {
    /// Reads the first certificate of a PEM text.
    ///
    /// # Errors
    /// There is no certificate, or it does not decode.
    pub fn read(pem: &str) -> Result<Self, CertificateError> {
        let (_, block) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).map_err(|_| CertificateError::Malformed)?;
        Self::decode(&block.contents)
    }

    /// Reads a certificate from its DER.
    ///
    /// # Errors
    /// It does not decode.
    pub fn decode(der: &[u8]) -> Result<Self, CertificateError> {
        let (rest, certificate) = X509Certificate::from_der(der).map_err(|_| CertificateError::Malformed)?;
        if !rest.is_empty() {
            return Err(CertificateError::Malformed);
        }
        let name = certificate.subject();
        let text = |attribute: Option<&x509_parser::x509::AttributeTypeAndValue<'_>>| {
            attribute
                .and_then(|attribute| attribute.as_str().ok())
                .map(str::to_owned)
        };
        let time = |at: x509_parser::time::ASN1Time| {
            Timestamp::from_second(at.timestamp()).map_err(|_| CertificateError::Malformed)
        };
        let mut inspected = Self {
            common_name: text(name.iter_common_name().next()).unwrap_or_default(),
            organization: text(name.iter_organization().next()),
            sans: BTreeSet::new(),
            not_before: time(certificate.validity().not_before)?,
            not_after: time(certificate.validity().not_after)?,
            is_authority: certificate.is_ca(),
            server: false,
            client: false,
            public_key: certificate.public_key().raw.to_vec(),
            subject: name.as_raw().to_vec(),
            issuer: certificate.issuer().as_raw().to_vec(),
            der: der.to_vec(),
        };
        for extension in certificate.extensions() {
            inspected.take(extension.parsed_extension())?;
        }
        Ok(inspected)
    }

    fn take(&mut self, extension: &ParsedExtension<'_>) -> Result<(), CertificateError> {
        match extension {
            ParsedExtension::ExtendedKeyUsage(usage) => {
                (self.server, self.client) = (usage.server_auth, usage.client_auth)
            }
            ParsedExtension::SubjectAlternativeName(names) => {
                for name in &names.general_names {
                    self.sans.insert(alternative_name(name)?);
                }
            }
            ParsedExtension::ParseError { .. } => return Err(CertificateError::Malformed),
            _ => {}
        }
        Ok(())
    }

    pub fn has_key(&self, key: &KeyPair) -> bool {
        key.subject_public_key_info() == self.public_key
    }

    /// As [`InspectedCertificate::has_key`], for a SubjectPublicKeyInfo in DER.
    pub fn has_public_key(&self, info: &[u8]) -> bool {
        self.public_key == info
    }

    /// Returns the time of issue.
    pub fn issued(&self) -> Timestamp {
        self.not_before.checked_add(BACKDATE).unwrap_or(self.not_before)
    }

    /// SHA-256 of the public key, in hex digits. It stays the same when the certificate is renewed.
    pub fn fingerprint(&self) -> String {
        bundle::fingerprint(&self.public_key)
    }

    /// SHA-256 of the certificate, in hex digits. A brain reports its certificates in the same form.
    pub fn certificate_fingerprint(&self) -> String {
        bundle::fingerprint(&self.der)
    }

    /// Returns true if `authority` signed it under the authority's present name.
    pub fn is_signed_by(&self, authority: &Self) -> bool {
        let signed = || {
            let (_, own) = X509Certificate::from_der(&self.der).ok()?;
            let (_, other) = X509Certificate::from_der(&authority.der).ok()?;
            own.verify_signature(Some(other.public_key())).ok()
        };
        self.issuer == authority.subject && signed().is_some()
    }

    pub fn lifetime(&self) -> Duration {
        Duration::try_from(self.not_after.duration_since(self.not_before)).unwrap_or_default()
    }

    pub fn usages(&self) -> Vec<ExtendedKeyUsagePurpose> {
        let mut usages = Vec::new();
        if self.server {
            usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        if self.client {
            usages.push(ExtendedKeyUsagePurpose::ClientAuth);
        }
        usages
    }
}

fn alternative_name(name: &GeneralName<'_>) -> Result<String, CertificateError> {
    match name {
        GeneralName::DNSName(text) | GeneralName::URI(text) => Ok((*text).to_owned()),
        GeneralName::IPAddress(bytes) => {
            if let Ok(four) = <[u8; 4]>::try_from(*bytes) {
                return Ok(IpAddr::from(four).to_string());
            }
            let sixteen = <[u8; 16]>::try_from(*bytes).map_err(|_| CertificateError::Malformed)?;
            Ok(IpAddr::from(sixteen).to_string())
        }
        other => Ok(other.to_string()),
    }
}
