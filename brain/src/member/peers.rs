//! The other members: where they are and how they are dialled.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use sha2::{Digest as _, Sha256};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::flags::TlsOptions;
use crate::flags::url::Url;

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(1);

/// A peer that does not answer a ping for so long is gone: half a lease of the storage lock.
const PING: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(1));

/// The members that the configuration names, and the certificate that is shown to them.
#[derive(Debug, Clone)]
pub struct Peers {
    urls: BTreeMap<String, Vec<Url>>,
    tls: TlsOptions,
    token: String,
}

impl Peers {
    /// `urls` by name, this member's own included.
    #[must_use]
    pub fn new(urls: BTreeMap<String, Vec<Url>>, tls: TlsOptions, token: String) -> Self {
        Self { urls, tls, token }
    }

    /// Names and peer URLs.
    pub fn all(&self) -> impl Iterator<Item = (&str, &[Url])> {
        self.urls.iter().map(|(name, urls)| (name.as_str(), urls.as_slice()))
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
        let urls = self
            .urls
            .get(name)
            .with_context(|| format!("--initial-cluster does not name {name:?}"))?;
        let mut failed = anyhow::anyhow!("{name:?} has no peer URL");
        for url in urls {
            match self.dial_url(url).await {
                Ok(channel) => return Ok(channel),
                Err(error) => failed = error.context(format!("dial {url}")),
            }
        }
        Err(failed)
    }

    async fn dial_url(&self, url: &Url) -> anyhow::Result<Channel> {
        let endpoint = Endpoint::from_shared(url.to_string())?
            .connect_timeout(CONNECT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(PING.0)
            .keep_alive_timeout(PING.1)
            .initial_connection_window_size(16 << 20)
            .initial_stream_window_size(8 << 20);
        let endpoint = if url.scheme().is_tls() {
            endpoint.tls_config(self.tls().await?)?
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

/// The name in an election's identity, which is a name and a part that no two lives of a member share.
#[must_use]
pub fn name_of(identity: &str) -> &str {
    identity.rsplit_once('_').map_or(identity, |(name, _)| name)
}
