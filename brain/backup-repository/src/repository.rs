//! A destination with its backups: lists and deletes them, and repeats requests that fail.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::{Attributes, ObjectMeta, ObjectStore, ObjectStoreExt as _};
use runtime::backoff::Backoff;
use tracing::{info, warn};

use crate::ObjectError;
use crate::archive::ARCHIVES;
use crate::destination::{Destination, DestinationError, DestinationOptions};
use crate::last_failure::LastFailure;
use crate::manifest::{BackupName, MANIFESTS, Manifest, PARTS};

/// Attempts of each request, apart from those that the client of a store makes itself.
const ATTEMPTS: u32 = 6;

/// Answers of a store that refuses credentials, as its client words them.
const REFUSALS: [&str; 2] = ["status code: 401 ", "status code: 403 "];

/// The pause before a request is repeated.
const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(15));

/// The age at which parts without a manifest are orphans: those of a backup that is being made are younger.
const ORPHAN_AGE: Duration = Duration::from_secs(24 * 3_600);

/// Manifests that are read at a time.
const MANIFESTS_AT_A_TIME: usize = 8;

/// The backups below a destination.
#[derive(Debug, Clone)]
pub struct Repository {
    pub(crate) store: Arc<dyn ObjectStore>,
    prefix: Path,
    /// Attributes of new objects, such as their storage class.
    pub(crate) attributes: Attributes,
    /// The directory that the objects are files of.
    directory: Option<PathBuf>,
    /// The pauses between attempts.
    pauses: Backoff,
    failure: LastFailure,
}

/// The parts that no manifest names, which were deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeletedOrphans {
    pub objects: usize,
    pub bytes: u64,
}

impl Repository {
    /// Opens a destination, without a request. Fails if the options do not describe one.
    pub fn open(options: &DestinationOptions) -> Result<Self, DestinationError> {
        let Destination {
            store,
            prefix,
            attributes,
            directory,
            failure,
        } = Destination::open(options)?;
        Ok(Self {
            store,
            prefix,
            attributes,
            directory,
            pauses: RETRY_BACKOFF,
            failure,
        })
    }

    #[cfg(test)]
    pub(crate) fn in_store(store: Arc<dyn ObjectStore>, prefix: &str) -> Self {
        Self {
            store,
            prefix: prefix.into(),
            attributes: Attributes::new(),
            directory: None,
            pauses: Backoff::new(Duration::from_millis(1), Duration::from_millis(1)),
            failure: LastFailure::default(),
        }
    }

    /// Returns the failure of the requests, if they fail.
    pub fn last_failure(&self) -> LastFailure {
        self.failure.clone()
    }

    /// Returns the path of an object.
    pub(crate) fn path(&self, object: &str) -> Path {
        Path::from_iter(self.prefix.parts().chain(Path::from(object).parts()))
    }

