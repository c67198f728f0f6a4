//! Outcomes of applies. If an apply left an object unchanged, admission webhooks want it that way, and it has not drifted. A field that
//! another manager keeps changing is reverted at once the first time, then with growing pauses.
//!
//! These outcomes are kept only in memory: a restarted operator applies once more.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::core::DynamicObject;
use plan::drift;
use plan::last_apply::{Digest, LastApply, content, digest};
use plan::objects::{Object, ObjectKey};
use runtime::backoff::Backoff;
use tokio::time::Instant;

/// Pause after another manager reverted a field.
const REVERT_BACKOFF: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(600));
/// Entries that were not read for this time are dropped: their cluster no longer exists.
const ENTRY_TTL: Duration = Duration::from_secs(3600);

/// Outcomes of applies so far. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct ApplyHistory {
    /// Entries by namespace and object.
    entries: Arc<Mutex<HashMap<(String, ObjectKey), ApplyEntry>>>,
}

struct ApplyEntry {
    rendered: Digest,
    unchanged: Option<Digest>,
    /// Number of times in a row that the apply was reverted.
    repeated: u32,
    last: Instant,
    looked_at: Instant,
}

impl ApplyHistory {
    /// Records an apply of `object` over `live`, and whether it changed anything.
    pub(crate) fn record(&self, namespace: &str, object: &Object, live: Option<&DynamicObject>, changed: bool) {
        let now = Instant::now();
        let stamp = object
            .body
            .pointer("/metadata/annotations")
            .and_then(|all| all[drift::APPLIED_HASH].as_str());
        let taken_back = live.is_some_and(|live| {
            let annotations = live.metadata.annotations.as_ref();
            annotations
                .and_then(|all| all.get(drift::APPLIED_HASH))
                .map(String::as_str)
                == stamp
        });
        let mut entries = self.lock();
        entries.retain(|_, entry| entry.looked_at.elapsed() < ENTRY_TTL);
        let place = (namespace.to_owned(), object.key.clone());
        let before = entries.get(&place).map_or(0, ApplyEntry::repeated);
        let entry = ApplyEntry {
            rendered: digest(&object.body),
            unchanged: live.filter(|_| !changed).and_then(content),
            repeated: match (changed, taken_back) {
                (true, true) => before.saturating_add(1),
                (true, false) => 0,
                (false, _) => before,
            },
            last: now,
            looked_at: now,
        };
        entries.insert(place, entry);
    }

    /// Returns earlier applies of the objects `keys` of a namespace.
    pub(crate) fn known<'a>(
        &self,
        namespace: &str,
        keys: impl Iterator<Item = &'a ObjectKey>,
    ) -> BTreeMap<ObjectKey, LastApply> {
        let mut entries = self.lock();
        let known = keys.filter_map(|key| {
            let entry = entries.get_mut(&(namespace.to_owned(), key.clone()))?;
            entry.looked_at = Instant::now();
            let known = LastApply {
                rendered: entry.rendered,
                unchanged: entry.unchanged,
                held: pause(entry.repeated()).saturating_sub(entry.last.elapsed()),
            };
            Some((key.clone(), known))
        });
        known.collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(String, ObjectKey), ApplyEntry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ApplyEntry {
    /// Number of times in a row that the apply was reverted; 0 again after a long enough pause.
    fn repeated(&self) -> u32 {
        if self.last.elapsed() > 2 * pause(self.repeated) {
            0
        } else {
            self.repeated
        }
    }
}

fn pause(repeated: u32) -> Duration {
    match repeated {
        0 => Duration::ZERO,
        repeated => REVERT_BACKOFF.after(repeated - 1),
    }
}
