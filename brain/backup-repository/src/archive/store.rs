//! Archives in a destination: listed, read, written and deleted.

use std::collections::{BTreeMap, HashSet};

use anyhow::{bail, ensure};
use bytes::Bytes;
use chrono::{DateTime, Utc};
use object_store::{GetOptions, GetRange, ObjectStoreExt as _, PutMultipartOptions};
use runtime::kill_points;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::chain::{Span, spans};
use super::marks::{Mark, MarkError, MarkList, Time, revision_at};
use super::name::{ARCHIVES, SegmentName, head_object};
use super::segment::{self, FORMAT as SEGMENT_FORMAT, HEADER_READ_BYTES, Segment, SegmentHeader, SegmentObject};
use crate::ObjectError;
use crate::key::EncryptionKey;
use crate::manifest::{Compression, RunId};
use crate::repository::Repository;
use crate::upload::REQUEST_BYTES;

/// The newest format of a head that is read, and the one that is written.
const HEAD_FORMAT: u32 = 1;

/// A segment that a destination has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoredSegment {
    pub name: SegmentName,
    /// Bytes of the object.
    pub bytes: u64,
    /// When it was stored, by the clock of the destination.
    pub modified: DateTime<Utc>,
}

/// The archive of one cluster, as far as names show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterArchive {
    /// The id of the cluster, in hexadecimal.
    pub cluster: String,
    /// In the order of their names.
    pub segments: Vec<StoredSegment>,
}

impl ClusterArchive {
    /// Returns the spans without a gap, the oldest one first.
    #[must_use]
    pub fn spans(&self) -> Vec<Span> {
        let names: Vec<_> = self.segments.iter().map(|segment| segment.name).collect();
        spans(&names)
    }

    /// Returns the bytes of the objects of these segments.
    #[must_use]
    pub fn bytes_of(&self, names: &[SegmentName]) -> u64 {
        // An archive has thousands of segments a day.
        let names: HashSet<_> = names.iter().collect();
        let found = self.segments.iter().filter(|segment| names.contains(&segment.name));
        found.map(|segment| segment.bytes).sum()
    }
}

/// How far an archive is: written while nothing happens, and by a process that begins to write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    format: u32,
    /// The process that writes the archive.
    run_id: RunId,
    /// At this revision, the source had nothing newer up to this time, in milliseconds since 1970.
    revision: i64,
    time: i64,
}

/// The times at the end of a span, in milliseconds since 1970; 0 if they are not known.
#[derive(Debug, Clone, Copy, Default)]
struct EndTimes {
    /// When its last revision had arrived.
    last_mark: i64,
    /// All that was committed before is in it.
    confirmed: i64,
}

impl Repository {
    /// Returns all archives, by the id of their cluster.
    pub async fn archives(&self) -> Result<Vec<ClusterArchive>, ObjectError> {
        self.archives_in(ARCHIVES).await
    }

    async fn archives_in(&self, folder: &str) -> Result<Vec<ClusterArchive>, ObjectError> {
        let mut found: BTreeMap<String, Vec<StoredSegment>> = BTreeMap::new();
        for meta in self.list_folder(folder).await? {
            let object = self.object(&meta);
            let mut parts = object.split('/').skip(1);
            let (Some(cluster), Some(file), None) = (parts.next(), parts.next(), parts.next()) else {
                continue;
            };
            let segments = found.entry(cluster.to_owned()).or_default();
            if let Ok(name) = file.parse() {
                segments.push(StoredSegment {
                    name,
                    bytes: meta.size,
                    modified: meta.last_modified,
                });
            }
        }
        let archives = found.into_iter().map(|(cluster, mut segments)| {
            segments.sort_unstable();
            ClusterArchive { cluster, segments }
        });
        Ok(archives.collect())
    }

    /// Returns the archive of a cluster, which may be empty.
    pub async fn archive(&self, cluster: &str) -> Result<ClusterArchive, ObjectError> {
        let found = self.archives_in(&format!("{ARCHIVES}/{cluster}")).await?;
        Ok(found.into_iter().next().unwrap_or_else(|| ClusterArchive {
            cluster: cluster.to_owned(),
            segments: Vec::new(),
        }))
    }

