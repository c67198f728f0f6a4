//! An object store whose client is made anew when files with its credentials or its CAs change, as those of a mounted Secret do.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, RenameOptions, Result,
};
use runtime::log_once::LogBackoff;
use tokio::time::Instant;
use tracing::{info, warn};

use super::{DestinationError, DestinationOptions, Variables, client};
use crate::last_failure::LastFailure;

/// The time for which files are not read again.
const READ_INTERVAL: Duration = Duration::from_secs(1);

/// The interval at which files are reported that cannot be used.
const FAILURE_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Returns a client, which follows its files if it has any.
///
/// # Errors
/// As those of [`client::open`].
pub(super) fn open(
    options: &DestinationOptions,
    failure: &LastFailure,
) -> std::result::Result<Arc<dyn ObjectStore>, DestinationError> {
    // A pipe can be read once.
    if named(options).any(|path| is_pipe(&path)) {
        return client::open(options, failure);
    }
    let files = Files::read(options);
    let store = client::open(options, failure)?;
    if files.0.is_empty() && options.credentials_dir.is_none() {
        return Ok(store);
    }
    let current = Current {
        store,
        files,
        read: Instant::now(),
        log: LogBackoff::every(FAILURE_LOG_INTERVAL),
    };
    Ok(Arc::new(ReloadingStore {
        options: options.clone(),
        failure: failure.clone(),
        current: Mutex::new(current),
    }))
}

/// Returns the files that options and variables name.
fn named(options: &DestinationOptions) -> impl Iterator<Item = PathBuf> {
    let variables = [
        "AWS_SHARED_CREDENTIALS_FILE",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "GOOGLE_SERVICE_ACCOUNT",
        "GOOGLE_SERVICE_ACCOUNT_PATH",
    ];
    let of_variables = variables.map(|name| options.variables.get(name).map(PathBuf::from));
    let of_options = [options.credentials_file.clone(), options.ca_file.clone()];
    of_options.into_iter().chain(of_variables).flatten()
}

fn is_pipe(path: &PathBuf) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| !meta.is_file())
}

/// The content of files, `None` if one cannot be read.
#[derive(PartialEq, Eq)]
struct Files(BTreeMap<PathBuf, Option<Vec<u8>>>);

impl Files {
    /// Reads all that a client is made of. The files are small.
    fn read(options: &DestinationOptions) -> Self {
        let directory = options.credentials_dir.as_ref();
        let entries = directory.and_then(|directory| std::fs::read_dir(directory).ok());
        let inside = entries.into_iter().flatten().flatten();
        let inside = inside.filter(|entry| Variables::is_of_provider(&entry.file_name().to_string_lossy()));
        let all = named(options).chain(inside.map(|entry| entry.path()));
        let all = all.filter(|path| !is_pipe(path));
        Self(all.map(|path| (path.clone(), std::fs::read(path).ok())).collect())
    }
}

struct ReloadingStore {
    options: DestinationOptions,
    failure: LastFailure,
    current: Mutex<Current>,
}

struct Current {
    store: Arc<dyn ObjectStore>,
    /// Those that the client was made of.
    files: Files,
    read: Instant,
    log: LogBackoff,
}

impl ReloadingStore {
    /// Returns the client of the files as they were a second ago or are now. While none can be made of them, the earlier one stays.
    fn store(&self) -> Arc<dyn ObjectStore> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.read.elapsed() >= READ_INTERVAL {
            let files = Files::read(&self.options);
            if files != current.files {
                match client::open(&self.options, &self.failure) {
                    Ok(store) => {
                        info!(
                            destination = self.options.url,
                            "the credentials of the destination have changed"
                        );
                        current.store = store;
                        current.files = files;
                    }
                    Err(error) if current.log.is_due() => warn!(
                        error = &error as &dyn std::error::Error,
                        "the credentials of the destination have changed and cannot be used: the earlier ones stay"
                    ),
                    Err(_) => {}
                }
            }
            current.read = Instant::now();
        }
        current.store.clone()
    }
}

impl fmt::Debug for ReloadingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReloadingStore").finish_non_exhaustive()
    }
}

impl fmt::Display for ReloadingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store().fmt(f)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl ObjectStore for ReloadingStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.store().put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.store().put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.store().get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.store().get_ranges(location, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.store().delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.store().list(prefix)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.store().list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.store().list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.store().copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.store().rename_opts(from, to, options).await
    }
}
