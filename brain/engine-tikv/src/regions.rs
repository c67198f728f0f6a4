//! Boundaries of regions, so that a scan stays within one: it would cost a request to every region that it touches.
//!
//! A hint only. Regions split and merge; a stale boundary makes a scan shorter than it could be, or costs a few requests more.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::Tikv;
use super::pd::RegionRange;

/// Time for which a region boundary is cached.
const REGION_CACHE_TTL: Duration = Duration::from_secs(120);

/// Boundaries that are cached; when there are more, all are dropped.
const MAX_CACHED_REGIONS: usize = 16_384;

/// Regions that are asked for at once.
const REGIONS_PER_REQUEST: i32 = 1024;

/// Known regions by their first key.
#[derive(Debug, Default)]
pub(super) struct RegionCache {
    known: Mutex<BTreeMap<Bytes, (Bytes, Instant)>>,
}

impl RegionCache {
    /// The end of the region that holds `key`, if it is known; empty is the end of everything.
    fn end(&self, key: &[u8]) -> Option<Bytes> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, (end, learnt)) = known
            .range::<[u8], _>((std::ops::Bound::Unbounded, std::ops::Bound::Included(key)))
            .next_back()?;
        (learnt.elapsed() < REGION_CACHE_TTL && (end.is_empty() || end.as_ref() > key)).then(|| end.clone())
    }

    fn learn(&self, regions: &[RegionRange]) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() + regions.len() > MAX_CACHED_REGIONS {
            known.clear();
        }
        let now = Instant::now();
        for region in regions {
            known.insert(region.from.clone(), (region.to.clone(), now));
        }
    }
}

impl Tikv {
    /// `to`, or the end of the region that holds `from`, whichever comes first. `to` when PD does not tell.
    pub(crate) async fn within_region(&self, from: &Bytes, to: &Bytes) -> Bytes {
        let end = match self.shared.regions.end(from) {
            Some(end) => end,
            None => match self.shared.pd.region(from).await {
                Ok(region) => {
                    self.shared.regions.learn(std::slice::from_ref(&region));
                    region.to
                }
                Err(error) => {
                    tracing::debug!(
                        error = &*error as &dyn std::error::Error,
                        "PD does not return the end of a region"
                    );
                    return to.clone();
                }
            },
        };
        // A boundary at or before `from` would stop a scan for good.
        if end.is_empty() || end >= *to || end <= *from {
            to.clone()
        } else {
            end
        }
    }

    /// Boundaries of regions strictly inside `(from, to)`, ascending. None when PD does not tell.
    pub(crate) async fn boundaries(&self, from: &Bytes, to: &Bytes) -> Vec<Bytes> {
        let mut found: Vec<Bytes> = Vec::new();
        let mut next = from.clone();
        while next < *to {
            let regions = match self.shared.pd.regions(&next, to, REGIONS_PER_REQUEST).await {
                Ok(regions) => regions,
                Err(error) => {
                    tracing::debug!(error = &*error as &dyn std::error::Error, "PD does not list regions");
                    break;
                }
            };
            self.shared.regions.learn(&regions);
            let Some(last) = regions.last().map(|region| region.to.clone()) else {
                break;
            };
            found.extend(regions.into_iter().map(|region| region.to));
            if last <= next {
                break; // the end of everything, or an answer that makes no sense
            }
            next = last;
        }
        found.retain(|key| key > from && key < to);
        found.sort();
        found.dedup();
        found
    }
}
