//! The advisories about versions of brains that the operator has: files of a directory, which is usually a mounted ConfigMap.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fs, io};

use plan::advisory::{Advisory, KnownAdvisories};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

/// The interval at which the directory is read. A ConfigMap takes about a minute to its pods anyway.
const READ_INTERVAL: Duration = Duration::from_secs(30);
/// The largest file that is read; a ConfigMap has no larger ones.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// The most files that are read.
const MAX_FILES: usize = 1_000;

/// The advisories, as they were read last. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Advisories(Arc<Mutex<Arc<KnownAdvisories>>>);

impl Advisories {
    /// Returns them.
    pub(crate) fn known(&self) -> Arc<KnownAdvisories> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the directory. One that does not exist has no files.
    pub(crate) async fn read(&self, directory: &Path) {
        let path = directory.to_owned();
        let found = tokio::task::spawn_blocking(move || read_all(&path)).await;
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                error!(directory = %directory.display(), error = &error as &dyn std::error::Error, "cannot read advisories");
                return;
            }
        };
        if *self.known() == found {
            return;
        }
        let (files, advisories) = (found.files, found.advisories.len());
        info!(directory = %directory.display(), files, advisories, "read advisories about versions of brains");
        for problem in &found.unreadable {
            warn!(directory = %directory.display(), problem, "cannot read advisories");
        }
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(found);
    }

    /// Reads the directory again and again until `stop`.
    pub(crate) async fn follow(self, directory: PathBuf, stop: CancellationToken) -> anyhow::Result<()> {
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = tokio::time::sleep(READ_INTERVAL) => self.read(&directory).await,
            }
        }
    }
}

fn read_all(directory: &Path) -> KnownAdvisories {
    let mut known = KnownAdvisories::default();
    let names = match names(directory) {
        Ok(names) => names,
        Err(error) => {
            known.unreadable.push(error.to_string());
            return known;
        }
    };
    if let Some(left_out) = names.len().checked_sub(MAX_FILES).filter(|left_out| *left_out > 0) {
        known.unreadable.push(format!("{left_out} files more than {MAX_FILES}"));
    }
    for name in names.iter().take(MAX_FILES) {
        let advisories = read(&directory.join(name)).and_then(|text| Advisory::parse(&text));
        match advisories {
            Ok(records) => {
                known.files += 1;
                for record in records {
                    match record {
                        Ok(advisory) => known.advisories.push(advisory),
                        Err(error) => known.unreadable.push(format!("{name}: {error}")),
                    }
                }
            }
            Err(error) => known.unreadable.push(format!("{name}: {error}")),
        }
    }
    known
}

/// Returns the names of the files, in order.
fn names(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        // Names that are no UTF-8 are none of a ConfigMap.
        let name = entry?.file_name().into_string().unwrap_or_default();
        if Path::new(&name)
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn read(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let file = fs::File::open(path).map_err(|error| error.to_string())?;
    let length = file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text);
    match length.map_err(|error| error.to_string())? {
        length if length as u64 > MAX_FILE_BYTES => Err(format!("it has more than {MAX_FILE_BYTES} bytes")),
        _ => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = r#"{"id": "A", "affected": [{"package": {"name": "kubebrain"}, "versions": ["0.2.0"]}]}"#;

    #[tokio::test]
    async fn files_of_a_directory_are_read_and_what_is_wrong_with_one_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let advisories = Advisories::default();
        let missing = directory.path().join("missing");
        advisories.read(&missing).await;
        assert_eq!(*advisories.known(), KnownAdvisories::default());
        let write = |name: &str, content: &str| fs::write(directory.path().join(name), content).unwrap();
        write("a.json", RECORD);
        write("README", "no advisory");
        advisories.read(directory.path()).await;
        let known = advisories.known();
        let ids = |known: &KnownAdvisories| known.advisories.iter().map(|it| it.id.clone()).collect::<Vec<_>>();
        assert_eq!((ids(&known), known.files), (vec!["A".to_owned()], 1));
        assert!(known.unreadable.is_empty(), "{:?}", known.unreadable);
        // A mounted ConfigMap is links in a directory that is replaced.
        std::os::unix::fs::symlink("a.json", directory.path().join("b.json")).unwrap();
        write("c.json", "{");
        write("d.json", &" ".repeat(1 + usize::try_from(MAX_FILE_BYTES).unwrap()));
        advisories.read(directory.path()).await;
        let known = advisories.known();
        assert_eq!((ids(&known).len(), known.files), (2, 2));
        assert_eq!(known.unreadable.len(), 2, "{:?}", known.unreadable);
        assert!(known.unreadable[0].starts_with("c.json: EOF"), "{:?}", known.unreadable);
        assert_eq!(known.unreadable[1], "d.json: it has more than 1048576 bytes");
    }

    #[tokio::test(start_paused = true)]
    async fn changes_of_the_directory_are_seen() {
        let directory = tempfile::tempdir().unwrap();
        let (advisories, stop) = (Advisories::default(), CancellationToken::new());
        let follow = advisories.clone().follow(directory.path().to_owned(), stop.clone());
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(follow);
        fs::write(directory.path().join("a.json"), RECORD).unwrap();
        while advisories.known().files == 0 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        stop.cancel();
        tasks.join_next().await.unwrap().unwrap().unwrap();
    }
}
