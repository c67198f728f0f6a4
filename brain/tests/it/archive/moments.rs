//! Random moments of a store that is written to, while its server and its archive are killed: each is restored, by its revision and by its
//! time.

use std::env;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use chrono::{DateTime, Duration, Utc};
use rand::{RngExt as _, SeedableRng as _};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::transport::Channel;

use super::{archive, assert_chained, flags, is_current, text};
use crate::backup::{backup, printed, refused};
use crate::import::connect;
use crate::program::{Kubebrain, Process, READY_MESSAGE, STEP_TIMEOUT, lone};
use crate::wire::pb;
use pb::kv_client::KvClient;

/// Number of moments; `make test-long` has more.
const MOMENTS_VARIABLE: &str = "KUBEBRAIN_MOMENTS";
const MOMENTS: usize = 4;
const SEED: u64 = 0x6d6f_6d65;

/// Time by which a store that is restored to a time may be older, as the archive only knows when changes arrived.
const TOLERANCE_MS: i64 = 5_020;

/// A key that was acknowledged: its number, its revision, and the time after that.
#[derive(Debug, Clone, Copy, Default)]
struct Written {
    n: u64,
    revision: i64,
    time: DateTime<Utc>,
}

/// Writes one key after the other, each until it is acknowledged.
struct Writer {
    /// The number of the key that is being written.
    begun: Arc<AtomicU64>,
    acknowledged: watch::Receiver<Vec<Written>>,
    stop: watch::Sender<bool>,
    task: JoinSet<()>,
}

fn key(n: u64) -> String {
    format!("n/{n:08}")
}

impl Writer {
    fn start(channel: Channel) -> Self {
        let begun = Arc::new(AtomicU64::new(0));
        let (written, acknowledged) = watch::channel(Vec::new());
        let (stop, stopped) = watch::channel(false);
        let mut task = JoinSet::new();
        let number = Arc::clone(&begun);
        task.spawn(async move {
            let mut kv = KvClient::new(channel);
            for n in 1.. {
                if *stopped.borrow() {
                    return;
                }
                number.store(n, Ordering::SeqCst);
                let put = pb::PutRequest {
                    key: key(n).into(),
                    value: n.to_string().into(),
                    ..Default::default()
                };
                // The server may be away. A key that is put twice is the same key.
                let answer = loop {
                    match kv.put(put.clone()).await {
                        Ok(answer) => break answer.into_inner(),
                        Err(_) => tokio::task::yield_now().await,
                    }
                };
                let revision = answer.header.unwrap().revision;
                written.send_modify(|all: &mut Vec<Written>| {
                    all.push(Written {
                        n,
                        revision,
                        time: Utc::now(),
                    });
                });
            }
        });
        Self {
            begun,
            acknowledged,
            stop,
            task,
        }
    }

    fn last(&self) -> Written {
        self.acknowledged.borrow().last().copied().unwrap_or_default()
    }

    async fn has_written(&mut self, n: u64) {
        let is_written = |all: &Vec<Written>| all.last().is_some_and(|last| last.n >= n);
        let written = timeout(STEP_TIMEOUT, self.acknowledged.wait_for(is_written)).await;
        written.expect("writes go on").unwrap();
    }

    /// Returns all keys.
    async fn stop(mut self) -> Vec<Written> {
        self.stop.send_replace(true);
        self.task.join_next().await.unwrap().unwrap();
        self.acknowledged.borrow().clone()
    }
}

/// A moment: the last key that was acknowledged before `time`, and the number of keys that were begun until after it.
#[derive(Debug)]
struct Moment {
    last: Written,
    time: DateTime<Utc>,
    begun: u64,
}

impl Moment {
    /// Times of a restore have milliseconds: this is the end of the present one.
    async fn now(writer: &Writer) -> Self {
        let last = writer.last();
        let time = Utc::now() + Duration::milliseconds(1);
        while Utc::now() <= time + Duration::milliseconds(1) {
            tokio::task::yield_now().await;
        }
        let begun = writer.begun.load(Ordering::SeqCst);
        Self { last, time, begun }
    }
}

