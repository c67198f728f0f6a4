//! Goes on with a restored store: appends what another store does at the revisions that it has there.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use prost::Message as _;

use super::restore::{LEASES_PER_RECORD, RestoreOptions, RevisionChanges};
use super::restore_target::{RestoreBatch, RestoreTarget};
use super::{SnapshotFile, schema, users};
use engine::log::DynLog;
use engine::rows::DynRows;
use etcd_types::pb::mvccpb;
use etcd_types::types::{LeaseId, Revision};
use mvcc::auth::{RoleChange, UserChange, longest_value};
use mvcc::lease::MAX_TTL;
use mvcc::record::{Change, Checkpoint, Compact, Entry, Grant, Keys, Revoke};
use mvcc::row::{KeyMeta, Manifest};
use mvcc::view::{KeyVersion, VersionWalk, View};

/// The changes of one revision of the other store, in the order of its operations: deletions have version 0.
#[derive(Debug, Default)]
pub struct RevisionEvents {
    pub(crate) revision: Revision,
    pub(crate) kvs: Vec<mvccpb::KeyValue>,
}

/// A lease of the other store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTime {
    pub(crate) id: i64,
    /// Time to live as granted, in seconds.
    pub(crate) ttl: i64,
    /// Time left, in seconds.
    pub(crate) remaining: i64,
}

impl LeaseTime {
    fn check(&self) -> anyhow::Result<()> {
        let Self { id, ttl, .. } = *self;
        ensure!(
            id != LeaseId::NONE.0 && (1..=MAX_TTL).contains(&ttl),
            "the source has a lease {id:x} that lives for {ttl} s, which no store can have"
        );
        Ok(())
    }
}

/// A store that follows another one. Only one process at a time may do so: a later one deposes it.
pub struct Importer {
    target: RestoreTarget,
    rows: DynRows,
}

impl Importer {
    /// Opens a store that was restored, and that may have followed already.
    pub async fn open(log: DynLog, rows: DynRows, options: &RestoreOptions) -> anyhow::Result<Self> {
        let target = RestoreTarget::open(log, rows.clone(), options).await?;
        Ok(Self { target, rows })
    }

    /// Refuses changes that do not follow the versions before them from now on.
    pub(crate) fn checking_versions(mut self) -> Self {
        self.target.checks_versions = true;
        self
    }

    /// Returns the newest revision; it and all before it are durable.
    pub(crate) fn revision(&self) -> Revision {
        self.target.replica.revision()
    }

    /// The revision of users and roles.
    pub(crate) fn auth_revision(&self) -> (bool, u64) {
        let auth = self.target.replica.state().auth().load();
        (auth.is_enabled(), auth.revision())
    }

    /// Returns the leases that `revised` attaches keys to and that are not here, each once.
    pub(crate) fn missing_leases(&self, revised: &[RevisionEvents]) -> Vec<i64> {
        let state = self.target.replica.state().clone();
        let leases = state.leases();
        let used = revised.iter().flat_map(|revised| &revised.kvs).map(|kv| kv.lease);
        let missing: HashSet<i64> = used
            .filter(|id| LeaseId(*id) != LeaseId::NONE && !leases.contains(LeaseId(*id)))
            .collect();
        missing.into_iter().collect()
    }

    /// Adds leases.
    pub(crate) async fn grant(&mut self, granted: &[LeaseTime]) -> anyhow::Result<()> {
        for some in granted.chunks(LEASES_PER_RECORD) {
            let mut entries = Vec::with_capacity(some.len());
            for lease in some {
                lease.check()?;
                let LeaseTime { id, ttl, .. } = *lease;
                entries.push(Change::Grant(Grant { id, ttl }).into());
            }
            self.target.append(entries).await?;
        }
        Ok(())
    }

    /// Returns true if the lease is here.
    pub(crate) fn has_lease(&self, id: LeaseId) -> bool {
        id == LeaseId::NONE || self.target.replica.state().leases().contains(id)
    }

