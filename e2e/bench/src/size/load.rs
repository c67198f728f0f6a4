//! Loads of a store of many keys.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::future::try_join_all;
use pb::kv_client::KvClient;
use programs::server::Server;
use tokio::time::Instant;
use tonic::Code;
use tonic::transport::Channel;
use wire::etcdserverpb as pb;

use super::keys::{KEY_STEP, VALUE_BYTES, client, key, put};
use crate::{requests, updates};

/// Requests in flight in a load, over [`CONNECTIONS`] connections.
const IN_FLIGHT: u64 = 256;
const CONNECTIONS: usize = 4;
/// Of a list, as kube-apiserver's watch cache asks.
const LIST_PAGE_KEYS: i64 = 10_000;
/// Keys that one transaction updates.
const UPDATES_PER_TXN: u64 = 50;
/// Such transactions in flight.
const UPDATE_TXNS_IN_FLIGHT: u64 = 32;
/// Superseded versions that are compacted; at most a quarter of the number of keys.
const MAX_SUPERSEDED_VERSIONS: u64 = 150_000;
const PROBES: usize = 20;
/// Pairs of a page whose answer counts what is left, and how often such questions are asked.
const COUNTED_PAGE_KEYS: i64 = 500;
const COUNTED_PAGES: usize = 21;

/// A compaction, and the puts that were made while it ran.
pub(super) struct MeasuredCompaction {
    pub(super) took: Duration,
    /// 99 of 100 puts took less.
    pub(super) most: Duration,
    pub(super) longest: Duration,
}

/// Requests for keys that were not asked for before.
pub(super) struct UnaskedKeysLoad {
    clients: Vec<KvClient<Channel>>,
    keys: u64,
    pub(super) requests: u64,
}

impl UnaskedKeysLoad {
    pub(super) async fn connect(server: &Server, keys: u64, requests: u64) -> anyhow::Result<Self> {
        let clients = try_join_all((0..CONNECTIONS).map(|_| client(server))).await?;
        Ok(Self {
            clients,
            keys,
            requests: requests.min(keys / 2),
        })
    }

    /// Makes one request for each of [`UnaskedKeysLoad::requests`] keys, from the `from`th one on in a scattered order. Returns the rate.
    async fn run<F: Future<Output = anyhow::Result<()>>>(
        &self,
        from: u64,
        ask: impl Fn(KvClient<Channel>, u64) -> F,
    ) -> anyhow::Result<f64> {
        let began = Instant::now();
        let workers = (0..IN_FLIGHT).map(|worker| {
            let kv = &self.clients[usize::try_from(worker).unwrap_or_default() % CONNECTIONS];
            let ask = &ask;
            async move {
                let mut n = worker;
                while n < self.requests {
                    ask(kv.clone(), (from + n).wrapping_mul(KEY_STEP) % self.keys).await?;
                    n += IN_FLIGHT;
                }
                anyhow::Ok(())
            }
        });
        try_join_all(workers).await?;
        Ok(self.requests as f64 / began.elapsed().as_secs_f64())
    }

    /// The rate, and the bytes that the server read from files for each.
    pub(super) async fn gets(&self, server: &Server) -> anyhow::Result<(f64, f64)> {
        let before = read_from_files(server)?;
        let rate = self.run(0, get).await?;
        let read = read_from_files(server)? - before;
        Ok((rate, read as f64 / self.requests as f64))
    }

    pub(super) async fn updates(&self) -> anyhow::Result<f64> {
        let update = |mut kv: KvClient<Channel>, n| async move {
            let answer = kv.txn(requests::update_of(put(n))).await?.into_inner();
            ensure!(answer.succeeded, "key {n} does not exist");
            Ok(())
        };
        self.run(self.keys / 2, update).await
    }

    pub(super) fn superseded(&self) -> u64 {
        (self.keys / 4 / UPDATES_PER_TXN * UPDATES_PER_TXN).min(MAX_SUPERSEDED_VERSIONS)
    }

