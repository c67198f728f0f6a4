//! A restore of a snapshot that is killed continues when the same command is run again.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;

use differential::FLAGS;
use pb::auth_client::AuthClient;
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use pb::watch_client::WatchClient;
use programs::progress::Progress;
use programs::server::{Program, Server};
use programs::tikv::Tikv;
use tempfile::TempDir;
use tokio_stream::StreamExt as _;
use tonic::transport::Channel;
use wire::etcdserverpb as pb;

use super::{KILL_AT_VARIABLE, SIGKILL};
use crate::harness::deadline;
use crate::snapshot::{Content, assert_same, read, save};

/// A restore logs this when it continues an earlier one.
const CONTINUES_MESSAGE: &str = "continuing an interrupted restore";

const COMPACTED_REVISION: i64 = 30;

/// Snapshots of an etcd, and what it had.
struct Taken {
    /// Before anything was written.
    empty: PathBuf,
    whole: PathBuf,
    content: Content,
    newest: i64,
}

async fn user_names(channel: &Channel) -> Vec<String> {
    let mut auth = AuthClient::new(channel.clone());
    let listed = auth.user_list(pb::AuthUserListRequest {}).await.unwrap();
    listed.into_inner().users
}

/// Writes more than fits in some memtables, all kinds of it.
async fn write(channel: &Channel) -> i64 {
    let (mut kv, mut lease) = (KvClient::new(channel.clone()), LeaseClient::new(channel.clone()));
    for id in 1..=3 {
        let grant = pb::LeaseGrantRequest { id, ttl: 3_600 };
        lease.lease_grant(grant).await.unwrap();
    }
    let mut newest = 0;
    for n in 0..90_u8 {
        let put = pb::PutRequest {
            key: format!("key/{}", n % 7).into(),
            value: vec![n; 300_000].into(),
            lease: i64::from(n % 4),
            ..Default::default()
        };
        newest = kv.put(put).await.unwrap().into_inner().header.unwrap().revision;
        if n % 9 == 0 {
            let delete = pb::DeleteRangeRequest {
                key: format!("key/{}", n % 5).into(),
                ..Default::default()
            };
            let deleted = kv.delete_range(delete).await.unwrap().into_inner();
            newest = deleted.header.unwrap().revision;
        }
    }
    let compact = pb::CompactionRequest {
        revision: COMPACTED_REVISION,
        physical: true,
    };
    kv.compact(compact).await.unwrap();
    let user = pb::AuthUserAddRequest {
        name: "one".to_owned(),
        password: "p".to_owned(),
        ..Default::default()
    };
    AuthClient::new(channel.clone()).user_add(user).await.unwrap();
    newest
}

/// The revisions of all events that a watch without previous versions receives, up to a revision.
async fn revisions(channel: &Channel, newest: i64) -> Vec<i64> {
    let create = pb::WatchCreateRequest {
        key: "\0".into(),
        range_end: "\0".into(),
        start_revision: COMPACTED_REVISION + 1,
        ..Default::default()
    };
    let create = pb::WatchRequest {
        request_union: Some(pb::watch_request::RequestUnion::CreateRequest(create)),
    };
    let requests = tokio_stream::once(create).chain(tokio_stream::pending());
    let mut client = WatchClient::new(channel.clone()).max_decoding_message_size(usize::MAX);
    let (mut stream, mut found) = (client.watch(requests).await.unwrap().into_inner(), Vec::new());
    while found.last().is_none_or(|last| *last < newest) {
        let message = stream.message().await.unwrap().expect("a watch goes on");
        let events = message.events.into_iter();
        found.extend(events.map(|event| event.kv.unwrap().mod_revision));
    }
    found
}

impl Taken {
    async fn of_etcd(dir: &Path) -> Self {
        let etcd = Server::start(&Program::etcd(&Progress::stderr()).unwrap(), FLAGS).unwrap();
        let channel = etcd.connect().await.unwrap();
        let (empty, whole) = (dir.join("empty"), dir.join("whole"));
        save(&channel, &empty).await;
        let newest = write(&channel).await;
        save(&channel, &whole).await;
        let content = read(&channel, (COMPACTED_REVISION, newest)).await;
        etcd.stop().unwrap();
        Self {
            empty,
            whole,
            content,
            newest,
        }
    }

