//! Creating and opening the directory.

use std::fs::{self, File};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use tokio::sync::{Mutex, Notify};

use super::guard::{RowsHealth, io};
use super::inspect::{self, LOCK_FILE, TREE_DIR, named};
use super::merge::{MergeLimits, MergeTarget, Merger};
use super::read::{LiveViews, LsmSnapshot};
use super::removal::TableRemover;
use super::tree::RowsTree;
use super::write::LsmWriter;
use super::{LsmOptions, LsmShared, former};
use engine::rows::RowsError;
use runtime::kill_points;

/// Errors of opening the rows.
#[derive(Debug, thiserror::Error)]
pub enum RowsOpenError {
    /// Stop the other process, or choose another directory.
    #[error("the rows in {0} are in use by another process")]
    InUse(PathBuf),
    /// Start the version that wrote them, or a newer one.
    #[error("{0} has a format of rows that this version does not support")]
    Newer(PathBuf),
    /// The damaged end of the newest journal of the former layout is stored nowhere else.
    #[error("{flaw}, and the lost rest cannot be taken from the log: {reason:#}; the rows were not changed")]
    Uncovered {
        /// The journal, and where it is damaged.
        flaw: String,
        /// The reason why the log cannot replace the rows.
        reason: anyhow::Error,
    },
    /// As when reading.
    #[error(transparent)]
    Rows(#[from] RowsError),
}

/// Opens rows. `covers` refuses a fence after which the log is not complete.
pub(super) fn open(
    dir: &Path,
    options: LsmOptions,
    covers: impl Fn(Option<Bytes>) -> anyhow::Result<()>,
) -> Result<LsmShared, RowsOpenError> {
    let dir = std::path::absolute(dir).map_err(io)?;
    if inspect::is_vacant(&dir)? {
        create(&dir, &options)?;
    }
    let lock = inspect::lock(&dir)?;
    if let Some(flaw) = former::convert(&dir, &options, covers)? {
        tracing::warn!(
            flaw,
            "left out the incomplete end of the newest journal of the rows: the log has its changes"
        );
    }
    let tree = open_tree(&dir, &options)?.locked(lock);
    let fence = tree.fence(tree.visible())?.map(|row| row.fence);
    let (live, health) = (LiveViews::default(), RowsHealth::default());
    let view = ArcSwap::from_pointee(LsmSnapshot::take(&tree, &[], &live));
    let limits = MergeLimits {
        memtable_bytes: options.table_bytes(),
        reserve_bytes: options.reserve_bytes,
        quota: options.quota(),
    };
    let renewal = Arc::new(Notify::new());
    let merged = MergeTarget {
        dir: dir.clone(),
        tree: tree.clone(),
        live: live.clone(),
        health: health.clone(),
        renewal: renewal.clone(),
        limits,
    };
    let merger = Merger::start(merged).map_err(io)?;
    let remover = TableRemover::start(&tree, merger.handle()).map_err(io)?;
    // Merges that were not done before the last process ended.
    merger.ask();
    Ok(LsmShared {
        merger,
        _remover: remover,
        live,
        dir,
        tree,
        options,
        health,
        writer: Arc::new(Mutex::new(LsmWriter::new(fence))),
        view,
        renewal,
    })
}

/// Opens the tree of a directory that is locked, after checks that lsm-tree does not make.
pub(super) fn open_tree(dir: &Path, options: &LsmOptions) -> Result<RowsTree, RowsError> {
    let tree = dir.join(TREE_DIR);
    inspect::tree(&tree)?;
    inspect::sweep(&tree)?;
    RowsTree::open(&tree, options)
}

/// Makes empty rows beside `dir` and moves them there, so that `dir` is never there in part.
fn create(dir: &Path, options: &LsmOptions) -> Result<(), RowsOpenError> {
    let mut name = dir.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = dir.with_file_name(name);
    if !inspect::is_vacant(&new)? {
        fs::remove_dir_all(&new).map_err(|error| named(&new, error))?;
    }
    let mut private = fs::DirBuilder::new();
    private.recursive(true).mode(0o700);
    private.create(&new).map_err(|error| named(&new, error))?;
    inspect::require_space(&new, options.reserve_bytes)?;
    let lock = new.join(LOCK_FILE);
    let made = File::options().write(true).create_new(true).mode(0o600).open(&lock);
    made.and_then(|made| made.sync_all())
        .map_err(|error| named(&lock, error))?;
    drop(RowsTree::open(&new.join(TREE_DIR), options)?);
    inspect::sync_dir(&new)?;
    kill_points::reach("rows-made");
    fs::rename(&new, dir).map_err(|error| named(dir, error))?;
    inspect::sync_dir(dir.parent().unwrap_or(dir))?;
    Ok(())
}
