//! Verifies the certificates of clients and servers: see `chain`.

use std::cell::RefCell;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::algorithms::{schemes, verify_handshake};
use super::allowed::AllowedNames;
use super::certificate::{CertificateUsage, ParsedCertificate};
use super::chain::{CertificateRefusal, ChainRules, TrustedRoots};
use super::names;
use super::revoked::RevocationLists;

tokio::task_local! {
    /// The findings about the other side of the handshake that this task performs: rustls has no place for them.
    static TASK_FINDINGS: RefCell<HandshakeFindings>;
}

/// The findings of a handshake about the certificate of the other side.
#[derive(Debug, Default)]
pub struct HandshakeFindings {
    /// The reason why it was refused. The error of rustls names none, because the alert would be the wrong one otherwise.
    pub refusal: Option<String>,
    /// When the first certificate of its chain expires, in seconds since 1970.
    pub ends: Option<i64>,
}

/// Performs a handshake. Returns its outcome with what was found.
pub async fn observed<T>(handshake: impl Future<Output = T>) -> (T, HandshakeFindings) {
    let both = async {
        let outcome = handshake.await;
        (outcome, TASK_FINDINGS.with(RefCell::take))
    };
    TASK_FINDINGS.scope(RefCell::default(), both).await
}

/// Records findings; outside such a task they are not needed.
fn record(found: HandshakeFindings) {
    drop(TASK_FINDINGS.try_with(|of_task| of_task.replace(found)));
}

/// The certificates of others that are accepted.
#[derive(Debug)]
pub(super) struct AcceptedCertificates {
    pub(super) roots: TrustedRoots,
    pub(super) revoked: RevocationLists,
    pub(super) names: AllowedNames,
}

impl AcceptedCertificates {
    /// Verifies a certificate with those that were sent along.
    fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        sent: &[CertificateDer<'_>],
        (usage, now): (CertificateUsage, UnixTime),
    ) -> Result<(), CertificateRefusal> {
        let malformed = |why| CertificateRefusal::Malformed(format!("a certificate that was sent is {why}"));
        let leaf = ParsedCertificate::parse(leaf).map_err(malformed)?;
        let sent: Result<Vec<_>, _> = sent.iter().map(ParsedCertificate::parse).collect();
        let sent = sent.map_err(malformed)?;
        let rules = ChainRules {
            roots: &self.roots,
            usage,
            now,
        };
        let ends = rules.verify(&leaf, &sent)?;
        self.names.check(&leaf)?;
        self.revoked.check(std::iter::once(&leaf).chain(&sent))?;
        record(HandshakeFindings {
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
    let certificate = ParsedCertificate::parse(certificate).map_err(|_| CertificateError::BadEncoding)?;
    verify_handshake(certificate.key(), message, signed, is_tls13)?;
    Ok(HandshakeSignatureValid::assertion())
}

/// Verifies certificates of clients.
#[derive(Debug)]
pub(super) struct ClientVerifier {
    accepted: AcceptedCertificates,
    subjects: Vec<DistinguishedName>,
}

impl ClientVerifier {
    pub(super) fn new(accepted: AcceptedCertificates) -> Arc<ClientVerifier> {
        let subjects = accepted.roots.subjects();
        Arc::new(ClientVerifier { accepted, subjects })
    }
}

/// Returns the error by which rustls sends the alert that Go sends.
fn with_alert(refusal: &CertificateRefusal) -> Error {
    let error = match refusal {
        CertificateRefusal::Malformed(_) => CertificateError::BadEncoding,
        CertificateRefusal::UnhandledExtension { .. } => CertificateError::UnhandledCriticalExtension,
        CertificateRefusal::Expired { .. } => CertificateError::Expired,
        CertificateRefusal::NotValidYet { .. } => CertificateError::NotValidYet,
        CertificateRefusal::UnknownIssuer { .. } => CertificateError::UnknownIssuer,
        CertificateRefusal::WrongUsage { .. } => CertificateError::InvalidPurpose,
        CertificateRefusal::Name(_) => CertificateError::NotValidForName,
        CertificateRefusal::Revoked { .. } => CertificateError::Revoked,
    };
    error.into()
}

impl ClientCertVerifier for ClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.subjects
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        sent: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if let Err(refusal) = self.accepted.verify(leaf, sent, (CertificateUsage::Client, now)) {
            record(HandshakeFindings {
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
pub(super) struct ServerVerifier(pub(super) AcceptedCertificates);

impl ServerCertVerifier for ServerVerifier {
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
        self.0
            .verify(leaf, sent, (CertificateUsage::Server, now))
            .map_err(other)?;
        let parsed = ParsedCertificate::parse(leaf).map_err(|_| CertificateError::BadEncoding)?;
        let name = name.to_str();
        if !names::is_of_host(&parsed, &name) {
            let refusal = format!("the certificate of {} is not one of {name}", parsed.name());
            return Err(other(CertificateRefusal::Name(refusal)));
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
