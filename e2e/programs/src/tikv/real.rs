//! Addresses of the processes of a real cluster, from PD.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use prost::Message;
use serde::{Deserialize, Serialize};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use super::pd;

/// For PD to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Addresses that clients of a cluster connect to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PdAddresses {
    /// PD's members.
    pub pd: Vec<SocketAddr>,
    /// TiKV's nodes.
    pub stores: Vec<SocketAddr>,
}

impl PdAddresses {
    /// Asks the first PD of `pd`, a list of `host:port`, that answers.
    ///
    /// # Errors
    ///
    /// None of them answers, or the answer contains a host name, which cannot be resolved in a separate network namespace.
    pub async fn ask(pd: &str) -> anyhow::Result<Self> {
        let mut last = None;
        for host in pd.split(',') {
            match tokio::time::timeout(ANSWER_TIMEOUT, Self::ask_one(host)).await {
                Ok(Ok(found)) => return Ok(found),
                Ok(Err(error)) => last = Some(error),
                Err(_) => last = Some(anyhow::anyhow!("no answer within {ANSWER_TIMEOUT:?}")),
            }
            last = last.map(|error| error.context(format!("ask PD at {host}")));
        }
        Err(last.context("no address of PD")?)
    }

    async fn ask_one(host: &str) -> anyhow::Result<Self> {
        let channel = Endpoint::new(format!("http://{host}"))?.connect().await?;
        let members: pd::GetMembersResponse = call(&channel, "/pdpb.PD/GetMembers", pd::GetMembersRequest {}).await?;
        let cluster_id = members.header.context("an answer without a header")?.cluster_id;
        let request = pd::GetAllStoresRequest {
            header: Some(pd::RequestHeader { cluster_id }),
            exclude_tombstone_stores: true,
        };
        let stores: pd::GetAllStoresResponse = call(&channel, "/pdpb.PD/GetAllStores", request).await?;
        let urls = members.members.iter().flat_map(|member| &member.client_urls);
        Ok(Self {
            pd: urls.map(|url| address(url)).collect::<anyhow::Result<_>>()?,
            stores: stores
                .stores
                .iter()
                .map(|store| address(&store.address))
                .collect::<anyhow::Result<_>>()?,
        })
    }

    /// All of them.
    pub fn all(&self) -> Vec<SocketAddr> {
        self.pd.iter().chain(&self.stores).copied().collect()
    }

    /// PD's members, in the form in which brains get them.
    pub fn endpoints(&self) -> String {
        let all: Vec<String> = self.pd.iter().map(ToString::to_string).collect();
        all.join(",")
    }
}

async fn call<Q, A>(channel: &Channel, path: &'static str, request: Q) -> anyhow::Result<A>
where
    Q: Message + Send + Sync + 'static,
    A: Message + Default + Send + Sync + 'static,
{
    let mut client = Grpc::new(channel.clone());
    client.ready().await?;
    let path = PathAndQuery::from_static(path);
    let answer = client
        .unary(tonic::Request::new(request), path, ProstCodec::default())
        .await?;
    Ok(answer.into_inner())
}

/// The address in `http://host:port` or `host:port`.
fn address(of: &str) -> anyhow::Result<SocketAddr> {
    let host = match of.split_once("://") {
        Some(("http", host)) => host,
        Some((scheme, _)) => bail!("{of}: {scheme} is not understood here, http is"),
        None => of,
    };
    let host = host.trim_end_matches('/');
    host.parse()
        .with_context(|| format!("{of} is not an IP address with a port"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use mock_tikv::{MockTikv, Options};

    use super::*;

    fn sorted<'a>(all: impl IntoIterator<Item = &'a SocketAddr>) -> BTreeSet<String> {
        all.into_iter().map(ToString::to_string).collect()
    }

    #[tokio::test]
    async fn addresses_are_those_of_all_members_and_stores() {
        let options = Options::default().with_pd_members(3).with_stores(2);
        let cluster = MockTikv::start(options).await.unwrap();
        let addresses = PdAddresses::ask(&cluster.pd()).await.unwrap();
        assert_eq!(sorted(&addresses.pd), cluster.pd_members().into_iter().collect());
        assert_eq!(sorted(&addresses.stores), cluster.stores().into_values().collect());
        assert_eq!(addresses.all().len(), 5);
    }

    #[test]
    fn an_address_is_found_with_and_without_a_scheme() {
        let expected: SocketAddr = "127.0.0.1:2379".parse().unwrap();
        for of in ["127.0.0.1:2379", "http://127.0.0.1:2379", "http://127.0.0.1:2379/"] {
            assert_eq!(address(of).unwrap(), expected);
        }
        for of in ["https://127.0.0.1:2379", "pd-0.pd:2379", "127.0.0.1"] {
            let error = format!("{:#}", address(of).unwrap_err());
            assert!(error.contains(of), "{error}");
        }
    }
}
