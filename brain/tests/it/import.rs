//! `kubebrain import`: what a copy of a running store has, and what becomes of one that is interrupted.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use brain::data_dir::DIR_FORMAT;
use cluster::prefix_owner;
use etcd_types::pb::mvccpb;
use mock_tikv::{Action, Fault, Rpc};
use pb::auth_client::AuthClient;
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use runtime::tasks::Owned;
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::time::timeout;
use tonic::transport::Channel;

use crate::members::Site;
use crate::members::certificates::Ca;
use crate::program::{Kubebrain, Process, READY_MESSAGE, STEP_TIMEOUT, free_port, lone, refusal};
use crate::wire::pb;

/// Between two writes of a client that does not stop.
const WRITE_INTERVAL: Duration = Duration::from_millis(20);

/// It logs this when it has reached the source.
const REACHED_MESSAGE: &str = "the copy has reached the source";

/// Begins a copy into a directory.
fn begin(url: &str, dir: &Path, more: &[&str]) -> Process {
    let dir = format!("--data-dir={}", dir.display());
    begin_with(url, &[&[dir.as_str()], more].concat())
}

/// Begins a copy to where the flags say.
fn begin_with(url: &str, more: &[&str]) -> Process {
    let mut flags = vec!["import".to_owned(), format!("--from-endpoints={url}")];
    flags.extend(more.iter().map(|flag| (*flag).to_owned()));
    Process::begin(&flags, String::new())
}

/// Waits for a copy that is to succeed; returns its log.
async fn finished(mut copy: Process) -> String {
    let (code, said) = copy.ended().await;
    assert_eq!(code, Some(0), "{said}");
    said
}

pub(crate) async fn connect(url: &str) -> Channel {
    Channel::from_shared(url.to_owned()).unwrap().connect().await.unwrap()
}

async fn put(kv: &mut KvClient<Channel>, key: &str, n: u32, lease: i64) -> i64 {
    let put = pb::PutRequest {
        key: key.to_owned().into(),
        value: format!("{n}").repeat(n as usize % 70).into(),
        lease,
        ..Default::default()
    };
    kv.put(put).await.unwrap().into_inner().header.unwrap().revision
}

/// Writes puts, deletions, txns and leases; returns the newest revision.
pub(crate) async fn write(channel: &Channel, from: u32) -> i64 {
    let (mut kv, mut lease) = (KvClient::new(channel.clone()), LeaseClient::new(channel.clone()));
    let mut revision = 0;
    for n in from..from + 60 {
        let key = format!("key/{}", n * 7 % 23);
        let id = i64::from(1_000 + n);
        match n % 6 {
            0 => {
                let delete = pb::DeleteRangeRequest {
                    key: key.into(),
                    range_end: "key/3".into(),
                    ..Default::default()
                };
                kv.delete_range(delete).await.unwrap();
            }
            1 => {
                lease
                    .lease_grant(pb::LeaseGrantRequest { id, ttl: 3_600 })
                    .await
                    .unwrap();
                put(&mut kv, &key, n, id).await;
            }
            2 => {
                // Its keys are deleted with it.
                lease.lease_grant(pb::LeaseGrantRequest { id, ttl: 600 }).await.unwrap();
                put(&mut kv, &key, n, id).await;
                lease.lease_revoke(pb::LeaseRevokeRequest { id }).await.unwrap();
            }
            3 => {
                let ops = [n, n + 1, n + 2].map(|n| {
                    let put = pb::PutRequest {
                        key: format!("txn/{}", n % 5).into(),
                        value: format!("{n}").into(),
                        ..Default::default()
                    };
                    pb::RequestOp {
                        request: Some(pb::request_op::Request::RequestPut(put)),
                    }
                });
                let txn = pb::TxnRequest {
                    success: ops.into(),
                    ..Default::default()
                };
                kv.txn(txn).await.unwrap();
            }
            _ => {
                put(&mut kv, &key, n, 0).await;
            }
        }
        revision = put(&mut kv, "last", n, 0).await;
    }
    // No key names it.
    let id = i64::from(9_000 + from);
    lease
        .lease_grant(pb::LeaseGrantRequest { id, ttl: 7_200 })
        .await
        .unwrap();
    revision
}

