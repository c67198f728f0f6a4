//! File systems on loop devices, whose power can be cut and whose devices can run out of space.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// `EXT4_IOC_SHUTDOWN` with `EXT4_GOING_FLAGS_NOLOGFLUSH`, by a program that every Debian has: it takes a system call of its own.
const SHUT_DOWN: &str = r#"
    open(my $dir, "<", $ARGV[0]) or die "open: $!";
    my $without_flush = pack("L", 2);
    ioctl($dir, 0x8004587d, $without_flush) or die "ioctl: $!";
"#;
const DISK_MIB: u64 = 400;
const THIN_MIB: u64 = 256;
/// Memory beyond that of a thin device, so that it is never full by itself.
const SPARE_MIB: u64 = 16;

/// An ext4 file system on a device of its own, mounted while this is held.
pub(super) struct Disk {
    file: PathBuf,
    device: String,
    at: PathBuf,
    is_mounted: bool,
    /// Where the device takes its blocks from, if it is thin.
    pool: Option<PathBuf>,
    _dir: TempDir,
}

impl Disk {
    /// One that has all its space.
    pub(super) fn new() -> Self {
        Self::make(TempDir::new().unwrap(), None)
    }

    /// A disk that takes a block from a pool at the first write to it. The file system does not know when the pool is empty: it accepts
    /// writes into memory, and its own blocks are allocated, but it cannot write new blocks of files to the device.
    pub(super) fn thin() -> Self {
        let dir = TempDir::new().unwrap();
        let pool = dir.path().join("pool");
        std::fs::create_dir(&pool).unwrap();
        let size = format!("size={}m,mode=0700", THIN_MIB + SPARE_MIB);
        run(Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(&pool));
        let mut disk = Self::make(dir, Some(pool));
        // Blocks that the file system does not use return to the pool; all others stay allocated.
        run(Command::new("fstrim").arg(&disk.at));
        disk.is_mounted = true;
        disk
    }

    fn make(dir: TempDir, pool: Option<PathBuf>) -> Self {
        assert!(rustix::process::geteuid().is_root(), "mounting needs root");
        let mib = if pool.is_some() { THIN_MIB } else { DISK_MIB };
        let (file, at) = (
            pool.as_deref().unwrap_or(dir.path()).join("disk"),
            dir.path().join("mounted"),
        );
        File::create(&file).unwrap().set_len(mib << 20).unwrap();
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-b", "4096"]).arg(&file));
        if pool.is_some() {
            run(Command::new("fallocate")
                .args(["--length", &format!("{mib}MiB")])
                .arg(&file));
        }
        let mut disk = Self::attach(dir, file, at, pool);
        if disk.pool.is_some() {
            // A loop device reports success for a request that could be written only in part. A request of one block is never written in
            // part.
            let name = Path::new(&disk.device).file_name().unwrap();
            std::fs::write(Path::new("/sys/block").join(name).join("queue/max_sectors_kb"), "4").unwrap();
        }
        disk.mount();
        disk
    }

    /// One on a file that holds a file system, which is not mounted yet.
    fn attach(dir: TempDir, file: PathBuf, at: PathBuf, pool: Option<PathBuf>) -> Self {
        std::fs::create_dir(&at).unwrap();
        let device = run(Command::new("losetup").args(["--find", "--show"]).arg(&file));
        Self {
            file,
            device: device.trim().to_owned(),
            at,
            is_mounted: false,
            pool,
            _dir: dir,
        }
    }

    /// Returns a copy of what the device holds, mounted elsewhere on a device of its own. A thin one would be no copy: it would have all its
    /// space.
    pub(super) fn copy(&self) -> Self {
        assert!(self.pool.is_none(), "a thin disk");
        let dir = TempDir::new().unwrap();
        let (file, at) = (dir.path().join("disk"), dir.path().join("mounted"));
        run(Command::new("cp").arg("--sparse=always").args([&self.file, &file]));
        let mut copy = Self::attach(dir, file, at, None);
        copy.mount();
        copy
    }

    pub(super) fn is_thin(&self) -> bool {
        self.pool.is_some()
    }

    pub(super) fn mount(&mut self) {
        run(Command::new("mount").arg(&self.device).arg(&self.at));
        self.is_mounted = true;
    }

    pub(super) fn unmount(&mut self) {
        run(Command::new("umount").arg(&self.at));
        self.is_mounted = false;
    }

    /// From this instant on, the device receives nothing more, and data that it has not received is lost. Next, the file system must be
    /// unmounted.
    pub(super) fn cut_power(&self) {
        run(Command::new("perl").args(["-e", SHUT_DOWN]).arg(&self.at));
    }

    /// Takes all that is left of the pool of a thin disk.
    pub(super) fn empty_pool(&self) {
        let mut ballast = File::create(self.ballast()).unwrap();
        let block = vec![1; 1 << 20];
        let full = loop {
            if let Err(error) = ballast.write_all(&block) {
                break error;
            }
        };
        assert_eq!(full.kind(), ErrorKind::StorageFull, "{full}");
    }

    /// Gives it back.
    pub(super) fn fill_pool(&self) {
        std::fs::remove_file(self.ballast()).unwrap();
    }

    fn ballast(&self) -> PathBuf {
        self.pool.as_ref().expect("only a thin disk has a pool").join("ballast")
    }

    /// The place for a data directory.
    pub(super) fn data(&self) -> PathBuf {
        self.at.join("data")
    }

    /// Returns true if the file system is whole. It must not be mounted.
    pub(super) fn is_clean(&self) -> bool {
        let checked = Command::new("e2fsck").args(["-fn"]).arg(&self.file).output().unwrap();
        checked.status.success()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily, because a server may not be quite gone.
        if self.is_mounted {
            run(Command::new("umount").arg("--lazy").arg(&self.at));
        }
        run(Command::new("losetup").arg("--detach").arg(&self.device));
        if let Some(pool) = &self.pool {
            run(Command::new("umount").arg("--lazy").arg(pool));
        }
    }
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}