    /// Appends revisions. Fails, before anything of them is stored, if one does not follow the one before it, or if one has what no
    /// store can have.
    pub(crate) async fn append(&mut self, revised: Vec<RevisionEvents>) -> anyhow::Result<()> {
        let mut last = self.revision();
        for RevisionEvents { revision, kvs } in &revised {
            ensure!(
                *revision == last + 1 && !kvs.is_empty(),
                "revision {revision} of the source follows revision {last}: something is missing between them"
            );
            last = *revision;
            for kv in kvs {
                self.check(kv, *revision)?;
            }
        }
        let mut batch = RestoreBatch::default();
        for RevisionEvents { revision, kvs } in revised {
            batch.bytes += kvs.iter().map(|kv| kv.key.len() + kv.value.len()).sum::<usize>();
            batch.changes += kvs.len();
            batch.revisions.push(RevisionChanges { revision, kvs });
            if batch.is_full() {
                self.target.append_versions(std::mem::take(&mut batch)).await?;
            }
        }
        self.target.append_versions(batch).await
    }

    fn check(&self, kv: &mvccpb::KeyValue, revision: Revision) -> anyhow::Result<()> {
        let is_delete = kv.version == 0 && kv.create_revision == 0;
        let is_put = (1..=schema::MAX_REVISION).contains(&kv.version) && (1..=revision).contains(&kv.create_revision);
        ensure!(
            kv.mod_revision == revision && (is_put || is_delete) && !kv.key.is_empty(),
            "at revision {revision} the source has a key of version {}, modified at {}, created at {}",
            kv.version,
            kv.mod_revision,
            kv.create_revision
        );
        self.target.check_lengths(kv)
    }

    /// Removes the leases that are not among `kept` and have no keys: the keys of a lease are deleted by revisions of their own.
    pub(crate) async fn revoke_others(&mut self, kept: &HashSet<i64>) -> anyhow::Result<()> {
        let gone: Vec<Entry> = {
            let leases = self.target.replica.state().leases();
            let gone = leases
                .ids()
                .filter(|id| !kept.contains(&id.0) && leases.attached(*id).next().is_none());
            gone.map(|id| Change::Revoke(Revoke { id: id.0 }).into()).collect()
        };
        self.append_all(gone).await
    }

    /// Removes the leases that are not among `kept`. Keys that name them stay, and do not expire any more: etcd has such keys where a lease
    /// was lost.
    pub(crate) async fn revoke_all_but(&mut self, kept: &HashSet<i64>) -> anyhow::Result<()> {
        let gone: Vec<Entry> = {
            let leases = self.target.replica.state().leases();
            let gone = leases.ids().filter(|id| !kept.contains(&id.0));
            gone.map(|id| Change::Revoke(Revoke { id: id.0 }).into()).collect()
        };
        self.append_all(gone).await
    }

    /// Gives leases the time that they have left, and adds those that are not here.
    pub(crate) async fn set_leases(&mut self, source: &[LeaseTime]) -> anyhow::Result<()> {
        let mut entries = Vec::new();
        for lease in source {
            lease.check()?;
            let LeaseTime { id, ttl, remaining } = *lease;
            let found = self.target.replica.state().leases().stored(LeaseId(id));
            if found.is_none_or(|(stored, _)| stored != ttl) {
                entries.push(Change::Grant(Grant { id, ttl }).into());
            }
            // A whole second is the least that a lease can have left.
            let remaining = remaining.clamp(1, ttl);
            entries.push(Change::Checkpoint(Checkpoint { id, remaining }).into());
        }
        self.append_all(entries).await
    }

    async fn append_all(&mut self, mut entries: Vec<Entry>) -> anyhow::Result<()> {
        while !entries.is_empty() {
            let rest = entries.split_off(entries.len().min(LEASES_PER_RECORD));
            self.target.append(std::mem::replace(&mut entries, rest)).await?;
        }
        Ok(())
    }

    /// Returns the times to live of all leases, by id.
    pub(crate) fn leases(&self) -> HashMap<i64, i64> {
        let stored = self.target.replica.state().leases().all_stored();
        stored.into_iter().map(|lease| (lease.id.0, lease.ttl)).collect()
    }

    /// Returns the keys that are attached to leases.
    pub(crate) fn leased_keys(&self) -> HashSet<Bytes> {
        let leases = self.target.replica.state().leases();
        leases.ids().flat_map(|id| leases.attached(id)).cloned().collect()
    }

