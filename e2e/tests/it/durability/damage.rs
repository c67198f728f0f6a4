//! A bit that flips in any file of a data directory: the brain names the file and serves nothing from it, or it serves what was written.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pb::auth_client::AuthClient;
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use pb::maintenance_client::MaintenanceClient;
use programs::server::{Program, Server};
use rand::RngExt as _;
use tempfile::TempDir;
use tonic::Status;
use wire::etcdserverpb as pb;

use super::seeded;
use crate::harness::deadline;

/// Flips in each file; set `KUBEBRAIN_LONG` for more.
const FLIPS_PER_FILE: usize = 3;
const MANY_FLIPS_PER_FILE: usize = 60;
const LONG_VARIABLE: &str = "KUBEBRAIN_LONG";
const REVISIONS: i64 = 12;
/// Time within which a server must name a file.
const NAMING_TIMEOUT: Duration = Duration::from_secs(10);
/// The last write before the end: its bytes are the last in the log, where damage cannot be distinguished from a batch that was cut off.
const LAST_VALUE: &[u8] = b"last";

/// Everything that a store answers.
#[derive(PartialEq)]
struct Content {
    /// All keys at some revisions.
    kvs: Vec<Vec<wire::mvccpb::KeyValue>>,
    leases: Vec<i64>,
    users: Vec<String>,
    roles: Vec<Vec<wire::authpb::Permission>>,
}

async fn build(program: &Program, dir: &Path) -> i64 {
    let mut head = 0;
    for round in 0..3 {
        let server = Server::start_in(program, dir, &[]).unwrap();
        let mut kv = KvClient::new(server.connect().await.unwrap());
        for n in 0..120 {
            let mut value = format!("{round}/{n} ").into_bytes();
            value.resize(200 + n * 37, b'v');
            let put = pb::PutRequest {
                key: format!("key{}", n % 40).into(),
                value: value.into(),
                lease: if n % 10 == 9 { 77 + round } else { 0 },
                ..pb::PutRequest::default()
            };
            if n % 10 == 0 {
                let mut lease = LeaseClient::new(server.connect().await.unwrap());
                let grant = pb::LeaseGrantRequest {
                    ttl: 100_000,
                    id: 77 + round,
                };
                // It is granted the first time.
                drop(lease.lease_grant(grant).await);
            }
            head = kv.put(put).await.unwrap().into_inner().header.unwrap().revision;
        }
        let mut auth = AuthClient::new(server.connect().await.unwrap());
        let role = format!("role{round}");
        auth.role_add(pb::AuthRoleAddRequest { name: role.clone() })
            .await
            .unwrap();
        let perm = wire::authpb::Permission {
            key: "key".into(),
            ..wire::authpb::Permission::default()
        };
        let grant = pb::AuthRoleGrantPermissionRequest {
            name: role,
            perm: Some(perm),
        };
        auth.role_grant_permission(grant).await.unwrap();
        let compact = pb::CompactionRequest {
            revision: head - 100,
            physical: true,
        };
        kv.compact(compact).await.unwrap();
        let put = pb::PutRequest {
            key: LAST_VALUE.into(),
            ..pb::PutRequest::default()
        };
        head = kv.put(put).await.unwrap().into_inner().header.unwrap().revision;
        if round < 2 {
            // Makes tables.
            let mut maintenance = MaintenanceClient::new(server.connect().await.unwrap());
            maintenance.defragment(pb::DefragmentRequest {}).await.unwrap();
        }
        match round {
            0 => server.stop().unwrap(),
            _ => server.kill().unwrap(),
        }
    }
    head - 1
}

