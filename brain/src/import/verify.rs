//! Compares all keys of the copy with those of the source, at one revision.

use anyhow::ensure;

use super::source::{PROGRESS, Source};
use crate::log::Log;
use crate::pb::etcdserverpb as pb;
use crate::rows::Rows;
use crate::snapshot::{Checksum, Importer, Newest, Summed};
use crate::types::LeaseId;
use tokio::time::Instant;

/// Keys of the first page, and of the largest one.
const KEYS: (i64, i64) = (64, 4_096);

/// Bytes of a page that are aimed at.
const PAGE: usize = 2 << 20;

/// Reads all keys of both stores at the copy's revision. Returns their checksum. Fails at the first key that differs, and with
/// `Compacted` if the source has deleted the revision.
pub(super) async fn compare<L: Log, R: Rows>(
    source: &mut Source,
    importer: &Importer<L, R>,
) -> anyhow::Result<Checksum> {
    let view = importer.view();
    let (mut stored, mut checksum) = (Newest::new(&view), Checksum::default());
    let (mut from, mut limit, mut shown) = (bytes::Bytes::from_static(b"\0"), KEYS.0, Instant::now());
    loop {
        let range = pb::RangeRequest {
            key: from.clone(),
            range_end: b"\0".as_slice().into(),
            revision: view.revision,
            limit,
            serializable: true,
            ..pb::RangeRequest::default()
        };
        let page = source.range("read the keys of the source", range).await?;
        let mut bytes = 0;
        for kv in &page.kvs {
            bytes += kv.key.len() + kv.value.len();
            checksum.add(&Summed {
                key: &kv.key,
                revision: kv.mod_revision,
                put: Some((kv.create_revision, kv.version, kv.lease, &kv.value)),
            });
            let own = stored.next().await?;
            let is_equal = own.is_some_and(|(key, meta, value)| {
                let own = (meta.create_revision, meta.mod_revision, meta.version, meta.lease.0);
                let expected = (kv.create_revision, kv.mod_revision, kv.version, kv.lease);
                key == kv.key && own == expected && value == kv.value
            });
            ensure!(
                is_equal,
                "the copy differs from the source at revision {}: {}",
                view.revision,
                name(&kv.key)
            );
            ensure!(
                importer.has_lease(LeaseId(kv.lease)),
                "the copy has no lease {:x} for {}",
                kv.lease,
                name(&kv.key)
            );
        }
        if shown.elapsed() >= PROGRESS {
            shown = Instant::now();
            tracing::info!(
                keys = checksum.versions,
                revision = view.revision,
                "comparing the copy with the source"
            );
        }
        match page.kvs.last() {
            Some(last) if page.more => from = [&last.key[..], &[0]].concat().into(),
            _ => break,
        }
        if bytes < PAGE / 2 {
            limit = (limit * 2).min(KEYS.1);
        } else if bytes > PAGE * 2 {
            limit = (limit / 2).max(1);
        }
    }
    if let Some((key, ..)) = stored.next().await? {
        anyhow::bail!(
            "the copy has {}, which the source has not at revision {}",
            name(&key),
            view.revision
        );
    }
    Ok(checksum)
}

/// Names a key in an error, without all of a long one.
fn name(key: &[u8]) -> String {
    let start = &key[..key.len().min(256)];
    format!("the key \"{}\"", start.escape_ascii())
}
