//! A full disk: no more writes, but reads and deletions, and nothing lost.

use super::*;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use std::process::Command;

/// A small file system in memory, unmounted at the end.
struct Small(TempDir);

impl Small {
    fn mount(mib: usize) -> Self {
        assert!(rustix::process::geteuid().is_root(), "mounting needs root");
        let dir = TempDir::new().unwrap();
        let options = format!("size={mib}m,mode=0700");
        run(Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(dir.path()));
        Self(dir)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // lazily, because a server may not be quite gone
        run(Command::new("umount").arg("--lazy").arg(self.0.path()));
    }
}

pub(super) fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

const NO_SPACE: &str = "etcdserver: mvcc: database space exceeded";

/// Will say so.
fn full(server: Server) -> Server {
    let server = server
        .expected_logs("no space left")
        .expected_logs("No space left on device");
    server.expected_logs("rows are incomplete")
}

/// A value that does not compress, another one for each `n`.
fn incompressible(n: usize, len: usize) -> Vec<u8> {
    let mut value = vec![0; len];
    StdRng::seed_from_u64(n as u64).fill(value.as_mut_slice());
    value
}

/// Writes until it is refused; the number of what was acknowledged.
async fn fill(server: &Server) -> usize {
    let mut kv = kv(server).await;
    for n in 0..2_000 {
        if let Err(status) = kv.put(put(format!("full/{n:04}"), incompressible(n, 100_000))).await {
            let said = (status.code(), status.message());
            assert_eq!(
                said,
                (Code::ResourceExhausted, NO_SPACE),
                "write {n}: {}",
                server.last_lines()
            );
            return n;
        }
    }
    panic!("200 MB fit");
}

async fn check(kv: &mut KvClient<Channel>, acknowledged: usize) {
    let all = pb::RangeRequest {
        key: b"full/".to_vec().into(),
        range_end: b"full0".to_vec().into(),
        keys_only: true,
        ..pb::RangeRequest::default()
    };
    let found = kv.range(all).await.unwrap().into_inner();
    // the refused write may be stored or not: its error does not rule that out
    assert!(
        found.kvs.len() == acknowledged || found.kvs.len() == acknowledged + 1,
        "{} found",
        found.kvs.len()
    );
    for (n, kv) in found.kvs.iter().take(acknowledged).enumerate() {
        assert_eq!(kv.key, format!("full/{n:04}"));
    }
}

