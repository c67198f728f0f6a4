//! The other members: where they are and how they are dialled.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use sha2::{Digest as _, Sha256};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use super::discovery::{Discovery, Place};
use crate::flags::TlsOptions;
use crate::flags::url::Url;

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(1);

/// A peer that does not answer a ping for so long is gone: half a lease of the storage lock.
const PING: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(1));

/// Where the others are.
#[derive(Debug, Clone)]
pub enum Book {
    /// At these URLs, by name.
    Fixed(BTreeMap<String, Vec<Url>>),
    /// Where DNS says.
    Srv(Box<Discovery>),
}

/// The other members, and the certificate that is shown to them.
#[derive(Debug, Clone)]
pub struct Peers {
    book: Book,
    tls: TlsOptions,
    token: String,
}

impl Peers {
    /// `token` is the cluster's.
    #[must_use]
    pub fn new(book: Book, tls: TlsOptions, token: String) -> Self {
        Self { book, tls, token }
    }

    /// Names and peer URLs that the configuration has; none when DNS has them.
    pub fn all(&self) -> impl Iterator<Item = (&str, &[Url])> {
        let fixed = match &self.book {
            Book::Fixed(urls) => Some(urls),
            Book::Srv(_) => None,
        };
        let urls = fixed.into_iter().flatten();
        urls.map(|(name, urls)| (name.as_str(), urls.as_slice()))
    }

    /// The id of a member: the same in every life of it.
    #[must_use]
    pub fn id(&self, name: &str) -> u64 {
        let mut hash = Sha256::new();
        for part in [self.token.as_str(), name] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let digest = hash.finalize();
        let first: [u8; 8] = std::array::from_fn(|at| digest[at]);
        u64::from_be_bytes(first).max(1)
    }

    /// A connection to a member. Certificates are read anew for each.
    ///
    /// # Errors
    /// It is not known, cannot be reached, or a certificate does not load.
    pub async fn dial(&self, name: &str) -> anyhow::Result<Channel> {
        let mut failed = anyhow::anyhow!("{name:?} has no peer URL");
        for (url, host) in self.ways(name).await? {
            match self.dial_url(&url, host).await {
                Ok(channel) => return Ok(channel),
                Err(error) => failed = error.context(format!("dial {url}")),
            }
        }
        Err(failed)
    }

    /// URLs of a member, and the names that their certificates must have, if others.
    async fn ways(&self, name: &str) -> anyhow::Result<Vec<(Url, Option<String>)>> {
        let discovery = match &self.book {
            Book::Fixed(urls) => {
                let urls = urls.get(name);
                let urls = urls.with_context(|| format!("--initial-cluster does not name {name:?}"))?;
                return Ok(urls.iter().map(|url| (url.clone(), None)).collect());
            }
            Book::Srv(discovery) => discovery,
        };
        let mut ways = Vec::new();
        for place in discovery.find(name).await? {
            let addresses = discovery.addresses(&place).await?;
            ways.extend(addresses.into_iter().filter_map(|address| way(address, &place)));
        }
        Ok(ways)
    }

    async fn dial_url(&self, url: &Url, host: Option<String>) -> anyhow::Result<Channel> {
        let endpoint = Endpoint::from_shared(url.to_string())?
            .connect_timeout(CONNECT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(PING.0)
            .keep_alive_timeout(PING.1)
            .initial_connection_window_size(16 << 20)
            .initial_stream_window_size(8 << 20);
        let endpoint = if url.scheme().is_tls() {
            let tls = self.tls().await?;
            endpoint.tls_config(match host {
                Some(host) => tls.domain_name(host),
                None => tls,
            })?
        } else {
            endpoint
        };
        Ok(endpoint.connect().await?)
    }

    async fn tls(&self) -> anyhow::Result<ClientTlsConfig> {
        let mut tls = ClientTlsConfig::new();
        if let Some((cert, key)) = self.tls.dial_pair.as_ref().or(self.tls.pair.as_ref()) {
            let read = |path: std::path::PathBuf| async move {
                tokio::fs::read(&path)
                    .await
                    .with_context(|| format!("read {}", path.display()))
            };
            tls = tls.identity(Identity::from_pem(read(cert.clone()).await?, read(key.clone()).await?));
        }
        if let Some(ca) = &self.tls.trusted_ca {
            let pem = tokio::fs::read(ca)
                .await
                .with_context(|| format!("read {}", ca.display()))?;
            tls = tls.ca_certificate(Certificate::from_pem(pem));
        }
        Ok(tls)
    }
}

/// How an address is dialled.
fn way(address: SocketAddr, place: &Place) -> Option<(Url, Option<String>)> {
    let url = Url::parse(&format!("{}://{address}", place.scheme())).ok()?;
    Some((url, Some(place.host.clone())))
}

/// The name in an election's identity, which is a name and a part that no two lives of a member share.
#[must_use]
pub fn name_of(identity: &str) -> &str {
    identity.rsplit_once('_').map_or(identity, |(name, _)| name)
}