    /// Updates that many keys, a transaction for every few of them; answers with the rate of keys.
    pub(super) async fn update_many(&self) -> anyhow::Result<f64> {
        let (began, txns) = (Instant::now(), self.superseded() / UPDATES_PER_TXN);
        let workers = (0..UPDATE_TXNS_IN_FLIGHT).map(|worker| {
            let mut kv = self.clients[usize::try_from(worker).unwrap_or_default() % CONNECTIONS].clone();
            async move {
                for txn in (worker..txns).step_by(usize::try_from(UPDATE_TXNS_IN_FLIGHT)?) {
                    let keys = (txn * UPDATES_PER_TXN..(txn + 1) * UPDATES_PER_TXN)
                        .map(|n| (self.keys / 4 + n).wrapping_mul(KEY_STEP) % self.keys);
                    let mut request = pb::TxnRequest::default();
                    for update in keys.map(|n| requests::update_of(put(n))) {
                        request.compare.extend(update.compare);
                        request.success.extend(update.success);
                    }
                    let answer = kv.txn(request).await?.into_inner();
                    ensure!(answer.succeeded, "keys of transaction {txn} do not exist");
                }
                anyhow::Ok(())
            }
        });
        try_join_all(workers).await?;
        Ok(self.superseded() as f64 / began.elapsed().as_secs_f64())
    }

    /// Compacts everything, and puts again and again while the compaction runs.
    pub(super) async fn compact(&self) -> anyhow::Result<MeasuredCompaction> {
        let mut kv = self.clients[0].clone();
        let revision = updates::revision(&mut kv).await?;
        let compact = kv.compact(pb::CompactionRequest {
            revision,
            physical: true,
        });
        let mut writer = self.clients[1].clone();
        let mut times = Vec::new();
        let put = async {
            loop {
                let began = Instant::now();
                let answer = writer.put(requests::put()).await;
                times.push(began.elapsed());
                if let Err(error) = answer {
                    return anyhow::Error::from(error);
                }
            }
        };
        let began = Instant::now();
        tokio::select! {
            compacted = compact => drop(compacted?),
            error = put => return Err(error),
        }
        let took = began.elapsed();
        times.sort();
        let at = |nth: usize| times.get(nth).copied().unwrap_or_default();
        Ok(MeasuredCompaction {
            took,
            most: at(times.len() * 99 / 100),
            longest: at(times.len().saturating_sub(1)),
        })
    }

    pub(super) async fn list(&self) -> anyhow::Result<f64> {
        let mut kv = self.clients[0].clone();
        let began = Instant::now();
        let (mut from, mut listed, mut revision) = (b"/registry/pods/".to_vec(), 0, 0);
        loop {
            let request = pb::RangeRequest {
                key: from.into(),
                range_end: b"/registry/pods0".as_slice().into(),
                limit: LIST_PAGE_KEYS,
                revision,
                ..pb::RangeRequest::default()
            };
            let page = kv.range(request).await?.into_inner();
            listed += page.kvs.len() as u64;
            revision = page.header.unwrap_or_default().revision;
            let Some(last) = page.kvs.last().filter(|_| page.more) else {
                break;
            };
            from = [&last.key[..], b"\0"].concat();
        }
        ensure!(listed == self.keys, "{listed} of {} keys are listed", self.keys);
        Ok(listed as f64 / began.elapsed().as_secs_f64())
    }

    /// The same in one stream; `None` where the server has none.
    pub(super) async fn stream(&self) -> anyhow::Result<Option<f64>> {
        let began = Instant::now();
        let all = pb::RangeRequest {
            key: b"/registry/pods/".as_slice().into(),
            range_end: b"/registry/pods0".as_slice().into(),
            ..pb::RangeRequest::default()
        };
        let mut chunks = match self.clients[0].clone().range_stream(all).await {
            Ok(answer) => answer.into_inner(),
            Err(status) if status.code() == Code::Unimplemented => return Ok(None),
            Err(status) => return Err(status.into()),
        };
        let mut listed = 0;
        while let Some(chunk) = chunks.message().await? {
            listed += chunk.range_response.map_or(0, |part| part.kvs.len() as u64);
        }
        ensure!(listed == self.keys, "{listed} of {} keys are streamed", self.keys);
        Ok(Some(listed as f64 / began.elapsed().as_secs_f64()))
    }

