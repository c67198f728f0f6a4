//! When certificates are renewed: an authority two years before its end, another certificate as its request says, and at once where it no
//! longer meets the request.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use rcgen::KeyPair;

use super::authority::DAY;
use super::{Authority, CertificatePair, CertificateRequest, InspectedCertificate, Leaf};

/// Time before its end at which an authority is renewed.
const RENEW_BEFORE: Duration = Duration::from_secs(2 * 365 * DAY.as_secs());
/// Allowance for clock granularity and rounding: a lifetime that differs by less counts as requested.
const LIFETIME_SLACK: Duration = Duration::from_secs(5);

impl Authority {
    /// Returns the time to renew it.
    pub fn renewal(&self) -> Timestamp {
        self.inspected()
            .not_after
            .checked_sub(RENEW_BEFORE)
            .unwrap_or(self.inspected().not_before)
    }
}

impl CertificateRequest {
    /// Returns the time of renewal: `renew_before` the end, but not within the first tenth of the validity, so that no setting makes the
    /// operator issue certificates endlessly.
    fn renewal(&self, certificate: &InspectedCertificate) -> Timestamp {
        let issued = certificate.issued();
        let floor = issued.checked_add(self.validity / 10).unwrap_or(issued);
        certificate
            .not_after
            .checked_sub(self.renew_before)
            .unwrap_or(floor)
            .max(floor)
    }

    /// The same for a certificate of an authority that ends at `end`. Returns `None` for a certificate that ends with its authority,
    /// because a renewal would not extend it.
    pub fn renewal_before(&self, end: Timestamp, certificate: &InspectedCertificate) -> Option<Timestamp> {
        lasts_longer(end, certificate.not_after).then(|| self.renewal(certificate))
    }

    /// Returns the reason to reissue a stored certificate; `None` if it is usable.
    pub fn objection(
        &self,
        leaf: Leaf,
        pair: &CertificatePair,
        authority: &Authority,
        now: Timestamp,
    ) -> Option<String> {
        let certificate = match InspectedCertificate::read(&pair.certificate) {
            Ok(certificate) => certificate,
            Err(error) => return Some(error.to_string()),
        };
        let end = |issued| self.end(authority.inspected(), issued);
        let wanted = end(certificate.issued());
        let is_due = now >= self.renewal(&certificate) && lasts_longer(end(now), certificate.not_after);
        let reason = match KeyPair::from_pem(&pair.key) {
            Err(_) => "its key cannot be used",
            Ok(key) if !certificate.has_key(&key) => "its key does not belong to it",
            Ok(_) if !certificate.is_signed_by(authority.inspected()) => "another authority signed it",
            Ok(_) if certificate.common_name != self.common_name => "its name changed",
            Ok(_) if certificate.organization != self.organization => "its organization changed",
            Ok(_) if certificate.sans != self.sans => "its alternative names changed",
            Ok(_) if certificate.usages() != leaf.usages() => "its usages changed",
            Ok(_) if lasts_longer(certificate.not_after, wanted) => "its validity changed",
            Ok(_) if lasts_longer(wanted, certificate.not_after) => "its validity changed",
            Ok(_) if now < certificate.not_before => "it is not valid yet",
            Ok(_) if is_due => "it is due for renewal",
            Ok(_) => return None,
        };
        Some(reason.to_owned())
    }
}

/// Returns true if `end` is later than `other` by more than clocks and rounding explain.
fn lasts_longer(end: Timestamp, other: Timestamp) -> bool {
    Duration::try_from(end.duration_since(other)).is_ok_and(|longer| longer > LIFETIME_SLACK)
}