/// Returns the number of keys in a store that was restored; none is missing before the last one.
async fn restored_keys(dir: &Path) -> u64 {
    let store = Kubebrain::start(dir).await;
    let range = pb::RangeRequest {
        key: "n/".into(),
        range_end: "n0".into(),
        ..Default::default()
    };
    let answer = KvClient::new(connect(&store.url).await).range(range).await.unwrap();
    store.stop().await;
    fs::remove_dir_all(dir).unwrap();
    let mut count = 0;
    for (kv, n) in answer.into_inner().kvs.into_iter().zip(1..) {
        assert_eq!(
            (&kv.key[..], &kv.value[..]),
            (key(n).as_bytes(), n.to_string().as_bytes())
        );
        count = n;
    }
    count
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_moment_under_writes_is_restored_though_everything_is_killed() {
    let moments = env::var(MOMENTS_VARIABLE).map_or(MOMENTS, |count| count.parse().unwrap());
    let mut random = rand::rngs::SmallRng::seed_from_u64(SEED);
    let temp = TempDir::new().unwrap();
    let to = temp.path().join("backups");
    let (server_flags, url) = lone(&temp.path().join("source"));
    let begin = || Process::begin(&server_flags, url.clone());
    let mut server = begin();
    server.says(READY_MESSAGE).await;
    let mut writer = Writer::start(connect(&url).await);
    let mut archiving = archive(&url, &to, &[]);
    archiving.says("created ").await;
    archiving.says("stored a segment").await;
    let mut noted = Vec::new();
    for round in 0..moments {
        let more = random.random_range(1..200);
        let next = writer.last().n + more;
        writer.has_written(next).await;
        noted.push(Moment::now(&writer).await);
        if round % 4 == 0 {
            server.kill().await;
            server = begin();
            server.says(READY_MESSAGE).await;
            continue;
        }
        archiving.kill().await;
        if let Some(kill_at) = ["archive-segment-sealed:1", "archive-segment-stored:1"].get(round % 4 - 1) {
            let (code, said) = Process::doomed(&flags(&url, &to, &[]), kill_at).ended().await;
            assert_eq!(code, None, "{said}");
        }
        archiving = archive(&url, &to, &[]);
    }
    // It follows the store again.
    is_current(&to, Utc::now()).await;
    noted.push(Moment::now(&writer).await);
    let all = writer.stop().await;
    is_current(&to, Utc::now()).await;
    archiving.stop().await;
    server.stop().await;
    assert_chained(&to);
    eprintln!("{} keys, {} moments", all.len(), noted.len());

    let dir = temp.path().join("restored");
    let into = format!("--data-dir={}", dir.display());
    let mut exact = 0;
    for (number, moment) in noted.iter().enumerate() {
        let revision = format!("--at-revision={}", moment.last.revision);
        printed(backup(&to, &["restore", &into, &revision]));
        assert_eq!(restored_keys(&dir).await, moment.last.n, "{moment:?}");

        let time = format!("--at-time={}", text(moment.time));
        let restored = backup(&to, &["restore", &into, &time]);
        if !restored.status.success() {
            // It was away for longer than a time may be wrong.
            assert!(
                number + 1 < noted.len(),
                "the archive followed the store at the last moment"
            );
            let said = refused(restored);
            assert!(said.contains("the archive did not follow the store then"), "{said}");
            continue;
        }
        let found = restored_keys(&dir).await;
        let surely_before = moment.time - Duration::milliseconds(TOLERANCE_MS);
        let at_least = all.partition_point(|written| written.time <= surely_before) as u64;
        assert!((at_least..=moment.begun).contains(&found), "{found} keys: {moment:?}");
        exact += usize::from(found >= moment.last.n);
    }
    eprintln!("{exact} moments had by their time all that was acknowledged");
    printed(backup(&to, &["restore", &into, "--at-end"]));
    assert_eq!(restored_keys(&dir).await, all.len() as u64);
}
