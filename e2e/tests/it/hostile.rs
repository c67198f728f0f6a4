//! Clients that want to do harm: the memory of a brain stays bounded, its probes and its quiet clients are served.
//!
//! Attacks come from an address of their own. Bounds are generous: without a limit each of these costs gigabytes, or minutes.

use std::net::SocketAddr;
use std::time::Duration;

use futures::future::join_all;
use pb::kv_client::KvClient;
use pb::request_op::Request as Op;
use programs::probe;
use programs::server::{ProcessUsage, Program, Server, free_ports};
use prost::Message as _;
use tokio::time::timeout;
use tonic::transport::Channel;
use wire::etcdserverpb as pb;

use crate::harness::deadline;
use http2::Http2;

mod connections;
mod files;
mod http2;
mod logins;
mod memory;
mod peers;
mod tls;
mod txns;

/// Time that a quiet client, or a probe, waits for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Additional memory that an attack may cost, whatever is sent.
const MAX_MEMORY_GROWTH: u64 = 768 << 20;
/// Memory for requests and answers: 256 MiB, however much the machine has.
const BUDGET_FLAG: &str = "--max-inflight-bytes=268435456";
const TXN: &str = "/etcdserverpb.KV/Txn";
const PUT: &str = "/etcdserverpb.KV/Put";
const RANGE: &str = "/etcdserverpb.KV/Range";

/// A brain under attack, with a quiet client that connected before the attack.
struct Victim {
    server: Server,
    quiet: KvClient<Channel>,
    before: u64,
    /// Address that probes ask.
    metrics: Option<SocketAddr>,
}

/// Bytes in memory that are not those of files.
fn allocated(usage: ProcessUsage) -> u64 {
    usage.rss - usage.file_rss
}

impl Victim {
    async fn start(flags: &[&str]) -> Self {
        let flags = [&[BUDGET_FLAG], flags].concat();
        let server = Server::start(&Program::kubebrain().unwrap(), &flags).unwrap();
        let quiet = KvClient::new(server.connect().await.unwrap());
        let before = allocated(server.usage().unwrap());
        Self {
            server,
            quiet,
            before,
            metrics: None,
        }
    }

    /// With a port for probes and scrapers.
    async fn with_metrics() -> Self {
        let metrics = SocketAddr::from(([127, 0, 0, 1], free_ports().unwrap().client));
        let mut victim = Self::start(&[&format!("--listen-metrics-urls=http://{metrics}")]).await;
        victim.metrics = Some(metrics);
        victim
    }

    fn address(&self) -> SocketAddr {
        self.server.endpoint().strip_prefix("http://").unwrap().parse().unwrap()
    }

    async fn put(&mut self, key: String, value: Vec<u8>) {
        self.quiet.put(put(key, value)).await.unwrap();
    }

    /// Memory counts from here on.
    fn settle(&mut self) {
        self.before = allocated(self.server.usage().unwrap());
    }

    /// Probes are answered, and so are puts of a client that is connected and of one that is not.
    async fn serves(&mut self) {
        assert!(self.server.ended().unwrap().is_none(), "{}", self.server.last_lines());
        let ports = [Some(self.address()), self.metrics];
        for at in ports.into_iter().flatten() {
            let at = at.to_string();
            let answer = timeout(ANSWER_TIMEOUT, probe::command(&at, "GET", "/livez", "")).await;
            let answer = answer.unwrap_or_else(|_| panic!("/livez at {at} is not answered within {ANSWER_TIMEOUT:?}"));
            answer.unwrap();
        }
        let put = put("quiet", b"still here".to_vec());
        let written = timeout(ANSWER_TIMEOUT, self.quiet.put(put.clone())).await;
        written.expect("a put of a client that was connected").unwrap();
        let fresh = async {
            let mut client = KvClient::new(self.server.connect().await.unwrap());
            client.put(put).await.unwrap();
        };
        timeout(ANSWER_TIMEOUT, fresh).await.expect("a put of a new client");
    }

    /// The highest that memory has been is no more than `most` bytes above what it was before.
    fn is_bounded(&self, most: u64) {
        let usage = self.server.usage().unwrap();
        let peak = usage.peak_rss.saturating_sub(usage.file_rss + self.before) >> 20;
        eprintln!("{peak} MiB more at the peak");
        assert!(
            peak <= most >> 20,
            "{peak} MiB more at the peak, {} allowed",
            most >> 20
        );
    }
}

fn put(key: impl Into<Vec<u8>>, value: Vec<u8>) -> pb::PutRequest {
    pb::PutRequest {
        key: key.into().into(),
        value: value.into(),
        ..pb::PutRequest::default()
    }
}

fn op(request: Op) -> pb::RequestOp {
    pb::RequestOp { request: Some(request) }
}

/// A range of all keys.
fn all_keys() -> pb::RangeRequest {
    pb::RangeRequest {
        key: vec![0].into(),
        range_end: vec![0].into(),
        ..pb::RangeRequest::default()
    }
}

/// Number of operations in one transaction. A nested transaction counts the operations of those around it, too: three levels stay below
/// the limit of 128.
const OPS_PER_TXN: usize = 42;

/// The operations in transactions of transactions.
fn nested(mut ops: Vec<pb::RequestOp>) -> pb::TxnRequest {
    while ops.len() > OPS_PER_TXN {
        let chunks = ops.chunks(OPS_PER_TXN).map(|chunk| {
            op(Op::RequestTxn(pb::TxnRequest {
                success: chunk.to_vec(),
                ..pb::TxnRequest::default()
            }))
        });
        ops = chunks.collect();
    }
    pb::TxnRequest {
        success: ops,
        ..pb::TxnRequest::default()
    }
}
