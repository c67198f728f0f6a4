//! Files that other users of the machine can read.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn data_are_the_owners_alone() {
    let _deadline = deadline();
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let server = Server::start_in(&Program::kubebrain().unwrap(), &data, &[]).unwrap();
    let mut client = KvClient::new(server.connect().await.unwrap());
    client.put(put("a", b"secret".to_vec())).await.unwrap();
    let open: Vec<String> = readable_by_others(&data);
    assert!(open.is_empty(), "{open:#?}");
    server.stop().unwrap();
    let open: Vec<String> = readable_by_others(&data);
    assert!(open.is_empty(), "after its end: {open:#?}");
}

/// As etcd 3.6 does: kubelet makes the roots of volumes, and opens them to a group.
#[tokio::test(flavor = "multi_thread")]
async fn data_directory_that_others_can_read_is_warned_of_and_holds_nothing_for_them() {
    let _deadline = deadline();
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).unwrap();
    let warning = "to prevent possible unprivileged access";
    let server = Server::start_in(&Program::kubebrain().unwrap(), &data, &[]).unwrap();
    let server = server.expected_logs(warning);
    let said = server.last_lines();
    assert!(said.contains(warning), "{said}");
    let open: Vec<String> = readable_by_others(&data);
    assert_eq!(open, [format!("{} 755", data.display())]);
    server.stop().unwrap();
}

/// Files and directories with any right for group or others.
fn readable_by_others(path: &Path) -> Vec<String> {
    let metadata = fs::symlink_metadata(path).unwrap();
    let mode = metadata.permissions().mode() & 0o777;
    let mut open = Vec::new();
    if mode & 0o077 != 0 {
        open.push(format!("{} {mode:o}", path.display()));
    }
    if metadata.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            open.extend(readable_by_others(&entry.unwrap().path()));
        }
    }
    open
}
