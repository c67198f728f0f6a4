//! The few calls that change files, so that tests can make each of them fail.
//!
//! A failed sync is never treated as a lack of space, because the writes before it are in doubt. So its error never looks
//! like one of those that [`is_full`] detects.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use engine::log::{LogObserver, LogWrite};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use tokio::time::Instant;

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Access to the disk.
#[derive(Debug, Clone, Default)]
pub(super) struct Disk {
    observer: Option<LogObserver>,
    #[cfg(test)]
    pub(super) faults: std::sync::Arc<Faults>,
}

/// Operations that fail, for tests.
#[cfg(test)]
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// No file can grow or appear.
    pub(super) full: std::sync::atomic::AtomicBool,
    /// Requests for room wait while a test holds this.
    pub(super) room: std::sync::RwLock<()>,
    /// Syncs of batches wait while a test holds this.
    pub(super) sync: std::sync::RwLock<()>,
    /// The next write of a batch stops half-way for want of space.
    pub(super) full_write: std::sync::atomic::AtomicBool,
    /// The next write fails.
    pub(super) failed_write: std::sync::atomic::AtomicBool,
    /// The next sync fails.
    pub(super) failed_sync: std::sync::atomic::AtomicBool,
    /// The file system cannot preallocate.
    pub(super) no_fallocate: std::sync::atomic::AtomicBool,
    /// Watches what is written and synced.
    pub(super) power: super::tests::power::Watcher,
    /// The next write of whole pages finds no space.
    pub(super) full_page: std::sync::atomic::AtomicBool,
    /// The next file that is cut finds no space.
    pub(super) full_cut: std::sync::atomic::AtomicBool,
    /// Syncs so far.
    pub(super) syncs: std::sync::atomic::AtomicU64,
}

/// Returns true if `error` means that there is no room, and nothing else is wrong.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl Disk {
    /// Gives `file` room for `len` bytes, which read as zeros.
    pub(super) fn allocate(&self, file: &File, len: u64) -> io::Result<()> {
        #[cfg(test)]
        drop(self.faults.room.read());
        #[cfg(test)]
        if self.faults.full.load(std::sync::atomic::Ordering::SeqCst) {
            return Err(Errno::NOSPC.into());
        }
        match self.fallocate(file, len) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            done => return Ok(done?),
        }
        let mut at = 0;
        while at < len {
            let part = usize::try_from(len - at).map_or(ZEROS.len(), |left| left.min(ZEROS.len()));
            file.write_all_at(&ZEROS[..part], at)?;
            at += part as u64;
        }
        Ok(())
    }

    fn fallocate(&self, file: &File, len: u64) -> Result<(), Errno> {
        #[cfg(test)]
        if self.faults.no_fallocate.load(std::sync::atomic::Ordering::SeqCst) {
            return Err(Errno::OPNOTSUPP);
        }
        rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len)
    }

    /// Frees the space of `file` after the first `len` bytes.
    pub(super) fn cut(&self, file: &File, len: u64) -> io::Result<()> {
        #[cfg(test)]
        if self.faults.full_cut.swap(false, std::sync::atomic::Ordering::SeqCst) {
            return Err(Errno::NOSPC.into());
        }
        file.set_len(len)
    }

    /// Writes all of `bytes` at offset `at`.
    pub(super) fn write(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
        #[cfg(test)]
        if bytes.len().is_multiple_of(4096) && self.faults.full_page.swap(false, std::sync::atomic::Ordering::SeqCst) {
            return Err(Errno::NOSPC.into());
        }
        #[cfg(test)]
        if bytes.len() > 32
            && !bytes.len().is_multiple_of(4096)
            && self.faults.full_write.swap(false, std::sync::atomic::Ordering::SeqCst)
        {
            file.write_all_at(&bytes[..bytes.len() / 2], at)?;
            return Err(Errno::NOSPC.into());
        }
        #[cfg(test)]
        if self
            .faults
            .failed_write
            .swap(false, std::sync::atomic::Ordering::SeqCst)
        {
            return Err(Errno::IO.into());
        }
        #[cfg(test)]
        if let Some(power) = &mut *self.faults.power.lock().unwrap() {
            power.will_write(file);
            file.write_all_at(bytes, at)?;
            power.fail();
            return Ok(());
        }
        file.write_all_at(bytes, at)
    }

    /// Returns a disk that tells `observer` of batches.
    #[allow(clippy::field_reassign_with_default, reason = "a test build has more fields")]
    pub(super) fn observed(observer: LogObserver) -> Self {
        let mut disk = Self::default();
        disk.observer = Some(observer);
        disk
    }

    /// Writes a batch at offset `at`.
    pub(super) fn write_batch(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
        let began = Instant::now();
        self.write(file, bytes, at)?;
        if let Some(observer) = &self.observer {
            observer.tell(LogWrite::Written(bytes.len(), began.elapsed()));
        }
        Ok(())
    }

    /// Syncs the data of a batch.
    pub(super) fn sync_batch(&self, file: &File) -> io::Result<()> {
        #[cfg(test)]
        drop(self.faults.sync.read());
        let began = Instant::now();
        let synced = self.sync(file);
        if let Some(observer) = &self.observer {
            observer.tell(LogWrite::Synced(began.elapsed()));
        }
        synced
    }

    /// Answers when the bytes of `file` are on disk.
    pub(super) fn sync(&self, file: &File) -> io::Result<()> {
        #[cfg(test)]
        self.faults.syncs.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        #[cfg(test)]
        if self.faults.failed_sync.swap(false, std::sync::atomic::Ordering::SeqCst) {
            return Err(io::Error::other("sync failed: on command"));
        }
        #[cfg(test)]
        if let Some(power) = &mut *self.faults.power.lock().unwrap() {
            power.fail();
            power.did_sync(file);
        }
        file.sync_data()
            .map_err(|error| io::Error::other(format!("sync failed: {error}")))
    }

    /// Answers when the names in `dir` are on disk.
    pub(super) fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.sync(&File::open(dir)?)
    }
}
