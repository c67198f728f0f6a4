//! The dispatcher: finds the watchers of each event and delivers its position to them.
//!
//! It works in passes of bounded size. Within one pass every mailbox gets all of its events at once, and so never a part of a
//! revision.

use std::collections::HashMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::Hub;
use super::index::{Group, Members};
use super::mailbox::{Mailbox, locked};
use super::ring::{Limit, Run};
use crate::types::Revision;

/// The size of one pass: enough to share the cost of waking a stream, few enough to be quick.
const PASS: Limit = Limit {
    events: 512,
    bytes: usize::MAX,
    through: Revision::MAX,
};
/// The matches of events and groups after which a pass ends with its revision.
const MATCHES: usize = 1 << 16;
/// The number of mailboxes that are filled before the task yields.
const DELIVERIES: usize = 256;

type Mailboxes = Members<Arc<Mailbox>>;

/// The result of one pass.
enum Pass {
    /// Everything is dispatched.
    Done,
    /// These deliveries bring all mailboxes to this revision.
    Deliver(Vec<Delivery>, Revision),
    /// Events between these two revisions, both included, were evicted from the ring before the pass examined them.
    Lost(Vec<Mailboxes>, Revision, Revision),
}

/// Events for the watchers of one range.
struct Delivery {
    mailboxes: Mailboxes,
    runs: Vec<Run>,
}

impl Hub {
    /// Dispatches published revisions until `stop`. Never fails; the result is what [`crate::tasks::Tasks`] expects.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        loop {
            tokio::select! {
                () = stop.cancelled() => {
                    self.close();
                    return Ok(());
                }
                () = self.shared.published.notified() => {}
            }
            while self.dispatch().await {
                self.drop_ended().await;
            }
            while self.drop_ended().await {
                self.dispatch().await;
            }
        }
    }

    /// Runs one pass; returns false if there was nothing to do.
    pub(super) async fn dispatch(&self) -> bool {
        let mut filled = 0;
        let through = match self.find() {
            Pass::Done => return false,
            Pass::Deliver(deliveries, through) => {
                for delivery in deliveries {
                    for mailbox in delivery.mailboxes.iter() {
                        mailbox.deliver(&delivery.runs, self.shared.options.mailbox_runs);
                        rest_after(&mut filled).await;
                    }
                }
                through
            }
            Pass::Lost(mailboxes, from, through) => {
                for mailbox in mailboxes.iter().flat_map(Members::iter) {
                    mailbox.overrun(from);
                    rest_after(&mut filled).await;
                }
                through
            }
        };
        self.shared.dispatched.send_replace(through);
        tokio::task::yield_now().await;
        true
    }

    /// Drops some watchers of ended streams; returns false if there were none.
    async fn drop_ended(&self) -> bool {
        let some = self.take_ended(DELIVERIES);
        let were_any = !some.is_empty();
        drop(some);
        tokio::task::yield_now().await;
        were_any
    }

    /// Looks up the watchers of the next events. Holds the lock of the index, and no other lock for long.
    fn find(&self) -> Pass {
        let mut routing = locked(&self.shared.routing);
        let (entries, through) = {
            let ring = self.ring();
            let Ok(entries) = ring.at_position(routing.cursor, PASS) else {
                let (from, through) = (routing.matched + 1, ring.covers_from() - 1);
                routing.cursor = ring.first();
                drop(ring);
                routing.matched = through;
                return Pass::Lost(routing.index.values().cloned().collect(), from, through);
            };
            let at_end = routing.cursor + entries.len() as u64 == ring.end();
            let last = entries.last().map_or(routing.matched, |last| last.revision());
            (entries, if at_end { ring.through() } else { last })
        };
        if through == routing.matched {
            return Pass::Done;
        }
        let mut places = HashMap::new();
        let mut found: Vec<(&Group<Arc<Mailbox>>, Vec<Run>)> = Vec::new();
        let (mut taken, mut matches, mut last) = (0, 0, routing.matched);
        for (position, entry) in (routing.cursor..).zip(&entries) {
            if matches >= MATCHES && entry.revision() > last {
                break; // the rest in another pass: others need this lock
            }
            (taken, last) = (taken + 1, entry.revision());
            let run = Run {
                start: position,
                end: position + 1,
                revision: entry.revision(),
            };
            routing.index.matches(&entry.event().kv.key, |group| {
                matches += 1;
                let place = *places.entry(group.id()).or_insert(found.len());
                let Some((_, runs)) = found.get_mut(place) else {
                    return found.push((group, vec![run]));
                };
                match runs.last_mut() {
                    Some(last) if last.end == position => last.end = run.end,
                    _ => runs.push(run),
                }
            });
        }
        let deliver = |(group, runs): (&Group<_>, _)| Delivery {
            mailboxes: group.members().clone(),
            runs,
        };
        let deliveries = found.into_iter().map(deliver).collect();
        let through = if taken == entries.len() { through } else { last };
        routing.cursor += taken as u64;
        routing.matched = through;
        Pass::Deliver(deliveries, through)
    }
}

/// Yields to other tasks after every [`DELIVERIES`] mailboxes.
async fn rest_after(filled: &mut usize) {
    *filled += 1;
    if filled.is_multiple_of(DELIVERIES) {
        tokio::task::yield_now().await;
    }
}
