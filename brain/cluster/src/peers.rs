//! The other members: their addresses, and the connections to them.
//!
//! A member is dialled at the URLs in its row and at those of the configuration: it may have moved, or be new.

use crate::member_id::member_id;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint};

use super::discovery::{Discovery, DnsAddress};
use super::peer_auth::{PeerSecret, UNPROVED_REASON};
use super::peer_io::{CertificateEnd, PeerIo};
use crate::members::Members;
use etcd_types::url::Url;
use telemetry::metrics::{PeerBytes, PeerMetrics};
use tls::{Io, TlsOptions, TlsPolicy};

/// The timeout of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The upper bound of the ping timeout, whatever the lease: forwarded requests wait for no longer than a few seconds.
const MAX_PING_TIMEOUT: Duration = Duration::from_secs(3);

/// The interval between pings to a peer on a connection in use.
const PING_INTERVAL: Duration = Duration::from_millis(500);

/// The default time after which a peer that does not answer a ping is considered gone: half a lease of the storage lock.
const PING_TIMEOUT: Duration = Duration::from_secs(1);

/// The addresses of the other members.
#[derive(Debug, Clone)]
pub enum PeerAddresses {
    /// Fixed URLs, by name.
    Fixed(BTreeMap<String, Vec<Url>>),
    /// The addresses found by DNS.
    Srv(Box<Discovery>),
}

/// The other members, and the certificate that this member presents to them.
#[derive(Debug, Clone)]
pub struct Peers {
    book: PeerAddresses,
    tls: (TlsOptions, TlsPolicy),
    token: String,
    /// The proof of this member, once the storage was reached.
    proof: Option<PeerSecret>,
    is_tls_only: bool,
    ping_timeout: Duration,
    metrics: PeerMetrics,
}

impl Peers {
    /// Creates the list of peers; `token` is the cluster's.
    #[must_use]
    pub fn new(book: PeerAddresses, tls: (TlsOptions, TlsPolicy), token: String) -> Self {
        Self {
            book,
            tls,
            token,
            proof: None,
            is_tls_only: false,
            ping_timeout: PING_TIMEOUT,
            metrics: PeerMetrics::default(),
        }
    }

    /// Returns the same peers, with the traffic with them measured.
    #[must_use]
    pub fn measured(self, metrics: PeerMetrics) -> Self {
        Self { metrics, ..self }
    }

    /// Returns the metrics of the traffic with them.
    #[must_use]
    pub fn metrics(&self) -> &PeerMetrics {
        &self.metrics
    }

    /// Returns the same peers, but considered gone if they do not answer for half of this lease: requests forwarded on the
    /// connection then have an unknown outcome, so a peer that is slow for a moment must not lose it.
    #[must_use]
    pub fn with_lease(self, lease: Duration) -> Self {
        Self {
            ping_timeout: (lease / 2).clamp(PING_TIMEOUT, MAX_PING_TIMEOUT),
            ..self
        }
    }

    /// Returns the same peers, dialled with this proof.
    #[must_use]
    pub fn proving(self, proof: PeerSecret) -> Self {
        Self {
            proof: Some(proof),
            ..self
        }
    }

    /// Returns the same peers, which are never dialled without TLS if `is_tls_only`, whatever rows and DNS contain.
    #[must_use]
    pub fn tls_only(self, is_tls_only: bool) -> Self {
        Self { is_tls_only, ..self }
    }

    /// Returns the names and peer URLs in the configuration; none if DNS has them.
    pub fn all(&self) -> impl Iterator<Item = (&str, &[Url])> {
        let fixed = match &self.book {
            PeerAddresses::Fixed(urls) => Some(urls),
            PeerAddresses::Srv(_) => None,
        };
        let urls = fixed.into_iter().flatten();
        urls.map(|(name, urls)| (name.as_str(), urls.as_slice()))
    }

    /// Returns the id of a member: the same in every run of it.
    #[must_use]
    pub fn id(&self, name: &str) -> u64 {
        member_id(&self.token, name)
    }

    /// Connects to a member. Certificates are reloaded for each connection. Fails if the member is unknown or unreachable, if a
    /// certificate does not load, or if one side refuses the other.
    pub async fn dial(&self, name: &str, known: &Members) -> anyhow::Result<Channel> {
        let (endpoints, mut failed) = self.endpoints(name, known).await;
        for (url, host) in endpoints {
            match self.dial_url(&url, host, self.id(name)).await {
                Ok(channel) => return Ok(channel),
                Err(error) => failed = error.context(format!("dial {url}")),
            }
        }
        self.metrics.send_failed(self.id(name));
        Err(failed)
    }

