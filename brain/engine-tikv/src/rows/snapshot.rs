//! A snapshot: reads at one timestamp, for as long as garbage collection is sure to leave it whole.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::{RowsInner, failed};
use crate::{Error, ScanRange, Ts};
use engine::rows::{Order, Page, RowsError, Scan, Snapshot};
use runtime::clock::since_boot;

/// The bytes that one request is meant to bring; TiKV answers 10 MiB at most.
const CHUNK_BYTES: usize = 1 << 20;

/// Rows that one request asks for at most.
const CHUNK_ROWS: usize = 4096;

/// Keys that one request names at most.
const CHUNK_KEYS: usize = 512;

/// The rows as they were at a timestamp.
#[derive(Debug, Clone)]
pub struct TikvSnapshot {
    shared: Arc<RowsInner>,
    at: Ts,
    /// Since boot: garbage collection leaves it whole until then. A suspended machine's time counts.
    sure_until: Duration,
}

impl TikvSnapshot {
    pub(super) async fn now(shared: Arc<RowsInner>) -> Result<TikvSnapshot, RowsError> {
        let sure_until = since_boot() + shared.tikv.snapshot_age();
        let at = shared.tikv.timestamp().await.map_err(failed)?;
        Ok(TikvSnapshot { shared, at, sure_until })
    }

    /// Below the cluster's safe point a reply may lack rows, and nothing in it tells.
    fn check_age(&self) -> Result<(), RowsError> {
        if since_boot() <= self.sure_until {
            return Ok(());
        }
        let most = self.shared.tikv.snapshot_age();
        Err(RowsError::Unavailable(anyhow::anyhow!(
            "a snapshot is older than {most:?}; its versions may be gone"
        )))
    }

    /// The same, taken earlier by so much.
    #[cfg(test)]
    pub(super) fn aged(mut self, by: Duration) -> Self {
        self.sure_until = self.sure_until.saturating_sub(by);
        self
    }

    /// Returns the approximate number of rows that fit into `bytes`.
    fn rows_in(&self, bytes: usize) -> usize {
        let average = self.shared.average.load(Ordering::Relaxed);
        (bytes.min(CHUNK_BYTES) / average).clamp(1, CHUNK_ROWS)
    }

    fn parse(&self, key: &Bytes) -> Result<Bytes, RowsError> {
        let parsed = self.shared.tikv.keys().parse_row(key);
        parsed.ok_or_else(|| RowsError::Corrupt("a key between rows is not a row".into()))
    }

