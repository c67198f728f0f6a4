//! A disk that can be filled: a small file system that only one test uses.

use std::path::PathBuf;

/// The variable with the directory where it is mounted, set in the process that fills it.
const DIR_VARIABLE: &str = "KUBEBRAIN_TEST_SMALL_DISK";

/// Runs the test with this full name again, in a separate process with a file system of `mib` MiB that ends with it. Returns `Some`
/// in that process: the directory of the file system. Returns `None` in the other one, after the test has passed.
///
/// # Panics
/// If the test failed there.
pub fn mounted_for(test: &str, mib: u32) -> Option<PathBuf> {
    if let Some(dir) = std::env::var_os(DIR_VARIABLE) {
        return Some(dir.into());
    }
    let dir = tempfile::tempdir().unwrap();
    // Only root can mount file systems, or a user who is root in a user namespace.
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
        .env(DIR_VARIABLE, dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    None
}
