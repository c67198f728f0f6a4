//! Collects the events of the source while its snapshot is received and restored: that may take longer than the source keeps history.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read as _, Seek as _, Write as _};
use std::pin::pin;

use anyhow::Context as _;
use prost::Message;

use super::follow::{BATCH_BYTES, BATCH_REVISIONS, OpenWatch, next};
use super::source::Source;
use crate::snapshot::{RevisionEvents, Spool, SpoolFile};
use etcd_types::pb::mvccpb;
use etcd_types::types::Revision;

/// A revision in the file, preceded by the length of its message.
#[derive(Clone, PartialEq, Message)]
struct StoredRevision {
    #[prost(int64, tag = "1")]
    revision: Revision,
    #[prost(message, repeated, tag = "2")]
    kvs: Vec<mvccpb::KeyValue>,
}

/// Revisions of the source that were collected, and the watch that continues after them.
pub struct Backlog {
    file: BufReader<File>,
    /// The revision before the first one in the file.
    pub(super) behind: Revision,
    pub(super) watch: Option<OpenWatch>,
}

/// Does work with the source, and collects what the source does during that time. A watch that is lost continues at the same revision as
/// soon as the source answers again. Fails if the work does, and with `SourceCompacted` if the source has deleted history that is needed then.
pub async fn collecting<T>(
    source: &mut Source,
    spool: &Spool,
    work: impl AsyncFnOnce(&mut Source) -> anyhow::Result<T>,
) -> anyhow::Result<(T, Backlog)> {
    let mut watched = source.patient().await?;
    let behind = watched.revision().await?;
    let mut file = BufWriter::with_capacity(1 << 20, spool.file()?);
    let (mut watch, mut last) = (None, behind);
    let mut work = pin!(work(source));
    let done = loop {
        tokio::select! {
            done = &mut work => break done?,
            revised = next(&mut watched, &mut watch, last) => for revised in revised? {
                last = revised.revision;
                store(&mut file, revised).context("store changes of the source during the copy")?;
            },
        }
    };
    let mut file = file.into_inner()?.into_file();
    file.rewind()?;
    let collected = Backlog {
        file: BufReader::with_capacity(1 << 20, file),
        behind,
        watch,
    };
    Ok((done, collected))
}

fn store(file: &mut BufWriter<SpoolFile>, RevisionEvents { revision, kvs }: RevisionEvents) -> anyhow::Result<()> {
    let message = StoredRevision { revision, kvs }.encode_to_vec();
    file.write_all(&u32::try_from(message.len())?.to_be_bytes())?;
    Ok(file.write_all(&message)?)
}

impl Backlog {
    /// Returns the revisions that come next, at least one; none at the end.
    pub(super) fn next(&mut self) -> anyhow::Result<Vec<RevisionEvents>> {
        let (mut revised, mut bytes) = (Vec::new(), 0);
        while bytes < BATCH_BYTES && revised.len() < BATCH_REVISIONS {
            let mut length = [0; 4];
            match self.file.read_exact(&mut length) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                read => read?,
            }
            let mut message = vec![0; u32::from_be_bytes(length) as usize];
            self.file.read_exact(&mut message)?;
            bytes += message.len();
            let StoredRevision { revision, kvs } = StoredRevision::decode(bytes::Bytes::from(message))?;
            revised.push(RevisionEvents { revision, kvs });
        }
        Ok(revised)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collected_revisions_are_read_in_batches() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = BufWriter::new(Spool::new(dir.path()).file().unwrap());
        let value = bytes::Bytes::from(vec![7; BATCH_BYTES / 3]);
        for revision in 5..12 {
            let kv = mvccpb::KeyValue {
                mod_revision: revision,
                value: value.clone(),
                ..mvccpb::KeyValue::default()
            };
            let kvs = vec![kv, mvccpb::KeyValue::default()];
            store(&mut file, RevisionEvents { revision, kvs }).unwrap();
        }
        let mut file = file.into_inner().unwrap().into_file();
        file.rewind().unwrap();
        let mut collected = Backlog {
            file: BufReader::new(file),
            behind: 4,
            watch: None,
        };
        let mut batches = Vec::new();
        loop {
            let batch = collected.next().unwrap();
            assert!(
                batch
                    .iter()
                    .all(|revised| revised.kvs.len() == 2 && revised.kvs[0].value == value)
            );
            match batch.last() {
                Some(last) => batches.push((batch.len(), last.revision)),
                None => break,
            }
        }
        assert_eq!(batches, [(3, 7), (3, 10), (1, 11)]);
    }
}