    /// Makes users and roles those of a snapshot.
    pub(crate) async fn set_users(&mut self, file: &SnapshotFile) -> anyhow::Result<()> {
        let mut change = users::read(&file.database()?)?.unwrap_or_default();
        ensure!(
            longest_value(&change) <= self.rows.max_value_len(),
            "a user or a role is longer than this storage takes"
        );
        let stored = self.target.replica.state().auth().load();
        for name in stored.users() {
            if !change.users.iter().any(|user| user.name == name) {
                let name = name.to_owned();
                change.users.push(UserChange { name, user: None });
            }
        }
        for name in stored.roles() {
            if !change.roles.iter().any(|role| role.name == name) {
                let name = name.to_owned();
                change.roles.push(RoleChange { name, role: None });
            }
        }
        change.revision = change.revision.max(stored.revision());
        self.target.append(vec![Change::Auth(change).into()]).await
    }

    /// The compacted revision; 0 if there was no compaction.
    pub(crate) fn compacted(&self) -> Revision {
        self.target.replica.compacted().max(0)
    }

    /// Compacts up to a revision, which is not after the newest one.
    pub(crate) async fn compact(&mut self, revision: Revision) -> anyhow::Result<()> {
        ensure!(
            revision <= self.revision(),
            "revision {revision} does not exist, so it cannot be compacted"
        );
        self.target
            .append(vec![Change::Compact(Compact { revision }).into()])
            .await
    }

    /// Raises the newest revision, with no change at it and at those between.
    pub(crate) async fn raise(&mut self, revision: Revision) -> anyhow::Result<()> {
        let nothing = Keys {
            revision,
            changes: Vec::new(),
        };
        self.target.append(vec![Change::Keys(nothing).into()]).await
    }

    /// Waits until everything is in rows.
    pub(crate) async fn flush(&mut self) -> anyhow::Result<()> {
        self.target.flush().await?;
        self.target.take_flushed();
        Ok(())
    }

    /// Lets reads take the newest snapshot of the rows: TiKV keeps older ones readable for minutes only.
    pub(crate) fn refresh(&mut self) {
        self.target.take_flushed();
    }

    /// The state at the newest revision, read back from what is stored.
    pub(crate) fn view(&self) -> Arc<View> {
        self.target.replica.state().view()
    }

    /// Flushes, and ends. Fails if rows do not hold all of it then.
    pub(crate) async fn finish(self) -> anyhow::Result<()> {
        let (revision, compacted) = (self.revision(), self.compacted());
        self.target.finish().await?;
        let stored = self.rows.fence().await?.context("the store has no manifest")?;
        let manifest = Manifest::decode(stored).context("decode the manifest of the store")?;
        let stored = (manifest.revision, manifest.compacted.max(0));
        ensure!(
            stored == (revision, compacted),
            "the store is at revision {} and compacted to {}, expected {revision} and {compacted}",
            stored.0,
            stored.1
        );
        Ok(())
    }
}

/// The newest versions of the keys of a view, in the order of keys.
pub struct NewestVersions<'a> {
    versions: VersionWalk<'a>,
    page: std::vec::IntoIter<KeyVersion>,
    last: Bytes,
}

impl<'a> NewestVersions<'a> {
    /// Begins at a key.
    pub(crate) fn from(view: &'a View, key: &[u8]) -> Self {
        Self {
            versions: view.versions_from(key, view.revision),
            page: Vec::new().into_iter(),
            last: Bytes::new(),
        }
    }

    /// Returns the next key with its version and value; `None` at the end.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Option<(Bytes, KeyMeta, Bytes)>> {
        loop {
            for version in self.page.by_ref() {
                // The newest version of a key comes first.
                if version.key == self.last {
                    continue;
                }
                self.last = version.key.clone();
                if let Some((meta, value)) = version.put {
                    return Ok(Some((version.key, meta, value)));
                }
            }
            match self.versions.next().await? {
                Some(page) => self.page = page.into_iter(),
                None => return Ok(None),
            }
        }
    }
}
