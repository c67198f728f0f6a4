//! Connections to the source.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tonic::transport::Endpoint;

use super::bounded::BoundedChannel;
use crate::import::SourceOptions;
use etcd_types::url::Url;
use tls::{Io, TlsOptions, TlsPolicy};

/// The interval between pings on a connection in use. Etcd closes connections that ping more often than every five seconds.
const KEEPALIVE_PING_INTERVAL: Duration = Duration::from_secs(10);

/// The time after which a source that does not answer a ping is considered gone.
const KEEPALIVE_PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes that the source may send ahead: on the connection, and on each stream. A watch that is not read leaves the rest of the
/// connection to other requests.
const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;
const STREAM_WINDOW_BYTES: u32 = 8 << 20;

/// Connects to one endpoint. Fails if it does not answer in time, or if one side refuses the other.
pub(super) async fn dial(url: &Url, options: &SourceOptions) -> anyhow::Result<BoundedChannel> {
    let endpoint = Endpoint::from_shared(format!("http://{}", url.address()))?
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEPALIVE_PING_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_PING_TIMEOUT)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .initial_stream_window_size(STREAM_WINDOW_BYTES);
    let (host, port) = url.host_port().context("endpoints have a host and a port")?;
    let connector = Arc::new(Connector {
        address: (host.to_owned(), port),
        tls: url.scheme().is_tls().then(|| options.tls.clone()),
    });
    let connect = tower::service_fn(move |_: Uri| {
        let connector = Arc::clone(&connector);
        async move { connector.connect().await.map(TokioIo::new) }
    });
    let dialled = tokio::time::timeout(options.dial_timeout, endpoint.connect_with_connector(connect));
    let channel = dialled.await.context("no answer within --dial-timeout")??;
    Ok(BoundedChannel(channel))
}

struct Connector {
    address: (String, u16),
    tls: Option<TlsOptions>,
}

impl Connector {
    async fn connect(&self) -> io::Result<Box<dyn Io>> {
        let (host, port) = (self.address.0.as_str(), self.address.1);
        match &self.tls {
            // A copy does not end with the certificate of its source: as etcd's client.
            Some(options) => {
                let dialled = tls::dial((host, port), host, options, &TlsPolicy::default()).await?;
                Ok(Box::new(dialled.stream))
            }
            None => Ok(Box::new(TcpStream::connect((host, port)).await?)),
        }
    }
}
