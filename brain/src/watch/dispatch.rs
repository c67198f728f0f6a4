//! The dispatcher: finds the watchers of each event and leaves them its position.
//!
//! It works in passes of bounded size. Within one pass every mailbox gets all of its events at once, and so never a
//! part of a revision.

use std::collections::HashMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::Hub;
use super::index::{Group, Members};
use super::mailbox::{Mailbox, locked};
use super::ring::{Limit, Run};
use crate::types::Revision;

/// One pass: enough to share the cost of waking a stream, few enough to be quick.
const PASS: Limit = Limit {
    events: 512,
    bytes: usize::MAX,
    through: Revision::MAX,
};
/// Mailboxes that are filled before others get the processor.
const DELIVERIES: usize = 256;

type Mailboxes = Members<Arc<Mailbox>>;

/// The result of one pass.
enum Pass {
    /// Everything is dispatched.
    Done,
    /// These deliveries bring all mailboxes to this revision.
    Deliver(Vec<Delivery>, Revision),
    /// From the first of these revisions on through the second, events left the ring before they were looked at.
    Lost(Vec<Mailboxes>, Revision, Revision),
}

/// Events for the watchers of one range.
struct Delivery {
    mailboxes: Mailboxes,
    runs: Vec<Run>,
}

impl Hub {
    /// Dispatches what is published until `stop`.
    ///
    /// # Errors
    /// None; the result is what [`crate::tasks::Tasks`] expects.
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

    /// Makes one pass; false when there was nothing to do.
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

    /// Drops some watchers whose streams have ended; false when there were none.
    async fn drop_ended(&self) -> bool {
        let some = self.take_ended(DELIVERIES);
        let were_any = !some.is_empty();
        drop(some);
        tokio::task::yield_now().await;
        were_any
    }

    /// Looks up the watchers of the next events. Holds the lock of the index, and no other for long.
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
        for (position, entry) in (routing.cursor..).zip(&entries) {
            let run = Run {
                start: position,
                end: position + 1,
                revision: entry.revision(),
            };
            routing.index.matches(&entry.event().kv.key, |group| {
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
        routing.cursor += entries.len() as u64;
        routing.matched = through;
        Pass::Deliver(deliveries, through)
    }
}

/// Lets others have the processor after every so many mailboxes.
async fn rest_after(filled: &mut usize) {
    *filled += 1;
    if filled.is_multiple_of(DELIVERIES) {
        tokio::task::yield_now().await;
    }
}
