//! Data directories that earlier versions wrote: each is opened, and all that is in it is read back. See `brain/tests/fixtures/README.md`.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use etcd_types::pb::authpb;
use mvcc::row::{STORED_FORMAT, STORED_FORMAT_WITH_AUTH};

use crate::program::Kubebrain;
use crate::wire::{Request, Response, Target as _, pb};
use pb::auth_client::AuthClient;
use pb::maintenance_client::MaintenanceClient;

/// Lists files with their lengths and directories, which git does not keep where they are empty.
const FILES_LIST: &str = "FILES";
/// The stored content as text.
const EXPECTED_CONTENT: &str = "EXPECTED";
/// The files themselves.
const DATA_DIR: &str = "data";

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// The fixtures of what is written now, without users and with them: formats of the directory and of what is stored.
fn newest() -> [PathBuf; 2] {
    let dir = brain::data_dir::DIR_FORMAT;
    [STORED_FORMAT, STORED_FORMAT_WITH_AUTH].map(|stored| fixtures().join(format!("data-dir-{dir}-{stored}")))
}

/// All files and directories below `dir`, relative to it, directories before what is in them.
fn tree(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut ahead = vec![dir.to_owned()];
    while let Some(next) = ahead.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            found.push(path.strip_prefix(dir).unwrap().to_owned());
            if path.is_dir() {
                ahead.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Copies a data directory into a fixture, files without the zeros that they end with.
fn pack(dir: &Path, fixture: &Path) {
    let mut list = String::new();
    for path in tree(dir) {
        let (from, to) = (dir.join(&path), fixture.join(DATA_DIR).join(&path));
        if from.is_dir() {
            fs::create_dir_all(to).unwrap();
            writeln!(list, "{}/", path.display()).unwrap();
            continue;
        }
        let bytes = fs::read(from).unwrap();
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::write(to, &bytes[..end]).unwrap();
        writeln!(list, "{} {}", path.display(), bytes.len()).unwrap();
    }
    fs::write(fixture.join(FILES_LIST), list).unwrap();
}

/// Makes the data directory of a fixture anew, in `dir`.
fn unpack(fixture: &Path, dir: &Path) {
    fs::create_dir(dir).unwrap();
    for line in fs::read_to_string(fixture.join(FILES_LIST)).unwrap().lines() {
        if let Some(made) = line.strip_suffix('/') {
            fs::create_dir(dir.join(made)).unwrap();
            continue;
        }
        let (path, length) = line.rsplit_once(' ').unwrap();
        fs::copy(fixture.join(DATA_DIR).join(path), dir.join(path)).unwrap();
        let file = File::options().write(true).open(dir.join(path)).unwrap();
        file.set_len(length.parse().unwrap()).unwrap();
    }
}

async fn range(server: &mut Kubebrain, revision: i64) -> pb::RangeResponse {
    let all = pb::RangeRequest {
        key: vec![0].into(),
        range_end: vec![0].into(),
        revision,
        ..Default::default()
    };
    match server.client.call(Request::Range(all)).await.unwrap() {
        Response::Range(range) => range,
        other => panic!("{other:?}"),
    }
}

/// Returns a value; for a long one its beginning and data that distinguishes it from others.
fn shown(value: &[u8]) -> String {
    match value.get(..40) {
        Some(first) if value.len() > 40 => {
            let sum: u64 = value.iter().map(|byte| u64::from(*byte)).sum();
            format!("{}... of {} bytes, sum {sum}", first.escape_ascii(), value.len())
        }
        _ => value.escape_ascii().to_string(),
    }
}

/// Ids, every key at every revision that is not compacted, and leases with their keys, as text.
async fn stored(server: &mut Kubebrain) -> String {
    let newest = range(server, 0).await.header.unwrap();
    let mut text = String::new();
    writeln!(text, "cluster {:x} member {:x}", newest.cluster_id, newest.member_id).unwrap();
    let compacted = server.client.call(Request::Range(pb::RangeRequest {
        key: b"-"[..].into(),
        revision: 1,
        ..Default::default()
    }));
    writeln!(text, "revision 1: {}", compacted.await.unwrap_err().text).unwrap();
    for revision in COMPACTED_REVISION..=newest.revision {
        writeln!(text, "revision {revision}").unwrap();
        for kv in range(server, revision).await.kvs {
            let (key, value) = (kv.key.escape_ascii(), shown(&kv.value));
            let (create, modified, version) = (kv.create_revision, kv.mod_revision, kv.version);
            writeln!(
                text,
                "  {key} = {value} create {create} mod {modified} version {version} lease {}",
                kv.lease
            )
            .unwrap();
        }
    }
    let leases = Request::Leases(pb::LeaseLeasesRequest::default());
    let Response::Leases(leases) = server.client.call(leases).await.unwrap() else {
        panic!("another answer")
    };
    let mut leases: Vec<i64> = leases.leases.into_iter().map(|lease| lease.id).collect();
    leases.sort_unstable();
    for id in leases {
        let ask = Request::TimeToLive(pb::LeaseTimeToLiveRequest { id, keys: true });
        let Response::TimeToLive(mut lease) = server.client.call(ask).await.unwrap() else {
            panic!("another answer")
        };
        lease.keys.sort();
        let keys: Vec<String> = lease.keys.iter().map(|key| key.escape_ascii().to_string()).collect();
        writeln!(text, "lease {id} granted {} keys {}", lease.granted_ttl, keys.join(" ")).unwrap();
    }
    text + &users(server).await
}

/// Users and roles, as text: nothing if there are none.
async fn users(server: &Kubebrain) -> String {
    let mut auth = AuthClient::connect(server.url.clone()).await.unwrap();
    let mut text = String::new();
    let users = auth.user_list(pb::AuthUserListRequest {}).await.unwrap();
    for name in users.into_inner().users {
        let get = pb::AuthUserGetRequest { name: name.clone() };
        let roles = auth.user_get(get).await.unwrap().into_inner().roles;
        writeln!(text, "user {name} roles {}", roles.join(" ")).unwrap();
    }
    let roles = auth.role_list(pb::AuthRoleListRequest {}).await.unwrap();
    for role in roles.into_inner().roles {
        let get = pb::AuthRoleGetRequest { role: role.clone() };
        for own in auth.role_get(get).await.unwrap().into_inner().perm {
            let (key, end) = (own.key.escape_ascii(), own.range_end.escape_ascii());
            writeln!(text, "role {role} permission {} {key} {end}", own.perm_type).unwrap();
        }
    }
    text
}

/// Adds users of every kind, and a role. Permissions are not checked.
async fn add_users(server: &Kubebrain) {
    let mut auth = AuthClient::connect(server.url.clone()).await.unwrap();
    for (name, no_password) in [("root", false), ("user", false), ("certificate", true)] {
        let user = pb::AuthUserAddRequest {
            name: name.to_owned(),
            password: "secret".to_owned(),
            options: Some(authpb::UserAddOptions { no_password }),
            ..Default::default()
        };
        auth.user_add(user).await.unwrap();
    }
    let role = pb::AuthRoleAddRequest {
        name: "role".to_owned(),
    };
    auth.role_add(role).await.unwrap();
    for (perm_type, key, range_end) in [(0, &b"a"[..], &b"b"[..]), (2, b"\0\xff", b"\0")] {
        let permission = authpb::Permission {
            perm_type,
            key: key.into(),
            range_end: range_end.into(),
        };
        let grant = pb::AuthRoleGrantPermissionRequest {
            name: "role".to_owned(),
            perm: Some(permission),
        };
        auth.role_grant_permission(grant).await.unwrap();
    }
    for (user, role) in [("root", "root"), ("user", "role")] {
        let (user, role) = (user.to_owned(), role.to_owned());
        auth.user_grant_role(pb::AuthUserGrantRoleRequest { user, role })
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_formats_of_all_versions_are_read_back_whole() {
    let found = fs::read_dir(fixtures()).unwrap().map(|entry| entry.unwrap().path());
    let found: Vec<PathBuf> = found.filter(|path| path.is_dir()).collect();
    assert!(
        newest().iter().all(|newest| found.contains(newest)),
        "the format that is written now has no fixture: see brain/tests/fixtures/README.md"
    );
    for fixture in found {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("data");
        unpack(&fixture, &dir);
        let expected = fs::read_to_string(fixture.join(EXPECTED_CONTENT)).unwrap();
        // Once as it is, and once as this version left it.
        for opened in 1..=2 {
            let mut server = Kubebrain::start(&dir).await;
            let stored = stored(&mut server).await;
            assert!(
                stored == expected,
                "{}, opened {opened} times:\n{stored}\nexpected:\n{expected}",
                fixture.display()
            );
            server.stop().await;
        }
    }
}

/// Compacted is what is older.
const COMPACTED_REVISION: i64 = 8;

/// Rows in tables of two starts, values with a dictionary, a tail of the log that is not in rows, three epochs, a compaction, tombstones,
/// keys with odd bytes and leases.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "writes brain/tests/fixtures: see the README there"]
async fn write_the_fixture_of_the_format_that_is_written_now() {
    let put = |key: &[u8], value: &[u8], lease: i64| {
        Request::Put(pb::PutRequest {
            key: key.to_vec().into(),
            value: value.to_vec().into(),
            lease,
            ..Default::default()
        })
    };
    let delete = |key: &[u8], range_end: &[u8]| {
        Request::Delete(pb::DeleteRangeRequest {
            key: key.to_vec().into(),
            range_end: range_end.to_vec().into(),
            ..Default::default()
        })
    };
    let grant = |id| Request::Grant(pb::LeaseGrantRequest { id, ttl: 3_600 });
    let txn = |puts: Vec<Request>| {
        let op = |put| match put {
            Request::Put(put) => pb::RequestOp {
                request: Some(pb::request_op::Request::RequestPut(put)),
            },
            other => panic!("{other:?}"),
        };
        Request::Txn(pb::TxnRequest {
            success: puts.into_iter().map(op).collect(),
            ..Default::default()
        })
    };
    // Enough similar values for a dictionary.
    let similar = (0..20).map(|number| {
        let line = |line| format!("object {number}, line {line}: a value that others have, too\n");
        let value: String = (0..1_200).map(line).collect();
        put(format!("similar/{number}").as_bytes(), value.as_bytes(), 0)
    });
    let compact = Request::Compact(pb::CompactionRequest {
        revision: COMPACTED_REVISION,
        physical: true,
    });
    let tables = vec![
        grant(-7),
        grant(42),
        put(b"a", b"1", 0),
        put(b"a", b"2", 0),
        put(b"gone", b"before the compaction", 0),
        delete(b"gone", b""),
        put(b"\0\xff\0", b"odd \0\xff", 42),
        txn(vec![put(b"txn/1", b"one", 0), put(b"txn/2", b"two", -7)]),
        put(b"a", b"3", 42),
        delete(b"txn/1", b""),
        compact,
        put(b"large", &[b'x'; 5_000], 0),
        txn(similar.collect()),
    ];
    let later = vec![
        put(b"a", b"4", 0),
        put(b"b", b"", -7),
        put(b"c", b"gone at the end", 0),
        grant(43),
    ];
    let tail = vec![
        put(b"b", b"2", 43),
        delete(b"c", b""),
        put(b"d", b"the last", 0),
        Request::Revoke(pb::LeaseRevokeRequest { id: 43 }),
    ];

    let missing = newest().into_iter().filter(|fixture| !fixture.exists());
    for fixture in missing {
        let has_users = fixture == newest()[1];
        write(&fixture, [tables.clone(), later.clone(), tail.clone()], has_users).await;
    }
}

async fn write(fixture: &Path, steps: [Vec<Request>; 3], has_users: bool) {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("data");
    for (step, requests) in steps.into_iter().enumerate() {
        let mut server = Kubebrain::start(&dir).await;
        if has_users && step == 0 {
            add_users(&server).await;
        }
        for request in requests {
            server.client.call(request).await.unwrap();
        }
        match step {
            0 => {
                let mut maintenance = MaintenanceClient::connect(server.url.clone()).await.unwrap();
                maintenance.defragment(pb::DefragmentRequest {}).await.unwrap();
                server.stop().await;
            }
            1 => server.stop().await,
            _ => server.kill().await,
        }
    }
    fs::create_dir(fixture).expect("a format that has a fixture keeps it");
    pack(&dir, fixture);
    let mut server = Kubebrain::start(&dir).await;
    fs::write(fixture.join(EXPECTED_CONTENT), stored(&mut server).await).unwrap();
    server.stop().await;
}
