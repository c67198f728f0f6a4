//! Verifies the certificates of clients and servers: see `chain`.

use std::cell::RefCell;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::algorithms::{schemes, verify_handshake};
use super::allowed::Names;
use super::certificate::{Certificate, Usage};
use super::chain::{Refusal, Roots, Rules};
use super::names;
use super::revoked::Revoked;

tokio::task_local! {
    /// The findings about the other side of the handshake that this task performs: rustls has no place for them.
    static FOUND: RefCell<Found>;
}

/// The findings of a handshake about the certificate of the other side.
#[derive(Debug, Default)]
pub struct Found {
    /// The reason why it was refused. The error of rustls names none, because the alert would be the wrong one otherwise.
    pub refusal: Option<String>,
    /// When the first certificate of its chain expires, in seconds since 1970.
    pub ends: Option<i64>,
}

/// Performs a handshake. Returns its outcome with what was found.
pub async fn observed<T>(handshake: impl Future<Output = T>) -> (T, Found) {
    let both = async {
        let outcome = handshake.await;
        (outcome, FOUND.with(RefCell::take))
    };
    FOUND.scope(RefCell::default(), both).await
}

/// Records findings; outside such a task they are not needed.
fn record(found: Found) {
    drop(FOUND.try_with(|of_task| of_task.replace(found)));
}

/// The certificates of others that are accepted.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) roots: Roots,
    pub(super) revoked: Revoked,
    pub(super) names: Names,
}

impl Accepted {
    /// Verifies a certificate with those that were sent along.
    fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        sent: &[CertificateDer<'_>],
        (usage, now): (Usage, UnixTime),
    ) -> Result<(), Refusal> {
        let malformed = |why| Refusal::Malformed(format!("a certificate that was sent is {why}"));
        let leaf = Certificate::parse(leaf).map_err(malformed)?;
        let sent: Result<Vec<_>, _> = sent.iter().map(Certificate::parse).collect();
        let sent = sent.map_err(malformed)?;
        let rules = Rules {
            roots: &self.roots,
            usage,
            now,
        };
        let ends = rules.verify(&leaf, &sent)?;
        self.names.check(&leaf)?;
        self.revoked.check(std::iter::once(&leaf).chain(&sent))?;
        record(Found {
            refusal: None,
            ends: Some(ends),
        });
        Ok(())
    }
}

fn verify_signature(
    certificate: &CertificateDer<'_>,
    message: &[u8],
    signed: &DigitallySignedStruct,
    is_tls13: bool,
) -> Result<HandshakeSignatureValid, Error> {
    let certificate = Certificate::parse(certificate).map_err(|_| CertificateError::BadEncoding)?;
    verify_handshake(certificate.key(), message, signed, is_tls13)?;
    Ok(HandshakeSignatureValid::assertion())
}

/// Verifies certificates of clients.
#[derive(Debug)]
pub(super) struct Clients {
    accepted: Accepted,
    subjects: Vec<DistinguishedName>,
}

impl Clients {
    pub(super) fn new(accepted: Accepted) -> Arc<Clients> {
        let subjects = accepted.roots.subjects();
        Arc::new(Clients { accepted, subjects })
    }
}

/// Returns the error by which rustls sends the alert that Go sends.
fn with_alert(refusal: &Refusal) -> Error {
    let error = match refusal {
        Refusal::Malformed(_) => CertificateError::BadEncoding,
        Refusal::UnhandledExtension { .. } => CertificateError::UnhandledCriticalExtension,
        Refusal::Expired { .. } => CertificateError::Expired,
        Refusal::NotValidYet { .. } => CertificateError::NotValidYet,
        Refusal::UnknownIssuer { .. } => CertificateError::UnknownIssuer,
        Refusal::WrongUsage { .. } => CertificateError::InvalidPurpose,
        Refusal::Name(_) => CertificateError::NotValidForName,
        Refusal::Revoked { .. } => CertificateError::Revoked,
    };
    error.into()
}

impl ClientCertVerifier for Clients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.subjects
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        sent: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if let Err(refusal) = self.accepted.verify(leaf, sent, (Usage::Client, now)) {
            record(Found {
                refusal: Some(refusal.to_string()),
                ends: None,
            });
            return Err(with_alert(&refusal));
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_signature(certificate, message, signed, false)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_signature(certificate, message, signed, true)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        schemes()
    }
}

/// Verifies certificates of servers.
#[derive(Debug)]
pub(super) struct Servers(pub(super) Accepted);

impl ServerCertVerifier for Servers {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        sent: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        // The error is read by the one who dialled: it carries the reason.
        let other = |refusal| Error::from(CertificateError::Other(OtherError(Arc::new(refusal))));
        self.0.verify(leaf, sent, (Usage::Server, now)).map_err(other)?;
        let parsed = Certificate::parse(leaf).map_err(|_| CertificateError::BadEncoding)?;
        let name = name.to_str();
        if !names::is_of_host(&parsed, &name) {
            let refusal = format!("the certificate of {} is not one of {name}", parsed.name());
            return Err(other(Refusal::Name(refusal)));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_signature(certificate, message, signed, false)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_signature(certificate, message, signed, true)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        schemes()
    }
}