/// The content that clients can read: all keys at all revisions, leases and users.
#[derive(Debug, PartialEq)]
pub(crate) struct Content {
    revisions: BTreeMap<i64, Option<Vec<mvccpb::KeyValue>>>,
    leases: BTreeMap<i64, (i64, Vec<bytes::Bytes>)>,
    users: Vec<String>,
}

impl Content {
    /// Leaves leases without keys out.
    pub(crate) fn with_used_leases(mut self) -> Self {
        self.leases.retain(|_, (_, keys)| !keys.is_empty());
        self
    }

    /// Returns true if it has the same keys at all revisions up to this one.
    pub(crate) fn has_history_of(&self, other: &Self, revision: i64) -> bool {
        self.revisions.range(..=revision).eq(other.revisions.range(..=revision))
    }
}

pub(crate) async fn read(channel: &Channel, newest: i64) -> Content {
    let (mut kv, mut lease) = (KvClient::new(channel.clone()), LeaseClient::new(channel.clone()));
    let mut revisions = BTreeMap::new();
    for revision in 1..=newest {
        let range = pb::RangeRequest {
            key: "\0".into(),
            range_end: "\0".into(),
            revision,
            ..Default::default()
        };
        // None if it is compacted.
        let kvs = kv.range(range).await.map(|found| found.into_inner().kvs);
        revisions.insert(revision, kvs.ok());
    }
    let ids = lease
        .lease_leases(pb::LeaseLeasesRequest {})
        .await
        .unwrap()
        .into_inner();
    let mut leases = BTreeMap::new();
    for id in ids.leases.into_iter().map(|lease| lease.id) {
        let ask = pb::LeaseTimeToLiveRequest { id, keys: true };
        let found = lease.lease_time_to_live(ask).await.unwrap().into_inner();
        assert!(
            found.ttl <= found.granted_ttl && found.ttl > found.granted_ttl - 600,
            "{found:?}"
        );
        leases.insert(id, (found.granted_ttl, found.keys));
    }
    let mut auth = AuthClient::new(channel.clone());
    let users = auth
        .user_list(pb::AuthUserListRequest {})
        .await
        .unwrap()
        .into_inner()
        .users;
    Content {
        revisions,
        leases,
        users,
    }
}

async fn assert_copied(source: &Kubebrain, dir: &Path, newest: i64) {
    let copy = Kubebrain::start(dir).await;
    assert_equal(source, &copy.url, newest).await;
    copy.stop().await;
}

async fn assert_equal(source: &Kubebrain, copy: &str, newest: i64) {
    let (source, found) = (connect(&source.url).await, connect(copy).await);
    let (expected, found) = (read(&source, newest).await, read(&found, newest).await);
    for (revision, kvs) in &expected.revisions {
        assert!(found.revisions.get(revision) == Some(kvs), "revision {revision}");
    }
    assert_eq!(found, expected);
    let mut client = KvClient::new(connect(copy).await);
    assert_eq!(put(&mut client, "after", 1, 0).await, newest + 1);
}

pub(crate) async fn compact(channel: &Channel, revision: i64) {
    let compact = pb::CompactionRequest {
        revision,
        physical: true,
    };
    KvClient::new(channel.clone()).compact(compact).await.unwrap();
}

