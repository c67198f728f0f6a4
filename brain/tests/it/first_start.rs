//! The flags that begin a store: judged where there is none, not read where there is one.

use std::path::Path;

use etcd_types::pb::etcdserverpb as pb;
use pb::kv_client::KvClient;
use tempfile::TempDir;

use crate::members::Site;
use crate::program::{Process, READY_MESSAGE, lone};

const EXISTING_STATE_FLAG: &str = "--initial-cluster-state=existing";

async fn start(dir: &Path, more: &[&str]) -> Process {
    let (mut flags, url) = lone(dir);
    flags.extend(more.iter().map(ToString::to_string));
    let server = Process::begin(&flags, url);
    server.says(READY_MESSAGE).await;
    server
}

async fn put(server: &Process) {
    let put = pb::PutRequest {
        key: "precious".into(),
        ..pb::PutRequest::default()
    };
    KvClient::new(server.connect().await).put(put).await.unwrap();
}

async fn has_it(server: &Process) -> bool {
    let range = pb::RangeRequest {
        key: "precious".into(),
        ..pb::RangeRequest::default()
    };
    let answer = KvClient::new(server.connect().await).range(range).await.unwrap();
    answer.into_inner().count == 1
}

#[tokio::test]
async fn existing_cluster_is_not_begun_anew_on_an_empty_directory() {
    let temp = TempDir::new().unwrap();
    let dir = temp.path().join("data");
    let server = start(&dir, &[]).await;
    put(&server).await;
    server.stop().await;
    let server = start(&dir, &[EXISTING_STATE_FLAG]).await;
    assert!(has_it(&server).await);
    server.stop().await;

    // The volume is not mounted: its mount point is empty, or not even there.
    std::fs::rename(&dir, temp.path().join("elsewhere")).unwrap();
    for made in [false, true] {
        if made {
            std::fs::create_dir(&dir).unwrap();
        }
        let (mut flags, url) = lone(&dir);
        flags.push(EXISTING_STATE_FLAG.to_owned());
        let (code, said) = Process::begin(&flags, url).ended().await;
        let last = said.lines().last().unwrap();
        assert_eq!(code, Some(1), "{said}");
        assert!(
            last.contains("holds no store, but --initial-cluster-state=existing"),
            "{last}"
        );
        let left = std::fs::read_dir(&dir).map_or(0, Iterator::count);
        assert_eq!((dir.exists(), left), (made, 0), "nothing is created");
    }
}

#[tokio::test]
async fn flags_of_the_first_start_do_not_keep_a_member_from_its_data() {
    let temp = TempDir::new().unwrap();
    let server = start(temp.path(), &[]).await;
    put(&server).await;
    server.stop().await;
    // The flags, and why they begin no store.
    for (more, reason) in [
        (&["--initial-cluster-token=other"][..], None),
        (&["--name=other"], Some("couldn't find local name")),
        (&["--name=other", "--initial-cluster="], None),
        (
            &["--initial-advertise-peer-urls=http://10.1.2.3:2380"],
            Some("missing from --initial-advertise-peer-urls"),
        ),
        (
            &["--initial-cluster=default=http://10.1.2.3:2380,b=http://10.0.0.2:2380"],
            Some("names other members (b)"),
        ),
        (
            &["--initial-cluster=b=http://10.0.0.2:2380"],
            Some("couldn't find local name"),
        ),
        (&["--initial-cluster=b"], Some("is not <name>=<peer URL>")),
        // At a first start its address would be waited for.
        (&["--initial-cluster=default=http://etcd-0.gone.invalid:2380"], None),
        (
            &["--initial-cluster=", "--discovery-srv=example.invalid"],
            Some("exactly one member"),
        ),
        (
            &["--initial-cluster=", "--discovery=http://example.invalid/token"],
            Some("there is no discovery service"),
        ),
        (&["--force-new-cluster"], None),
        (&[EXISTING_STATE_FLAG], Some("holds no store")),
    ] {
        let server = start(temp.path(), more).await;
        assert!(has_it(&server).await, "{more:?}");
        server.stop().await;

        let Some(reason) = reason else { continue };
        let empty = TempDir::new().unwrap();
        let (mut flags, url) = lone(empty.path());
        flags.extend(more.iter().map(ToString::to_string));
        let (code, said) = Process::begin(&flags, url).ended().await;
        assert_eq!(code, Some(1), "{more:?}: {said}");
        assert!(said.lines().last().unwrap().contains(reason), "{more:?}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn existing_cluster_is_not_begun_anew_on_an_empty_prefix() {
    let site = Site::new(1).await;
    let before = site.tikv.contents();
    let (code, said) = site.begin(0, 1, &[EXISTING_STATE_FLAG]).ended().await;
    let last = said.lines().last().unwrap();
    assert_eq!(code, Some(1), "{said}");
    assert!(
        last.contains("the key prefix holds no store, but --initial-cluster-state=existing"),
        "{last}"
    );
    assert!(site.tikv.contents() == before, "a refused member wrote something");
    site.lone().await.stop().await;
    site.start(0, 1, &[EXISTING_STATE_FLAG]).await.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn flags_of_the_first_start_do_not_keep_a_member_from_tikv() {
    let site = Site::new(2).await;
    let wrong = "--initial-cluster=b0=http://gone.invalid:1,b1";
    let before = site.tikv.contents();
    let (code, said) = site.begin(0, 1, &[wrong]).ended().await;
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.lines().last().unwrap().contains("is not <name>=<peer URL>"),
        "{said}"
    );
    assert!(site.tikv.contents() == before, "a refused member wrote something");
    let server = site.lone().await;
    put(&server).await;
    server.stop().await;
    let other = "--initial-cluster=b1=http://127.0.0.1:1,b0";
    for more in [
        &[wrong, EXISTING_STATE_FLAG][..],
        &[other, EXISTING_STATE_FLAG],
        &["--force-new-cluster"],
    ] {
        let server = site.start(0, 1, more).await;
        assert!(has_it(&server).await, "{more:?}");
        server.stop().await;
    }
}