    /// Returns true if anything takes connections at one of the URLs of a member, whether it then identifies itself or not.
    pub async fn answers(&self, name: &str, known: &Members) -> bool {
        let (endpoints, _) = self.endpoints(name, known).await;
        let addresses = endpoints.iter().filter_map(|(url, _)| url.host_port());
        let attempts = addresses.map(|address| tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address)));
        let answers = futures::future::join_all(attempts).await;
        answers.iter().any(|answer| matches!(answer, Ok(Ok(_))))
    }

    /// Returns the URLs of a member, with the names that their certificates must have, if different; and the error to report if
    /// there are none.
    async fn endpoints(&self, name: &str, known: &Members) -> (Vec<(Url, Option<String>)>, anyhow::Error) {
        let mut failed = anyhow::anyhow!("neither the rows of members nor the configuration name {name:?}");
        let mut endpoints = Vec::new();
        if let PeerAddresses::Srv(discovery) = &self.book {
            match found(discovery, name).await {
                Ok(found) => endpoints = found,
                Err(error) => failed = error,
            }
        }
        let rows = known.list().into_iter().filter(|member| member.name == name);
        let stored = rows.flat_map(|member| member.peer_ur_ls);
        let stored = stored.filter_map(|url| Url::parse(&url).ok());
        let configured = self.all().filter(|(named, _)| *named == name);
        for url in stored.chain(configured.flat_map(|(_, urls)| urls.iter().cloned())) {
            if !endpoints.iter().any(|(listed, _)| *listed == url) {
                endpoints.push((url, None));
            }
        }
        (endpoints, failed)
    }

    async fn dial_url(&self, url: &Url, name: Option<String>, member: u64) -> anyhow::Result<Channel> {
        anyhow::ensure!(
            url.scheme().is_tls() || !self.is_tls_only,
            "this member uses TLS for peers and does not dial without it"
        );
        // The scheme is that of the inner protocol: the connector adds TLS.
        let endpoint = Endpoint::from_shared(format!("http://{}", url.address()))?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(self.ping_timeout)
            .initial_connection_window_size(16 << 20)
            .initial_stream_window_size(8 << 20);
        let (host, port) = url.host_port().context("peers are dialled by host and port")?;
        let (host, name) = (host.to_owned(), name.unwrap_or_else(|| host.to_owned()));
        let connector = Arc::new(PeerConnector {
            address: (host, port),
            tls: url.scheme().is_tls().then(|| (name, self.tls.clone())),
            proof: self.proof.clone(),
            member,
            bytes: self.metrics.bytes(member),
        });
        let connect = tower::service_fn(move |_: Uri| {
            let connector = Arc::clone(&connector);
            async move { connector.connect().await.map(TokioIo::new) }
        });
        Ok(endpoint.connect_with_connector(connect).await?)
    }
}

/// Opens the connections of a channel to a member.
struct PeerConnector {
    address: (String, u16),
    /// With TLS, and the name that the certificate must have.
    tls: Option<(String, (TlsOptions, TlsPolicy))>,
    proof: Option<PeerSecret>,
    member: u64,
    bytes: PeerBytes,
}

impl PeerConnector {
    async fn connect(&self) -> io::Result<PeerIo> {
        let address = (self.address.0.as_str(), self.address.1);
        let (mut io, end): (Box<dyn Io>, _) = match &self.tls {
            Some((name, (options, policy))) => {
                let dialled = tls::dial(address, name, options, policy).await?;
                (Box::new(dialled.stream), dialled.ends.map(CertificateEnd::new))
            }
            None => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                (Box::new(stream), None)
            }
        };
        if let Some(proof) = &self.proof {
            proof.dial(&mut io, self.member).await?;
        }
        let bytes = self.bytes.clone();
        Ok(PeerIo { io, bytes, end })
    }
}

/// Returns true if certificates are the reason why a member could not be dialled or called: one side refuses the other's, or this
/// member's does not load.
#[must_use]
pub fn is_refusal(error: &anyhow::Error) -> bool {
    let said = |cause: &(dyn std::error::Error + 'static)| {
        let io: Option<&io::Error> = cause.downcast_ref();
        io.is_some_and(|io| tls::refusal(io).is_some() || io.get_ref().is_some_and(|inner| inner.is::<tls::TlsError>()))
    };
    // An alert of the other side after the handshake arrives through HTTP/2, which keeps only its text.
    error
        .chain()
        .any(|cause| said(cause) || cause.to_string().contains("received fatal alert: "))
}

/// Returns true if the member that answered belongs to another cluster: it does not know the secret of this one.
#[must_use]
pub fn is_of_another_cluster(error: &anyhow::Error) -> bool {
    // The error of a connector arrives through layers that keep only its text.
    error.chain().any(|cause| cause.to_string().contains(UNPROVED_REASON))
}

/// Returns the URLs of a member that DNS lists.
async fn found(discovery: &Discovery, name: &str) -> anyhow::Result<Vec<(Url, Option<String>)>> {
    let mut endpoints = Vec::new();
    for place in discovery.find(name).await? {
        let addresses = discovery.addresses(&place).await?;
        endpoints.extend(addresses.into_iter().filter_map(|address| endpoint(address, &place)));
    }
    Ok(endpoints)
}

/// Returns the URL of an address, with the host name for its certificate.
fn endpoint(address: SocketAddr, place: &DnsAddress) -> Option<(Url, Option<String>)> {
    let url = Url::parse(&format!("{}://{address}", place.scheme())).ok()?;
    Some((url, Some(place.host.clone())))
}

/// Returns the name in an election identity, which is the name and a part that no two runs of a member share.
#[must_use]
pub fn name_of(identity: &str) -> &str {
    identity.rsplit_once('_').map_or(identity, |(name, _)| name)
}
