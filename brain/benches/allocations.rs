//! Allocations of a brain: how many a request costs, how many bytes, and where.
//!
//! The brain is this program in a second process, so that only its side is counted; the requests go over one HTTP/2 connection. Counts do
//! not depend on the speed of the machine, and little on optimisation.
//!
//! `REQUESTS` is the number of each kind (20,000), `IN_FLIGHT` that of requests at a time (256), `WATCHERS` that of watchers in the part with
//! events (100). `STACKS` is `updates`, `gets` or `events`: then the most frequent stacks of that part follow, each with its share of the
//! allocations of one request.
#![allow(clippy::print_stdout, reason = "the report is the output")]

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;

use alloc_counter::{AllocationCounts, Counting};
use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use etcd_types::pb::etcdserverpb as pb;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use pb::compare::{CompareResult, CompareTarget, TargetUnion};
use pb::kv_client::KvClient;
use pb::request_op::Request as Op;
use pb::watch_client::WatchClient;
use tonic::transport::{Channel, Endpoint};

#[global_allocator]
static ALLOCATOR: Counting<mimalloc::MiMalloc> = Counting(mimalloc::MiMalloc);

/// Set in the process that is the brain.
const SERVER_VARIABLE: &str = "KUBEBRAIN_COUNTED_SERVER";

const KEY: &[u8] = b"/registry/bench/hot";
const VALUE_BYTES: usize = 512;

/// A prime, so that no request is always sampled at the same place.
const SAMPLE_INTERVAL: u64 = 97;
/// Requests of the part whose stacks are sampled: to name the functions of a stack takes long.
const SAMPLED_REQUESTS: u64 = 5_000;
const PRINTED_STACKS: usize = 30;

/// Pause between attempts to reach a brain that starts.
const CONNECT_INTERVAL: Duration = Duration::from_millis(50);
const START_TIMEOUT: Duration = Duration::from_secs(30);

fn main() -> anyhow::Result<ExitCode> {
    if std::env::var_os(SERVER_VARIABLE).is_some() {
        std::thread::spawn(answer_questions);
        return Ok(brain::server::main());
    }
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(measure())?;
    Ok(ExitCode::SUCCESS)
}

/// Answers the other process's questions on standard input, in the process that is the brain. Ends it when there are no more.
fn answer_questions() {
    alloc_counter::ignore_this_thread();
    let mut out = io::stdout().lock();
    for question in io::stdin().lock().lines().map_while(Result::ok) {
        let answered = match question.split_once(' ') {
            Some(("sample", interval)) => {
                alloc_counter::sample(interval.parse().unwrap_or_default());
                writeln!(out, "ok")
            }
            Some(("stacks", requests)) => stacks(requests.parse().unwrap_or(1.0)),
            _ => {
                let counts = alloc_counter::counts();
                let AllocationCounts {
                    allocations,
                    bytes,
                    moves,
                    moved_bytes,
                } = counts;
                writeln!(out, "{allocations} {bytes} {moves} {moved_bytes}")
            }
        };
        if answered.is_err() {
            break;
        }
    }
    std::process::exit(0);
}

/// Prints the stacks that were sampled in a number of requests.
fn stacks(requests: f64) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let scale = SAMPLE_INTERVAL as f64 / requests;
    let stacks = alloc_counter::by_stack(alloc_counter::take_samples());
    for stack in stacks.iter().take(PRINTED_STACKS) {
        let (count, bytes) = (stack.samples as f64 * scale, stack.bytes as f64 * scale);
        writeln!(out, "{count:>8.2} {bytes:>8.0} B  {}", stack.frames.join(" < "))?;
    }
    writeln!(out)
}