async fn content(server: &Server, head: i64) -> Result<Content, Status> {
    let gone = |error: anyhow::Error| Status::unavailable(format!("{error:#}"));
    let channel = server.connect().await.map_err(gone)?;
    let mut kv = KvClient::new(channel.clone()).max_decoding_message_size(usize::MAX);
    let mut kvs = Vec::new();
    for revision in head - REVISIONS..=head {
        let range = pb::RangeRequest {
            key: vec![0].into(),
            range_end: vec![0].into(),
            revision,
            ..pb::RangeRequest::default()
        };
        kvs.push(kv.range(range).await?.into_inner().kvs);
    }
    let mut lease = LeaseClient::new(channel.clone());
    let leases = lease.lease_leases(pb::LeaseLeasesRequest {}).await?.into_inner().leases;
    let mut leases: Vec<i64> = leases.into_iter().map(|lease| lease.id).collect();
    leases.sort_unstable();
    let mut auth = AuthClient::new(channel);
    let users = auth.user_list(pb::AuthUserListRequest {}).await?.into_inner().users;
    let mut roles = Vec::new();
    for role in auth.role_list(pb::AuthRoleListRequest {}).await?.into_inner().roles {
        roles.push(auth.role_get(pb::AuthRoleGetRequest { role }).await?.into_inner().perm);
    }
    Ok(Content {
        kvs,
        leases,
        users,
        roles,
    })
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn copy(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp")
        .args(["-a", "--sparse=always"])
        .args([from, to])
        .status();
    assert!(copied.unwrap().success());
}

/// The reason why a brain does not serve a directory; `None` if it serves what was written.
async fn refusal(program: &Program, (dir, file): (&Path, &Path), head: i64, wanted: &Content) -> Option<String> {
    let mut server = match Server::start_in(program, dir, &[]) {
        Ok(server) => server,
        Err(error) => return Some(format!("{error:#}")),
    };
    match content(&server, head).await {
        Ok(found) => {
            assert!(found == *wanted, "{}: wrong data is served", server.last_lines());
            None
        }
        Err(_) => Some(said(&mut server, file).await),
    }
}

/// Returns the log of a server once it has named a file or has ended: a client may see the damage before the log names it.
async fn said(server: &mut Server, file: &Path) -> String {
    let mut look = tokio::time::interval(Duration::from_millis(20));
    let is_named = async {
        while !names(&server.last_lines(), file) && server.ended().unwrap().is_none() {
            look.tick().await;
        }
    };
    // If it does neither, the caller complains of what it does say.
    drop(tokio::time::timeout(NAMING_TIMEOUT, is_named).await);
    server.last_lines()
}

#[tokio::test(flavor = "multi_thread")]
async fn flipped_bit_in_any_file_is_named_or_does_no_harm() {
    let _deadline = deadline();
    let flips = if std::env::var_os(LONG_VARIABLE).is_some() {
        MANY_FLIPS_PER_FILE
    } else {
        FLIPS_PER_FILE
    };
    let (program, home, mut random) = (Program::kubebrain().unwrap(), TempDir::new().unwrap(), seeded());
    let (whole, scratch) = (home.path().join("whole"), home.path().join("scratch"));
    let head = build(&program, &whole).await;
    copy(&whole, &scratch);
    let server = Server::start_in(&program, &scratch, &[]).unwrap();
    let wanted = content(&server, head).await.unwrap();
    assert!(wanted.kvs[0].len() > 40 && wanted.leases.len() == 3 && wanted.roles.len() == 3);
    drop(server);
    fs::remove_dir_all(&scratch).unwrap();
    let (mut refused, mut unharmed, mut unnamed) = (0, 0, Vec::new());
    let mut kinds = std::collections::BTreeSet::new();
    for file in files(&whole) {
        let name = file.strip_prefix(&whole).unwrap().to_owned();
        kinds.insert(kind(&name));
        let written = fs::read(&file)
            .unwrap()
            .iter()
            .rposition(|byte| *byte != 0)
            .map_or(0, |last| last + 1);
        for flip in 0..flips.min(written) {
            // The first byte, the last one, and any between.
            let at = match flip {
                0 => 0,
                1 => written - 1,
                _ => random.random_range(0..written),
            };
            copy(&whole, &scratch);
            let damaged = scratch.join(&name);
            let mut bytes = fs::read(&damaged).unwrap();
            let bit = 1 << random.random_range(0..8);
            bytes[at] ^= bit;
            fs::write(&damaged, &bytes).unwrap();
            drop(bytes);
            match refusal(&program, (&scratch, &name), head, &wanted).await {
                Some(reason) => {
                    refused += 1;
                    if !names(&reason, &name) || reason.contains("panicked") {
                        unnamed.push(format!("{} at {at}, bit {bit:#x}: {reason}", name.display()));
                    }
                }
                None => unharmed += 1,
            }
            fs::remove_dir_all(&scratch).unwrap();
        }
    }
    assert!(unnamed.is_empty(), "not named, of {refused}:\n{}", unnamed.join("\n"));
    assert!(refused > 5, "{refused} of {} were refused", refused + unharmed);
    assert!(kinds.len() > 6, "{kinds:?}");
    assert!(unharmed > 0, "the owner in the lock is only for a message");
}

/// Returns true if a file of the directory is named, and not one whose name only begins like it. A table is only said to be in the rows.
fn names(reason: &str, file: &Path) -> bool {
    let is_table = file.parent().is_some_and(|dir| dir.ends_with("tables"));
    let file = if is_table { Path::new("rows") } else { file };
    let path = Path::new("scratch").join(file).display().to_string();
    let mut behind = reason
        .match_indices(&path)
        .map(|(at, found)| &reason[at + found.len()..]);
    behind.any(|rest| !rest.starts_with(|next: char| next.is_ascii_alphanumeric()))
}

/// The name of a file without its numbers.
fn kind(name: &Path) -> String {
    name.to_string_lossy()
        .chars()
        .filter(|letter| !letter.is_ascii_digit())
        .collect()
}
