//! Stores of many keys, right after a start, when nothing is in memory but what the kernel has cached.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use e2e::server::{Program, Server};
use e2e::wire::etcdserverpb as pb;
use futures::future::try_join_all;
use pb::kv_client::KvClient;
use pb::request_op::Request as Op;
use tokio::time::Instant;
use tonic::transport::Channel;

use crate::bench::disk::Place;
use crate::bench::report::{Report, Unit};
use crate::bench::{requests, updates};

/// Bytes of each value.
const VALUE: usize = 1_024;
/// Keys that one transaction fills in.
const BATCH: u64 = 100;
/// Transactions under way while the store is filled.
const FILLERS: u64 = 16;
/// Requests under way in loads, on so many connections.
const IN_FLIGHT: u64 = 256;
const CONNECTIONS: usize = 4;
/// Of a list, as kube-apiserver's watch cache asks.
const PAGE: i64 = 10_000;
/// Keys that one transaction updates.
const UPDATED: u64 = 50;
/// Such transactions under way.
const UPDATERS: u64 = 32;
/// Superseded versions that are compacted, if a quarter of the keys are as many.
const SUPERSEDED: u64 = 150_000;
/// Keys of the large delete, if there are as many.
const DELETED: u64 = 300_000;
const PROBES: usize = 20;
/// Pairs of a page whose answer counts what is left, and how often such questions are asked.
const COUNTED_PAGE: i64 = 500;
const COUNTS: usize = 21;
/// Time for an index of keys to be built.
const BUILT: Duration = Duration::from_secs(120);
/// A step that no number of keys has in common with: keys are visited in an order of their own.
const STEP: u64 = 982_451_653;
const MIB: f64 = 1024.0 * 1024.0;

/// One round on one server.
pub(crate) async fn measure(
    program: &Program,
    place: &Place,
    keys: u64,
    requests: u64,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut round = Round {
        program,
        place,
        ports: e2e::server::free_ports()?,
        metrics: format!("127.0.0.1:{}", e2e::server::free_ports()?.0),
        keys,
        requests,
        report,
    };
    round.creates().await?;
    round.cold_keys().await?;
    round.updates_in_txns().await?;
    round.lists_and_deletes().await
}

/// What is measured on one server, which is started again for each part.
struct Round<'a> {
    program: &'a Program,
    place: &'a Place,
    ports: (u16, u16),
    /// Address of the metrics port.
    metrics: String,
    keys: u64,
    requests: u64,
    report: &'a mut Report,
}