    /// Reads a segment. Fails if it is missing or not what was written, or if its key is not among `keys`.
    pub async fn read_segment(
        &self,
        cluster: &str,
        name: SegmentName,
        keys: &[EncryptionKey],
    ) -> anyhow::Result<Segment> {
        let object = name.object(cluster);
        let path = self.path(&object);
        let read = self.attempt(&object, async || self.store.get(&path).await?.bytes().await);
        let bytes = match read.await {
            Ok(bytes) => bytes,
            Err(error) => return Err(self.or_missing(error).await.into()),
        };
        let (cluster, keys) = (cluster.to_owned(), keys.to_vec());
        let decode = move || {
            SegmentObject {
                cluster: &cluster,
                name,
            }
            .decode(&bytes, &keys)
        };
        Ok(tokio::task::spawn_blocking(decode).await??)
    }

    /// Reads the header of a segment.
    pub async fn segment_header(&self, cluster: &str, name: SegmentName) -> Result<SegmentHeader, ObjectError> {
        let object = name.object(cluster);
        let path = self.path(&object);
        let read = self.attempt(&object, async || {
            let options = GetOptions {
                range: Some(GetRange::Bounded(0..HEADER_READ_BYTES)),
                ..GetOptions::default()
            };
            self.store.get_opts(&path, options).await?.bytes().await
        });
        let bytes = match read.await {
            Ok(bytes) => bytes,
            Err(error) => return Err(self.or_missing(error).await),
        };
        Ok(SegmentObject { cluster, name }.header(&bytes)?.0)
    }

    /// Returns the time up to which it is known what the cluster had at the end of a span, in milliseconds since 1970.
    pub async fn end_time(&self, cluster: &str, span: &Span) -> Result<i64, ObjectError> {
        let EndTimes { last_mark, confirmed } = self.end_times(cluster, span).await?;
        Ok(last_mark.max(confirmed))
    }

    async fn end_times(&self, cluster: &str, span: &Span) -> Result<EndTimes, ObjectError> {
        let mut times = EndTimes::default();
        if let Some(last) = span.segments.last() {
            let header = self.segment_header(cluster, *last).await?;
            (times.last_mark, times.confirmed) = (header.last_time, header.until);
        }
        let head = self.head(cluster).await?.filter(|head| head.revision == span.last);
        times.confirmed = head.map_or(0, |head| head.time).max(times.confirmed);
        Ok(times)
    }

    /// Returns the revision that a cluster was at, at a time. Fails if the archive does not know it.
    pub async fn revision_at(
        &self,
        archive: &ClusterArchive,
        time: DateTime<Utc>,
        keys: &[EncryptionKey],
    ) -> anyhow::Result<i64> {
        let (cluster, wanted) = (archive.cluster.as_str(), time.timestamp_millis());
        let (all, mut later) = (archive.spans(), None);
        for span in all.iter().rev() {
            let begin = self.segment_header(cluster, span.segments[0]).await?.first_time;
            if wanted < begin {
                later = Some(begin);
                continue;
            }
            let end = self.end_time(cluster, span).await?;
            if wanted > end {
                let (time, end) = (Time(wanted), Time(end));
                match later {
                    Some(later) => bail!(
                        "the archive lacks what happened from {end} to {}, and {time} is in between",
                        Time(later)
                    ),
                    None => bail!("{time} is beyond the end of the archive, which is {end}"),
                }
            }
            // The first segment that has a later time.
            let (mut from, mut to) = (0, span.segments.len());
            while from < to {
                let middle = from + (to - from) / 2;
                if self.segment_header(cluster, span.segments[middle]).await?.last_time > wanted {
                    to = middle;
                } else {
                    from = middle + 1;
                }
            }
            let Some(name) = span.segments.get(from) else {
                return Ok(span.last);
            };
            let segment = self.read_segment(cluster, *name, keys).await?;
            let found = revision_at(&segment.marks, name.first, wanted)?;
            return Ok(found.unwrap_or(name.first - 1));
        }
        match later {
            Some(begin) => Err(MarkError::BeforeBeginning(begin).into()),
            None => bail!("there is no archive of the cluster {cluster}"),
        }
    }

    /// Deletes segments.
    pub async fn delete_segments(&self, cluster: &str, names: &[SegmentName]) -> Result<(), ObjectError> {
        let objects = names.iter().map(|name| name.object(cluster)).collect();
        self.delete_objects(objects).await
    }

    /// Deletes all of an archive.
    pub(crate) async fn delete_archive(&self, archive: &ClusterArchive) -> Result<(), ObjectError> {
        let names: Vec<_> = archive.segments.iter().map(|segment| segment.name).collect();
        self.delete_segments(&archive.cluster, &names).await?;
        self.delete_objects(vec![head_object(&archive.cluster)]).await
    }

