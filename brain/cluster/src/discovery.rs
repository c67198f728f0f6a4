//! Discovery of members by DNS, as etcd's `--discovery-srv`: SRV records of a domain, such as those of a headless Service whose
//! ports are named `etcd-server` or `etcd-server-ssl`. The name of a member is the first label of its host name.
//!
//! Records are looked up before every dial, so that members can come and go without notice.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use hickory_resolver::config::LookupIpStrategy;
use hickory_resolver::proto::rr::{RData, RecordType};
use hickory_resolver::{ResolverBuilder, TokioResolver};
use tokio::time::Instant;
use tracing::{info, warn};

use etcd_types::url::Url;

/// The DNS domain in which members are looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SrvDiscovery {
    /// The domain of the records.
    pub domain: String,
    /// The suffix of the service's name, after a dash; no suffix if empty.
    pub name: String,
}

/// The time for which an answer of DNS is cached: a leader that cannot be reached is dialled more often.
const DNS_CACHE_TTL: Duration = Duration::from_secs(1);

/// The timeout of one DNS query.
const DNS_QUERY_TIMEOUT: Duration = Duration::from_secs(1);

/// The number of retries after a query that failed.
const DNS_QUERY_RETRIES: usize = 2;

/// The DNS address of a member.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DnsAddress {
    /// True if the port speaks TLS.
    pub tls: bool,
    /// The host name, without the trailing dot.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl DnsAddress {
    /// Returns the URL scheme for this place.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        if self.tls { "https" } else { "http" }
    }
}

/// The members listed in a domain. Clones share the cache.
#[derive(Clone)]
pub struct Discovery {
    resolver: TokioResolver,
    /// The names of the SRV records, and whether their ports speak TLS.
    records: Arc<[(String, bool)]>,
    found: Arc<Mutex<CachedAnswer>>,
}

#[derive(Debug, Default)]
struct CachedAnswer {
    members: BTreeMap<String, BTreeSet<DnsAddress>>,
    at: Option<Instant>,
    failing: bool,
}

impl Discovery {
    /// Uses the DNS servers that the system is configured with. Fails if the system's configuration cannot be read.
    pub fn new(options: &SrvDiscovery) -> anyhow::Result<Self> {
        let builder = TokioResolver::builder_tokio().context("read /etc/resolv.conf")?;
        Self::with(builder, options)
    }

    fn with(
        mut builder: ResolverBuilder<hickory_resolver::net::runtime::TokioRuntimeProvider>,
        options: &SrvDiscovery,
    ) -> anyhow::Result<Self> {
        let asked = builder.options_mut();
        (asked.timeout, asked.attempts) = (DNS_QUERY_TIMEOUT, DNS_QUERY_RETRIES);
        // Caching is off: a replaced member has another address.
        asked.cache_size = 0;
        asked.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        let suffix = match options.name.as_str() {
            "" => String::new(),
            name => format!("-{name}"),
        };
        let record = |service: &str| format!("_{service}{suffix}._tcp.{}", options.domain);
        Ok(Self {
            resolver: builder.build().context("make a resolver")?,
            records: [(record("etcd-server-ssl"), true), (record("etcd-server"), false)].into(),
            found: Arc::default(),
        })
    }

    /// Returns the current places of a member. Fails if DNS does not answer, or does not list the member.
    pub async fn find(&self, name: &str) -> anyhow::Result<BTreeSet<DnsAddress>> {
        let name = name.to_ascii_lowercase();
        let members = self.members().await?;
        let known = || members.keys().cloned().collect::<Vec<_>>().join(", ");
        members
            .get(&name)
            .cloned()
            .with_context(|| format!("the SRV records name no {name:?}, only {}", known()))
    }

    /// Returns all members. Fails if DNS does not answer.
    pub async fn members(&self) -> anyhow::Result<BTreeMap<String, BTreeSet<DnsAddress>>> {
        {
            let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            if found.at.is_some_and(|at| at.elapsed() < DNS_CACHE_TTL) {
                return Ok(found.members.clone());
            }
        }
        let asked = self.ask().await;
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        match &asked {
            Ok(members) => {
                found.failing = false;
                found.at = Some(Instant::now());
                if found.members != *members {
                    let names: Vec<&str> = members.keys().map(String::as_str).collect();
                    info!(members = names.join(","), "members found by DNS");
                    found.members.clone_from(members);
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut found.failing, true) {
                    warn!(error = format!("{error:#}"), "DNS does not name the members");
                }
            }
        }
        asked
    }

    /// Returns all members as `--initial-cluster` would list them, with `name` at its `urls`. Fails if DNS does not answer.
    pub async fn cluster(&self, name: &str, urls: &[Url]) -> anyhow::Result<BTreeMap<String, Vec<Url>>> {
        let members = self.members().await?;
        let url = |place: &DnsAddress| Url::parse(&format!("{}://{}:{}", place.scheme(), place.host, place.port)).ok();
        let found = members
            .iter()
            .map(|(name, places)| (name.clone(), places.iter().filter_map(url).collect()));
        let mut cluster: BTreeMap<String, Vec<Url>> = found.collect();
        cluster.insert(name.to_owned(), urls.to_vec());
        Ok(cluster)
    }

    /// Queries both services, as etcd: one that fails does not matter if the other one answers.
    async fn ask(&self) -> anyhow::Result<BTreeMap<String, BTreeSet<DnsAddress>>> {
        let mut members: BTreeMap<String, BTreeSet<DnsAddress>> = BTreeMap::new();
        let mut failed = None;
        let mut answered = false;
        let asked = self.records.iter().map(|(record, tls)| async move {
            let answer = self.resolver.lookup(record.as_str(), RecordType::SRV).await;
            (record, tls, answer)
        });
        for (record, tls, answer) in futures::future::join_all(asked).await {
            let lookup = match answer {
                Ok(lookup) => lookup,
                Err(error) => {
                    failed = Some(anyhow::Error::new(error).context(format!("look up SRV {record}")));
                    continue;
                }
            };
            answered = true;
            for answer in lookup.answers() {
                let RData::SRV(srv) = &answer.data else { continue };
                let host = srv.target.to_ascii().trim_end_matches('.').to_ascii_lowercase();
                let Some(name) = host.split('.').next().filter(|label| !label.is_empty()) else {
                    continue;
                };
                let place = DnsAddress {
                    tls: *tls,
                    host: host.clone(),
                    port: srv.port,
                };
                members.entry(name.to_owned()).or_default().insert(place);
            }
        }
        match failed {
            Some(error) if !answered => Err(error),
            _ => Ok(members),
        }
    }

    /// Resolves the addresses of a place. Fails if DNS does not know its host.
    pub async fn addresses(&self, place: &DnsAddress) -> anyhow::Result<Vec<SocketAddr>> {
        let host = format!("{}.", place.host);
        let found = self.resolver.lookup_ip(host.as_str()).await;
        let found = found.with_context(|| format!("look up {host}"))?;
        Ok(found.iter().map(|ip| SocketAddr::new(ip, place.port)).collect())
    }
}

impl std::fmt::Debug for Discovery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Discovery")
            .field("records", &self.records)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
