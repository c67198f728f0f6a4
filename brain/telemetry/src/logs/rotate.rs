//! A log file that is replaced when it is full. Names of old files and what becomes of them are as lumberjack has them, which etcd uses.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use crate::logs::LogRotation;

/// The time in the name of an old file.
const BACKUP_TIME_FORMAT: &str = "%Y-%m-%dT%H-%M-%S%.3f";

/// The end of the name of an old file that is compressed.
const COMPRESSED_SUFFIX: &str = ".gz";

/// Where a full file cannot be replaced, this many bytes are written before that is tried again.
const ROTATE_RETRY_BYTES: u64 = 1 << 20;

/// The open file.
pub(super) struct RotatingFile {
    file: File,
    size: u64,
    /// The size at which it is replaced.
    due: u64,
    backups: LogBackups,
    /// Starts a pass over the old files; `None` while this is dropped.
    clean: Option<SyncSender<()>>,
    cleaner: Option<JoinHandle<()>>,
}

impl RotatingFile {
    /// Opens the file, or creates it with its directory. Old files are removed and compressed in a thread.
    pub(super) fn open(path: &Path, options: LogRotation) -> io::Result<Self> {
        let backups = LogBackups::of(path, options)?;
        fs::create_dir_all(&backups.dir)?;
        let file = append(path, 0o600)?;
        let (clean, asked) = sync_channel(1);
        let old = backups.clone();
        let cleaner = thread::Builder::new().name("log rotation".to_owned()).spawn(move || {
            for () in asked {
                if let Err(error) = old.clean(Timestamp::now()) {
                    report("could not remove or compress old log files", &error);
                }
            }
        })?;
        let opened = Self {
            size: file.metadata()?.len(),
            file,
            due: options.max_bytes,
            backups,
            clean: Some(clean),
            cleaner: Some(cleaner),
        };
        opened.clean();
        Ok(opened)
    }

    fn clean(&self) {
        match self.clean.as_ref().map(|clean| clean.try_send(())) {
            // A pass that has not begun sees everything.
            None | Some(Ok(()) | Err(TrySendError::Full(()))) => {}
            Some(Err(TrySendError::Disconnected(()))) => {
                report(
                    "could not remove old log files",
                    &io::Error::other("the thread that removes log files has ended"),
                );
            }
        }
    }

    fn rotate(&mut self) -> io::Result<()> {
        let mode = self.file.metadata()?.permissions().mode();
        match fs::rename(&self.backups.path, self.backups.next(Timestamp::now())) {
            Ok(()) => {}
            // It was moved away by someone else.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        self.file = append(&self.backups.path, mode & 0o777)?;
        self.size = self.file.metadata()?.len();
        self.due = self.backups.options.max_bytes;
        self.clean();
        Ok(())
    }
}

impl io::Write for RotatingFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.size > 0
            && self.size + line.len() as u64 > self.due
            && let Err(error) = self.rotate()
        {
            self.due = self.size + ROTATE_RETRY_BYTES;
            report("cannot rotate a full log file", &error);
        }
        let written = self.file.write(line)?;
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for RotatingFile {
    fn drop(&mut self) {
        self.clean = None;
        if let Some(Err(_)) = self.cleaner.take().map(JoinHandle::join) {
            report(
                "could not remove old log files",
                &io::Error::other("the thread that removes log files panicked"),
            );
        }
    }
}

fn append(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(mode).open(path)
}

/// Reports what went wrong with the log itself.
fn report(what: &str, error: &io::Error) {
    // If standard error is closed, the report is lost.
    let _written = writeln!(io::stderr(), "kubebrain: {what}: {error}");
}

/// The old files of a log.
#[derive(Debug, Clone)]
struct LogBackups {
    path: PathBuf,
    dir: PathBuf,
    /// The name of the file up to the time in the names of old ones, and what follows it.
    prefix: String,
    suffix: String,
    options: LogRotation,
    zone: TimeZone,
}

/// An old file.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LogBackup {
    time: DateTime,
    name: String,
}

