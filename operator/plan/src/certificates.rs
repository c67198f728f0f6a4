//! Certificates: an authority for one cluster, and the certificates it signs.
//!
//! Nothing here reads a clock or talks to Kubernetes: the caller passes `now` and stores the results. All keys are ECDSA P-256. Invariant:
//! a renewed authority keeps its key and its name, so every certificate it ever signed still verifies.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use time::OffsetDateTime;

pub mod authority;
pub mod bundle;
pub mod inspect;
mod key_form;
pub mod leaf;
pub mod provided;
mod renewal;
pub mod rotation;
pub mod state;
#[cfg(test)]
pub mod tests;

pub use authority::Authority;
pub use bundle::{CaBundle, holds_only_certificates};
pub use inspect::InspectedCertificate;
pub use key_form::to_pkcs8;
pub use leaf::{CertificateRequest, Leaf};
pub use provided::CertificateProblem;
pub use state::{AuthorityChange, AuthorityState, RotationPhase};

/// Certificates are backdated by this much, because clocks of other machines may be slow.
pub const BACKDATE: Duration = Duration::from_secs(300);

/// A certificate and its key, both as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct CertificatePair {
    pub certificate: String,
    pub key: String,
}

impl std::fmt::Debug for CertificatePair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair")
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}

/// Reason why a certificate could not be created or read.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("the key cannot be used")]
    Key(#[source] rcgen::Error),
    #[error("the certificate cannot be used")]
    Certificate(#[source] rcgen::Error),
    #[error("the certificate does not decode")]
    Malformed,
    #[error("the key does not belong to the certificate")]
    Mismatch,
    #[error("the certificate is not that of an authority")]
    NoAuthority,
    #[error("its entry {0} is missing or wrong")]
    Field(&'static str),
    #[error("the step does not follow from the stored state")]
    Transition,
    #[error("{0} is outside the range of dates")]
    Date(Timestamp),
    #[error("{0:?} is not a DNS name")]
    Name(String),
}

fn date(at: Timestamp) -> Result<OffsetDateTime, CertificateError> {
    OffsetDateTime::from_unix_timestamp(at.as_second()).map_err(|_| CertificateError::Date(at))
}

fn later(at: Timestamp, by: Duration) -> Result<Timestamp, CertificateError> {
    at.checked_add(by).map_err(|_| CertificateError::Date(at))
}

fn earlier(at: Timestamp, by: Duration) -> Result<Timestamp, CertificateError> {
    at.checked_sub(by).map_err(|_| CertificateError::Date(at))
}
