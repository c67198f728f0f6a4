//! Data of PD that the client crate does not provide: the id of its cluster, the bounds of regions, and safe points.
//!
//! A connection of our own, made when it is needed, used with a timeout, and dropped after a failure.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt as _};
use http::uri::PathAndQuery;
use tokio::time::Instant;
use tonic::client::Grpc;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic_prost::ProstCodec;

use self::wire::{
    GetMembersRequest, GetMembersResponse, GetRegionRequest, GetRegionResponse, HasHeader, RequestHeader,
    ScanRegionsRequest, ScanRegionsResponse,
};
use super::keys;
use super::options::{ConnectOptions, TikvTls};

#[cfg(test)]
pub(super) use safe_point::SafePointCalls;
pub(super) use safe_point::{SafePointMove, SafePointPermit};

mod safe_point;
mod tls_probe;
mod wire;

/// A key range that one region of TiKV holds; an empty end is the end of everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RegionRange {
    pub(super) from: Bytes,
    pub(super) to: Bytes,
}

/// Time for the other addresses to answer once one has answered.
const OTHER_ENDPOINTS_TIMEOUT: Duration = Duration::from_millis(250);

/// The members of PD that answer at the configured addresses.
#[derive(Debug)]
pub(super) struct ReachedPd {
    pub(super) cluster_id: u64,
    /// Those of the addresses that answered, at least one.
    pub(super) endpoints: Vec<String>,
}

/// Asks PD.
#[derive(Debug)]
pub(super) struct PdClient {
    endpoints: Vec<String>,
    tls: Option<TikvTls>,
    timeout: Duration,
    /// The leader that was found last; another one may lead by now.
    leader: Mutex<Option<PdLeader>>,
}

#[derive(Debug, Clone)]
struct PdLeader {
    cluster_id: u64,
    channel: Channel,
}

impl PdClient {
    pub(super) fn new(options: &ConnectOptions) -> PdClient {
        PdClient {
            endpoints: options.pd_endpoints.clone(),
            tls: options.tls.clone(),
            timeout: options.answer_timeout(),
            leader: Mutex::new(None),
        }
    }

    /// The members of PD that answer, asked anew: all at once. The first one that names a leader decides which cluster it is; the others
    /// have a moment more. One that names none is of no use: after an election it may be the only one that does not know.
    pub(super) async fn reach(&self) -> anyhow::Result<ReachedPd> {
        let asked = self.endpoints.iter();
        let mut answers: FuturesUnordered<_> = asked
            .map(|url| async move { (url, self.members_of(url).await) })
            .collect();
        let mut reached: Option<ReachedPd> = None;
        let mut failed = None;
        let last = tokio::time::sleep(self.timeout);
        tokio::pin!(last);
        loop {
            let (url, answer) = tokio::select! {
                answer = answers.next() => match answer {
                    Some(answer) => answer,
                    None => break,
                },
                () = &mut last, if reached.is_some() => break,
            };
            match (answer.and_then(naming_a_leader), &mut reached) {
                (Ok(_), Some(reached)) => reached.endpoints.push(url.clone()),
                (Ok((members, _, _)), None) => {
                    last.as_mut().reset(Instant::now() + OTHER_ENDPOINTS_TIMEOUT);
                    reached = Some(ReachedPd {
                        cluster_id: members.cluster_id(),
                        endpoints: vec![url.clone()],
                    });
                }
                (Err(error), _) => failed = Some(error),
            }
        }
        reached.ok_or_else(|| failed.unwrap_or_else(|| anyhow::anyhow!("PD has no address")))
    }

    /// The region that holds `key`.
    pub(super) async fn region(&self, key: &[u8]) -> anyhow::Result<RegionRange> {
        let region_key = keys::encode(key);
        let ask = |cluster_id| GetRegionRequest {
            header: Some(RequestHeader { cluster_id }),
            region_key,
        };
        let response: GetRegionResponse = self.ask_leader("/pdpb.PD/GetRegion", ask).await?;
        let region = response
            .region
            .ok_or_else(|| anyhow::anyhow!("PD has no region for a key"))?;
        decoded(&region)
    }

    /// The regions of `[from, to)`, ascending, `limit` at most; an empty `to` is the end of everything.
    pub(super) async fn regions(&self, from: &[u8], to: &[u8], limit: i32) -> anyhow::Result<Vec<RegionRange>> {
        let start_key = keys::encode(from);
        let end_key = if to.is_empty() { Bytes::new() } else { keys::encode(to) };
        let ask = |cluster_id| ScanRegionsRequest {
            header: Some(RequestHeader { cluster_id }),
            start_key,
            limit,
            end_key,
        };
        let response: ScanRegionsResponse = self.ask_leader("/pdpb.PD/ScanRegions", ask).await?;
        let listed = response.regions.iter().filter_map(|region| region.region.as_ref());
        let mut found: Vec<RegionRange> = listed.map(decoded).collect::<Result<_, _>>()?;
        if found.is_empty() {
            found = response.region_metas.iter().map(decoded).collect::<Result<_, _>>()?;
        }
        Ok(found)
    }

