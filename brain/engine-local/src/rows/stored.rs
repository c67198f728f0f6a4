//! The rows of a directory as they were left, to be looked at.
//!
//! lsm-tree cannot open a directory without writing to it. So it opens a copy: of manifests, which are small, of journals if the layout is
//! the former one, and with links to the tables, which never change. Removals, and conversions, change the copy alone.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::inspect::{self, TABLES_DIR, list, name};
use super::open::open_tree;
use super::read::{LiveViews, LsmSnapshot};
use super::{LsmOptions, RowsOpenError, former};
use engine::rows::RowsError;

/// Rows that are only read. They are gone from `$TMPDIR` when this is dropped.
pub struct StoredRows {
    snapshot: LsmSnapshot,
    cut: Option<String>,
    /// Gone last.
    _copy: RowsCopy,
}

impl StoredRows {
    /// Opens a copy of the rows in `dir`. Blocks. Error messages name the files of `dir`. Also fails if there is no place for the copy.
    pub fn open(dir: &Path) -> Result<Self, RowsOpenError> {
        let dir = std::path::absolute(dir).map_err(super::guard::io)?;
        if inspect::is_vacant(&dir)? {
            return Err(RowsError::Corrupt(format!("there are no rows in {}", dir.display())).into());
        }
        let copy = RowsCopy::of(&dir)?;
        let original = |text: &str| text.replace(&copy.0.display().to_string(), &dir.display().to_string());
        let (snapshot, cut) = open(&copy.0).map_err(|error| match error {
            RowsOpenError::InUse(_) => RowsOpenError::InUse(dir.clone()),
            RowsOpenError::Newer(path) => RowsOpenError::Newer(original(&path.display().to_string()).into()),
            RowsOpenError::Rows(RowsError::Corrupt(what)) => RowsOpenError::Rows(RowsError::Corrupt(original(&what))),
            other => other,
        })?;
        Ok(Self {
            snapshot,
            cut: cut.map(|cut| original(&cut)),
            _copy: copy,
        })
    }

    /// The rows as of the last whole batch.
    #[must_use]
    pub fn snapshot(&self) -> &LsmSnapshot {
        &self.snapshot
    }

    /// The place from which on the newest journal of the former layout is not whole, as one line. The snapshot holds nothing after that
    /// place.
    #[must_use]
    pub fn cut(&self) -> Option<&str> {
        self.cut.as_deref()
    }
}

impl std::fmt::Debug for StoredRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoredRows")
            .field("cut", &self.cut)
            .finish_non_exhaustive()
    }
}

fn open(dir: &Path) -> Result<(LsmSnapshot, Option<String>), RowsOpenError> {
    let options = LsmOptions::default();
    let _lock = inspect::lock(dir)?;
    let cut = former::convert(dir, &options, |_| Ok(()))?;
    let tree = open_tree(dir, &options)?;
    Ok((LsmSnapshot::take(&tree, &[], &LiveViews::default()), cut))
}

/// A copy in a directory of its own, removed with it.
struct RowsCopy(PathBuf);

impl RowsCopy {
    fn of(dir: &Path) -> Result<RowsCopy, RowsError> {
        let new = std::env::temp_dir().join(format!("kubebrain-debug-{:016x}", rand::random::<u64>()));
        private(&new)?;
        let copy = RowsCopy(new);
        fill(dir, &copy.0)?;
        Ok(copy)
    }
}

impl Drop for RowsCopy {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(dir = %self.0.display(), %error, "cannot remove a copy of the rows");
        }
    }
}

fn private(dir: &Path) -> Result<(), RowsError> {
    DirBuilder::new()
        .mode(0o700)
        .create(dir)
        .map_err(|error| uncopied(dir, error))
}

/// The copy cannot be made: that says nothing of the store.
fn uncopied(to: &Path, error: std::io::Error) -> RowsError {
    let text = format!(
        "copy the rows to {}: set TMPDIR to a directory that has space",
        to.display()
    );
    RowsError::Failed(anyhow::Error::new(error).context(text))
}

fn fill(from: &Path, to: &Path) -> Result<(), RowsError> {
    for path in list(from)? {
        let copy = to.join(name(&path));
        if path.is_dir() {
            private(&copy)?;
            fill(&path, &copy)?;
        } else if from.ends_with(TABLES_DIR) {
            symlink(&path, &copy).map_err(|error| uncopied(&copy, error))?;
        } else {
            fs::copy(&path, &copy).map_err(|error| uncopied(&copy, error))?;
        }
    }
    Ok(())
}
