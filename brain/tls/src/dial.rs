//! TLS of connections to other members. Files are read for each connection, so the next dial presents a replaced certificate.

use std::io;
use std::sync::Arc;

use rustls::client::WantsClientCert;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, ConfigBuilder, Error};
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::TlsError;
use super::config::{provider, versions};
use super::files::ClientMaterial;
use super::self_signed::AnyServer;
use super::verifier::{ServerVerifier, observed};
use crate::{TlsOptions, TlsPolicy};

/// An encrypted connection.
#[derive(Debug)]
pub struct DialledConnection {
    pub stream: TlsStream<TcpStream>,
    /// When the first certificate of the server's chain expires, in seconds since 1970; `None` if it was not verified.
    pub ends: Option<i64>,
}

/// Dials an address, presents the client certificate, and accepts a server whose certificate the CA signed for `name` and the
/// allowed names permit, or any server if members sign their certificates themselves. Fails if the address does not answer, files do not load, or one side refuses the other: see [`refusal`].
pub async fn dial(
    address: (&str, u16),
    name: &str,
    options: &TlsOptions,
    policy: &TlsPolicy,
) -> io::Result<DialledConnection> {
    let (options, policy) = (options.clone(), policy.clone());
    // A file system may block; the runtime must not.
    let config = tokio::task::spawn_blocking(move || client(&options, &policy)).await?;
    let config = config.map_err(io::Error::other)?;
    let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let handshake = TlsConnector::from(Arc::new(config)).connect(name, stream);
    let (stream, found) = observed(handshake).await;
    Ok(DialledConnection {
        stream: stream?,
        ends: found.ends,
    })
}

/// Returns the TLS error of the other side, if this error contains one.
#[must_use]
pub fn refusal(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref()
}

/// Returns the TLS of connections to other members, over HTTP/2.
pub(super) fn client(options: &TlsOptions, policy: &TlsPolicy) -> Result<ClientConfig, TlsError> {
    let mut config = client_config(options, policy)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

/// Returns the TLS of a client that names no protocol. Files are read now, which may block. Fails if one does not load.
pub fn client_config(options: &TlsOptions, policy: &TlsPolicy) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(provider(policy)?);
    if options.self_signed.is_some() {
        let verifier = Arc::new(AnyServer(Arc::clone(&provider)));
        return Ok(builder(provider, policy, verifier)?.with_no_client_auth());
    }
    let shown = ClientMaterial::read(options)?;
    let builder = builder(provider, policy, Arc::new(ServerVerifier(shown.accepted)))?;
    Ok(match shown.pair {
        Some(pair) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair))),
        None => builder.with_no_client_auth(),
    })
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
