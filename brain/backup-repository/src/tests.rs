//! Backups in a store in memory and in a directory: made, read back, deleted, and damaged in every way that stores know.

use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use backup::snapshot::Spool;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::stream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::manifest::Manifest;
use crate::{CreateOptions, DestinationOptions, EncryptionKey, ObjectError, Repository, SnapshotOrigin};
use faulty::{Fault, FaultyStore};

mod archive;
mod faulty;
mod s3;

const PART_BYTES: u64 = 300_000;

fn key(byte: u8) -> EncryptionKey {
    EncryptionKey::new(&[byte; 32])
}

fn time(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

fn origin(revision: i64) -> SnapshotOrigin {
    SnapshotOrigin {
        cluster_id: 0x1f,
        revision,
        version: "3.6.0".to_owned(),
        time: time("2026-11-29T11:35:42.123Z"),
    }
}

/// Bytes in place of a database, and their checksum.
pub(crate) fn snapshot(len: usize) -> Bytes {
    let mut state = len as u64;
    let noise = std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    });
    let database: Vec<u8> = noise.take(len).collect();
    [database.as_slice(), &Sha256::digest(&database)].concat().into()
}

pub(crate) fn options(dir: &TempDir, key: Option<EncryptionKey>) -> CreateOptions {
    CreateOptions {
        part_bytes: PART_BYTES,
        ..CreateOptions::new(key, Spool::new(dir.path()))
    }
}

pub(crate) async fn create(
    repository: &Repository,
    revision: i64,
    snapshot: &Bytes,
    options: &CreateOptions,
) -> anyhow::Result<Manifest> {
    let pieces: Vec<_> = snapshot
        .chunks(32 << 10)
        .map(|piece| Ok(snapshot.slice_ref(piece)))
        .collect();
    repository.create(origin(revision), stream::iter(pieces), options).await
}

async fn read(repository: &Repository, manifest: &Manifest, keys: &[EncryptionKey]) -> anyhow::Result<Vec<u8>> {
    repository.read_snapshot(manifest, keys, Vec::new()).await
}

/// All objects of a store, with their lengths.
async fn objects(store: &dyn ObjectStore) -> Vec<(String, u64)> {
    let list = futures::TryStreamExt::try_collect::<Vec<_>>(store.list(None))
        .await
        .unwrap();
    let mut objects: Vec<_> = list.iter().map(|meta| (meta.location.to_string(), meta.size)).collect();
    objects.sort_unstable();
    objects
}

fn in_memory() -> (Arc<InMemory>, Repository) {
    let store = Arc::new(InMemory::new());
    (store.clone(), Repository::in_store(store, "a/prefix"))
}

fn faulty() -> (Arc<FaultyStore>, Repository) {
    let store = Arc::new(FaultyStore::default());
    (store.clone(), Repository::in_store(store, ""))
}

#[tokio::test]
async fn backup_is_read_back_and_its_manifest_names_its_parts() {
    let dir = TempDir::new().unwrap();
    for key in [None, Some(key(1))] {
        let (store, repository) = in_memory();
        let snapshot = snapshot(1_000_000);
        let manifest = create(&repository, 7, &snapshot, &options(&dir, key.clone()))
            .await
            .unwrap();
        assert_eq!(manifest.parts.len(), 4);
        assert_eq!(manifest.cluster_id, "1f");
        assert_eq!(
            manifest.encryption.map(|it| it.key_id),
            key.as_ref().map(EncryptionKey::id)
        );
        let names = repository.names().await.unwrap();
        assert_eq!(names, std::slice::from_ref(&manifest.name));
        assert_eq!(names[0].to_string(), "20261129T113542.123Z-0000000000000000007");
        assert_eq!(repository.manifest(&names[0]).await.unwrap(), manifest);
        let keys: Vec<_> = key.into_iter().collect();
        assert!(read(&repository, &manifest, &keys).await.unwrap() == snapshot);

        let mut expected: Vec<_> = manifest
            .parts
            .iter()
            .map(|part| (part.object.clone(), part.bytes))
            .collect();
        expected.push((names[0].manifest(), manifest.encode().len() as u64));
        expected.sort_unstable();
        let expected = expected
            .into_iter()
            .map(|(object, bytes)| (format!("a/prefix/{object}"), bytes));
        assert_eq!(objects(&*store).await, expected.collect::<Vec<_>>());

        repository.delete(&names[0]).await.unwrap();
        assert_eq!(objects(&*store).await, []);
    }
}