impl Round<'_> {
    fn start(&self) -> anyhow::Result<Server> {
        let metrics = format!("--listen-metrics-urls=http://{}", self.metrics);
        let flags = [metrics.as_str(), "--quota-backend-bytes=68719476736"];
        Server::start_at(self.program, self.ports, &self.place.data(), &flags)
    }

    async fn load(&self, server: &Server) -> anyhow::Result<Load> {
        Load::connect(server, self.keys, self.requests).await
    }

    fn say(&mut self, name: &str, unit: Unit, value: f64) {
        // The whole takes long, and may fail on the way.
        eprintln!("    {}: {name}: {value:.2} {}", self.program.name, unit.name());
        let name = format!("{} keys: {name}", self.keys);
        self.report.add(&name, unit, self.program.name, value);
    }

    async fn creates(&mut self) -> anyhow::Result<()> {
        let server = self.start()?;
        let (began, cpu) = (Instant::now(), server.usage()?.cpu);
        fill(&server, self.keys).await?;
        let (took, spent) = (began.elapsed().as_secs_f64(), server.usage()?.cpu - cpu);
        self.say("filled in", Unit::Seconds, took);
        self.say("creates in txns of 100: keys", Unit::PerSecond, self.keys as f64 / took);
        let spent = updates::each(spent, self.keys);
        self.say("creates in txns of 100: server CPU of a key", Unit::MicrosEach, spent);
        server.stop()
    }

    async fn cold_keys(&mut self) -> anyhow::Result<()> {
        let began = Instant::now();
        let server = self.start()?;
        self.say("start", Unit::Seconds, began.elapsed().as_secs_f64());
        let load = self.load(&server).await?;
        let cpu = server.usage()?.cpu;
        let (rate, bytes) = load.gets(&server).await?;
        let spent = updates::each(server.usage()?.cpu - cpu, load.requests);
        self.say("gets, cold", Unit::PerSecond, rate);
        self.say("gets, cold: server CPU", Unit::MicrosEach, spent);
        self.say("gets, cold: read from files", Unit::BytesEach, bytes);
        let cpu = server.usage()?.cpu;
        let rate = load.updates().await?;
        let spent = updates::each(server.usage()?.cpu - cpu, load.requests);
        self.say("updates, cold", Unit::PerSecond, rate);
        self.say("updates, cold: server CPU", Unit::MicrosEach, spent);
        server.stop()
    }

    async fn updates_in_txns(&mut self) -> anyhow::Result<()> {
        let server = self.start()?;
        let load = self.load(&server).await?;
        let (read, cpu) = (read_from_files(&server)?, server.usage()?.cpu);
        let rate = load.update_many().await?;
        let updated = load.superseded();
        let spent = updates::each(server.usage()?.cpu - cpu, updated);
        let read = (read_from_files(&server)? - read) as f64 / updated as f64;
        self.say("updates in txns of 50, cold: keys", Unit::PerSecond, rate);
        self.say(
            "updates in txns of 50, cold: server CPU of a key",
            Unit::MicrosEach,
            spent,
        );
        self.say(
            "updates in txns of 50, cold: read from files for a key",
            Unit::BytesEach,
            read,
        );
        let (most, longest) = load.compact().await?;
        let most = most.as_secs_f64();
        self.say("put while they are compacted, 99 of 100 within", Unit::Seconds, most);
        let longest = longest.as_secs_f64();
        self.say("put while they are compacted, the longest", Unit::Seconds, longest);
        server.stop()
    }

    async fn lists_and_deletes(&mut self) -> anyhow::Result<()> {
        let server = self.start()?;
        let load = self.load(&server).await?;
        for when in ["cold", "again"] {
            let cpu = server.usage()?.cpu;
            let rate = load.list().await?;
            let spent = updates::each(server.usage()?.cpu - cpu, self.keys);
            self.say(&format!("list of all, {when}: keys"), Unit::PerSecond, rate);
            let name = format!("list of all, {when}: server CPU of a key");
            self.say(&name, Unit::MicrosEach, spent);
        }
        if let Some(bytes) = index_bytes(&self.metrics).await? {
            let each = bytes / self.keys as f64;
            self.say("memory of the index of keys", Unit::BytesEach, each);
        }
        let took = load.counted_pages().await?.as_micros() as f64;
        self.say("page of 500 with its count, random place: p50", Unit::MicrosEach, took);
        let took = load.counts().await?.as_micros() as f64;
        self.say("count_only of all: p50", Unit::MicrosEach, took);
        let longest = load.probes(&self.metrics).await?;
        self.say("/livez, the longest", Unit::Seconds, longest.as_secs_f64());
        let before = server.usage()?.rss;
        let longest = load.delete(self.keys.min(DELETED)).await?.as_secs_f64();
        self.say("put while 300,000 are deleted, the longest", Unit::Seconds, longest);
        let usage = server.usage()?;
        let more = usage.peak_rss.saturating_sub(before) as f64 / MIB;
        self.say("peak RSS above that before the delete", Unit::Mib, more);
        self.say("peak RSS", Unit::Mib, usage.peak_rss as f64 / MIB);
        let occupied = size(&self.place.data())? as f64 / MIB;
        self.say("directory", Unit::Mib, occupied);
        server.stop()
    }
}

fn key(n: u64) -> Vec<u8> {
    format!("/registry/pods/namespace-{:04}/pod-{n:010}", n % 1_000).into_bytes()
}