    async fn get_some(&self, keys: &[Bytes]) -> Result<Vec<(Bytes, Bytes)>, RowsError> {
        let tikv = &self.shared.tikv;
        match settled!(tikv, self.at, tikv.get_many(self.at, keys)) {
            Ok(found) => Ok(found),
            Err(Error::TooLarge(_)) if keys.len() > 1 => {
                let (left, right) = keys.split_at(keys.len() / 2);
                let mut found = Box::pin(self.get_some(left)).await?;
                found.extend(Box::pin(self.get_some(right)).await?);
                Ok(found)
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// The next rows of a range that is not empty, one at least unless there is none; and whether all of it was looked at.
    async fn page(&self, scan: &Scan, bounds: &(Bytes, Bytes), limit: usize) -> Result<ScanPart, RowsError> {
        let tikv = &self.shared.tikv;
        let backward = scan.order == Order::Descending;
        let (from, to) = bounds;
        let end = if backward {
            to.clone()
        } else {
            tikv.within_region(from, to).await
        };
        let mut range = ScanRange {
            from: from.clone(),
            to: end,
            limit: u32::try_from(limit).unwrap_or(u32::MAX),
            keys_only: scan.keys_only,
            backward,
        };
        let found = loop {
            match settled!(tikv, self.at, tikv.scan(self.at, &range)) {
                Ok(found) => break found,
                Err(Error::TooLarge(_)) if range.limit > 1 => range.limit = (range.limit / 4).max(1),
                Err(error) => return Err(failed(error)),
            }
        };
        self.check_age()?;
        let full = found.len() >= range.limit as usize;
        let left = match (found.last(), backward) {
            (Some((last, _)), false) if full => Some((after(last), to.clone())),
            (Some((last, _)), true) if full => Some((from.clone(), last.clone())),
            (_, true) => None,
            (_, false) => Some((range.to, to.clone())),
        };
        let bytes: usize = found.iter().map(|(key, value)| key.len() + value.len()).sum();
        if let (Some(mean), false) = (bytes.checked_div(found.len()), scan.keys_only) {
            self.shared.observe(mean);
        }
        let left = left.filter(|(from, to)| from < to);
        Ok(ScanPart { found, left })
    }
}

/// Rows with their keys in TiKV, and the part of the range that was not read.
struct ScanPart {
    found: Vec<(Bytes, Bytes)>,
    left: Option<(Bytes, Bytes)>,
}

#[async_trait]
impl Snapshot for TikvSnapshot {
    async fn fence(&self) -> Result<Option<Bytes>, RowsError> {
        let tikv = &self.shared.tikv;
        let fence = tikv.keys().fence();
        let value = settled!(tikv, self.at, tikv.get(self.at, &fence)).map_err(failed)?;
        self.check_age()?;
        Ok(value)
    }

    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, RowsError> {
        let tikv = &self.shared.tikv;
        if key.len() > tikv.keys().max_row_len() {
            return Ok(None);
        }
        let row = tikv.keys().row(key);
        let value = settled!(tikv, self.at, tikv.get(self.at, &row)).map_err(failed)?;
        self.check_age()?;
        Ok(value)
    }

    async fn multi_get(&self, keys: &[Bytes]) -> Result<Vec<Option<Bytes>>, RowsError> {
        let tikv_keys = self.shared.tikv.keys();
        let mut wanted: Vec<Bytes> = keys
            .iter()
            .filter(|key| key.len() <= tikv_keys.max_row_len())
            .map(|key| tikv_keys.row(key))
            .collect();
        wanted.sort();
        wanted.dedup();
        let chunk = self.rows_in(CHUNK_BYTES).min(CHUNK_KEYS);
        let chunks = wanted.chunks(chunk).map(|chunk| self.get_some(chunk));
        let mut found = std::collections::HashMap::with_capacity(wanted.len());
        for some in futures::future::try_join_all(chunks).await? {
            found.extend(some);
        }
        self.check_age()?;
        Ok(keys.iter().map(|key| found.get(&tikv_keys.row(key)).cloned()).collect())
    }

    async fn scan(&self, scan: Scan) -> Result<Page, RowsError> {
        let keys = self.shared.tikv.keys();
        let mut page = Page {
            rows: Vec::new(),
            done: false,
        };
        let to = scan.to.as_ref().map_or_else(|| keys.rows_end(), |to| keys.row(to));
        let mut left = Some((keys.row(&scan.from), to)).filter(|(from, to)| from < to);
        let mut bytes = 0usize;
        while let Some(bounds) = left {
            // One more than asked for tells whether something is left.
            let rows = (scan.max_rows - page.rows.len().min(scan.max_rows)).saturating_add(1);
            let limit = rows.min(self.rows_in(scan.max_bytes.saturating_sub(bytes)));
            let part = self.page(&scan, &bounds, limit).await?;
            for (key, value) in part.found {
                let key = self.parse(&key)?;
                bytes = bytes.saturating_add(key.len() + value.len());
                if !page.rows.is_empty() && (page.rows.len() >= scan.max_rows || bytes > scan.max_bytes) {
                    return Ok(page);
                }
                page.rows.push((key, value));
            }
            left = part.left;
        }
        page.done = true;
        Ok(page)
    }

    fn scans_values(&self) -> bool {
        false
    }

    async fn split_points(&self, from: &[u8], to: Option<&[u8]>, parts: usize) -> Result<Vec<Bytes>, RowsError> {
        let keys = self.shared.tikv.keys();
        let (start, end) = (keys.row(from), to.map_or_else(|| keys.rows_end(), |to| keys.row(to)));
        if parts < 2 || start >= end {
            return Ok(Vec::new());
        }
        // Regions are of about equal size.
        let boundaries = self.shared.tikv.boundaries(&start, &end).await;
        let points =
            (1..parts).filter_map(|part| boundaries.get((part * (boundaries.len() + 1) / parts).checked_sub(1)?));
        let mut points: Vec<Bytes> = points.filter_map(|key| keys.parse_row(key)).collect();
        points.dedup();
        points.retain(|point| point.as_ref() > from);
        Ok(points)
    }
}

/// The smallest key after `key`.
fn after(key: &[u8]) -> Bytes {
    [key, &[0]].concat().into()
}