#[tokio::test]
async fn part_of_several_requests_is_read_back() {
    let dir = TempDir::new().unwrap();
    let (_, repository) = in_memory();
    let snapshot = snapshot(20 << 20);
    let manifest = create(
        &repository,
        7,
        &snapshot,
        &CreateOptions::new(None, Spool::new(dir.path())),
    )
    .await;
    let manifest = manifest.unwrap();
    assert_eq!(manifest.parts.len(), 1);
    assert!(read(&repository, &manifest, &[]).await.unwrap() == snapshot);
}

#[tokio::test]
async fn backup_in_a_directory_leaves_nothing_when_it_is_deleted() {
    let dir = TempDir::new().unwrap();
    let target = dir.path().join("not/yet");
    let destination = DestinationOptions {
        url: format!("file://{}", target.display()),
        ..DestinationOptions::default()
    };
    assert!(Repository::open(&destination).is_err());
    destination.prepare().unwrap();
    let repository = Repository::open(&destination).unwrap();
    assert_eq!(repository.names().await.unwrap(), []);
    let snapshot = snapshot(10 << 20);
    let options = CreateOptions::new(None, Spool::new(dir.path()));
    let manifest = create(&repository, 7, &snapshot, &options).await.unwrap();
    assert!(read(&repository, &manifest, &[]).await.unwrap() == snapshot);
    for object in [&manifest.name.manifest(), &manifest.parts[0].object] {
        assert!(target.join(object).is_file(), "{object}");
    }

    // A process was killed while it wrote a file.
    let unfinished = target.join(format!("{}-x#1", manifest.parts[0].object));
    std::fs::write(&unfinished, "part").unwrap();
    let now = Utc::now();
    assert_eq!(repository.delete_orphans(now).await.unwrap().objects, 0);
    let later = now + chrono::Duration::hours(25);
    assert_eq!(repository.delete_orphans(later).await.unwrap().objects, 1);
    assert!(!unfinished.exists());
    assert!(read(&repository, &manifest, &[]).await.unwrap() == snapshot);

    repository.delete(&manifest.name).await.unwrap();
    assert_eq!(std::fs::read_dir(&target).unwrap().count(), 0);
}

#[tokio::test]
async fn damaged_missing_and_foreign_parts_are_refused_by_name() {
    let dir = TempDir::new().unwrap();
    for key in [None, Some(key(1))] {
        let (store, repository) = in_memory();
        let options = options(&dir, key.clone());
        let keys: Vec<_> = key.into_iter().collect();
        let manifest = create(&repository, 7, &snapshot(1_000_000), &options).await.unwrap();
        let other = create(&repository, 8, &snapshot(1_000_001), &options).await.unwrap();
        let object = manifest.parts[2].object.clone();
        let path = Path::from(format!("a/prefix/{object}"));
        let whole = store.get(&path).await.unwrap().bytes().await.unwrap();
        let foreign = Path::from(format!("a/prefix/{}", other.parts[2].object));
        let foreign = store.get(&foreign).await.unwrap().bytes().await.unwrap();
        let mut flipped = whole.to_vec();
        flipped[100_000] ^= 4;
        let mut longer = whole.to_vec();
        longer.push(0);
        for damaged in [
            whole.slice(..100_000),
            Bytes::new(),
            flipped.into(),
            longer.into(),
            foreign,
        ] {
            store.put(&path, damaged.into()).await.unwrap();
            let error = read(&repository, &manifest, &keys).await.unwrap_err();
            let error: ObjectError = error.downcast().unwrap();
            assert!(
                matches!(&error, ObjectError::Damaged { object: found, .. } if *found == object),
                "{error}"
            );
        }
        store.delete(&path).await.unwrap();
        let error = read(&repository, &manifest, &keys).await.unwrap_err();
        assert_eq!(error.to_string(), format!("{object} is missing"));
        store.put(&path, whole.into()).await.unwrap();
        assert!(read(&repository, &manifest, &keys).await.is_ok());

        let path = Path::from(format!("a/prefix/{}", manifest.name.manifest()));
        store.put(&path, "{}".into()).await.unwrap();
        let error = repository.manifest(&manifest.name).await.unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("{} is damaged", manifest.name.manifest())),
            "{error}"
        );
        store.delete(&path).await.unwrap();
        let error = repository.manifest(&manifest.name).await.unwrap_err().to_string();
        assert_eq!(error, format!("{} is missing", manifest.name.manifest()));
    }
}

