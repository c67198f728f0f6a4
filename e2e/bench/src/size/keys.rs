//! Keys and values of a store of many.

use anyhow::Context as _;
use futures::future::try_join_all;
use pb::kv_client::KvClient;
use pb::request_op::Request as Op;
use programs::server::Server;
use tonic::transport::Channel;
use wire::etcdserverpb as pb;

/// Bytes of each value.
pub(super) const VALUE_BYTES: usize = 1_024;
/// Keys that one transaction fills in.
const KEYS_PER_TXN: u64 = 100;
/// Transactions in flight while the store is filled.
const FILL_TXNS_IN_FLIGHT: u64 = 16;
/// A step that no number of keys has in common with: keys are visited in an order of their own.
pub(super) const KEY_STEP: u64 = 982_451_653;

pub(super) fn key(n: u64) -> Vec<u8> {
    format!("/registry/pods/namespace-{:04}/pod-{n:010}", n % 1_000).into_bytes()
}

pub(crate) fn put(n: u64) -> pb::PutRequest {
    // not a constant, which a store could compress away
    let mut state = n.wrapping_mul(KEY_STEP) | 1;
    let value = (0..VALUE_BYTES / 8).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    pb::PutRequest {
        key: key(n).into(),
        value: value.collect::<Vec<_>>().into(),
        ..pb::PutRequest::default()
    }
}

pub(super) async fn client(server: &Server) -> anyhow::Result<KvClient<Channel>> {
    Ok(KvClient::new(server.connect().await?).max_decoding_message_size(usize::MAX))
}

/// Puts all keys, in another order than theirs.
pub(crate) async fn fill(server: &Server, keys: u64) -> anyhow::Result<()> {
    let kv = client(server).await?;
    let fillers = (0..FILL_TXNS_IN_FLIGHT).map(|filler| {
        let mut kv = kv.clone();
        async move {
            for batch in (filler..keys.div_ceil(KEYS_PER_TXN)).step_by(usize::try_from(FILL_TXNS_IN_FLIGHT)?) {
                let puts = (batch * KEYS_PER_TXN..((batch + 1) * KEYS_PER_TXN).min(keys)).map(|n| {
                    // in another order than that of the keys
                    let request = Some(Op::RequestPut(put(n.wrapping_mul(KEY_STEP) % keys)));
                    pb::RequestOp { request }
                });
                let txn = pb::TxnRequest {
                    success: puts.collect(),
                    ..pb::TxnRequest::default()
                };
                kv.txn(txn).await.context("fill the store")?;
            }
            anyhow::Ok(())
        }
    });
    try_join_all(fillers).await?;
    Ok(())
}
