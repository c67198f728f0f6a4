//! Locks and versions by key, and how changes are applied to them.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;

use crate::change::{ChangeContent, Kind, Lock, Span, Version, Write};
use crate::proto::kvrpcpb::{LockInfo, Op};
use crate::regions::{Region, Regions};

/// Everything that is applied.
///
/// Invariants: the versions of a key ascend by commit timestamp, at most one each; no key has an empty list.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    pub(crate) locks: BTreeMap<Bytes, Lock>,
    pub(crate) writes: BTreeMap<Bytes, Vec<Version>>,
    /// Not applied and never kept: see [`super::Decision::pending`].
    pub(crate) pending: BTreeMap<Bytes, LockInfo>,
    pub(crate) regions: Regions,
    pub(crate) safe_point: u64,
    /// Milliseconds since 1970.
    pub(crate) timestamp_window: u64,
    pub(crate) cluster: Option<u64>,
    /// Number of times that the tables were reloaded; not stored.
    pub(crate) generation: u64,
}

/// Fate of a transaction on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Committed(u64),
    RolledBack,
    Unknown,
}

/// Argument of a map's `range`.
type Range<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// The bounds of a span for a map's `range`, none when it is empty.
pub(crate) fn bounds<'a>(start: &'a [u8], end: &'a [u8]) -> Option<Range<'a>> {
    if end.is_empty() {
        return Some((Bound::Included(start), Bound::Unbounded));
    }
    (start < end).then_some((Bound::Included(start), Bound::Excluded(end)))
}

impl Tables {
    pub(crate) fn new(regions: Regions) -> Self {
        Self {
            locks: BTreeMap::new(),
            writes: BTreeMap::new(),
            pending: BTreeMap::new(),
            regions,
            safe_point: 0,
            timestamp_window: 0,
            cluster: None,
            generation: 0,
        }
    }

    pub(crate) fn versions(&self, key: &[u8]) -> &[Version] {
        self.writes.get(key).map_or(&[], Vec::as_slice)
    }

    /// The lock of exactly this transaction.
    pub(crate) fn lock_of(&self, key: &[u8], start_ts: u64) -> Option<&Lock> {
        self.locks.get(key).filter(|lock| lock.info.lock_version == start_ts)
    }

    /// The newest value or deletion that a read at `ts` sees.
    pub(crate) fn visible(versions: &[Version], ts: u64) -> Option<&Version> {
        let upto = versions.partition_point(|version| version.commit_ts <= ts);
        let data = |version: &&Version| matches!(version.kind(), Kind::Put | Kind::Delete);
        versions[..upto].iter().rev().find(data)
    }

    /// Returns true if the key has a value now.
    pub(crate) fn exists(&self, key: &[u8]) -> bool {
        Self::visible(self.versions(key), u64::MAX).is_some_and(|version| version.kind() == Kind::Put)
    }

    pub(crate) fn fate(&self, key: &[u8], start_ts: u64) -> Fate {
        for version in self.versions(key).iter().rev() {
            if version.start_ts == start_ts {
                return match version.kind() {
                    Kind::Rollback => Fate::RolledBack,
                    _ => Fate::Committed(version.commit_ts),
                };
            }
            if version.commit_ts == start_ts && version.overlapped_rollback {
                return Fate::RolledBack;
            }
            if version.commit_ts < start_ts {
                break;
            }
        }
        Fate::Unknown
    }

    /// The changes that end a transaction on `key` for ever without a commit.
    pub(crate) fn rollback(&self, key: &Bytes, start_ts: u64) -> Vec<ChangeContent> {
        let mut changes = Vec::with_capacity(2);
        if self.lock_of(key, start_ts).is_some() {
            changes.push(ChangeContent::Unlock(key.clone()));
        }
        let standing = self.versions(key).iter().find(|version| version.commit_ts == start_ts);
        let version = match standing {
            Some(version) if version.start_ts == start_ts => return changes,
            Some(version) => Version {
                overlapped_rollback: true,
                ..version.clone()
            },
            None => Version {
                commit_ts: start_ts,
                start_ts,
                kind: Kind::Rollback.into(),
                ..Default::default()
            },
        };
        changes.push(ChangeContent::Write(Write {
            key: key.clone(),
            version,
        }));
        changes
    }