#[tokio::test]
async fn missing_destination_says_nothing_about_its_objects() {
    let dir = TempDir::new().unwrap();
    let (store, repository) = faulty();
    let manifest = create(&repository, 7, &snapshot(1_000), &options(&dir, None))
        .await
        .unwrap();
    let check = |error: ObjectError| assert!(matches!(error, ObjectError::NoDestination { .. }), "{error}");
    store.fail(Fault::Gone, 2);
    check(repository.manifest(&manifest.name).await.unwrap_err());
    store.fail(Fault::Gone, 2);
    check(read(&repository, &manifest, &[]).await.unwrap_err().downcast().unwrap());
    // If the store does not answer, an object may still exist.
    let part = repository.path(&manifest.parts[0].object);
    store.delete(&part).await.unwrap();
    store.fail(Fault::List, 6);
    let error: ObjectError = read(&repository, &manifest, &[]).await.unwrap_err().downcast().unwrap();
    assert!(matches!(error, ObjectError::Store { .. }), "{error}");
    assert_eq!(store.left(), 0);

    let target = dir.path().join("backups");
    std::fs::create_dir(&target).unwrap();
    let options = DestinationOptions {
        url: format!("file://{}", target.display()),
        ..DestinationOptions::default()
    };
    let repository = Repository::open(&options).unwrap();
    let missing = repository.manifest(&manifest.name).await.unwrap_err();
    assert!(matches!(missing, ObjectError::Missing { .. }), "{missing}");
    std::fs::remove_dir_all(&target).unwrap();
    check(repository.manifest(&manifest.name).await.unwrap_err());
}

#[tokio::test]
async fn wrong_key_is_refused_before_a_part_is_read() {
    let dir = TempDir::new().unwrap();
    let (store, repository) = faulty();
    let manifest = create(&repository, 7, &snapshot(1_000), &options(&dir, Some(key(1))))
        .await
        .unwrap();
    let gets = store.gets();
    let error = read(&repository, &manifest, &[key(2)]).await.unwrap_err().to_string();
    let (expected, given, object) = (key(1).id(), key(2).id(), manifest.name.manifest());
    assert_eq!(
        error,
        format!("{object} is encrypted with the key {expected}, and only the key {given} was given")
    );
    assert_eq!(store.gets(), gets);
}

#[tokio::test]
async fn failed_requests_are_repeated() {
    let dir = TempDir::new().unwrap();
    let (store, repository) = faulty();
    let snapshot = snapshot(20 << 20);
    for fault in [Fault::Put, Fault::PutLost, Fault::PutPart, Fault::Complete] {
        store.fail(fault, 2);
    }
    let manifest = create(
        &repository,
        7,
        &snapshot,
        &CreateOptions::new(None, Spool::new(dir.path())),
    )
    .await;
    let manifest = manifest.unwrap();
    for fault in [Fault::Get, Fault::List] {
        store.fail(fault, 4);
    }
    // Each attempt brings some bytes.
    store.fail(Fault::GetTruncated, 20);
    assert_eq!(repository.names().await.unwrap(), std::slice::from_ref(&manifest.name));
    assert!(read(&repository, &manifest, &[]).await.unwrap() == snapshot);
    store.fail(Fault::Delete, 4);
    repository.delete(&manifest.name).await.unwrap();
    assert_eq!(objects(&*store).await, []);
    assert_eq!(store.left(), 0);
}

#[tokio::test]
async fn destination_that_keeps_failing_is_named_with_the_object() {
    let dir = TempDir::new().unwrap();
    let (store, repository) = faulty();
    let manifest = create(&repository, 7, &snapshot(1_000_000), &options(&dir, None))
        .await
        .unwrap();
    store.fail(Fault::Get, 6);
    let error = read(&repository, &manifest, &[]).await.unwrap_err();
    assert_eq!(error.to_string(), format!("cannot access {}", manifest.parts[0].object));
    assert!(error.is::<ObjectError>());
    assert_eq!(store.left(), 0);
    // It is asked once only, if it refuses.
    store.fail(Fault::Refuse, 1);
    assert!(read(&repository, &manifest, &[]).await.is_err());
    assert_eq!(store.left(), 0);
}

