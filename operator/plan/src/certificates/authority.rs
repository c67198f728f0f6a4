//! The authority of one cluster. It is valid for ten years and renewed two years before its end with the same key.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

use super::{
    BACKDATE, CertificateError, CertificatePair, CertificateRequest, InspectedCertificate, Leaf, date, earlier, later,
    leaf,
};

pub(super) const DAY: Duration = Duration::from_secs(24 * 3600);
const AUTHORITY_VALIDITY: Duration = Duration::from_secs(10 * 365 * DAY.as_secs());

/// An authority that can sign.
#[derive(Debug)]
pub struct Authority {
    pair: CertificatePair,
    inspected: InspectedCertificate,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Creates a new authority with a new key.
    ///
    /// # Errors
    /// No randomness for the key, or a date out of range.
    pub fn create(cluster: &str, generation: i32, now: Timestamp) -> Result<Self, CertificateError> {
        let key = KeyPair::generate().map_err(CertificateError::Key)?;
        Self::sign_itself(&format!("{cluster}-ca-v{generation}"), &key, now)
    }

    /// Loads a stored authority.
    ///
    /// # Errors
    /// Certificate or key do not decode, do not match, or may not sign.
    pub fn load(pair: CertificatePair) -> Result<Self, CertificateError> {
        let inspected = InspectedCertificate::read(&pair.certificate)?;
        let key = KeyPair::from_pem(&pair.key).map_err(CertificateError::Key)?;
        if !inspected.has_key(&key) {
            return Err(CertificateError::Mismatch);
        }
        if !inspected.is_authority {
            return Err(CertificateError::NoAuthority);
        }
        let issuer = Issuer::from_ca_cert_pem(&pair.certificate, key).map_err(CertificateError::Certificate)?;
        Ok(Self {
            pair,
            inspected,
            issuer,
        })
    }

    /// Returns the same authority with a later end: same key, same name.
    ///
    /// # Errors
    /// As [`Authority::load`].
    pub fn renew(&self, now: Timestamp) -> Result<Self, CertificateError> {
        let key = KeyPair::from_pem(&self.pair.key).map_err(CertificateError::Key)?;
        Self::sign_itself(&self.inspected.common_name, &key, now)
    }

    fn sign_itself(name: &str, key: &KeyPair, now: Timestamp) -> Result<Self, CertificateError> {
        let mut params = CertificateParams::default();
        params.not_before = date(earlier(now, BACKDATE)?)?;
        params.not_after = date(later(now, AUTHORITY_VALIDITY)?)?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(key).map_err(CertificateError::Certificate)?;
        Self::load(CertificatePair {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }

    /// Returns certificate and key for storage.
    pub fn pair(&self) -> &CertificatePair {
        &self.pair
    }

    pub fn inspected(&self) -> &InspectedCertificate {
        &self.inspected
    }

    /// Signs a certificate with a new key. It expires no later than the authority.
    ///
    /// # Errors
    /// An invalid name, no randomness for the key, or a date out of range.
    pub fn issue(
        &self,
        leaf: Leaf,
        request: &CertificateRequest,
        now: Timestamp,
    ) -> Result<CertificatePair, CertificateError> {
        leaf::issue((&self.issuer, &self.inspected), leaf, request, now)
    }
}
