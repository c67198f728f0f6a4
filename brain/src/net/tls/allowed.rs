//! Restricts the certificates signed by a CA that are accepted.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::verify_server_name;
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::revoked::Revoked;
use crate::flags::TlsOptions;

/// The allowed names: a certificate needs one of them; any name is allowed if none are listed.
#[derive(Debug)]
pub(super) struct Names {
    hostnames: Vec<String>,
    common_names: Vec<String>,
}

/// Accepts certificates that `inner` accepts, if they have an allowed name and no certificate of the chain is revoked.
#[derive(Debug)]
pub(super) struct Allowed {
    inner: Arc<dyn ClientCertVerifier>,
    names: Names,
    revoked: Revoked,
}

impl Allowed {
    pub(super) fn wrap(
        inner: Arc<dyn ClientCertVerifier>,
        options: &TlsOptions,
        revoked: &Revoked,
    ) -> Arc<dyn ClientCertVerifier> {
        let names = Names::of(options);
        if names.hostnames.is_empty() && names.common_names.is_empty() && revoked.is_empty() {
            return inner;
        }
        let revoked = revoked.clone();
        Arc::new(Allowed { inner, names, revoked })
    }
}

impl Names {
    pub(super) fn of(options: &TlsOptions) -> Names {
        Names {
            hostnames: options.allowed_hostnames.clone(),
            common_names: options.allowed_common_names.clone(),
        }
    }

    /// Checks that a certificate has an allowed name of each listed kind.
    pub(super) fn check(&self, leaf: &CertificateDer<'_>) -> Result<(), Error> {
        let refused = Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure);
        if !self.hostnames.is_empty() && !self.has_hostname(leaf)? {
            return Err(refused);
        }
        if !self.common_names.is_empty() && !self.has_common_name(leaf)? {
            return Err(refused);
        }
        Ok(())
    }

    fn has_hostname(&self, leaf: &CertificateDer<'_>) -> Result<bool, Error> {
        let parsed = ParsedCertificate::try_from(leaf)?;
        let matches = |name: &String| {
            ServerName::try_from(name.as_str()).is_ok_and(|name| verify_server_name(&parsed, &name).is_ok())
        };
        Ok(self.hostnames.iter().any(matches))
    }

    fn has_common_name(&self, leaf: &CertificateDer<'_>) -> Result<bool, Error> {
        let parsed = X509Certificate::from_der(leaf);
        let (_, parsed) = parsed.map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        let mut names = parsed
            .subject()
            .iter_common_name()
            .filter_map(|name| name.as_str().ok());
        Ok(names.any(|name| self.common_names.iter().any(|allowed| allowed == name)))
    }
}

impl ClientCertVerifier for Allowed {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(leaf, intermediates, now)?;
        self.names.check(leaf)?;
        self.revoked.check(leaf, intermediates)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