impl LogBackups {
    fn of(path: &Path, options: LogRotation) -> io::Result<Self> {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "it has no name in UTF-8"))?;
        let (stem, suffix) = name.rfind('.').map_or((name, ""), |dot| name.split_at(dot));
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        Ok(Self {
            path: path.to_owned(),
            dir: dir.unwrap_or(Path::new(".")).to_owned(),
            prefix: format!("{stem}-"),
            suffix: suffix.to_owned(),
            zone: if options.local_time {
                TimeZone::system()
            } else {
                TimeZone::UTC
            },
            options,
        })
    }

    /// Returns the path for a file that becomes old now. No file has it yet.
    fn next(&self, mut now: Timestamp) -> PathBuf {
        loop {
            let time = now.to_zoned(self.zone.clone()).strftime(BACKUP_TIME_FORMAT);
            let path = self.dir.join(format!("{}{time}{}", self.prefix, self.suffix));
            if !path.exists() {
                return path;
            }
            now += Duration::from_millis(1);
        }
    }

    /// Removes files that are too old or too many, and compresses the others if that is wanted.
    fn clean(&self, now: Timestamp) -> io::Result<()> {
        let LogRotation {
            max_age, max_backups, ..
        } = self.options;
        let oldest = max_age.and_then(|age| {
            let oldest = now.checked_sub(SignedDuration::try_from(age).ok()?).ok()?;
            Some(oldest.to_zoned(self.zone.clone()).datetime())
        });
        let (mut kept, mut outcome) = (BTreeSet::new(), Ok(()));
        for LogBackup { time, name } in self.list()?.into_iter().rev() {
            let path = self.dir.join(&name);
            let plain = name.strip_suffix(COMPRESSED_SUFFIX);
            kept.insert(plain.unwrap_or(&name).to_owned());
            let is_one_too_many = max_backups > 0 && kept.len() > max_backups;
            let done = if is_one_too_many || oldest.is_some_and(|oldest| time < oldest) {
                fs::remove_file(&path)
            } else if self.options.compress && plain.is_none() {
                compress(&path, &self.dir.join(name + COMPRESSED_SUFFIX))
            } else {
                Ok(())
            };
            // One file that fails keeps no other.
            outcome = outcome.and(done);
        }
        outcome
    }

    /// Returns the old files, the oldest first.
    fn list(&self) -> io::Result<Vec<LogBackup>> {
        let mut backups = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            if entry.file_type()?.is_file()
                && let Some(time) = self.time(&name)
            {
                backups.push(LogBackup { time, name });
            }
        }
        backups.sort();
        Ok(backups)
    }

    /// Returns the time in the name of an old file; `None` for other files.
    fn time(&self, name: &str) -> Option<DateTime> {
        let name = name.strip_suffix(COMPRESSED_SUFFIX).unwrap_or(name);
        let time = name.strip_prefix(&self.prefix)?.strip_suffix(&self.suffix)?;
        let time = DateTime::strptime(BACKUP_TIME_FORMAT, time).ok()?;
        // Without digits of the second's fraction it would be another program's.
        name.contains(&time.strftime(BACKUP_TIME_FORMAT).to_string())
            .then_some(time)
    }
}

