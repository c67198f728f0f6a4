//! The account of what clients wrote, and the comparison of a store with it.

use std::collections::BTreeMap;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use pb::kv_client::KvClient;
use pb::watch_client::WatchClient;
use pb::watch_request::RequestUnion;
use programs::server::Server;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_stream::StreamExt as _;
use tonic::Code;
use tonic::transport::Channel;
use wire::etcdserverpb as pb;

const WRITERS: u64 = 6;
const KEYS_PER_WRITER: u64 = 8;
/// Each writer compacts now and then.
const WRITES_PER_COMPACTION: u64 = 97;
/// Revisions that are kept: more than the number of writes in flight.
const KEPT_REVISIONS: i64 = 60;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A key and its value; no value for a deletion.
type Write = (String, Option<Vec<u8>>);

/// All that is known of a store.
#[derive(Default)]
pub(super) struct Written {
    /// By revision: writes that were acknowledged, and writes in doubt that turned out to be stored.
    history: BTreeMap<i64, Write>,
    /// The keys as they were before that history, with the revisions of their last changes.
    before: BTreeMap<String, (i64, Vec<u8>)>,
    /// Writes without an answer. Each may be stored, once.
    in_doubt: Vec<Write>,
    /// The newest compaction that was acknowledged, and the newest that may have been done.
    compacted: (i64, i64),
    /// Numbers of values so far: no value is written twice.
    number: Arc<AtomicU64>,
}

/// Record of one writer until its server did not answer any more.
#[derive(Default)]
struct Log {
    acknowledged: Vec<(i64, Write)>,
    in_doubt: Option<Write>,
    compacted: (i64, i64),
}

/// Writers at work.
pub(super) struct Load {
    writers: JoinSet<Log>,
    shared: Shared,
}

#[derive(Clone)]
struct Shared {
    number: Arc<AtomicU64>,
    acknowledged: Arc<AtomicU64>,
    newest: Arc<AtomicI64>,
    stop: Arc<AtomicBool>,
    is_late: Arc<AtomicBool>,
}

impl Load {
    /// From now on answers come too late to count: a write that they acknowledge may be stored or not.
    pub(super) fn is_late(&self) {
        self.shared.is_late.store(true, SeqCst);
    }
}