    /// The version that the lock becomes at `commit_ts`.
    pub(crate) fn committed(&self, lock: &Lock, commit_ts: u64) -> ChangeContent {
        let key = lock.info.key.clone();
        let kind = match lock.info.lock_type() {
            Op::Put | Op::Insert => Kind::Put,
            Op::Del => Kind::Delete,
            _ => Kind::Lock,
        };
        let overlapped_rollback = self.versions(&key).iter().any(|version| version.commit_ts == commit_ts);
        let version = Version {
            commit_ts,
            start_ts: lock.info.lock_version,
            kind: kind.into(),
            value: lock.value.clone(),
            overlapped_rollback,
        };
        ChangeContent::Write(Write { key, version })
    }

    /// The keys in the region that one of the transactions, named by their start timestamps, has locked.
    pub(crate) fn locked_by<T>(&self, region: &Region, transactions: &BTreeMap<u64, T>) -> Vec<Bytes> {
        let Some(range) = bounds(&region.start, &region.end) else {
            return Vec::new();
        };
        let locks = self.locks.range::<[u8], _>(range);
        let theirs = locks.filter(|(_, lock)| transactions.contains_key(&lock.info.lock_version));
        theirs.map(|(key, _)| key.clone()).collect()
    }

    /// The key that has `n` others between itself and `start`, which it does not count.
    pub(crate) fn nth_key_after(&self, start: &[u8], n: usize) -> Option<Bytes> {
        let range = (Bound::Included(start), Bound::Unbounded);
        self.writes.range::<[u8], _>(range).map(|(key, _)| key.clone()).nth(n)
    }

    pub(crate) fn apply(&mut self, change: ChangeContent) {
        match change {
            ChangeContent::Lock(lock) => {
                self.locks.insert(lock.info.key.clone(), lock);
            }
            ChangeContent::Unlock(key) => {
                self.locks.remove(&key);
            }
            ChangeContent::Write(Write { key, version }) => put_version(self.writes.entry(key).or_default(), version),
            ChangeContent::Erase(span) => self.erase(&span),
            ChangeContent::Collect(span) => self.collect(&span),
            ChangeContent::SafePoint(ts) => self.safe_point = self.safe_point.max(ts),
            ChangeContent::Regions(regions) => self.regions = regions,
            ChangeContent::TimestampWindow(upto) => self.timestamp_window = self.timestamp_window.max(upto),
            ChangeContent::Cluster(id) => self.cluster = Some(id),
        }
    }

    fn erase(&mut self, span: &Span) {
        let Some(range) = bounds(&span.start, &span.end) else {
            return;
        };
        let locked: Vec<Bytes> = self.locks.range::<[u8], _>(range).map(|(key, _)| key.clone()).collect();
        locked.iter().for_each(|key| drop(self.locks.remove(key)));
        let written: Vec<Bytes> = self
            .writes
            .range::<[u8], _>(range)
            .map(|(key, _)| key.clone())
            .collect();
        written.iter().for_each(|key| drop(self.writes.remove(key)));
    }

    fn collect(&mut self, span: &Span) {
        let Some(range) = bounds(&span.start, &span.end) else {
            return;
        };
        let mut emptied = Vec::new();
        for (key, versions) in self.writes.range_mut::<[u8], _>(range) {
            collect_versions(versions, self.safe_point);
            if versions.is_empty() {
                emptied.push(key.clone());
            }
        }
        emptied.iter().for_each(|key| drop(self.writes.remove(key)));
    }
}

fn put_version(versions: &mut Vec<Version>, version: Version) {
    let place = versions.partition_point(|held| held.commit_ts < version.commit_ts);
    match versions.get_mut(place) {
        Some(held) if held.commit_ts == version.commit_ts => *held = version,
        _ => versions.insert(place, version),
    }
}

/// Of the versions at or below the safe point, keeps only the newest one, and not even that if it is a deletion.
fn collect_versions(versions: &mut Vec<Version>, safe_point: u64) {
    let newest = Tables::visible(versions, safe_point).map(|version| (version.commit_ts, version.kind()));
    versions.retain(|version| version.commit_ts > safe_point || newest == Some((version.commit_ts, Kind::Put)));
}
