//! Archives in a store in memory: written by processes that end anywhere, read back, and damaged.

use chrono::{DateTime, Utc};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _};
use tempfile::TempDir;

use super::{Fault, create, faulty, in_memory, key, objects, options, snapshot};
use crate::archive::{ArchiveWriter, MarkError, SegmentName, TakenOver};
use crate::{EncryptionKey, ObjectError, Repository};

/// The cluster of [`create`](super::create).
const CLUSTER: &str = "1f";

fn at(millis: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_millis(millis).unwrap()
}

/// A process that begins to write the archive where it ends.
async fn resume(repository: &Repository, key: Option<EncryptionKey>) -> ArchiveWriter {
    let archive = repository.archive(CLUSTER).await.unwrap();
    let newest = archive.spans().pop();
    let writer = ArchiveWriter::resume(repository, &archive, newest.as_ref(), key).await;
    writer.unwrap()
}

/// A process that begins after a backup at a revision.
async fn begin(repository: &Repository, after: i64) -> ArchiveWriter {
    let mut writer = resume(repository, None).await;
    writer.begin_after(after);
    writer
}

/// Takes revisions at a time, with their numbers as content.
fn take(writer: &mut ArchiveWriter, last: i64, millis: i64) {
    for revision in writer.last() + 1..=last {
        writer
            .arrived(revision, revision, &revision.to_be_bytes(), at(millis))
            .unwrap();
    }
}

/// All revisions of the archive, as its content says.
async fn content(repository: &Repository, keys: &[EncryptionKey]) -> Vec<i64> {
    let mut all = Vec::new();
    for span in repository.archive(CLUSTER).await.unwrap().spans() {
        for name in span.segments {
            let segment = repository.read_segment(CLUSTER, name, keys).await.unwrap();
            let numbers = segment
                .content
                .chunks(8)
                .map(|number| i64::from_be_bytes(number.try_into().unwrap()));
            all.extend(numbers);
        }
    }
    all
}

async fn revision_at(repository: &Repository, millis: i64) -> Result<i64, String> {
    let archive = repository.archive(CLUSTER).await.unwrap();
    let found = repository.revision_at(&archive, at(millis), &[]).await;
    found.map_err(|error| format!("{error:#}"))
}

#[tokio::test]
async fn archive_continues_where_the_process_before_has_ended() {
    for key in [None, Some(key(1))] {
        let (_, repository) = in_memory();
        let mut writer = resume(&repository, key.clone()).await;
        assert_eq!((writer.last(), writer.is_continued()), (0, false));
        writer.begin_after(10);
        assert_eq!(writer.store().await.unwrap(), None);
        take(&mut writer, 14, 1_000_000);
        let (name, bytes) = writer.store().await.unwrap().unwrap();
        assert_eq!(name, SegmentName { first: 11, last: 14 });
        let stored = repository.archive(CLUSTER).await.unwrap().segments;
        assert_eq!((stored[0].name, stored[0].bytes), (name, bytes));
        // The rest dies with the process.
        take(&mut writer, 20, 1_001_000);
        assert_eq!((writer.last(), writer.stored()), (20, 14));
        drop(writer);

        let mut writer = resume(&repository, key.clone()).await;
        assert_eq!((writer.last(), writer.stored(), writer.is_continued()), (14, 14, true));
        let skipped = writer.arrived(16, 16, &[], at(2_000_000)).unwrap_err().to_string();
        assert_eq!(skipped, "the revisions 16 to 16 do not follow revision 14");
        take(&mut writer, 22, 2_000_000);
        writer.store().await.unwrap();
        let keys: Vec<_> = key.into_iter().collect();
        assert_eq!(content(&repository, &keys).await, (11..=22).collect::<Vec<_>>());
        let second = SegmentName { first: 15, last: 22 };
        let header = repository.segment_header(CLUSTER, second).await.unwrap();
        assert_eq!((header.previous, header.cluster_id.as_str()), (Some(14), CLUSTER));
    }
}

#[tokio::test]
async fn process_that_was_superseded_stores_nothing_more() {
    let (_, repository) = in_memory();
    let mut first = begin(&repository, 10).await;
    take(&mut first, 12, 1_000_000);
    let mut second = resume(&repository, None).await;
    assert!(first.store().await.unwrap_err().is::<TakenOver>());
    assert!(begin(&repository, 10).await.store_time().await.is_ok());
    assert!(second.store_time().await.unwrap_err().is::<TakenOver>());
    assert!(content(&repository, &[]).await.is_empty());
}

#[tokio::test]
async fn segment_that_could_not_be_stored_is_stored_later() {
    let (store, repository) = faulty();
    let mut writer = begin(&repository, 10).await;
    take(&mut writer, 12, 1_000_000);
    writer.confirm(at(1_001_000));
    // The request that the client repeats.
    store.fail(Fault::PutLost, 6);
    let error = writer.store().await.unwrap_err();
    assert!(error.is::<ObjectError>(), "{error:#}");
    // The time is not that of a segment that is not stored.
    assert_eq!((writer.stored(), writer.stored_until()), (10, 0));
    store.fail(Fault::PutLost, 0);
    assert!(writer.store().await.unwrap().is_some());
    assert_eq!((writer.stored(), writer.stored_until()), (12, 1_001_000));
    take(&mut writer, 13, 1_002_000);
    writer.store().await.unwrap();
    assert_eq!(content(&repository, &[]).await, [11, 12, 13]);
}