impl Written {
    /// Returns when this many writes are acknowledged; the writers continue.
    pub(super) async fn write_until(&mut self, server: &Server, acknowledged: u64) -> Load {
        let load = self.begin(server).await;
        let reached = async {
            while load.shared.acknowledged.load(SeqCst) < acknowledged {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        timeout(ANSWER_TIMEOUT, reached).await.expect("writes are acknowledged");
        load
    }

    /// Writes until the server is gone.
    pub(super) async fn write_to_the_end(&mut self, server: &Server) {
        let load = self.begin(server).await;
        self.take(load).await;
    }

    /// Takes the account of writers whose server is gone.
    pub(super) async fn join(&mut self, load: Load) {
        let joined = timeout(ANSWER_TIMEOUT, self.take(load)).await;
        joined.expect("writers end with their server");
    }

    async fn take(&mut self, load: Load) {
        for log in load.writers.join_all().await {
            for (revision, write) in log.acknowledged {
                let other = self.history.insert(revision, write);
                assert_eq!(other, None, "two writes were acknowledged with revision {revision}");
            }
            self.in_doubt.extend(log.in_doubt);
            self.compacted.0 = self.compacted.0.max(log.compacted.0);
            self.compacted.1 = self.compacted.1.max(log.compacted.1);
        }
    }

    /// Compacts at the newest revision, and waits until all of it is done.
    pub(super) async fn compact(&mut self, server: &Server) {
        let mut kv = KvClient::new(server.connect().await.unwrap());
        let revision = *self.history.last_key_value().expect("something was written").0;
        let compact = pb::CompactionRequest {
            revision,
            physical: true,
        };
        kv.compact(compact).await.unwrap();
        self.compacted = (revision, revision);
    }

    /// Waits until the process of a server has ended.
    pub(super) async fn has_ended(&self, server: &mut Server) -> ExitStatus {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        loop {
            if let Some(status) = server.ended().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "it goes on: {}", server.last_lines());
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    async fn begin(&mut self, server: &Server) -> Load {
        let shared = Shared {
            number: self.number.clone(),
            acknowledged: Arc::default(),
            newest: Arc::default(),
            stop: Arc::default(),
            is_late: Arc::default(),
        };
        let mut writers = JoinSet::new();
        for writer in 0..WRITERS {
            let kv = KvClient::new(server.connect().await.unwrap());
            writers.spawn(write(writer, kv, shared.clone()));
        }
        Load { writers, shared }
    }

    /// Compares everything that a store holds with the account, and adds to it the writes in doubt that are stored.
    pub(super) async fn check(&mut self, server: &Server) {
        let mut kv = KvClient::new(server.connect().await.unwrap()).max_decoding_message_size(usize::MAX);
        let all = kv.range(everything()).await.unwrap().into_inner();
        let head = all.header.unwrap().revision;
        let newest = self.history.last_key_value().map_or(0, |(revision, _)| *revision);
        assert!(
            head >= newest,
            "revision {newest} was acknowledged, the store is at {head}"
        );
        let floor = self.floor(server, head).await;
        let events = events(server, floor.max(1) + 1, head).await;
        for revision in (floor + 1).max(2)..=head {
            let found = events
                .get(&revision)
                .unwrap_or_else(|| panic!("no event of revision {revision}"));
            match self.history.get(&revision) {
                Some(write) => assert!(
                    found == write,
                    "revision {revision} is {found:?}, {write:?} was acknowledged"
                ),
                None => self.confirm(revision, found.clone()),
            }
        }
        // Compacted revisions cannot be read: only the resulting keys are kept.
        let kept = self.history.split_off(&(floor + 1));
        change(&mut self.before, &std::mem::replace(&mut self.history, kept));
        let mut state = self.before.clone();
        change(&mut state, &self.history);
        let found: BTreeMap<String, (i64, Vec<u8>)> = all
            .kvs
            .into_iter()
            .map(|kv| {
                let key = String::from_utf8(kv.key.to_vec()).unwrap();
                (key, (kv.mod_revision, kv.value.to_vec()))
            })
            .collect();
        assert!(
            found == state,
            "at revision {head} (compacted {floor}) the keys are not those that were written"
        );
        // A write that is not stored now is never stored.
        self.in_doubt.clear();
    }

    /// Adds a stored write that was not acknowledged: it must be one that was tried, and must be stored only once.
    fn confirm(&mut self, revision: i64, found: Write) {
        let tried = self.in_doubt.iter().position(|write| *write == found);
        let tried = tried.unwrap_or_else(|| panic!("revision {revision} is {:?}, which nobody wrote", found.0));
        self.in_doubt.swap_remove(tried);
        self.history.insert(revision, found);
    }

    /// The compacted revision: one that was acknowledged, or tried.
    async fn floor(&self, server: &Server, head: i64) -> i64 {
        let first = next(&mut watch(server, 1).await).await;
        let floor = if first.canceled { first.compact_revision } else { 0 };
        let (least, most) = self.compacted;
        assert!(
            (least..=most.max(least)).contains(&floor) && floor <= head,
            "compacted at {floor}, asked for {least} to {most}"
        );
        floor
    }
}

/// Brings keys to the end of a history.
fn change(state: &mut BTreeMap<String, (i64, Vec<u8>)>, history: &BTreeMap<i64, Write>) {
    for (revision, (key, value)) in history {
        match value {
            Some(value) => state.insert(key.clone(), (*revision, value.clone())),
            None => state.remove(key),
        };
    }
}

/// Puts, deletes and compacts until there is no answer.
async fn write(writer: u64, mut kv: KvClient<Channel>, shared: Shared) -> Log {
    let mut log = Log::default();
    while !shared.stop.load(SeqCst) {
        let number = shared.number.fetch_add(1, SeqCst);
        let key = format!("w{writer}/{}", number % KEYS_PER_WRITER);
        let write = if number.is_multiple_of(11) {
            (key.clone(), None)
        } else {
            // Big enough for several segments and tables in a short time.
            let size = 200 + (number * 7_919) % 30_000;
            let mut value = format!("{number} ").into_bytes();
            value.resize(size as usize, b'a' + (number % 26) as u8);
            (key.clone(), Some(value))
        };
        let answer = match write.1.clone() {
            Some(value) => {
                let put = pb::PutRequest {
                    key: key.into(),
                    value: value.into(),
                    ..pb::PutRequest::default()
                };
                kv.put(put).await.map(|answer| answer.into_inner().header)
            }
            None => {
                let delete = pb::DeleteRangeRequest {
                    key: key.into(),
                    ..pb::DeleteRangeRequest::default()
                };
                let answer = kv.delete_range(delete).await.map(tonic::Response::into_inner);
                if answer.as_ref().is_ok_and(|answer| answer.deleted == 0) {
                    continue;
                }
                answer.map(|answer| answer.header)
            }
        };
        let header = match answer {
            Ok(header) if !shared.is_late.load(SeqCst) => header,
            _ => {
                log.in_doubt = Some(write);
                break;
            }
        };
        let revision = header.unwrap().revision;
        log.acknowledged.push((revision, write));
        shared.acknowledged.fetch_add(1, SeqCst);
        let newest = shared.newest.fetch_max(revision, SeqCst).max(revision);
        if number.is_multiple_of(WRITES_PER_COMPACTION) && newest > KEPT_REVISIONS + 1 {
            let revision = newest - KEPT_REVISIONS;
            log.compacted.1 = log.compacted.1.max(revision);
            let compact = pb::CompactionRequest {
                revision,
                physical: false,
            };
            match kv.compact(compact).await {
                Ok(_) if shared.is_late.load(SeqCst) => break,
                Ok(_) => log.compacted.0 = log.compacted.0.max(revision),
                // Another writer was faster.
                Err(status) if status.code() == Code::OutOfRange => {}
                Err(_) => break,
            }
        }
    }
    shared.stop.store(true, SeqCst);
    log
}

fn everything() -> pb::RangeRequest {
    pb::RangeRequest {
        key: vec![0].into(),
        range_end: vec![0].into(),
        ..pb::RangeRequest::default()
    }
}

/// All events from a revision to another, each of one key.
async fn events(server: &Server, from: i64, to: i64) -> BTreeMap<i64, Write> {
    let (mut found, mut responses) = (BTreeMap::new(), watch(server, from).await);
    while to >= from && !found.contains_key(&to) {
        let response = next(&mut responses).await;
        assert!(!response.canceled, "{response:?}");
        for event in response.events {
            let is_delete = event.r#type == 1;
            let kv = event.kv.unwrap();
            let key = String::from_utf8(kv.key.to_vec()).unwrap();
            let other = found.insert(kv.mod_revision, (key, (!is_delete).then(|| kv.value.to_vec())));
            assert_eq!(other, None, "two events of revision {}", kv.mod_revision);
        }
    }
    found
}

async fn next(responses: &mut tonic::Streaming<pb::WatchResponse>) -> pb::WatchResponse {
    loop {
        let message = timeout(ANSWER_TIMEOUT, responses.message())
            .await
            .expect("a message of the watch");
        let message = message.unwrap().expect("the watch goes on");
        if !message.created || message.canceled {
            return message;
        }
    }
}

/// A watch of all keys from a revision on, with a progress message to end an empty one.
async fn watch(server: &Server, from: i64) -> tonic::Streaming<pb::WatchResponse> {
    let create = pb::WatchCreateRequest {
        key: vec![0].into(),
        range_end: vec![0].into(),
        start_revision: from,
        ..pb::WatchCreateRequest::default()
    };
    let requests = [
        RequestUnion::CreateRequest(create),
        RequestUnion::ProgressRequest(pb::WatchProgressRequest {}),
    ];
    let requests = requests.map(|union| pb::WatchRequest {
        request_union: Some(union),
    });
    // The stream of requests stays open.
    let requests = tokio_stream::iter(requests).chain(tokio_stream::pending());
    let mut client = WatchClient::new(server.connect().await.unwrap()).max_decoding_message_size(usize::MAX);
    client.watch(requests).await.unwrap().into_inner()
}
