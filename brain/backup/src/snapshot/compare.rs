//! Reads a new store back, and compares it with the snapshot that it was made of.

use anyhow::{Context as _, ensure};
use prost::Message as _;

use super::UnfitSnapshot;
use super::schema::LeaseValue;
use super::version_sum::{SummedVersion, VersionChecksum};
use engine::rows::{Order, Scan};
use etcd_types::types::{LeaseId, Revision};
use mvcc::auth::{Auth, AuthChange};
use mvcc::keys;
use mvcc::row::LeaseRow;
use mvcc::view::{KeyVersion, View, successor};
use store::replica::{Replica, load_auth};

/// Reads versions and leases back, and compares them with those of the snapshot.
pub(super) async fn verify(replica: &Replica, written: VersionChecksum, leases: &[LeaseValue]) -> anyhow::Result<()> {
    let view = replica.state().view();
    let (mut versions, mut stored) = (view.versions(view.revision), VersionChecksum::default());
    while let Some(page) = versions.next().await? {
        for version in &page {
            stored.add(&summed(version));
        }
    }
    ensure!(
        stored == written,
        UnfitSnapshot(format!(
            "the new store differs from the snapshot: it has {} of {} versions, or different ones",
            stored.versions, written.versions
        ))
    );
    let mut found = Vec::with_capacity(leases.len());
    let range = keys::lease_range();
    let mut from = range.from;
    loop {
        let scan = Scan {
            from,
            to: Some(range.to.clone()),
            order: Order::Ascending,
            keys_only: false,
            max_rows: 1_000,
            max_bytes: 1 << 20,
        };
        let page = view.rows.scan(scan).await?;
        for (row, value) in &page.rows {
            let LeaseId(id) = keys::parse_lease(row)?;
            let LeaseRow { ttl, remaining } = LeaseRow::decode(value.clone()).context("decode a lease")?;
            found.push(LeaseValue { id, ttl, remaining });
        }
        match page.rows.last() {
            Some((last, _)) if !page.done => from = successor(last),
            _ => break,
        }
    }
    let mut expected = leases.to_vec();
    expected.sort_unstable_by_key(|lease| lease.id);
    ensure!(
        found == expected,
        UnfitSnapshot(format!(
            "the new store differs from the snapshot: it has {} of {} leases, or different ones",
            found.len(),
            expected.len()
        ))
    );
    Ok(())
}

/// Reads the versions after a revision back, and compares them with those that were written. Returns the number of all versions.
pub(crate) async fn verify_since(view: &View, after: Revision, written: VersionChecksum) -> anyhow::Result<u64> {
    let (mut versions, mut all, mut stored) = (view.versions(view.revision), 0, VersionChecksum::default());
    while let Some(page) = versions.next().await? {
        all += page.len() as u64;
        for version in page.iter().filter(|version| version.revision > after) {
            stored.add(&summed(version));
        }
    }
    ensure!(
        stored == written,
        UnfitSnapshot(format!(
            "the new store differs from the archive: after revision {after} it has {} of {} versions, or different ones",
            stored.versions, written.versions
        ))
    );
    Ok(all)
}

fn summed(version: &KeyVersion) -> SummedVersion<'_> {
    let put = version.put.as_ref();
    SummedVersion {
        key: &version.key,
        revision: version.revision,
        put: put.map(|(meta, value)| (meta.create_revision, meta.version, meta.lease.0, value.as_ref())),
    }
}

/// Reads users and roles back, and compares them with those of the snapshot.
pub(super) async fn verify_users(replica: &Replica, users: Option<&AuthChange>) -> anyhow::Result<()> {
    let stored = load_auth(&replica.state().view().rows).await?;
    let expected = match users {
        Some(users) => users.clone(),
        None => Auth::default().to_change(),
    };
    ensure!(
        stored.to_change() == expected,
        UnfitSnapshot("the new store differs from the snapshot: its users or roles are different".to_owned())
    );
    Ok(())
}