#[tokio::test]
async fn times_lead_to_revisions_over_segments_pauses_and_gaps() {
    let (_, repository) = in_memory();
    let nothing = revision_at(&repository, 1).await.unwrap_err();
    assert_eq!(nothing, "there is no archive of the cluster 1f");
    let mut writer = begin(&repository, 10).await;
    writer.confirm(at(999_000));
    for (last, time) in [(11, 1_000_000), (13, 1_002_000), (14, 1_004_000)] {
        take(&mut writer, last, time);
        writer.store().await.unwrap();
        writer.confirm(at(time + 500));
    }
    writer.confirm(at(1_009_000));
    writer.store_time().await.unwrap();
    let check = async |millis, revision| assert_eq!(revision_at(&repository, millis).await, Ok(revision), "{millis}");
    check(1_000_000, 11).await;
    check(1_001_999, 11).await;
    check(1_002_000, 13).await;
    check(1_004_000, 14).await;
    check(1_009_000, 14).await;
    let error = revision_at(&repository, 1_009_001).await.unwrap_err();
    let text = "1970-01-01T00:16:49.001Z is beyond the end of the archive, which is 1970-01-01T00:16:49.000Z";
    assert_eq!(error, text);
    let error = revision_at(&repository, 999_999).await.unwrap_err();
    assert_eq!(error, MarkError::BeforeBeginning(1_000_000).to_string());

    // A pause: what happened in it has no exact time, but it is all there.
    let mut writer = resume(&repository, None).await;
    take(&mut writer, 16, 1_060_000);
    writer.store().await.unwrap();
    writer.confirm(at(1_061_000));
    take(&mut writer, 17, 1_062_000);
    writer.store().await.unwrap();
    check(1_009_000, 14).await;
    check(1_060_000, 16).await;
    check(1_062_000, 17).await;
    let error = revision_at(&repository, 1_030_000).await.unwrap_err();
    let text = "the archive did not follow the store then: revisions 15 to 16 were written at unknown times after \
                1970-01-01T00:16:49.000Z and before 1970-01-01T00:17:40.000Z; name a revision";
    assert_eq!(error, text);

    // A gap.
    writer.begin_after(30);
    take(&mut writer, 31, 1_100_000);
    writer.store().await.unwrap();
    check(1_062_000, 17).await;
    check(1_100_000, 31).await;
    let error = revision_at(&repository, 1_080_000).await.unwrap_err();
    assert!(
        error.starts_with("the archive lacks what happened from 1970-01-01T00:17:42"),
        "{error}"
    );
    let spans = repository.archive(CLUSTER).await.unwrap().spans();
    assert_eq!(
        spans.iter().map(|span| (span.first, span.last)).collect::<Vec<_>>(),
        [(11, 17), (31, 31)]
    );
    let header = repository.segment_header(CLUSTER, spans[1].segments[0]).await.unwrap();
    assert_eq!(header.previous, None);
}

#[tokio::test]
async fn damaged_and_missing_segments_are_named() {
    let (store, repository) = in_memory();
    let mut writer = begin(&repository, 10).await;
    take(&mut writer, 12, 1_000_000);
    let (name, _) = writer.store().await.unwrap().unwrap();
    let object = "archive/1f/0000000000000000011-0000000000000000012";
    let path = Path::from(format!("a/prefix/{object}"));
    store.put(&path, "{}".into()).await.unwrap();
    let read = async || {
        repository
            .read_segment(CLUSTER, name, &[])
            .await
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        read().await,
        format!("{object} is damaged: it is not a segment of an archive")
    );
    store.delete(&path).await.unwrap();
    assert_eq!(read().await, format!("{object} is missing"));
    let head = Path::from("a/prefix/archive/1f/head.json");
    store.put(&head, "{".into()).await.unwrap();
    let error = writer.store_time().await.unwrap_err().to_string();
    assert!(error.starts_with("archive/1f/head.json is damaged: "), "{error}");
}

#[tokio::test]
async fn archive_without_a_backup_is_an_orphan_after_a_day() {
    let dir = TempDir::new().unwrap();
    let (store, repository) = in_memory();
    let mut writer = begin(&repository, 7).await;
    take(&mut writer, 12, 1_000_000);
    writer.store().await.unwrap();
    let later = Utc::now() + chrono::Duration::hours(25);
    let backup = create(&repository, 7, &snapshot(1_000), &options(&dir, None))
        .await
        .unwrap();
    assert_eq!(repository.delete_orphans(later).await.unwrap().objects, 0);
    repository.delete(&backup.name).await.unwrap();
    assert_eq!(repository.delete_orphans(Utc::now()).await.unwrap().objects, 0);
    assert_eq!(repository.delete_orphans(later).await.unwrap().objects, 1);
    assert!(objects(&*store as &dyn ObjectStore).await.is_empty());
}
