//! One exchange with a brain over HTTP/2.
//!
//! Invariant: everything runs inside the caller's future, so dropping it closes the connection and frees its memory.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request, StatusCode, request};
use plan::member::{MAX_TEXT_BYTES, clean};
use rustls::ClientConfig;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::ClientIdentity;

/// Timeout for connecting, including the handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum size of an answer, in bytes.
const MAX_ANSWER_BYTES: u32 = 64 * 1024;
/// Maximum size of a header list, in bytes.
const MAX_HEADER_LIST_BYTES: u32 = 8 * 1024;

/// A brain and its address.
pub(super) struct ProbedBrain<'a> {
    pub(super) address: SocketAddr,
    /// DNS name in its certificate.
    pub(super) host: &'a str,
    /// `None` for a plain connection.
    pub(super) identity: Option<&'a ClientIdentity>,
}

/// A complete answer.
pub(super) struct ProbeReply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) trailers: HeaderMap,
}

impl ProbedBrain<'_> {
    pub(super) fn uri(&self, path: &str) -> String {
        let scheme = if self.identity.is_some() { "https" } else { "http" };
        format!("{scheme}://{}:{}{path}", self.host, self.address.port())
    }

    /// Sends one request and reads its answer, which must be complete within `patience` after connecting.
    ///
    /// # Errors
    /// The reason why there is no answer, in words for the status.
    pub(super) async fn exchange(
        &self,
        request: request::Builder,
        body: Option<Bytes>,
        patience: Duration,
    ) -> Result<ProbeReply, String> {
        let request = request.body(()).map_err(|error| format!("bad request: {error}"))?;
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, self.connect())
            .await
            .map_err(|_| "no connection within 2 s".to_owned())??;
        let talk = async {
            match stream {
                ProbeStream::Plain(tcp) => talk(tcp, request, body).await,
                ProbeStream::Tls(tls) => talk(*tls, request, body).await,
            }
        };
        tokio::time::timeout(patience, talk)
            .await
            .map_err(|_| "it did not answer in time".to_owned())?
    }

    async fn connect(&self) -> Result<ProbeStream, String> {
        let broken = |error: std::io::Error| format!("no connection: {}", clean(&causes(&error), MAX_TEXT_BYTES));
        let tcp = TcpStream::connect(self.address).await.map_err(broken)?;
        let Some(identity) = self.identity else {
            return Ok(ProbeStream::Plain(tcp));
        };
        let name = ServerName::try_from(self.host.to_owned())
            .map_err(|_| format!("{:?} is not a valid name for a certificate", self.host))?;
        let connector = TlsConnector::from(Arc::new(config(identity)?));
        let tls = connector.connect(name, tcp).await.map_err(broken)?;
        Ok(ProbeStream::Tls(Box::new(tls)))
    }
}

enum ProbeStream {
    Plain(TcpStream),
    Tls(Box<tokio_rustls::client::TlsStream<TcpStream>>),
}

/// Returns a configuration that trusts only the identity's authorities and presents its certificate.
fn config(identity: &ClientIdentity) -> Result<ClientConfig, String> {
    let bad = |what: &str| format!("the operator's {what} cannot be used");
    let chain = |pem: &str, what: &str| {
        CertificateDer::pem_slice_iter(pem.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|_| bad(what))
    };
    let mut trusted = rustls::RootCertStore::empty();
    for authority in chain(&identity.trusted, "trust bundle")? {
        trusted.add(authority).map_err(|_| bad("trust bundle"))?;
    }
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).map_err(|_| bad("key"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|_| bad("TLS library"))?
        .with_root_certificates(trusted)
        .with_client_auth_cert(chain(&identity.certificate, "certificate")?, key)
        .map_err(|_| bad("certificate"))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

/// The peer may send only one flow-control window, which is never replenished. It holds the largest answer and one more byte.
async fn talk<T>(io: T, request: Request<()>, body: Option<Bytes>) -> Result<ProbeReply, String>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let broken = |error: h2::Error| format!("the connection failed: {}", clean(&error.to_string(), MAX_TEXT_BYTES));
    let (send, connection) = h2::client::Builder::new()
        .enable_push(false)
        .initial_window_size(MAX_ANSWER_BYTES + 1)
        .initial_connection_window_size(MAX_ANSWER_BYTES + 1)
        .max_header_list_size(MAX_HEADER_LIST_BYTES)
        .handshake::<_, Bytes>(io)
        .await
        .map_err(broken)?;
    let exchange = async {
        let mut send = send.ready().await.map_err(broken)?;
        let (response, mut upload) = send.send_request(request, body.is_none()).map_err(broken)?;
        if let Some(body) = body {
            upload.send_data(body, true).map_err(broken)?;
        }
        let (head, mut download) = response.await.map_err(broken)?.into_parts();
        let mut read = BytesMut::new();
        while let Some(part) = download.data().await {
            read.extend_from_slice(&part.map_err(broken)?);
            if read.len() > MAX_ANSWER_BYTES as usize {
                return Err(format!("its answer is longer than {MAX_ANSWER_BYTES} bytes"));
            }
        }
        let trailers = download.trailers().await.map_err(broken)?.unwrap_or_default();
        Ok(ProbeReply {
            status: head.status,
            headers: head.headers,
            body: read.freeze(),
            trailers,
        })
    };
    tokio::pin!(connection, exchange);
    tokio::select! {
        reply = &mut exchange => reply,
        ended = &mut connection => {
            ended.map_err(broken)?;
            // Data that arrived before the end of the connection can still be read.
            exchange.await
        }
    }
}

/// Returns an error with its causes, because the outermost error alone says nothing about certificates.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}
