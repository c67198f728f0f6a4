//! Leases of the source. A watch does not name them, so the source is asked for them.

use std::collections::HashSet;

use super::source::Source;
use crate::snapshot::{Importer, LeaseTime, RevisionEvents};

/// Adds the leases that keys of these revisions are attached to.
pub(super) async fn grant_named(
    source: &mut Source,
    importer: &mut Importer,
    revised: &[RevisionEvents],
) -> anyhow::Result<()> {
    let missing = importer.missing_leases(revised);
    if missing.is_empty() {
        return Ok(());
    }
    let mut found = source.lease_times(&missing).await?;
    let known: HashSet<i64> = found.iter().map(|lease| lease.id).collect();
    // A lease that has ended since then has its keys deleted by a later revision.
    let ended = missing.into_iter().filter(|id| !known.contains(id));
    found.extend(ended.map(|id| LeaseTime {
        id,
        ttl: 1,
        remaining: 1,
    }));
    importer.grant(&found).await
}

/// Adds the leases that are not here.
pub(super) async fn grant_missing(source: &mut Source, importer: &mut Importer, ids: &[i64]) -> anyhow::Result<()> {
    let stored = importer.leases();
    let missing: Vec<i64> = ids.iter().copied().filter(|id| !stored.contains_key(id)).collect();
    let found = source.lease_times(&missing).await?;
    importer.grant(&found).await
}