    /// Asks the leader. If the known member no longer leads, the leader is searched again.
    async fn ask_leader<Q, A>(&self, path: &'static str, ask: impl FnOnce(u64) -> Q) -> anyhow::Result<A>
    where
        Q: prost::Message + Default + Clone + 'static,
        A: prost::Message + Default + HasHeader + 'static,
    {
        let known = self.leader().clone();
        let found = match known.clone() {
            Some(known) => known,
            None => self.find_leader().await?,
        };
        let request = ask(found.cluster_id);
        let failed = match self.unary(found.channel.clone(), path, request.clone()).await {
            Err(error) if !is_answer(&error) => error,
            answer => {
                *self.leader() = Some(found);
                return answer;
            }
        };
        *self.leader() = None;
        if known.is_none() {
            return Err(failed);
        }
        let found = self.find_leader().await?;
        let answer = self.unary(found.channel.clone(), path, request).await?;
        *self.leader() = Some(found);
        Ok(answer)
    }

    fn leader(&self) -> MutexGuard<'_, Option<PdLeader>> {
        self.leader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks all members at once for the leader, until one that is named says so itself.
    async fn find_leader(&self) -> anyhow::Result<PdLeader> {
        let asked = self.endpoints.iter();
        let mut answers: FuturesUnordered<_> = asked.map(|url| self.members_of(url)).collect();
        let mut failed = anyhow::anyhow!("PD has no address");
        while let Some(answer) = answers.next().await {
            let leader = match answer.and_then(naming_a_leader) {
                Ok((_, _, leader)) => leader,
                Err(error) => {
                    failed = error;
                    continue;
                }
            };
            for url in &leader.client_urls {
                match self.members_of(url).await.and_then(naming_a_leader) {
                    Ok((members, channel, own)) if own.member_id == leader.member_id => {
                        let cluster_id = members.cluster_id();
                        return Ok(PdLeader { cluster_id, channel });
                    }
                    Ok(_) => failed = anyhow::anyhow!("PD at {url} no longer leads"),
                    Err(error) => failed = error,
                }
            }
        }
        Err(failed)
    }

    async fn members_of(&self, url: &str) -> anyhow::Result<(GetMembersResponse, Channel)> {
        let connect = async {
            let channel = self.endpoint(url)?.connect().await?;
            let request = GetMembersRequest::default();
            let members = self.unary(channel.clone(), "/pdpb.PD/GetMembers", request).await?;
            Ok((members, channel))
        };
        let answer = tokio::time::timeout(self.timeout, connect)
            .await
            .unwrap_or_else(|_| Err(anyhow::anyhow!("no answer within {:?}", self.timeout)));
        match answer {
            Err(_) if self.tls.is_none() && tls_probe::speaks_tls(url, self.timeout).await => Err(anyhow::anyhow!(
                "PD at {url} speaks TLS: --tikv-ca, --tikv-cert and --tikv-key are needed"
            )),
            Err(error) => Err(error.context(format!("ask PD at {url}"))),
            answer => answer,
        }
    }

    async fn unary<Q, A>(&self, channel: Channel, path: &'static str, ask: Q) -> anyhow::Result<A>
    where
        Q: prost::Message + Default + 'static,
        A: prost::Message + Default + HasHeader + 'static,
    {
        let call = async {
            let mut grpc = Grpc::new(channel);
            grpc.ready().await?;
            let codec = ProstCodec::<Q, A>::default();
            let request = tonic::Request::new(ask);
            anyhow::Ok(
                grpc.unary(request, PathAndQuery::from_static(path), codec)
                    .await?
                    .into_inner(),
            )
        };
        let answer = tokio::time::timeout(self.timeout, call)
            .await
            .unwrap_or_else(|_| Err(anyhow::anyhow!("no answer within {:?}", self.timeout)))?;
        match answer.error() {
            Some(reason) => Err(anyhow::anyhow!("PD answered: {reason}")),
            None => Ok(answer),
        }
    }

    /// Checks the addresses, and the files with certificates.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        self.endpoints.iter().try_for_each(|url| self.endpoint(url).map(|_| ()))
    }

    fn endpoint(&self, url: &str) -> anyhow::Result<Endpoint> {
        let host = url
            .trim_start_matches("http://")
            .trim_start_matches("https://")
            .to_owned();
        let Some(tls) = &self.tls else {
            return Ok(Endpoint::from_shared(format!("http://{host}"))?);
        };
        let config = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(read(&tls.ca)?))
            .identity(Identity::from_pem(read(&tls.cert)?, read(&tls.key)?));
        Ok(Endpoint::from_shared(format!("https://{host}"))?.tls_config(config)?)
    }
}

/// Returns the leader that a member names as well. Fails if it names none.
fn naming_a_leader(
    (members, channel): (GetMembersResponse, Channel),
) -> anyhow::Result<(GetMembersResponse, Channel, wire::PdMember)> {
    let leader = members.leader.clone().filter(|leader| !leader.client_urls.is_empty());
    let leader = leader.ok_or_else(|| anyhow::anyhow!("PD has no leader at the moment"))?;
    Ok((members, channel, leader))
}

/// Returns true if an error is an answer of a leader that another one would give as well.
fn is_answer(error: &anyhow::Error) -> bool {
    safe_point::is_decreasing(error) || safe_point::is_unknown(error)
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| anyhow::Error::new(error).context(format!("read {}", path.display())))
}

fn decoded(region: &wire::Region) -> anyhow::Result<RegionRange> {
    let key = |encoded: &[u8]| keys::decode(encoded).ok_or_else(|| anyhow::anyhow!("PD returned an invalid key"));
    Ok(RegionRange {
        from: key(&region.start_key)?,
        to: key(&region.end_key)?,
    })
}