    async fn head(&self, cluster: &str) -> Result<Option<Head>, ObjectError> {
        let object = head_object(cluster);
        let path = self.path(&object);
        let read = self.attempt(&object, async || self.store.get(&path).await?.bytes().await);
        let json = match read.await {
            Ok(json) => json,
            Err(error) => match self.or_missing(error).await {
                ObjectError::Missing { .. } => return Ok(None),
                error => return Err(error),
            },
        };
        let head: Head = serde_json::from_slice(&json).map_err(|error| ObjectError::Damaged {
            object: object.clone(),
            what: format!("it does not decode: {error}"),
        })?;
        if head.format > HEAD_FORMAT {
            return Err(ObjectError::Newer {
                object,
                found: head.format,
                newest: HEAD_FORMAT,
            });
        }
        Ok(Some(head))
    }

    async fn put_head(&self, cluster: &str, head: &Head) -> Result<(), ObjectError> {
        let object = head_object(cluster);
        let json = serde_json::to_vec(head).expect("a head is JSON");
        self.put_bytes(&object, json.into()).await
    }

    /// Stores an object as a whole.
    async fn put_bytes(&self, object: &str, bytes: Bytes) -> Result<(), ObjectError> {
        let path = self.path(object);
        self.attempt(object, async || {
            if bytes.len() <= REQUEST_BYTES {
                let options = self.attributes.clone().into();
                return self
                    .store
                    .put_opts(&path, bytes.clone().into(), options)
                    .await
                    .map(drop);
            }
            let options = PutMultipartOptions::from(self.attributes.clone());
            let mut upload = self.store.put_multipart_opts(&path, options).await?;
            let put = async {
                for piece in bytes.chunks(REQUEST_BYTES) {
                    upload.put_part(bytes.slice_ref(piece).into()).await?;
                }
                upload.complete().await.map(drop)
            };
            let put = put.await;
            if put.is_err()
                && let Err(error) = upload.abort().await
            {
                warn!(%path, %error, "an unfinished upload is left to the lifecycle rules of the destination");
            }
            put
        })
        .await
    }
}

/// Another process writes the archive.
#[derive(Debug, thiserror::Error)]
#[error("another `kubebrain backup archive` writes the archive of the cluster {0}: this one ends")]
pub struct TakenOver(String);

/// A segment, encoded.
#[derive(Debug)]
struct SealedSegment {
    name: SegmentName,
    object: Bytes,
    /// All that was committed before is stored with it.
    confirmed: i64,
}

/// Writes the archive of a cluster. Only the process that began last does: an earlier one ends when it writes next.
#[derive(Debug)]
pub struct ArchiveWriter {
    repository: Repository,
    cluster: String,
    run: RunId,
    key: Option<EncryptionKey>,
    marks: MarkList,
    /// The last revision that arrived.
    last: i64,
    /// The last one that is stored.
    stored: i64,
    /// The end of the segment before the one that grows.
    previous: Option<i64>,
    /// The first revision of the segment that grows, and its content so far.
    first: i64,
    content: Vec<u8>,
    /// A segment that could not be stored so far.
    sealed: Option<SealedSegment>,
    /// Everything up to this time is stored, in milliseconds since 1970; 0 if that is not known.
    stored_until: i64,
}

impl ArchiveWriter {
    /// Takes the archive of a cluster over, and continues at the end of its newest span.
    pub async fn resume(
        repository: &Repository,
        archive: &ClusterArchive,
        span: Option<&Span>,
        key: Option<EncryptionKey>,
    ) -> anyhow::Result<Self> {
        let cluster = archive.cluster.as_str();
        let (mut marks, mut last, mut previous) = (MarkList::default(), 0, None);
        if let Some(span) = span {
            let EndTimes { last_mark, confirmed } = repository.end_times(cluster, span).await?;
            marks = MarkList::continuing(last_mark, confirmed);
            (last, previous) = (span.last, Some(span.last));
        }
        let run = RunId(rand::random());
        let head = repository.head(cluster).await?;
        let head = Head {
            format: HEAD_FORMAT,
            run_id: run,
            revision: head.as_ref().map_or(last, |head| head.revision),
            time: head.as_ref().map_or(0, |head| head.time),
        };
        repository.put_head(cluster, &head).await?;
        Ok(Self {
            repository: repository.clone(),
            cluster: cluster.to_owned(),
            run,
            key,
            stored_until: marks.confirmed(),
            marks,
            last,
            stored: last,
            previous,
            first: last + 1,
            content: Vec::new(),
            sealed: None,
        })
    }

    /// Begins anew after a revision: there is nothing between it and the end of the archive.
    pub fn begin_after(&mut self, revision: i64) {
        self.previous = None;
        (self.last, self.stored, self.first) = (revision, revision, revision + 1);
        self.content = Vec::new();
        self.marks = MarkList::default();
    }