pub(crate) async fn add_user(channel: &Channel, name: &str) {
    let user = pb::AuthUserAddRequest {
        name: name.to_owned(),
        password: "p".to_owned(),
        ..Default::default()
    };
    AuthClient::new(channel.clone()).user_add(user).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_copies_a_running_store() {
    let temp = TempDir::new().unwrap();
    let path = |name: &str| temp.path().join(name);
    let source = Kubebrain::start(&path("source")).await;
    let channel = connect(&source.url).await;
    let half = write(&channel, 0).await;
    compact(&channel, half - 20).await;
    add_user(&channel, "one").await;
    let earlier = begin(&source.url, &path("earlier"), &["--follow"]);
    earlier.says(REACHED_MESSAGE).await;
    earlier.kill().await;
    let newest = write(&channel, 60).await;
    let said = finished(begin(&source.url, &path("copy"), &[])).await;
    assert!(said.contains("comparing the copy with the source"), "{said}");
    let mut again = begin(&source.url, &path("copy"), &["--restart"]);
    let (code, said) = again.ended().await;
    assert!(
        code == Some(1) && said.contains("is not empty: it holds a store"),
        "{said}"
    );
    assert_copied(&source, &path("copy"), newest).await;

    // History ends where the operator says.
    let until = newest - 30;
    finished(begin(
        &source.url,
        &path("earlier"),
        &[&format!("--until-revision={until}")],
    ))
    .await;
    let copy = Kubebrain::start(&path("earlier")).await;
    let mut client = KvClient::new(connect(&copy.url).await);
    assert_eq!(put(&mut client, "after", 1, 0).await, until + 1);
    copy.stop().await;
    let until = format!("--until-revision={half}");
    let (code, said) = begin(&source.url, &path("late"), &[&until]).ended().await;
    assert!(code == Some(1) && said.contains("past --until-revision"), "{said}");
    source.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_copy_is_not_served_and_goes_on() {
    let temp = TempDir::new().unwrap();
    let path = |name: &str| temp.path().join(name);
    let source = Kubebrain::start(&path("source")).await;
    let channel = connect(&source.url).await;
    write(&channel, 0).await;
    let copy = begin(&source.url, &path("copy"), &["--follow"]);
    copy.says(REACHED_MESSAGE).await;
    write(&channel, 60).await;
    copy.kill().await;
    let said = refusal(&path("copy")).await;
    assert!(
        said.contains("finish it with `kubebrain snapshot restore` or `kubebrain import`"),
        "{said}"
    );

    // Another cluster is no source for it.
    let other = Kubebrain::start(&path("other")).await;
    let (code, said) = begin(&other.url, &path("copy"), &[]).ended().await;
    assert!(
        code == Some(1) && said.contains("holds a copy of the cluster"),
        "{said}"
    );
    other.stop().await;

    // Nor does an earlier version continue what a later one has written.
    let file = path("copy").join("IMPORTING");
    let begun = std::fs::read_to_string(&file).unwrap();
    let format = format!("\"format\":{DIR_FORMAT}");
    assert!(begun.contains(&format), "{begun}");
    std::fs::write(&file, begun.replace(&format, &format!("\"format\":{}", DIR_FORMAT + 1))).unwrap();
    let (code, said) = begin(&source.url, &path("copy"), &[]).ended().await;
    assert!(code == Some(1) && said.contains("a newer kubebrain began"), "{said}");
    std::fs::write(&file, begun).unwrap();

    let half = write(&channel, 120).await;
    compact(&channel, half / 4).await;
    add_user(&channel, "late").await;
    let mut copy = begin(&source.url, &path("copy"), &["--follow"]);
    copy.says(REACHED_MESSAGE).await;
    copy.signal(Signal::TERM);
    let (code, said) = copy.ended().await;
    assert!(
        code == Some(1) && said.contains("the same command continues it"),
        "{said}"
    );

    let copy = begin(&source.url, &path("copy"), &["--follow"]);
    copy.says(REACHED_MESSAGE).await;
    assert_eq!(copy.said("created a store"), 0);
    let newest = write(&channel, 180).await;
    copy.signal(Signal::USR1);
    finished(copy).await;
    assert_copied(&source, &path("copy"), newest).await;
    source.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copy_begins_again_when_the_source_has_compacted_what_it_needs() {
    let temp = TempDir::new().unwrap();
    let path = |name: &str| temp.path().join(name);
    let source = Kubebrain::start(&path("source")).await;
    let channel = connect(&source.url).await;
    write(&channel, 0).await;
    let copy = begin(&source.url, &path("copy"), &["--follow"]);
    copy.says(REACHED_MESSAGE).await;
    copy.kill().await;
    let newest = write(&channel, 60).await;
    compact(&channel, newest - 10).await;
    let said = finished(begin(&source.url, &path("copy"), &[])).await;
    assert!(said.contains("restarting the copy with a new snapshot"), "{said}");
    assert_copied(&source, &path("copy"), newest).await;
    source.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_copies_into_a_key_prefix() {
    let temp = TempDir::new().unwrap();
    let source = Kubebrain::start(&temp.path().join("source")).await;
    let channel = connect(&source.url).await;
    write(&channel, 0).await;
    let site = Site::new(1).await;
    let pd = format!("--tikv-pd-endpoints={}", site.tikv.pd());
    let prefix = "--tikv-key-prefix=copied";
    let begin = |more: &[&str]| begin_with(&source.url, &[&["--storage=tikv", &pd, prefix], more].concat());
    // As an interrupted restore leaves it.
    let options = engine_tikv::ConnectOptions::new(vec![site.tikv.pd()], "copied");
    let (tikv, _supervisor) = engine_tikv::Tikv::attach(options).await.unwrap();
    let register = tikv.register(prefix_owner::OWNER_REGISTER);
    prefix_owner::begin_restore(&register, "etcd-cluster").await.unwrap();
    let (code, said) = begin(&[]).ended().await;
    assert!(
        code == Some(1) && said.contains("use --restart to discard it"),
        "{said}"
    );
    drop(tikv);
    let copy = begin(&["--follow", "--restart"]);
    copy.says(REACHED_MESSAGE).await;
    copy.kill().await;
    let (code, said) = site.begin(0, 1, &[prefix]).ended().await;
    assert!(
        code == Some(1) && said.contains("continue with the same `kubebrain snapshot restore` or `kubebrain import`"),
        "{said}"
    );

    let half = write(&channel, 60).await;
    compact(&channel, half / 3).await;
    let mut copy = begin(&["--follow"]);
    copy.says(REACHED_MESSAGE).await;
    assert_eq!(copy.said("continuing a copy"), 1);
    copy.signal(Signal::TERM);
    let (code, said) = copy.ended().await;
    assert!(
        code == Some(1) && said.contains("the same command continues it"),
        "{said}"
    );

    // A server that does not say so may destroy the old copy some time, and with it the new one.
    let silent = Fault::new(Rpc::UnsafeDestroyRange, Action::LoseReply { silent: false });
    let silent = site.tikv.faults().add(silent).unwrap();
    let (code, said) = begin(&["--restart"]).ended().await;
    assert!(code == Some(1) && said.contains("did not confirm"), "{said}");
    site.tikv.faults().remove(silent).unwrap();
    let copy = begin(&["--follow", "--restart"]);
    copy.says(REACHED_MESSAGE).await;
    assert_eq!(
        (
            copy.said("deleting an incomplete copy"),
            copy.said("created a store from the snapshot")
        ),
        (1, 1)
    );
    let newest = write(&channel, 120).await;
    copy.signal(Signal::USR1);
    finished(copy).await;
    let member = site.start(0, 1, &[prefix]).await;
    assert_equal(&source, &site.client_url(0), newest).await;
    for restarts in [&[][..], &["--restart"]] {
        let (code, said) = begin(restarts).ended().await;
        assert!(
            code == Some(1) && said.contains("the key prefix holds data already"),
            "{said}"
        );
    }
    drop(member);
    source.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn source_with_tls_and_users_is_copied() {
    let temp = TempDir::new().unwrap();
    let path = |name: &str| temp.path().join(name);
    let file = |flag: &str, name: &str| format!("--{flag}={}", path(name).display());
    let source = Kubebrain::start(&path("source")).await;
    let channel = connect(&source.url).await;
    let newest = write(&channel, 0).await;
    // As with etcd's client, --user has no effect while authentication is not enabled.
    finished(begin(&source.url, &path("all"), &["--user=root:p"])).await;
    assert_copied(&source, &path("all"), newest).await;
    add_user(&channel, "root").await;
    let mut auth = AuthClient::new(channel.clone());
    let role = pb::AuthUserGrantRoleRequest {
        user: "root".to_owned(),
        role: "root".to_owned(),
    };
    auth.user_grant_role(role).await.unwrap();
    auth.auth_enable(pb::AuthEnableRequest {}).await.unwrap();
    source.stop().await;

    let ca = Ca::new("ca");
    std::fs::write(path("ca.crt"), &ca.pem).unwrap();
    ca.write(temp.path(), "server", "server", time::Duration::days(1));
    ca.write(temp.path(), "client", "client", time::Duration::days(1));
    let (mut flags, url) = lone(&path("source"));
    let url = url.replace("http://", "https://");
    flags.extend([
        format!("--listen-client-urls={url}"),
        format!("--advertise-client-urls={url}"),
        file("cert-file", "server.crt"),
        file("key-file", "server.key"),
        file("trusted-ca-file", "ca.crt"),
        "--client-cert-auth".to_owned(),
    ]);
    let source = Process::begin(&flags, url.clone());
    source.says(READY_MESSAGE).await;
    let (ca, cert, key) = (
        file("cacert", "ca.crt"),
        file("cert", "client.crt"),
        file("key", "client.key"),
    );
    // Either the alert or the closed connection is noticed first. Without --user, the common name of the certificate is the user.
    for (more, text) in [
        (&[ca.as_str()][..], "connect to https://"),
        (&[&ca, &cert, &key], "permission denied"),
        (&[&ca, &cert, &key, "--user=root:other"], "authentication failed"),
    ] {
        let (code, said) = begin(&url, &path("copy"), more).ended().await;
        assert!(code == Some(1) && said.contains(text), "{said}");
    }
    finished(begin(&url, &path("copy"), &[&ca, &cert, &key, "--user=root:p"])).await;
    source.stop().await;
    let copy = Kubebrain::start(&path("copy")).await;
    let range = pb::RangeRequest {
        key: "last".into(),
        ..Default::default()
    };
    let mut kv = KvClient::new(connect(&copy.url).await);
    let refused = kv.range(range).await.unwrap_err();
    assert_eq!(refused.message(), "etcdserver: user name is empty");
    copy.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copy_is_finished_by_a_file_and_only_once() {
    let temp = TempDir::new().unwrap();
    let path = |name: &str| temp.path().join(name);
    let source = Kubebrain::start(&path("source")).await;
    let channel = connect(&source.url).await;
    write(&channel, 0).await;
    let metrics = format!("http://127.0.0.1:{}", free_port());
    let flag = |flag: &str, name: &str| format!("--{flag}={}", path(name).display());
    let (file, result) = (flag("cutover-file", "cutover"), flag("result-file", "result"));
    let serve = format!("--listen-metrics-urls={metrics}");
    let url = source.url.clone();
    let begin_once = || begin(&url, &path("copy"), &["--follow", &file, "--once", &result, &serve]);
    let read_result =
        || -> serde_json::Value { serde_json::from_slice(&std::fs::read(path("result")).unwrap()).unwrap() };

    // An unset annotation of a pod is an empty file.
    std::fs::write(path("cutover"), "").unwrap();
    let copy = begin_once();
    copy.says(REACHED_MESSAGE).await;
    let half = write(&channel, 60).await;
    let lines = [
        format!("kubebrain_import_revision {half}"),
        format!("kubebrain_import_source_revision {half}"),
        "kubebrain_import_following 1".to_owned(),
    ];
    let followed = async {
        loop {
            let (status, page) = copy.get_at(&metrics, "/metrics").await;
            assert_eq!(status, 200);
            if lines.iter().all(|line| page.lines().any(|found| found == line)) {
                return page;
            }
        }
    };
    let page = timeout(STEP_TIMEOUT, followed).await.unwrap();
    assert!(!page.contains("etcd_server_"), "{page}");
    assert_eq!(copy.get_at(&metrics, "/readyz").await, (200, "ok\n".to_owned()));
    copy.kill().await;
    assert!(!path("result").exists());

    let copy = begin_once();
    copy.says(REACHED_MESSAGE).await;
    assert_eq!(copy.said("created a store"), 0);
    let newest = write(&channel, 120).await;
    std::fs::write(path("cutover"), "true").unwrap();
    finished(copy).await;
    let made = read_result();
    assert_eq!(made["existed"], false);
    assert_eq!(made["revision"], newest);
    assert_copied(&source, &path("copy"), newest).await;

    // Its source may be gone by now.
    source.stop().await;
    finished(begin_once()).await;
    let found = read_result();
    assert_eq!(found["existed"], true);
    assert_eq!(found["clusterId"], made["clusterId"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_command_deletes_what_an_interrupted_one_has_left() {
    let temp = TempDir::new().unwrap();
    let source = Kubebrain::start(&temp.path().join("source")).await;
    let channel = connect(&source.url).await;
    write(&channel, 0).await;
    let site = Site::new(1).await;
    let pd = format!("--tikv-pd-endpoints={}", site.tikv.pd());
    let prefix = "--tikv-key-prefix=copied";
    let begin = |more: &[&str]| begin_with(&source.url, &[&["--storage=tikv", &pd, prefix], more].concat());
    let copy = begin(&["--follow", "--once", "--request-id=b"]);
    copy.says(REACHED_MESSAGE).await;
    copy.kill().await;
    // As a wipe leaves it that was killed: the data is deleted first, the register of the copy last.
    let options = engine_tikv::ConnectOptions::new(vec![site.tikv.pd()], "copied");
    let (tikv, _supervisor) = engine_tikv::Tikv::attach(options).await.unwrap();
    let register = tikv.register(prefix_owner::OWNER_REGISTER);
    prefix_owner::begin_wipe(&register, "etcd-cluster").await.unwrap();
    let (code, said) = begin(&[]).ended().await;
    assert!(code == Some(1) && said.contains("holds data already"), "{said}");
    let newest = write(&channel, 60).await;
    let said = finished(begin(&["--once", "--request-id=a"])).await;
    assert!(said.contains("deleting an incomplete copy"), "{said}");
    let file = temp.path().join("result");
    let result = format!("--result-file={}", file.display());
    for (request, is_same) in [("--request-id=a", true), ("--request-id=b", false)] {
        finished(begin(&["--once", request, &result])).await;
        let found: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        assert_eq!(found["existed"], true);
        assert_eq!(found["sameRequest"].as_bool().unwrap_or_default(), is_same, "{found}");
    }
    let member = site.start(0, 1, &[prefix]).await;
    assert_equal(&source, &site.client_url(0), newest).await;
    drop(member);
    source.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copy_waits_for_the_end_of_the_writers() {
    let temp = TempDir::new().unwrap();
    let path = |name: &str| temp.path().join(name);
    let source = Kubebrain::start(&path("source")).await;
    let channel = connect(&source.url).await;
    write(&channel, 0).await;
    std::fs::write(path("cutover"), "true").unwrap();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut writer = Owned::start({
        let channel = channel.clone();
        async move {
            let mut kv = KvClient::new(channel);
            let mut pauses = tokio::time::interval(WRITE_INTERVAL);
            for n in 0_u32.. {
                pauses.tick().await;
                let newest = put(&mut kv, "counter", n, 0).await;
                if *stopped.borrow() {
                    return newest;
                }
            }
            unreachable!("there are numbers left")
        }
    });
    let file = format!("--cutover-file={}", path("cutover").display());
    let copy = begin(&source.url, &path("copy"), &["--follow", &file]);
    copy.says("waiting for the end of the writers").await;
    stop.send_replace(true);
    let newest = writer.end().await.unwrap();
    finished(copy).await;
    assert_copied(&source, &path("copy"), newest).await;
    source.stop().await;
}
