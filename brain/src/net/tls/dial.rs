//! TLS of connections to other members. Files are read for each connection, so the next dial presents a replaced certificate.

use std::io;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WantsClientCert, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, ConfigBuilder, DigitallySignedStruct, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::TlsError;
use super::allowed::Names;
use super::config::{provider, versions};
use super::files::Shown;
use super::revoked::Revoked;
use super::self_signed::AnyServer;
use crate::flags::{TlsOptions, TlsPolicy};

/// Dials an address, presents the client certificate, and accepts a server whose certificate the CA signed for `name` and the
/// allowed names permit, or any server if members sign their certificates themselves. Fails if the address does not answer, files do not load, or one side refuses the other: see [`refusal`].
pub async fn dial(
    address: (&str, u16),
    name: &str,
    options: &TlsOptions,
    policy: &TlsPolicy,
) -> io::Result<TlsStream<TcpStream>> {
    let (options, policy) = (options.clone(), policy.clone());
    // A file system may block; the runtime must not.
    let config = tokio::task::spawn_blocking(move || client(&options, &policy)).await?;
    let config = config.map_err(io::Error::other)?;
    let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// Returns the TLS error of the other side, if this error contains one.
#[must_use]
pub fn refusal(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref()
}

fn client(options: &TlsOptions, policy: &TlsPolicy) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(provider(policy)?);
    if options.self_signed.is_some() {
        let verifier = Arc::new(AnyServer(Arc::clone(&provider)));
        return Ok(over_http2(builder(provider, policy, verifier)?.with_no_client_auth()));
    }
    let shown = Shown::read(options)?;
    let roots = Arc::new(shown.roots);
    let mut verifier = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider));
    if !shown.revoked.is_empty() {
        verifier = verifier
            .with_crls(shown.revoked.lists())
            .allow_unknown_revocation_status();
    }
    let verifier = verifier.build().map_err(|error| TlsError(error.to_string()))?;
    let verifier = Arc::new(Server {
        inner: verifier,
        names: Names::of(options),
        revoked: shown.revoked,
    });
    let builder = builder(provider, policy, verifier)?;
    let config = match shown.pair {
        Some((chain, key)) => builder
            .with_client_auth_cert(chain, key)
            .map_err(|error| TlsError(format!("the certificate for peers: {error}")))?,
        None => builder.with_no_client_auth(),
    };
    Ok(over_http2(config))
}

fn builder(
    provider: Arc<CryptoProvider>,
    policy: &TlsPolicy,
    verifier: Arc<dyn ServerCertVerifier>,
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions(policy))
        .map_err(|error| TlsError(format!("no TLS version is left: {error}")))?;
    Ok(builder.dangerous().with_custom_certificate_verifier(verifier))
}

fn over_http2(mut config: ClientConfig) -> ClientConfig {
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

/// Accepts certificates that `inner` accepts, if they have an allowed name, if any are listed, and no certificate of the chain is
/// revoked.
#[derive(Debug)]
struct Server {
    inner: Arc<WebPkiServerVerifier>,
    names: Names,
    revoked: Revoked,
}

impl ServerCertVerifier for Server {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.inner.verify_server_cert(leaf, intermediates, name, ocsp, now)?;
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