/// The process that is the brain. It ends when this is dropped.
struct CountedServer {
    _child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl CountedServer {
    fn start(dir: &Path, port: u16) -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .env(SERVER_VARIABLE, "1")
            .arg("--data-dir")
            .arg(dir)
            .arg(format!("--listen-client-urls=http://127.0.0.1:{port}"))
            .arg(format!("--advertise-client-urls=http://127.0.0.1:{port}"))
            .arg("--log-level=warn")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start the brain")?;
        let (questions, answers) = (child.stdin.take(), child.stdout.take());
        Ok(Self {
            questions: questions.context("its standard input")?,
            answers: BufReader::new(answers.context("its standard output")?),
            _child: child,
        })
    }

    fn ask(&mut self, question: &str) -> anyhow::Result<String> {
        writeln!(self.questions, "{question}")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        Ok(answer.trim_end().to_owned())
    }

    fn counts(&mut self) -> anyhow::Result<[u64; 4]> {
        let answer = self.ask("counts")?;
        let counts = answer.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>();
        let counts = counts.with_context(|| format!("read the counts {answer:?}"))?;
        counts.try_into().ok().context("four counts")
    }

    /// Prints the stacks that were sampled in a number of requests.
    fn print_stacks(&mut self, requests: u64) -> anyhow::Result<()> {
        let mut line = self.ask(&format!("stacks {requests}"))?;
        while !line.is_empty() {
            println!("{line}");
            let mut next = String::new();
            self.answers.read_line(&mut next)?;
            line = next.trim_end().to_owned();
        }
        Ok(())
    }
}

/// The number of requests, and how many of them at a time.
#[derive(Clone, Copy)]
struct Load {
    requests: u64,
    in_flight: usize,
}

/// An update as kube-apiserver makes it: compare the mod revision, then put, else get. The comparison always holds.
fn update() -> pb::TxnRequest {
    let key = Bytes::from_static(KEY);
    let put = pb::PutRequest {
        key: key.clone(),
        value: vec![b'v'; VALUE_BYTES].into(),
        ..pb::PutRequest::default()
    };
    let compare = pb::Compare {
        result: CompareResult::Greater.into(),
        target: CompareTarget::Mod.into(),
        key,
        target_union: Some(TargetUnion::ModRevision(0)),
        range_end: Bytes::new(),
    };
    pb::TxnRequest {
        compare: vec![compare],
        success: vec![pb::RequestOp {
            request: Some(Op::RequestPut(put)),
        }],
        failure: vec![pb::RequestOp {
            request: Some(Op::RequestRange(get())),
        }],
    }
}

fn get() -> pb::RangeRequest {
    pb::RangeRequest {
        key: Bytes::from_static(KEY),
        ..pb::RangeRequest::default()
    }
}

async fn send_updates(kv: &KvClient<Channel>, load: Load) -> anyhow::Result<()> {
    let sent = stream::iter(0..load.requests).map(|_| {
        let mut kv = kv.clone();
        async move { kv.txn(update()).await }
    });
    let sent = sent.buffer_unordered(load.in_flight);
    sent.map_err(anyhow::Error::from)
        .try_for_each(async |answer| {
            ensure!(answer.get_ref().succeeded, "an update found another revision");
            Ok(())
        })
        .await
}

async fn send_gets(kv: &KvClient<Channel>, load: Load) -> anyhow::Result<()> {
    let sent = stream::iter(0..load.requests).map(|_| {
        let mut kv = kv.clone();
        async move { kv.range(get()).await }
    });
    let sent = sent.buffer_unordered(load.in_flight);
    sent.map_err(anyhow::Error::from)
        .try_for_each(async |answer| {
            ensure!(answer.get_ref().count == 1, "a get found no key");
            Ok(())
        })
        .await
}

