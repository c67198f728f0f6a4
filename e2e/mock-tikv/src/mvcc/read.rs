//! Reads at a timestamp.
//!
//! The caller raises the highest read timestamp before it looks at the tables, so that every commit timestamp chosen later is above that
//! of the read.

use bytes::Bytes;

use super::Tables;
use super::errors::locked;
use super::tables::bounds;
use crate::change::{Kind, Version};
use crate::proto::kvrpcpb::{
    BatchGetRequest, BatchGetResponse, Context, GetRequest, GetResponse, KeyError, KvPair, LockInfo, Op,
    ScanLockRequest, ScanLockResponse, ScanRequest, ScanResponse,
};

/// A reader: its timestamp, and the transactions whose locks it need not heed.
struct Reader<'a> {
    tables: &'a Tables,
    ts: u64,
    resolved: &'a [u64],
}

impl<'a> Reader<'a> {
    fn new(tables: &'a Tables, context: Option<&'a Context>, ts: u64) -> Self {
        Self {
            tables,
            ts,
            resolved: context.map_or(&[], |context| &context.resolved_locks),
        }
    }

    /// A lock that may become a commit at or below the read's timestamp.
    fn blocked_by(&self, info: &LockInfo) -> bool {
        let data = matches!(info.lock_type(), Op::Put | Op::Del | Op::Insert);
        let older = info.lock_version <= self.ts && info.min_commit_ts <= self.ts;
        data && older && !self.resolved.contains(&info.lock_version)
    }

    fn check(&self, key: &[u8]) -> Result<(), Box<KeyError>> {
        let lock = self.tables.locks.get(key).map(|lock| &lock.info);
        match lock
            .into_iter()
            .chain(self.tables.pending.get(key))
            .find(|info| self.blocked_by(info))
        {
            Some(info) => Err(locked(info)),
            None => Ok(()),
        }
    }

    fn value<'v>(&self, versions: &'v [Version]) -> Option<&'v Bytes> {
        let newest = Tables::visible(versions, self.ts)?;
        (newest.kind() == Kind::Put).then_some(&newest.value)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Box<KeyError>> {
        self.check(key)?;
        Ok(self.value(self.tables.versions(key)).cloned())
    }
}

pub(crate) fn get(tables: &Tables, request: &GetRequest) -> GetResponse {
    let reader = Reader::new(tables, request.context.as_ref(), request.version);
    match reader.get(&request.key) {
        Ok(Some(value)) => GetResponse {
            value,
            ..Default::default()
        },
        Ok(None) => GetResponse {
            not_found: true,
            ..Default::default()
        },
        Err(error) => GetResponse {
            error: Some(error),
            ..Default::default()
        },
    }
}

/// The keys that have values, in the order of the request, and those that are locked.
pub(crate) fn batch_get(tables: &Tables, request: &BatchGetRequest) -> BatchGetResponse {
    let reader = Reader::new(tables, request.context.as_ref(), request.version);
    let mut reply = BatchGetResponse::default();
    for key in &request.keys {
        let (value, error) = match reader.get(key) {
            Ok(None) => continue,
            Ok(Some(value)) => (value, None),
            Err(error) => (Bytes::new(), Some(error)),
        };
        reply.pairs.push(KvPair {
            key: key.clone(),
            value,
            error,
        });
    }
    reply
}

/// Up to `limit` pairs of the span, which the caller has cut to the region's bounds. A lock that a one-phase commit is
/// just about to take off is an error of the whole scan, another one an error in its place.
pub(crate) fn scan(tables: &Tables, request: &ScanRequest, start: &[u8], end: &[u8]) -> ScanResponse {
    let mut reply = ScanResponse::default();
    let Some(range) = bounds(start, end) else { return reply };
    let reader = Reader::new(tables, request.context.as_ref(), request.version);
    let mut pending = tables.pending.range::<[u8], _>(range).map(|(_, info)| info);
    if let Some(info) = pending.find(|info| reader.blocked_by(info)) {
        reply.error = Some(locked(info));
        return reply;
    }
    let limit = request.limit as usize;
    let written = tables.writes.range::<[u8], _>(range).filter_map(|(key, versions)| {
        let value = reader.value(versions)?;
        let value = if request.key_only { Bytes::new() } else { value.clone() };
        Some(KvPair {
            key: key.clone(),
            value,
            error: None,
        })
    });
    let blocking = tables
        .locks
        .range::<[u8], _>(range)
        .filter(|(_, lock)| reader.blocked_by(&lock.info));
    let blocking = blocking.map(|(key, lock)| KvPair {
        key: key.clone(),
        value: Bytes::new(),
        error: Some(locked(&lock.info)),
    });
    reply.pairs = if request.reverse {
        merge(written.rev(), blocking.rev(), |a, b| a > b, limit)
    } else {
        merge(written, blocking, |a, b| a < b, limit)
    };
    reply
}

/// Two ordered runs as one; where both have a key the lock counts.
fn merge(
    written: impl Iterator<Item = KvPair>,
    blocking: impl Iterator<Item = KvPair>,
    before: impl Fn(&Bytes, &Bytes) -> bool,
    limit: usize,
) -> Vec<KvPair> {
    let (mut written, mut blocking) = (written.peekable(), blocking.peekable());
    let mut pairs = Vec::new();
    while pairs.len() < limit {
        let next = match (written.peek(), blocking.peek()) {
            (Some(pair), Some(lock)) if before(&pair.key, &lock.key) => written.next(),
            (Some(pair), Some(lock)) => {
                if pair.key == lock.key {
                    written.next();
                }
                blocking.next()
            }
            (Some(_), None) => written.next(),
            (None, _) => blocking.next(),
        };
        match next {
            Some(pair) => pairs.push(pair),
            None => break,
        }
    }
    pairs
}

/// Locks of transactions that began at or before `max_version`. A limit of zero is none. A lock that a one-phase commit is
/// just about to take off is an error of the whole scan.
pub(crate) fn scan_lock(tables: &Tables, request: &ScanLockRequest, start: &[u8], end: &[u8]) -> ScanLockResponse {
    let mut reply = ScanLockResponse::default();
    let Some(range) = bounds(start, end) else { return reply };
    let older = |info: &&LockInfo| info.lock_version <= request.max_version;
    let mut pending = tables.pending.range::<[u8], _>(range).map(|(_, info)| info);
    if let Some(info) = pending.find(older) {
        reply.error = Some(*locked(info));
        return reply;
    }
    let limit = if request.limit == 0 {
        usize::MAX
    } else {
        request.limit as usize
    };
    let locks = tables.locks.range::<[u8], _>(range).map(|(_, lock)| &lock.info);
    reply.locks = locks.filter(older).take(limit).cloned().collect();
    reply
}