/// Replaces a file by a compressed one.
fn compress(from: &Path, to: &Path) -> io::Result<()> {
    let mut plain = File::open(from)?;
    let mode = plain.metadata()?.permissions().mode() & 0o777;
    // One that exists is left of a pass that was cut short.
    let mut options = OpenOptions::new();
    let file = options.create(true).write(true).truncate(true).mode(mode).open(to)?;
    let mut gzip = GzEncoder::new(file, Compression::default());
    io::copy(&mut plain, &mut gzip)?;
    gzip.finish()?.sync_all()?;
    fs::remove_file(from)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;
    use tempfile::TempDir;

    use super::*;

    const OPTIONS: LogRotation = LogRotation {
        max_bytes: 10,
        max_age: None,
        max_backups: 0,
        local_time: false,
        compress: false,
    };

    fn names(dir: &TempDir) -> Vec<String> {
        let entries = fs::read_dir(dir.path()).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn full_file_is_replaced_and_every_line_is_kept_once() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("logs/brain.log");
        let mut log = RotatingFile::open(&path, OPTIONS).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        for line in ["one\n", "two\n", "three\n", "longer than a file\n", "four\n"] {
            log.write_all(line.as_bytes()).unwrap();
        }
        drop(log);
        let mut log = RotatingFile::open(&path, OPTIONS).unwrap();
        log.write_all(b"five\n").unwrap();
        log.write_all(b"six\n").unwrap();
        let backups = log.backups.list().unwrap();
        let read = |name: &str| fs::read_to_string(path.with_file_name(name)).unwrap();
        let old: Vec<_> = backups.iter().map(|backup| read(&backup.name)).collect();
        assert_eq!(old, ["one\ntwo\n", "three\n", "longer than a file\n", "four\nfive\n"]);
        assert_eq!(read("brain.log"), "six\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    }

    #[test]
    fn file_that_cannot_be_replaced_is_written_on() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("brain.log");
        let mut log = RotatingFile::open(&path, OPTIONS).unwrap();
        // Its name is taken by a directory with something in it, and no file can be put there.
        fs::remove_file(&path).unwrap();
        fs::create_dir_all(path.join("x")).unwrap();
        log.write_all(b"first line\n").unwrap();
        log.backups.dir = dir.path().join("no/such");
        log.write_all(b"second line\n").unwrap();
        assert_eq!((log.size, log.due), (23, 11 + ROTATE_RETRY_BYTES));
    }

    #[test]
    fn names_are_those_of_lumberjack() {
        let dir = TempDir::new().unwrap();
        let backups = LogBackups::of(&dir.path().join("brain.log"), OPTIONS).unwrap();
        let now: Timestamp = "2016-11-04T18:30:00.007Z".parse().unwrap();
        let next = || backups.next(now).file_name().unwrap().to_str().unwrap().to_owned();
        assert_eq!(next(), "brain-2016-11-04T18-30-00.007.log");
        fs::write(dir.path().join(next()), "").unwrap();
        assert_eq!(next(), "brain-2016-11-04T18-30-00.008.log");
        for other in [
            "brain-2016-11-04T18-30-00.log",
            "brain-old.log",
            "brain.log",
            "other-2016-11-04T18-30-00.007.log",
        ] {
            assert_eq!(backups.time(other), None, "{other}");
        }
        let without_end = LogBackups::of(Path::new("brain"), OPTIONS).unwrap();
        let name = without_end.next(now);
        assert_eq!(name, Path::new("./brain-2016-11-04T18-30-00.007"));
    }

    #[test]
    fn old_files_are_removed_by_number_and_age_and_compressed() {
        let dir = TempDir::new().unwrap();
        let name = |day: u32| format!("brain-2020-01-0{day}T00-00-00.000.log");
        let fill = || {
            for day in 1..=5 {
                fs::write(dir.path().join(name(day)), format!("{day}")).unwrap();
            }
            fs::write(dir.path().join("brain.log"), "now").unwrap();
        };
        let clean = |options| {
            let backups = LogBackups::of(&dir.path().join("brain.log"), options).unwrap();
            backups.clean("2020-01-05T12:00:00Z".parse().unwrap()).unwrap();
            names(&dir)
        };
        let listed = |days: &[u32], end: &str| -> Vec<String> {
            let old = days.iter().map(|day| name(*day) + end);
            old.chain(["brain.log".to_owned()]).collect()
        };
        fill();
        assert_eq!(clean(OPTIONS), listed(&[1, 2, 3, 4, 5], ""));
        let few = LogRotation {
            max_backups: 4,
            ..OPTIONS
        };
        assert_eq!(clean(few), listed(&[2, 3, 4, 5], ""));
        let max_age = Some(Duration::from_secs(2 * 24 * 3600));
        assert_eq!(clean(LogRotation { max_age, ..OPTIONS }), listed(&[4, 5], ""));
        let compressed = LogRotation {
            compress: true,
            max_backups: 2,
            ..OPTIONS
        };
        assert_eq!(clean(compressed), listed(&[4, 5], COMPRESSED_SUFFIX));
        let mut plain = String::new();
        let file = File::open(dir.path().join(name(5) + COMPRESSED_SUFFIX)).unwrap();
        GzDecoder::new(file).read_to_string(&mut plain).unwrap();
        assert_eq!(plain, "5");
        // A compressed file and the plain one that it was made of count as one.
        fs::write(dir.path().join(name(5)), "5").unwrap();
        assert_eq!(clean(compressed), listed(&[4, 5], COMPRESSED_SUFFIX));
    }
}