#[tokio::test]
async fn failed_backup_leaves_neither_manifest_nor_parts() {
    let dir = TempDir::new().unwrap();
    let (store, repository) = faulty();
    let options = options(&dir, None);
    let whole = snapshot(2_000_000);

    // The first part is stored, and the second one is not.
    store.pass_then_fail(Fault::Put, 1, 6);
    let error = create(&repository, 7, &whole, &options).await.unwrap_err().to_string();
    assert!(error.contains("/000001-"), "{error}");
    assert_eq!(objects(&*store).await, []);

    let pieces = whole.chunks(32 << 10).take(40).map(|piece| Ok(whole.slice_ref(piece)));
    let failing = pieces.clone().chain([Err(anyhow!("the member is gone"))]);
    let failing: Vec<_> = failing.collect();
    let error = repository
        .create(origin(7), stream::iter(failing), &options)
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "the member is gone");
    assert_eq!(objects(&*store).await, []);

    let truncated: Vec<_> = pieces.collect();
    let error = repository
        .create(origin(7), stream::iter(truncated), &options)
        .await
        .unwrap_err();
    assert!(
        error.to_string().starts_with("the snapshot of the member is damaged"),
        "{error}"
    );
    assert_eq!(objects(&*store).await, []);

    let mut flipped = whole.to_vec();
    flipped[1_000_000] ^= 1;
    let error = create(&repository, 7, &flipped.into(), &options)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("the snapshot of the member is damaged"), "{error}");
    assert_eq!(objects(&*store).await, []);

    // The manifest is stored, and no answer arrives.
    store.pass_then_fail(Fault::PutLost, 1, 6);
    let error = create(&repository, 7, &snapshot(1_000), &options)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("cannot access manifests/"), "{error}");
    assert_eq!((objects(&*store).await, store.left()), (vec![], 0));

    let nowhere = CreateOptions::new(None, Spool::new(std::path::Path::new("/no/such/directory")));
    assert!(create(&repository, 7, &whole, &nowhere).await.is_err());
    assert_eq!(objects(&*store).await, []);
}

/// A process that is killed cleans nothing up.
#[tokio::test]
async fn killed_backup_is_none_and_its_parts_are_orphans_after_a_day() {
    let dir = TempDir::new().unwrap();
    let (store, repository) = in_memory();
    let options = options(&dir, None);
    let whole = snapshot(2_000_000);
    let complete = create(&repository, 7, &whole, &options).await.unwrap();
    let pieces = whole.chunks(32 << 10).take(40).map(|piece| Ok(whole.slice_ref(piece)));
    let pieces: Vec<_> = pieces.collect();
    let hanging = futures::StreamExt::chain(stream::iter(pieces), stream::pending());
    let before = objects(&*store).await.len();
    {
        let mut killed = std::pin::pin!(repository.create(origin(8), hanging, &options));
        while objects(&*store).await.len() < before + 2 {
            let done = futures::future::poll_immediate(&mut killed).await;
            assert!(done.is_none(), "{done:?}");
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(repository.names().await.unwrap(), std::slice::from_ref(&complete.name));
    // A part of the complete backup that another attempt has left.
    let stray = format!("a/prefix/{}-stray", complete.parts[0].object);
    store.put(&Path::from(stray.as_str()), "part".into()).await.unwrap();

    let now = Utc::now();
    let young = repository
        .delete_orphans(now + chrono::Duration::hours(23))
        .await
        .unwrap();
    assert_eq!(young.objects, 0);
    let old = repository
        .delete_orphans(now + chrono::Duration::hours(25))
        .await
        .unwrap();
    assert!(old.objects >= 3, "{old:?}");
    assert_eq!(objects(&*store).await.len(), complete.parts.len() + 1);
    assert!(read(&repository, &complete, &[]).await.unwrap() == whole);
}

#[tokio::test]
async fn other_objects_are_not_taken_for_backups() {
    let dir = TempDir::new().unwrap();
    let (store, repository) = in_memory();
    let manifest = create(&repository, 7, &snapshot(1_000), &options(&dir, None))
        .await
        .unwrap();
    for other in [
        "a/prefix/manifests/README.json",
        "a/prefix/manifests/x/20261129T113542.123Z-0000000000000000007.txt",
        "a/other",
    ] {
        store.put(&Path::from(other), "text".into()).await.unwrap();
    }
    assert_eq!(repository.names().await.unwrap(), [manifest.name]);
}

#[tokio::test]
async fn backup_with_a_damaged_manifest_is_listed_and_keeps_its_parts() {
    let dir = TempDir::new().unwrap();
    let (store, repository) = in_memory();
    let good = create(&repository, 7, &snapshot(1_000), &options(&dir, None))
        .await
        .unwrap();
    let bad = create(&repository, 8, &snapshot(1_000), &options(&dir, None))
        .await
        .unwrap();
    let path = Path::from(format!("a/prefix/{}", bad.name.manifest()));
    store.put(&path, "{".into()).await.unwrap();
    let backups = repository.backups().await.unwrap();
    assert_eq!(backups[0].1.as_ref().unwrap(), &good);
    assert!(matches!(&backups[1], (name, Err(ObjectError::Damaged { .. })) if *name == bad.name));
    let later = Utc::now() + chrono::Duration::from_std(Duration::from_secs(90_000)).unwrap();
    assert_eq!(repository.delete_orphans(later).await.unwrap().objects, 0);
    assert_eq!(objects(&*store).await.len(), 4);
}