fn put(n: u64) -> pb::PutRequest {
    // not a constant, which a store could compress away
    let mut state = n.wrapping_mul(STEP) | 1;
    let value = (0..VALUE / 8).flat_map(|_| {
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

async fn client(server: &Server) -> anyhow::Result<KvClient<Channel>> {
    Ok(KvClient::new(server.connect().await?).max_decoding_message_size(usize::MAX))
}

async fn fill(server: &Server, keys: u64) -> anyhow::Result<()> {
    let kv = client(server).await?;
    let fillers = (0..FILLERS).map(|filler| {
        let mut kv = kv.clone();
        async move {
            for batch in (filler..keys.div_ceil(BATCH)).step_by(usize::try_from(FILLERS)?) {
                let puts = (batch * BATCH..((batch + 1) * BATCH).min(keys)).map(|n| {
                    // in another order than that of the keys
                    let request = Some(Op::RequestPut(put(n.wrapping_mul(STEP) % keys)));
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

/// Requests for keys that were not asked for before.
struct Load {
    clients: Vec<KvClient<Channel>>,
    keys: u64,
    requests: u64,
}

impl Load {
    async fn connect(server: &Server, keys: u64, requests: u64) -> anyhow::Result<Self> {
        let clients = try_join_all((0..CONNECTIONS).map(|_| client(server))).await?;
        Ok(Self {
            clients,
            keys,
            requests: requests.min(keys / 2),
        })
    }

    /// Does something with so many keys, from this one on; answers with the rate.
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
                    ask(kv.clone(), (from + n).wrapping_mul(STEP) % self.keys).await?;
                    n += IN_FLIGHT;
                }
                anyhow::Ok(())
            }
        });
        try_join_all(workers).await?;
        Ok(self.requests as f64 / began.elapsed().as_secs_f64())
    }

    /// The rate, and the bytes that the server read from files for each.
    async fn gets(&self, server: &Server) -> anyhow::Result<(f64, f64)> {
        let before = read_from_files(server)?;
        let get = |mut kv: KvClient<Channel>, n| async move {
            let request = pb::RangeRequest {
                key: key(n).into(),
                ..pb::RangeRequest::default()
            };
            let found = kv.range(request).await?.into_inner().kvs;
            ensure!(
                found.len() == 1 && found[0].value.len() == VALUE,
                "key {n} is not there"
            );
            Ok(())
        };
        let rate = self.run(0, get).await?;
        let read = read_from_files(server)? - before;
        Ok((rate, read as f64 / self.requests as f64))
    }

    async fn updates(&self) -> anyhow::Result<f64> {
        let update = |mut kv: KvClient<Channel>, n| async move {
            let answer = kv.txn(requests::update_of(put(n))).await?.into_inner();
            ensure!(answer.succeeded, "key {n} is not there");
            Ok(())
        };
        self.run(self.keys / 2, update).await
    }

    fn superseded(&self) -> u64 {
        (self.keys / 4 / UPDATED * UPDATED).min(SUPERSEDED)
    }

    /// Updates that many keys, a transaction for every few of them; answers with the rate of keys.
    async fn update_many(&self) -> anyhow::Result<f64> {
        let (began, txns) = (Instant::now(), self.superseded() / UPDATED);
        let workers = (0..UPDATERS).map(|worker| {
            let mut kv = self.clients[usize::try_from(worker).unwrap_or_default() % CONNECTIONS].clone();
            async move {
                for txn in (worker..txns).step_by(usize::try_from(UPDATERS)?) {
                    let keys = (txn * UPDATED..(txn + 1) * UPDATED)
                        .map(|n| (self.keys / 4 + n).wrapping_mul(STEP) % self.keys);
                    let mut request = pb::TxnRequest::default();
                    for update in keys.map(|n| requests::update_of(put(n))) {
                        request.compare.extend(update.compare);
                        request.success.extend(update.success);
                    }
                    let answer = kv.txn(request).await?.into_inner();
                    ensure!(answer.succeeded, "keys of transaction {txn} are not there");
                }
                anyhow::Ok(())
            }
        });
        try_join_all(workers).await?;
        Ok(self.superseded() as f64 / began.elapsed().as_secs_f64())
    }

    /// Compacts everything, and meanwhile puts one after the other: the time of the slowest but one in a hundred, and the longest.
    async fn compact(&self) -> anyhow::Result<(Duration, Duration)> {
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
        tokio::select! {
            compacted = compact => drop(compacted?),
            error = put => return Err(error),
        }
        times.sort();
        let at = |nth: usize| times.get(nth).copied().unwrap_or_default();
        Ok((at(times.len() * 99 / 100), at(times.len().saturating_sub(1))))
    }

    async fn list(&self) -> anyhow::Result<f64> {
        let mut kv = self.clients[0].clone();
        let began = Instant::now();
        let (mut from, mut listed, mut revision) = (b"/registry/pods/".to_vec(), 0, 0);
        loop {
            let request = pb::RangeRequest {
                key: from.into(),
                range_end: b"/registry/pods0".as_slice().into(),
                limit: PAGE,
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

    /// The median time of a page at some place, with the number of all pairs from there on.
    async fn counted_pages(&self) -> anyhow::Result<Duration> {
        let mut kv = self.clients[0].clone();
        let mut times = Vec::new();
        for n in 0..COUNTS as u64 {
            let request = pb::RangeRequest {
                key: key(n.wrapping_mul(STEP) % self.keys).into(),
                range_end: b"/registry/pods0".as_slice().into(),
                limit: COUNTED_PAGE,
                ..pb::RangeRequest::default()
            };
            let began = Instant::now();
            let page = kv.range(request).await?.into_inner();
            times.push(began.elapsed());
            ensure!(
                page.count >= page.kvs.len() as i64 && page.more == (page.count > COUNTED_PAGE),
                "wrong count"
            );
        }
        times.sort();
        Ok(times[COUNTS / 2])
    }

    /// The median time of a count of all keys.
    async fn counts(&self) -> anyhow::Result<Duration> {
        let mut kv = self.clients[0].clone();
        let mut times = Vec::new();
        for _ in 0..COUNTS {
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
        Ok(times[COUNTS / 2])
    }

    async fn probes(&self, address: &str) -> anyhow::Result<Duration> {
        let mut longest = Duration::ZERO;
        for _ in 0..PROBES {
            let began = Instant::now();
            e2e::probe::command(address, "GET", "/livez", "").await?;
            longest = longest.max(began.elapsed());
        }
        Ok(longest)
    }

    /// Deletes the first keys at once, and meanwhile puts one after the other.
    async fn delete(&self, count: u64) -> anyhow::Result<Duration> {
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

/// Waits until the index of keys of a brain is built; answers with its bytes of memory. `None`: the server has none.
async fn index_bytes(address: &str) -> anyhow::Result<Option<f64>> {
    let deadline = Instant::now() + BUILT;
    loop {
        let text = e2e::probe::command(address, "GET", "/metrics", "").await?;
        let gauge = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            value.and_then(|value| value.trim().parse::<f64>().ok())
        };
        match gauge("kubebrain_mvcc_key_index_serves") {
            None => return Ok(None),
            Some(serves) if serves > 0.0 => return Ok(gauge("kubebrain_mvcc_key_index_size_in_bytes")),
            Some(_) => ensure!(Instant::now() < deadline, "the index of keys is not built in {BUILT:?}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Bytes that the process has read by system calls, from the kernel's cache or the disk. Mapped reads are not counted.
fn read_from_files(server: &Server) -> anyhow::Result<u64> {
    let path = format!("/proc/{}/io", server.pid());
    let io = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let read = io.lines().find_map(|line| line.strip_prefix("rchar: "));
    read.and_then(|bytes| bytes.trim().parse().ok())
        .with_context(|| format!("no rchar in {path}"))
}

fn size(dir: &Path) -> anyhow::Result<u64> {
    use std::os::unix::fs::MetadataExt as _;
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += match metadata.is_dir() {
            true => size(&entry.path())?,
            false => metadata.blocks() * 512,
        };
    }
    Ok(bytes)
}