    /// Returns the names of all backups, the oldest one first.
    pub async fn names(&self) -> Result<Vec<BackupName>, ObjectError> {
        let found = self.list_folder(MANIFESTS).await?;
        let names = found.iter().filter_map(|meta| meta.location.filename());
        let names = names.filter_map(|file| file.strip_suffix(".json")?.parse().ok());
        let mut names: Vec<BackupName> = names.collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Returns all backups, the oldest one first, with the reason why the manifest of one cannot be read.
    pub async fn backups(&self) -> Result<Vec<(BackupName, Result<Manifest, ObjectError>)>, ObjectError> {
        let names = self.names().await?;
        let read = names.into_iter().map(|name| async move {
            let manifest = self.manifest(&name).await;
            (name, manifest)
        });
        Ok(futures::stream::iter(read)
            .buffered(MANIFESTS_AT_A_TIME)
            .collect()
            .await)
    }

    /// Reads the manifest of a backup.
    pub async fn manifest(&self, name: &BackupName) -> Result<Manifest, ObjectError> {
        let object = name.manifest();
        let path = self.path(&object);
        let read = self.attempt(&object, async || self.store.get(&path).await?.bytes().await);
        match read.await {
            Ok(json) => Manifest::decode(name, &json),
            Err(error) => Err(self.or_missing(error).await),
        }
    }

    /// Writes the manifest of a backup whose parts are stored.
    pub(crate) async fn put_manifest(&self, manifest: &Manifest) -> Result<(), ObjectError> {
        let object = manifest.name.manifest();
        let (path, json) = (self.path(&object), bytes::Bytes::from(manifest.encode()));
        self.attempt(&object, async || {
            let options = self.attributes.clone().into();
            self.store.put_opts(&path, json.clone().into(), options).await
        })
        .await
        .map(drop)
    }

    /// Returns the backups that were made for a request, the oldest one first. Those whose manifest is damaged are not looked at.
    pub async fn of_request(&self, id: &str) -> Result<Vec<Manifest>, ObjectError> {
        let mut found = Vec::new();
        for (name, manifest) in self.backups().await? {
            match manifest {
                Ok(manifest) if manifest.request_id.as_deref() == Some(id) => found.push(manifest),
                // Another process has deleted it.
                Ok(_) | Err(ObjectError::Missing { .. }) => {}
                Err(error @ (ObjectError::Store { .. } | ObjectError::NoDestination { .. })) => return Err(error),
                Err(error) => warn!(%name, error = %error, "ignoring a backup whose manifest cannot be read"),
            }
        }
        Ok(found)
    }

    /// Deletes a backup: its manifest first, so that a part of it is no backup.
    pub async fn delete(&self, name: &BackupName) -> Result<(), ObjectError> {
        self.delete_objects(vec![name.manifest()]).await?;
        self.sync_folder(MANIFESTS).await?;
        let parts = self.list_folder(&name.parts()).await?;
        self.delete_objects(parts.iter().map(|meta| self.object(meta)).collect())
            .await
    }

    /// Deletes parts that no manifest names, and which are older than a day. Those of one backup are deleted together.
    pub async fn delete_orphans(&self, now: DateTime<Utc>) -> Result<DeletedOrphans, ObjectError> {
        let parts = self.list_folder(PARTS).await?;
        let mut by_folder: BTreeMap<String, Vec<&ObjectMeta>> = BTreeMap::new();
        for meta in &parts {
            let object = self.object(meta);
            let folder = object.rsplit_once('/').map_or("", |(folder, _)| folder);
            by_folder.entry(folder.to_owned()).or_default().push(meta);
        }
        // Manifests are listed after parts: a backup that was completed between the two has one.
        let names: BTreeMap<String, BackupName> = self
            .names()
            .await?
            .into_iter()
            .map(|name| (name.parts(), name))
            .collect();
        let mut deleted = DeletedOrphans::default();
        for (folder, parts) in by_folder {
            let newest = parts.iter().map(|meta| meta.last_modified).max();
            if newest.is_some_and(|newest| (now - newest).to_std().unwrap_or_default() < ORPHAN_AGE) {
                continue;
            }
            let named: BTreeSet<String> = match names.get(&folder) {
                Some(name) => match self.manifest(name).await {
                    Ok(manifest) => manifest.parts.into_iter().map(|part| part.object).collect(),
                    Err(error) => {
                        warn!(error = %error, "the parts of a backup are not deleted: its manifest cannot be read");
                        continue;
                    }
                },
                None => BTreeSet::new(),
            };
            let orphans = parts.iter().filter(|meta| !named.contains(&self.object(meta)));
            let (orphans, sizes): (Vec<_>, Vec<_>) = orphans.map(|meta| (self.object(meta), meta.size)).unzip();
            if orphans.is_empty() {
                continue;
            }
            info!(folder, objects = orphans.len(), "deleting parts without a manifest");
            deleted.objects += orphans.len();
            deleted.bytes += sizes.iter().sum::<u64>();
            self.delete_objects(orphans).await?;
        }
        self.delete_orphaned_archives(now, &mut deleted).await?;
        self.delete_unfinished(now, &mut deleted).await?;
        Ok(deleted)
    }

    /// Deletes archives of clusters that have no backup, if nothing was added for a day.
    async fn delete_orphaned_archives(
        &self,
        now: DateTime<Utc>,
        deleted: &mut DeletedOrphans,
    ) -> Result<(), ObjectError> {
        // Backups are listed after archives: an archive that has begun between the two may have one.
        let archives = self.archives().await?;
        let mut clusters = BTreeSet::new();
        for (name, manifest) in self.backups().await? {
            match manifest {
                Ok(manifest) => clusters.insert(manifest.cluster_id),
                Err(error) => {
                    warn!(%name, error = %error, "archives are not deleted: the manifest of a backup cannot be read");
                    return Ok(());
                }
            };
        }
        for archive in archives.iter().filter(|archive| !clusters.contains(&archive.cluster)) {
            let newest = archive.segments.iter().map(|segment| segment.modified).max();
            // Without segments it has just begun.
            if newest.is_none_or(|newest| (now - newest).to_std().unwrap_or_default() < ORPHAN_AGE) {
                continue;
            }
            info!(
                cluster = archive.cluster,
                segments = archive.segments.len(),
                "deleting an archive without a backup"
            );
            deleted.objects += archive.segments.len();
            deleted.bytes += archive.segments.iter().map(|segment| segment.bytes).sum::<u64>();
            self.delete_archive(archive).await?;
        }
        Ok(())
    }

    /// Deletes objects. One that is gone already is no failure.
    pub(crate) async fn delete_objects(&self, objects: Vec<String>) -> Result<(), ObjectError> {
        for object in objects {
            let path = self.path(&object);
            let deleted = self.attempt(&object, async || self.store.delete(&path).await).await;
            match deleted.map_err(ObjectError::or_missing) {
                Ok(()) | Err(ObjectError::Missing { .. }) => {}
                failed => return failed,
            }
        }
        Ok(())
    }

    /// Lists the objects of a folder and of those in it.
    pub(crate) async fn list_folder(&self, folder: &str) -> Result<Vec<ObjectMeta>, ObjectError> {
        let path = self.path(folder);
        self.attempt(folder, async || self.store.list(Some(&path)).try_collect().await)
            .await
    }

    /// Returns the name of a listed object, below the destination.
    pub(crate) fn object(&self, meta: &ObjectMeta) -> String {
        let parts = meta.location.prefix_match(&self.prefix).into_iter().flatten();
        Path::from_iter(parts).to_string()
    }

    /// Sends a request until it succeeds. Fails if it is refused, or if it has failed several times.
    pub(crate) async fn attempt<T>(
        &self,
        object: &str,
        mut request: impl AsyncFnMut() -> object_store::Result<T>,
    ) -> Result<T, ObjectError> {
        let mut retry = self.retry(object);
        loop {
            match request().await {
                Ok(answer) => {
                    self.failure.ended();
                    return Ok(answer);
                }
                Err(error) => retry.pause(error).await?,
            }
        }
    }

    /// Tells an object that does not exist from a destination that does not, and from a failure of the store.
    pub(crate) async fn or_missing(&self, error: ObjectError) -> ObjectError {
        let object = match error.or_missing() {
            ObjectError::Missing { object } => object,
            other => return other,
        };
        match self.exists(&object).await {
            Ok(true) => ObjectError::Missing { object },
            Ok(false) => ObjectError::NoDestination { object },
            Err(error) => error,
        }
    }

    /// Returns false if the bucket, the container or the directory does not exist. An object is named in errors.
    async fn exists(&self, object: &str) -> Result<bool, ObjectError> {
        if let Some(directory) = self.directory.clone() {
            return self.blocking(object, move || directory.try_exists()).await;
        }
        let first = self.attempt(object, async || self.store.list(Some(&self.prefix)).try_next().await);
        match first.await.map_err(ObjectError::or_missing) {
            Ok(_) => Ok(true),
            Err(ObjectError::Missing { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn retry<'a>(&'a self, object: &'a str) -> Retry<'a> {
        Retry {
            object,
            attempts: 1,
            pauses: self.pauses.clone(),
            failure: &self.failure,
        }
    }

    /// Makes deletions in a folder durable, if the objects are files.
    async fn sync_folder(&self, folder: &'static str) -> Result<(), ObjectError> {
        let Some(directory) = self.directory.clone() else {
            return Ok(());
        };
        self.blocking(folder, move || match File::open(directory.join(folder)) {
            Ok(folder) => folder.sync_all(),
            // Without a manifest there is no folder.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        })
        .await
    }

    /// Deletes files that a killed process was writing: they have names that are no objects.
    async fn delete_unfinished(&self, now: DateTime<Utc>, deleted: &mut DeletedOrphans) -> Result<(), ObjectError> {
        let Some(directory) = self.directory.clone() else {
            return Ok(());
        };
        let found = self.blocking(PARTS, move || {
            let mut found = DeletedOrphans::default();
            let mut folders = Vec::new();
            for parent in [PARTS, ARCHIVES] {
                match fs::read_dir(directory.join(parent)) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    entries => folders.extend(entries?),
                }
            }
            for folder in folders {
                for file in fs::read_dir(folder?.path())? {
                    let (file, now) = (file?, now);
                    let meta = file.metadata()?;
                    let age = now - DateTime::<Utc>::from(meta.modified()?);
                    let is_unfinished = file.file_name().to_string_lossy().contains('#');
                    if is_unfinished && age.to_std().unwrap_or_default() >= ORPHAN_AGE {
                        fs::remove_file(file.path())?;
                        found.objects += 1;
                        found.bytes += meta.len();
                    }
                }
            }
            Ok(found)
        });
        let found = found.await?;
        deleted.objects += found.objects;
        deleted.bytes += found.bytes;
        Ok(())
    }

    async fn blocking<T: Send + 'static>(
        &self,
        object: &str,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T, ObjectError> {
        let done = tokio::task::spawn_blocking(work).await.map_err(io::Error::other);
        done.flatten().map_err(|error| ObjectError::Store {
            object: object.to_owned(),
            source: object_store::Error::Generic {
                store: "file system",
                source: Box::new(error),
            },
        })
    }
}

/// Counts the attempts of a request, and waits between them.
pub(crate) struct Retry<'a> {
    object: &'a str,
    attempts: u32,
    pauses: Backoff,
    failure: &'a LastFailure,
}

impl Retry<'_> {
    /// Begins again: there was progress.
    pub(crate) fn reset(&mut self) {
        self.attempts = 1;
        self.pauses.reset();
        self.failure.ended();
    }

    /// Waits before the next attempt. Fails if another one would fail, too, or if there were enough.
    pub(crate) async fn pause(&mut self, error: object_store::Error) -> Result<(), ObjectError> {
        let object = self.object.to_owned();
        let is_answer = matches!(
            error,
            object_store::Error::NotFound { .. }
                | object_store::Error::AlreadyExists { .. }
                | object_store::Error::Precondition { .. }
                | object_store::Error::NotModified { .. }
        );
        if is_answer {
            self.failure.ended();
        } else {
            self.failure.failed(&format!("{object}: {error}"));
        }
        if self.attempts >= ATTEMPTS || !is_transient(&error) {
            return Err(ObjectError::Store { object, source: error });
        }
        self.attempts += 1;
        let again_in = self.pauses.next_delay();
        warn!(object, error = %error, ?again_in, "a request to the destination failed");
        tokio::time::sleep(again_in).await;
        Ok(())
    }
}

/// Returns true if another attempt may succeed.
fn is_transient(error: &object_store::Error) -> bool {
    match error {
        object_store::Error::Generic { source, .. } => {
            // Those of lists have no variant of their own, nor a type that is public.
            let text = source.to_string();
            !REFUSALS.iter().any(|refusal| text.contains(refusal))
        }
        object_store::Error::JoinError { .. } => true,
        // Missing rights, names that are refused, functions that are not supported.
        _ => false,
    }
}
