//! Mounts under a directory.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use programs::command::run;

/// Mounts memory on a directory: cAdvisor finds no device for a directory that is no mount, and eviction then fails.
///
/// # Errors
///
/// The kernel refuses.
pub fn memory(on: &Path) -> anyhow::Result<()> {
    run(
        "mount",
        [
            "-t",
            "tmpfs",
            "-o",
            "mode=0755,size=75%",
            "tmpfs",
            &on.to_string_lossy(),
        ],
    )?;
    Ok(())
}

/// Ends all mounts on `dir` and below, the latest first, at once even if a process still uses them.
///
/// # Errors
///
/// The list cannot be read or one cannot be ended.
pub fn end_below(dir: &Path) -> anyhow::Result<()> {
    for mount in below(dir)?.iter().rev() {
        run("umount", [Path::new("-l"), mount])?;
    }
    Ok(())
}

fn below(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("read /proc/self/mounts")?;
    let targets = mounts.lines().filter_map(|line| line.split(' ').nth(1)).map(unescape);
    Ok(targets.filter(|target| target.starts_with(dir)).collect())
}

/// Undoes `\040` and its like.
fn unescape(field: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal
            .filter(|_| first == b'\\')
            .and_then(|digits| u8::from_str_radix(digits, 8).ok())
        {
            Some(byte) => (bytes.push(byte), rest = &tail[3..]).0,
            None => (bytes.push(first), rest = tail).0,
        }
    }
    use std::os::unix::ffi::OsStringExt as _;
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_and_odd_names_are_read() {
        assert!(below(Path::new("/")).unwrap().contains(&PathBuf::from("/proc")));
        assert_eq!(unescape(r"/a\040b\134c"), Path::new(r"/a b\c"));
    }
}