async fn works_when_full(server: &Server, acknowledged: usize) {
    let mut kv = kv(server).await;
    refused(kv.put(put("one", "more")).await, Code::ResourceExhausted, NO_SPACE);
    check(&mut kv, acknowledged).await;
    let delete = pb::DeleteRangeRequest {
        key: b"full/0000".to_vec().into(),
        ..pb::DeleteRangeRequest::default()
    };
    assert_eq!(kv.delete_range(delete).await.unwrap().into_inner().deleted, 1);
    let restore = kv.range(get("full/0000")).await.unwrap().into_inner();
    assert_eq!(restore.count, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_stops_writes_and_nothing_else() {
    let _deadline = deadline();
    let small = Small::mount(160);
    let program = Program::kubebrain().unwrap();
    let data = small.0.path().join("data");
    let server = full(Server::start_in(&program, &data, &[]).unwrap());
    let acknowledged = fill(&server).await;
    assert!(acknowledged > 100, "only {acknowledged} values fit");
    works_when_full(&server, acknowledged).await;
    server.kill().unwrap();
    let server = full(Server::start_in(&program, &data, &[]).unwrap());
    let mut kv = kv(&server).await;
    let last = kv
        .range(get(&format!("full/{:04}", acknowledged - 1)))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(last.count, 1, "an acknowledged write is lost");
    server.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_stops_writes_until_there_is_room_and_the_alarm_is_lowered() {
    let _deadline = deadline();
    use pb::maintenance_client::MaintenanceClient;
    let server = full(brain(&["--quota-backend-bytes=20000000"]));
    let mut kv = kv(&server).await;
    let acknowledged = fill(&server).await;
    works_when_full(&server, acknowledged).await;
    let all = pb::DeleteRangeRequest {
        key: b"full/".to_vec().into(),
        range_end: b"full0".to_vec().into(),
        ..pb::DeleteRangeRequest::default()
    };
    let revision = kv
        .delete_range(all)
        .await
        .unwrap()
        .into_inner()
        .header
        .unwrap()
        .revision;
    kv.compact(pb::CompactionRequest {
        revision,
        physical: true,
    })
    .await
    .unwrap();
    let mut maintenance = MaintenanceClient::new(server.connect().await.unwrap());
    maintenance.defragment(pb::DefragmentRequest {}).await.unwrap();
    let raised = maintenance
        .alarm(pb::AlarmRequest::default())
        .await
        .unwrap()
        .into_inner()
        .alarms;
    assert_eq!(raised.len(), 1);
    let lower = pb::AlarmRequest {
        action: 2,
        member_id: raised[0].member_id,
        alarm: raised[0].alarm,
    };
    maintenance.alarm(lower).await.unwrap();
    kv.put(put("one", "more")).await.unwrap();
    server.stop().unwrap();
}

/// Half of the quota is alive; what is overwritten is compacted as often as API servers do it for their size.
#[tokio::test(flavor = "multi_thread")]
async fn a_quota_holds_half_of_it_for_ever_while_that_is_overwritten_and_compacted() {
    const ALIVE: usize = 320;
    let _deadline = deadline();
    let server = brain(&["--quota-backend-bytes=67108864"]);
    let mut kv = kv(&server).await;
    for n in 0..ALIVE * 12 {
        let value = incompressible(n, 100_000);
        let answer = kv.put(put(format!("churn/{:04}", n % ALIVE), value)).await;
        let answer = answer.unwrap_or_else(|status| panic!("put {n}: {status}: {}", server.last_lines()));
        if n % 100 == 99 {
            let compact = pb::CompactionRequest {
                revision: answer.into_inner().header.unwrap().revision,
                physical: false,
            };
            kv.compact(compact).await.unwrap();
        }
    }
    server.stop().unwrap();
}

/// Another program fills the disk while the brain does not run.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_on_a_disk_without_a_free_byte_is_served() {
    let _deadline = deadline();
    let small = Small::mount(400);
    let program = Program::kubebrain().unwrap();
    let data = small.0.path().join("data");
    let server = Server::start_in(&program, &data, &[]).unwrap();
    for n in 0..300 {
        let value = incompressible(n, 10_000);
        kv(&server).await.put(put(format!("full/{n:04}"), value)).await.unwrap();
    }
    server.stop().unwrap();
    let filler = small.0.path().join("filler");
    let filled = Command::new("dd")
        .args(["if=/dev/zero", "bs=4k"])
        .arg(format!("of={}", filler.display()))
        .output()
        .unwrap();
    assert!(!filled.status.success(), "the disk is not full");
    let server = full(Server::start_in(&program, &data, &[]).unwrap()).expected_logs("storage is unreachable or full");
    let mut client = kv(&server).await;
    check(&mut client, 300).await;
    refused(client.put(put("one", "more")).await, Code::ResourceExhausted, NO_SPACE);
    std::fs::remove_file(filler).unwrap();
    let mut maintenance = pb::maintenance_client::MaintenanceClient::new(server.connect().await.unwrap());
    let raised = maintenance
        .alarm(pb::AlarmRequest::default())
        .await
        .unwrap()
        .into_inner()
        .alarms;
    let lower = pb::AlarmRequest {
        action: 2,
        member_id: raised[0].member_id,
        alarm: raised[0].alarm,
    };
    maintenance.alarm(lower).await.unwrap();
    client.put(put("one", "more")).await.unwrap();
    server.stop().unwrap();
}