    /// Starts a brain, and compares what it has with what the etcd had.
    async fn assert_restored(&self, brain: &Server) {
        let channel = brain.connect().await.unwrap();
        assert_same(
            &read(&channel, (COMPACTED_REVISION, self.newest)).await,
            &self.content,
            "the copy",
        );
        assert_eq!(user_names(&channel).await, ["one"]);
        // A watch that goes past the last revision sees whether the log has anything twice.
        let put = pb::PutRequest {
            key: "after".into(),
            ..Default::default()
        };
        let put = KvClient::new(channel.clone()).put(put).await.unwrap().into_inner();
        assert_eq!(put.header.unwrap().revision, self.newest + 1);
        let mut expected = self.content.revisions();
        expected.push(self.newest + 1);
        assert_eq!(revisions(&channel, self.newest + 1).await, expected);
    }
}

/// Restores; is killed when rows are written for the n-th time, if that is said.
fn restore(program: &Program, file: &Path, into: &[String], killed_at: Option<u32>) -> Output {
    let mut command = programs::server::command(program);
    command.args(["snapshot", "restore"]).arg(file).args(into);
    if let Some(times) = killed_at {
        command.env(KILL_AT_VARIABLE, format!("rows-written:{times}"));
    }
    command.output().unwrap()
}

fn log(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn assert_killed(output: &Output) {
    assert_eq!(output.status.signal(), Some(SIGKILL), "{}", log(output));
}

#[tokio::test(flavor = "multi_thread")]
async fn restore_that_is_killed_goes_on() {
    let _deadline = deadline();
    let (program, temp) = (Program::kubebrain().unwrap(), TempDir::new().unwrap());
    let taken = Taken::of_etcd(temp.path()).await;
    let dir = temp.path().join("copy");
    let into = [format!("--data-dir={}", dir.display())];
    let mut kills = 0;
    let done = loop {
        let output = restore(&program, &taken.whole, &into, Some(kills + 1));
        assert_eq!(log(&output).contains(CONTINUES_MESSAGE), kills > 0, "{}", log(&output));
        if output.status.success() {
            break output;
        }
        assert_killed(&output);
        kills += 1;
    };
    assert!(kills > 2, "it was killed {kills} times");
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(said.starts_with("restored revision "), "{said}");
    let brain = Server::start_in(&program, &dir, FLAGS).unwrap();
    taken.assert_restored(&brain).await;
    brain.stop().unwrap();

    // A part of another snapshot is of no use.
    let dir = temp.path().join("other");
    let into = [format!("--data-dir={}", dir.display())];
    assert_killed(&restore(&program, &taken.whole, &into, Some(2)));
    let output = restore(&program, &taken.empty, &into, None);
    assert!(
        output.status.success() && !log(&output).contains(CONTINUES_MESSAGE),
        "{}",
        log(&output)
    );
    let brain = Server::start_in(&program, &dir, FLAGS).unwrap();
    let range = pb::RangeRequest {
        key: "\0".into(),
        range_end: "\0".into(),
        ..Default::default()
    };
    let mut kv = KvClient::new(brain.connect().await.unwrap());
    let found = kv.range(range).await.unwrap().into_inner();
    assert!(found.kvs.is_empty() && found.header.unwrap().revision == 1);
    brain.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn restore_into_tikv_that_is_killed_goes_on() {
    let _deadline = deadline();
    let (program, temp) = (Program::kubebrain().unwrap(), TempDir::new().unwrap());
    let (taken, tikv) = (Taken::of_etcd(temp.path()).await, Tikv::for_test().unwrap());
    let into = [
        "--storage=tikv".to_owned(),
        format!("--tikv-pd-endpoints={}", tikv.pd()),
        format!("--tikv-key-prefix=restored-{:032x}", rand::random::<u128>()),
    ];
    for (kills, at) in [1, 4].into_iter().enumerate() {
        let output = restore(&program, &taken.whole, &into, Some(at));
        assert_killed(&output);
        assert_eq!(log(&output).contains(CONTINUES_MESSAGE), kills > 0, "{}", log(&output));
    }
    let refused = |file: &Path, reason: &str| {
        let output = restore(&program, file, &into, None);
        assert_eq!(output.status.code(), Some(1), "{}", log(&output));
        assert!(log(&output).contains(reason), "{}", log(&output));
    };
    refused(&taken.empty, "holds a part of another snapshot");
    let output = restore(&program, &taken.whole, &into, None);
    assert!(
        output.status.success() && log(&output).contains(CONTINUES_MESSAGE),
        "{}",
        log(&output)
    );
    let flags: Vec<&str> = FLAGS.iter().copied().chain(into.iter().map(String::as_str)).collect();
    let brain = Server::start(&program, &flags).unwrap();
    taken.assert_restored(&brain).await;
    brain.stop().unwrap();
    refused(&taken.whole, "the key prefix holds data already");
}