    /// The median time of a page at some place, with the number of all pairs from there on.
    pub(super) async fn counted_pages(&self) -> anyhow::Result<Duration> {
        let mut kv = self.clients[0].clone();
        let mut times = Vec::new();
        for n in 0..COUNTED_PAGES as u64 {
            let request = pb::RangeRequest {
                key: key(n.wrapping_mul(KEY_STEP) % self.keys).into(),
                range_end: b"/registry/pods0".as_slice().into(),
                limit: COUNTED_PAGE_KEYS,
                ..pb::RangeRequest::default()
            };
            let began = Instant::now();
            let page = kv.range(request).await?.into_inner();
            times.push(began.elapsed());
            ensure!(
                page.count >= page.kvs.len() as i64 && page.more == (page.count > COUNTED_PAGE_KEYS),
                "wrong count"
            );
        }
        times.sort();
        Ok(times[COUNTED_PAGES / 2])
    }

    /// The median time of a count of all keys.
    pub(super) async fn counts(&self) -> anyhow::Result<Duration> {
        let mut kv = self.clients[0].clone();
        let mut times = Vec::new();
        for _ in 0..COUNTED_PAGES {
            let request = pb::RangeRequest {
                key: b"/registry/pods/".as_slice().into(),
                range_end: b"/registry/pods0".as_slice().into(),
                count_only: true,
                ..pb::RangeRequest::default()
            };
            let began = Instant::now();
            let count = kv.range(request).await?.into_inner().count;
            times.push(began.elapsed());
            ensure!(
                u64::try_from(count) == Ok(self.keys),
                "{count} of {} keys are counted",
                self.keys
            );
        }
        times.sort();
        Ok(times[COUNTED_PAGES / 2])
    }

    pub(super) async fn probes(&self, address: &str) -> anyhow::Result<Duration> {
        let mut longest = Duration::ZERO;
        for _ in 0..PROBES {
            let began = Instant::now();
            programs::probe::command(address, "GET", "/livez", "").await?;
            longest = longest.max(began.elapsed());
        }
        Ok(longest)
    }

    /// Deletes the first keys with one request, and puts again and again while it runs. Returns the longest time of a put.
    pub(super) async fn delete(&self, count: u64) -> anyhow::Result<Duration> {
        let mut kv = self.clients[0].clone();
        let per_namespace = self.keys.div_ceil(1_000);
        let namespaces = count.div_ceil(per_namespace).min(1_000);
        let request = pb::DeleteRangeRequest {
            key: b"/registry/pods/".as_slice().into(),
            range_end: format!("/registry/pods/namespace-{namespaces:04}/").into_bytes().into(),
            prev_kv: false,
        };
        let delete = async {
            let deleted = kv.delete_range(request).await?.into_inner().deleted;
            ensure!(deleted > 0, "nothing was deleted");
            anyhow::Ok(())
        };
        let mut writer = self.clients[1].clone();
        let mut longest = Duration::ZERO;
        let put = async {
            loop {
                let began = Instant::now();
                let answer = writer.put(requests::put()).await;
                longest = longest.max(began.elapsed());
                if let Err(error) = answer {
                    return anyhow::Error::from(error);
                }
            }
        };
        tokio::select! {
            deleted = delete => deleted?,
            error = put => return Err(error),
        }
        Ok(longest)
    }
}

/// Reads key `n`, which must exist.
pub(super) async fn get(mut kv: KvClient<Channel>, n: u64) -> anyhow::Result<()> {
    let request = pb::RangeRequest {
        key: key(n).into(),
        ..pb::RangeRequest::default()
    };
    let found = kv.range(request).await?.into_inner().kvs;
    ensure!(
        found.len() == 1 && found[0].value.len() == VALUE_BYTES,
        "key {n} does not exist"
    );
    Ok(())
}

/// Bytes that the process has read by system calls, from the kernel's cache or the disk. Mapped reads are not counted.
pub(super) fn read_from_files(server: &Server) -> anyhow::Result<u64> {
    counted(server, "rchar: ")
}

/// Bytes of files that the process has changed and the kernel writes to the disk.
pub(super) fn written_to_disk(server: &Server) -> anyhow::Result<u64> {
    counted(server, "write_bytes: ")
}

fn counted(server: &Server, counter: &str) -> anyhow::Result<u64> {
    let path = format!("/proc/{}/io", server.pid());
    let io = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let bytes = io.lines().find_map(|line| line.strip_prefix(counter));
    bytes
        .and_then(|bytes| bytes.trim().parse().ok())
        .with_context(|| format!("no {counter}in {path}"))
}