/// Sends updates while watchers receive them, each on a stream of its own; returns when all have received all events.
async fn send_events(channel: &Channel, watchers: usize, load: Load) -> anyhow::Result<()> {
    let mut streams = Vec::new();
    for _ in 0..watchers {
        let create = pb::WatchCreateRequest {
            key: Bytes::from_static(KEY),
            ..pb::WatchCreateRequest::default()
        };
        let create = pb::WatchRequest {
            request_union: Some(pb::watch_request::RequestUnion::CreateRequest(create)),
        };
        let requests = stream::iter([create]).chain(stream::pending());
        let answers = WatchClient::new(channel.clone()).watch(requests).await?;
        let mut answers = answers.into_inner();
        let created = answers.message().await?;
        ensure!(created.is_some_and(|created| created.created), "a watch was refused");
        streams.push(answers);
    }
    let receiving = streams.into_iter().map(async |mut answers| {
        let mut events = 0;
        while events < load.requests {
            let answer = answers.message().await?.context("a watch ended")?;
            events += answer.events.len() as u64;
        }
        anyhow::Ok(())
    });
    let kv = KvClient::new(channel.clone());
    futures::try_join!(futures::future::try_join_all(receiving), send_updates(&kv, load),)?;
    Ok(())
}

async fn connect(port: u16) -> anyhow::Result<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}"))?;
    let connecting = async {
        loop {
            match endpoint.connect().await {
                Ok(channel) => return channel,
                Err(_) => tokio::time::sleep(CONNECT_INTERVAL).await,
            }
        }
    };
    let connected = tokio::time::timeout(START_TIMEOUT, connecting).await;
    connected.context("the brain does not serve in time")
}

fn from_env(name: &str, default: u64) -> anyhow::Result<u64> {
    std::env::var(name).map_or(Ok(default), |text| text.parse().with_context(|| format!("read {name}")))
}

async fn measure() -> anyhow::Result<()> {
    let load = Load {
        requests: from_env("REQUESTS", 20_000)?,
        in_flight: usize::try_from(from_env("IN_FLIGHT", 256)?)?,
    };
    let watchers = usize::try_from(from_env("WATCHERS", 100)?)?;
    let sampled = std::env::var("STACKS").unwrap_or_default();
    if !["", "updates", "gets", "events"].contains(&sampled.as_str()) {
        bail!("STACKS is one of updates, gets, events: {sampled}");
    }
    let dir = tempfile::TempDir::new()?;
    let port = testkit::ports::reserve()?;
    let mut server = CountedServer::start(dir.path(), port)?;
    let channel = connect(port).await?;
    let kv = KvClient::new(channel.clone());
    // Buffers and caches reach their sizes.
    let put = pb::PutRequest {
        key: Bytes::from_static(KEY),
        ..pb::PutRequest::default()
    };
    kv.clone().put(put).await?;
    send_updates(&kv, load).await?;
    send_gets(&kv, load).await?;

    println!(
        "{:>24} {:>12} {:>10} {:>10} {:>12}",
        "of each", "allocations", "bytes", "moved", "moved bytes"
    );
    let mut of_update = [0.0; 4];
    for part in ["updates", "gets", "events"] {
        let is_sampled = part == sampled;
        let requests = match part {
            "events" => load.requests / 20,
            _ => load.requests,
        };
        let requests = if is_sampled {
            requests.min(SAMPLED_REQUESTS)
        } else {
            requests
        };
        let load = Load { requests, ..load };
        if is_sampled {
            server.ask(&format!("sample {SAMPLE_INTERVAL}"))?;
        }
        let before = server.counts()?;
        match part {
            "updates" => send_updates(&kv, load).await?,
            "gets" => send_gets(&kv, load).await?,
            _ => send_events(&channel, watchers, load).await?,
        }
        let after = server.counts()?;
        server.ask("sample 0")?;
        let mut each = [0, 1, 2, 3].map(|at: usize| (after[at] - before[at]) as f64 / requests as f64);
        let name = match part {
            "updates" => {
                of_update = each;
                "update"
            }
            "gets" => "get",
            _ => {
                // Beside the updates that made them.
                for (each, of_update) in each.iter_mut().zip(of_update) {
                    *each = (*each - of_update) / watchers as f64;
                }
                "event to one watcher"
            }
        };
        let [allocations, bytes, moves, moved_bytes] = each;
        println!("{name:>24} {allocations:>12.2} {bytes:>10.0} {moves:>10.2} {moved_bytes:>12.0}");
        if is_sampled {
            server.print_stacks(requests)?;
        }
    }
    Ok(())
}
