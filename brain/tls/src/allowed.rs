//! Restricts the certificates signed by a CA that are accepted.

use super::certificate::ParsedCertificate;
use super::chain::CertificateRefusal;
use super::names::is_of_host;
use crate::TlsOptions;

/// The allowed names: a certificate needs one of them; any name is allowed if none are listed.
#[derive(Debug)]
pub(super) struct AllowedNames {
    hostnames: Vec<String>,
    common_names: Vec<String>,
}

impl AllowedNames {
    pub(super) fn of(options: &TlsOptions) -> AllowedNames {
        AllowedNames {
            hostnames: options.allowed_hostnames.clone(),
            common_names: options.allowed_common_names.clone(),
        }
    }

    /// Checks that a certificate has an allowed name of each listed kind.
    pub(super) fn check(&self, leaf: &ParsedCertificate<'_>) -> Result<(), CertificateRefusal> {
        let refused =
            |kind: &str| CertificateRefusal::Name(format!("the certificate of {} has no allowed {kind}", leaf.name()));
        if !self.hostnames.is_empty() && !self.hostnames.iter().any(|host| is_of_host(leaf, host)) {
            return Err(refused("host name"));
        }
        // Of several, Go takes the last one.
        let common_name = leaf.common_names().last().unwrap_or_default();
        if !self.common_names.is_empty() && !self.common_names.iter().any(|allowed| allowed == common_name) {
            return Err(refused("common name"));
        }
        Ok(())
    }
}