    /// Returns the last revision that arrived.
    #[must_use]
    pub fn last(&self) -> i64 {
        self.last
    }

    /// Returns true if the next segment continues one that is stored.
    #[must_use]
    pub fn is_continued(&self) -> bool {
        self.previous.is_some()
    }

    /// Returns the last revision that is stored.
    #[must_use]
    pub fn stored(&self) -> i64 {
        self.stored
    }

    fn has_pending(&self) -> bool {
        self.sealed.is_some() || !self.content.is_empty()
    }

    /// Returns the time up to which everything is stored, in milliseconds since 1970; 0 if it is not known.
    #[must_use]
    pub fn stored_until(&self) -> i64 {
        self.stored_until
    }

    /// Returns the bytes that are not stored yet.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.content.len()
    }

    /// Takes revisions, which must be the next ones.
    pub fn arrived(&mut self, first: i64, last: i64, content: &[u8], received: DateTime<Utc>) -> anyhow::Result<()> {
        let own = self.last;
        ensure!(
            first == own + 1 && last >= first,
            "the revisions {first} to {last} do not follow revision {own}"
        );
        self.last = last;
        self.content.extend_from_slice(content);
        self.marks.arrived(last, received.timestamp_millis());
        Ok(())
    }

    /// Takes over that all that was committed before a time has arrived.
    pub fn confirm(&mut self, time: DateTime<Utc>) {
        self.marks.confirm(time.timestamp_millis());
        if !self.has_pending() {
            self.stored_until = self.marks.confirmed();
        }
    }

    /// Stores what has arrived as a segment; returns its name and its size. Does nothing if nothing has arrived. After a failure it can be
    /// called again. Fails with [`TakenOver`] if another process writes the archive.
    pub async fn store(&mut self) -> anyhow::Result<Option<(SegmentName, u64)>> {
        if self.sealed.is_none() && !self.content.is_empty() {
            self.sealed = Some(self.seal().await?);
        }
        let Some(SealedSegment { name, object, .. }) = &self.sealed else {
            return Ok(None);
        };
        let (name, object) = (*name, object.clone());
        let bytes = object.len() as u64;
        self.check_run().await?;
        kill_points::reach("archive-segment-sealed");
        self.repository.put_bytes(&name.object(&self.cluster), object).await?;
        kill_points::reach("archive-segment-stored");
        let confirmed = self.sealed.take().map_or(0, |sealed| sealed.confirmed);
        self.stored = name.last;
        self.stored_until = self.stored_until.max(confirmed);
        info!(segment = %name, bytes, "stored a segment of the archive");
        Ok(Some((name, bytes)))
    }

    async fn seal(&mut self) -> anyhow::Result<SealedSegment> {
        let (marks, content) = (self.marks.take(), std::mem::take(&mut self.content));
        let time = |mark: Option<&Mark>| mark.map_or(0, |mark| mark.time);
        let (first, last, confirmed) = (self.first, self.last, self.marks.confirmed());
        let header = SegmentHeader {
            format: SEGMENT_FORMAT,
            cluster_id: self.cluster.clone(),
            first,
            last,
            previous: self.previous,
            first_time: time(marks.first()),
            last_time: time(marks.last()),
            until: confirmed,
            bytes: 0,
            compression: Compression::Zstd,
            encryption: None,
        };
        (self.first, self.previous) = (last + 1, Some(last));
        let key = self.key.clone();
        let encode = move || segment::encode(header, &marks, &content, key.as_ref());
        let object = tokio::task::spawn_blocking(encode).await?.into();
        let name = SegmentName { first, last };
        Ok(SealedSegment {
            name,
            object,
            confirmed,
        })
    }

    /// Stores the time up to which there is nothing new. Does nothing while something waits to be stored.
    pub async fn store_time(&mut self) -> anyhow::Result<()> {
        if self.has_pending() {
            return Ok(());
        }
        self.check_run().await?;
        let head = Head {
            format: HEAD_FORMAT,
            run_id: self.run,
            revision: self.last,
            time: self.marks.confirmed(),
        };
        Ok(self.repository.put_head(&self.cluster, &head).await?)
    }

    async fn check_run(&self) -> anyhow::Result<()> {
        let head = self.repository.head(&self.cluster).await?;
        let is_own = head.is_some_and(|head| head.run_id == self.run);
        ensure!(is_own, TakenOver(self.cluster.clone()));
        Ok(())
    }
}
