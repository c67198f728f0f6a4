//! A disk that can be filled: a small file system that only one test sees.

use std::path::PathBuf;

/// Names the directory where it is mounted, in the process that fills it.
const DIR: &str = "KUBEBRAIN_TEST_SMALL_DISK";

/// Runs the test of this full name once more, in a process of its own with a file system of so many MiB that ends with it.
/// `Some` in that process: the directory of the file system. `None` in the other one, where the test has passed.
///
/// # Panics
/// The test failed there.
pub(crate) fn mounted_for(test: &str, mib: u32) -> Option<PathBuf> {
    if let Some(dir) = std::env::var_os(DIR) {
        return Some(dir.into());
    }
    let dir = tempfile::tempdir().unwrap();
    // Only root mounts file systems, or whoever is root in a user namespace.
    let user: &[&str] = match rustix::process::geteuid().is_root() {
        true => &[],
        false => &["--user", "--map-root-user"],
    };
    let output = std::process::Command::new("unshare")
        .args(user)
        .args(["--mount", "sh", "-c"])
        .arg(format!("mount -t tmpfs -o size={mib}m tmpfs \"$0\" && exec \"$@\""))
        .arg(dir.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", test])
        .env(DIR, dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    None
}
