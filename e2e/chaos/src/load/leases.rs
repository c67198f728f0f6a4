//! A client with leases: it grants them, keeps them alive for a while, and leaves them.

use std::time::Duration;

use pb::lease_client::LeaseClient;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};
use wire::etcdserverpb as pb;

use super::client::{Client, is_trouble};
use super::{REQUEST_TIMEOUT, RoundState};
use crate::history::{LeaseHistory, Op, Operation, Request};

const LEASE_TTL: Duration = Duration::from_secs(2);
/// Between keep-alives.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_millis(300);

/// Record of such a client.
#[derive(Debug, Default)]
pub(crate) struct LeaseRecord {
    pub(crate) operations: Vec<Operation>,
    pub(crate) leases: Vec<LeaseHistory>,
}

/// One lease after another, until it is stopped.
///
/// # Errors
///
/// A wrong answer.
pub(crate) async fn run(
    clients: Vec<Client>,
    round: RoundState,
    seed: u64,
    stop: CancellationToken,
) -> anyhow::Result<LeaseRecord> {
    let mut chance = StdRng::seed_from_u64(seed);
    let mut done = LeaseRecord::default();
    while !stop.is_cancelled() {
        let client = &clients[chance.random_range(0..clients.len())];
        if let Some(mut lease) = grant(client, &round).await? {
            // what becomes of the lease is known from here on, whatever comes of the put
            let put = Op::Put {
                key: lease.key.clone(),
                value: round.value(),
                lease: lease.id,
                prev: false,
            };
            match client.call(&round, Request::plain(put)).await {
                Ok(operation) => done.operations.push(operation),
                // it may have ended before
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(error),
            }
            for _ in 0..chance.random_range(0..8) {
                let client = &clients[chance.random_range(0..clients.len())];
                if !keep_alive(client, &round, &mut lease).await? {
                    break;
                }
                tokio::time::sleep(KEEP_ALIVE_INTERVAL).await;
            }
            if chance.random_bool(0.3) {
                revoke(client, &round, &mut lease).await?;
            }
            done.leases.push(lease);
        }
        tokio::time::sleep(KEEP_ALIVE_INTERVAL).await;
    }
    Ok(done)
}

fn is_gone(error: &anyhow::Error) -> bool {
    let status = error.downcast_ref::<Status>();
    status.is_some_and(|status| status.code() == Code::NotFound)
}

async fn grant(client: &Client, round: &RoundState) -> anyhow::Result<Option<LeaseHistory>> {
    let request = pb::LeaseGrantRequest {
        ttl: i64::try_from(LEASE_TTL.as_secs())?,
        id: 0,
    };
    let called = round.at();
    let mut leases = LeaseClient::new(client.channel.clone());
    let Ok(Ok(granted)) = timeout(REQUEST_TIMEOUT, leases.lease_grant(request)).await else {
        return Ok(None);
    };
    let granted = granted.into_inner();
    Ok(Some(LeaseHistory {
        id: granted.id,
        ttl: Duration::from_secs(granted.ttl.unsigned_abs()),
        key: format!("{}lease/{:x}", round.prefix, granted.id),
        renewed: vec![(called, round.at())],
        revoked: None,
    }))
}

/// Returns true if it is still there, as far as can be known.
async fn keep_alive(client: &Client, round: &RoundState, lease: &mut LeaseHistory) -> anyhow::Result<bool> {
    let called = round.at();
    let mut leases = LeaseClient::new(client.channel.clone());
    let requests = tokio_stream::once(pb::LeaseKeepAliveRequest { id: lease.id });
    let answered = timeout(REQUEST_TIMEOUT, async {
        leases.lease_keep_alive(requests).await?.into_inner().message().await
    });
    let Ok(Ok(Some(answer))) = answered.await else {
        return Ok(true);
    };
    if answer.ttl > 0 {
        lease.renewed.push((called, round.at()));
    }
    Ok(answer.ttl > 0)
}

async fn revoke(client: &Client, round: &RoundState, lease: &mut LeaseHistory) -> anyhow::Result<()> {
    lease.revoked = Some(round.at());
    let mut leases = LeaseClient::new(client.channel.clone());
    match timeout(
        REQUEST_TIMEOUT,
        leases.lease_revoke(pb::LeaseRevokeRequest { id: lease.id }),
    )
    .await
    {
        Ok(Err(status)) if status.code() != Code::NotFound && !is_trouble(&status) => Err(status.into()),
        _ => Ok(()), // if it was not done, the lease ends by itself
    }
}
