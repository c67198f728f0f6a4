//! `kubebrain wipe`: a store that is not used any more goes, and nothing else does.

use bytes::Bytes;
use engine::cas_register::{Cas, CasRegister as _};
use engine_tikv::{ConnectOptions, Tikv};
use etcd_types::pb::etcdserverpb as pb;
use mock_tikv::{Action, Fault, Rpc};
use pb::kv_client::KvClient;
use tokio::time::timeout;

use super::Site;
use crate::program::{Process, STEP_TIMEOUT};

/// Runs the subcommand to its end; returns the exit code and its whole log.
async fn wipe(site: &Site, prefix: &str, more: &[&str]) -> (Option<i32>, String) {
    begin(site, prefix, more).ended().await
}

fn begin(site: &Site, prefix: &str, more: &[&str]) -> Process {
    let mut flags = vec![
        "wipe".to_owned(),
        "--storage=tikv".to_owned(),
        format!("--tikv-pd-endpoints={}", site.tikv.pd()),
        format!("--tikv-key-prefix={prefix}"),
        "--yes".to_owned(),
    ];
    flags.extend(more.iter().map(ToString::to_string));
    Process::begin(&flags, String::new())
}

/// Begins a wipe that hangs in the middle until the faults are cleared.
async fn begin_and_hang(site: &Site) -> Process {
    let faults = site.tikv.faults();
    let lost = Fault::new(Rpc::ScanLock, Action::LoseRequest { silent: true });
    let id = faults.add(lost.times(100)).unwrap();
    let wipe = begin(site, "kubebrain", &[]);
    timeout(STEP_TIMEOUT, async {
        while faults.happened(id) == Some(0) {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    wipe
}

/// Returns the keys below a prefix.
fn keys(site: &Site, prefix: &str) -> Vec<Bytes> {
    let first = [&[u8::try_from(prefix.len()).unwrap()], prefix.as_bytes()].concat();
    let all = site.tikv.contents().into_keys();
    all.filter(|key| key.starts_with(&first)).collect()
}

/// Keys of stores that begin alike, and of the store without a prefix.
async fn neighbours(site: &Site) {
    for prefix in ["", "kubebrai", "kubebrainx", "k", "kubebrain\u{0}"] {
        let (tikv, _keeper) = Tikv::connect(ConnectOptions::new(vec![site.tikv.pd()], prefix))
            .await
            .unwrap();
        for name in ["owner", "leader", ""] {
            let set = tikv
                .register(name)
                .compare_and_set(None, Some(Bytes::from("theirs")))
                .await;
            assert!(matches!(set, Cas::Swapped), "{set:?}");
        }
    }
}

/// A store with rows, slots and registers, whose member was stopped.
async fn used(site: &Site) {
    let member = site.start(0, 1, &[]).await;
    let mut kv = KvClient::new(member.connect().await);
    for n in 0..150 {
        let put = pb::PutRequest {
            key: format!("key/{n}").into(),
            value: vec![b'v'; 100].into(),
            ..pb::PutRequest::default()
        };
        kv.put(put).await.unwrap();
    }
    member.compact(60).await;
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wiped_prefix_is_empty_and_all_other_keys_survive() {
    let site = Site::new(1).await;
    neighbours(&site).await;
    let others = site.tikv.contents();
    used(&site).await;
    // Some of it in another region.
    site.tikv.split(&Site::key(b'r', b"okey/3")).await.unwrap();
    assert!(keys(&site, "kubebrain").len() > 150);
    let (code, said) = wipe(
        &site,
        "kubebrain",
        &[&format!("--tikv-cluster-id={}", site.tikv.cluster_id())],
    )
    .await;
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(site.tikv.contents(), others);
    let (code, said) = wipe(&site, "kubebrain", &[]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("there is nothing to wipe"), "{said}");
    assert_eq!(site.tikv.contents(), others);
    // The prefix is as good as new.
    let member = site.start(0, 1, &[]).await;
    let mut kv = KvClient::new(member.connect().await);
    let all = pb::RangeRequest {
        key: vec![0].into(),
        range_end: vec![0].into(),
        ..pb::RangeRequest::default()
    };
    let found = kv.range(all).await.unwrap().into_inner();
    assert_eq!((found.count, found.header.unwrap().revision), (0, 1));
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn store_whose_leader_renews_its_lock_is_not_wiped() {
    let site = Site::new(1).await;
    let leader = site.start(0, 1, &[]).await;
    let (code, said) = wipe(&site, "kubebrain", &[]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.lines()
            .last()
            .unwrap()
            .contains("holds the leader's lock and renews it"),
        "{said}"
    );
    leader.stop().await;
    let member = site.start(0, 1, &[]).await;
    // Its record stays, and is not renewed.
    member.kill().await;
    let (code, said) = wipe(&site, "kubebrain", &[]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(site.tikv.contents().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn store_of_another_cluster_is_not_wiped() {
    let site = Site::new(1).await;
    used(&site).await;
    let before = site.tikv.contents();
    for (more, reason) in [
        (
            "--initial-cluster-token=other",
            "belongs to the cluster with the token \"etcd-cluster\", not \"other\"",
        ),
        ("--tikv-cluster-id=4711", "--tikv-cluster-id is 4711, but"),
    ] {
        let (code, said) = wipe(&site, "kubebrain", &[more]).await;
        assert_eq!(code, Some(1), "{said}");
        assert!(said.lines().last().unwrap().contains(reason), "{said}");
    }
    assert_eq!(site.tikv.contents(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_wipe_keeps_members_out_and_goes_on() {
    let site = Site::new(1).await;
    used(&site).await;
    let mut first = begin_and_hang(&site).await;
    first.signal(rustix::process::Signal::TERM);
    let (code, said) = first.ended().await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("interrupted: start it again to continue"), "{said}");
    site.tikv.faults().clear();
    let mut member = site.begin(0, 1, &[]);
    let (code, said) = member.ended().await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("the key prefix is being wiped"), "{said}");
    let (code, said) = wipe(&site, "kubebrain", &[]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(site.tikv.contents().is_empty());
}

/// Otherwise one deletes what the other has restored.
#[tokio::test(flavor = "multi_thread")]
async fn while_a_prefix_is_wiped_no_restore_and_no_other_wipe_goes_on_with_it() {
    let temp = tempfile::TempDir::new().unwrap();
    let file = temp.path().join("snapshot");
    std::fs::write(&file, "not read yet").unwrap();
    let site = Site::new(1).await;
    used(&site).await;
    let mut first = begin_and_hang(&site).await;
    let restore = [
        "snapshot".to_owned(),
        "restore".to_owned(),
        file.to_str().unwrap().to_owned(),
        "--once".to_owned(),
        "--storage=tikv".to_owned(),
        format!("--tikv-pd-endpoints={}", site.tikv.pd()),
        "--tikv-key-prefix=kubebrain".to_owned(),
    ];
    let mut restore = Process::begin(&restore, String::new());
    let mut second = begin(&site, "kubebrain", &[]);
    for (code, said) in [restore.ended().await, second.ended().await] {
        assert_eq!(code, Some(1), "{said}");
        assert!(
            said.contains("another restore, import or wipe is using the key prefix"),
            "{said}"
        );
    }
    first.signal(rustix::process::Signal::TERM);
    let (code, said) = first.ended().await;
    assert_eq!(code, Some(1), "{said}");
    site.tikv.faults().clear();
    let (code, said) = wipe(&site, "kubebrain", &[]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(site.tikv.contents().is_empty());
}
