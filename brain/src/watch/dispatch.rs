//! The dispatcher: finds the watchers of each event and leaves them its position.
//!
//! It works in passes of bounded size. Within one pass every mailbox gets all of its events at once, and so never a
//! part of a revision.

use std::collections::HashMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::Hub;
use super::mailbox::{Mailbox, locked};
use super::ring::{Limit, Run};
use crate::mvcc::Revision;

/// One pass: enough to share the cost of waking a stream, few enough to be quick.
const PASS: Limit = Limit {
    events: 512,
    bytes: usize::MAX,
};
/// Mailboxes that are filled before others get the processor.
const DELIVERIES: usize = 256;

/// What one pass found.
enum Pass {
    /// Everything is dispatched.
    Done,
    /// These mailboxes get events through this revision.
    Deliver(Vec<Delivery>, Revision),
    /// From the first of these revisions on through the second, events left the ring before they were looked at.
    Lost(Vec<Arc<Mailbox>>, Revision, Revision),
}

struct Delivery {
    mailbox: Arc<Mailbox>,
    first: Run,
    more: Vec<Run>,
}

impl Delivery {
    fn last(&mut self) -> &mut Run {
        self.more.last_mut().unwrap_or(&mut self.first)
    }
}

impl Hub {
    /// Dispatches what is published until `stop`.
    ///
    /// # Errors
    /// None; the result is what [`crate::tasks::Tasks`] expects.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = self.shared.published.notified() => {}
            }
            while self.dispatch().await {}
        }
    }

    /// Makes one pass; false when there was nothing to do.
    async fn dispatch(&self) -> bool {
        let max_runs = self.shared.options.mailbox_runs;
        let through = match self.find() {
            Pass::Done => return false,
            Pass::Deliver(deliveries, through) => {
                for (at, delivery) in deliveries.into_iter().enumerate() {
                    if at % DELIVERIES == DELIVERIES - 1 {
                        tokio::task::yield_now().await;
                    }
                    delivery.mailbox.deliver(delivery.first, &delivery.more, max_runs);
                }
                through
            }
            Pass::Lost(mailboxes, from, through) => {
                for (at, mailbox) in mailboxes.into_iter().enumerate() {
                    if at % DELIVERIES == DELIVERIES - 1 {
                        tokio::task::yield_now().await;
                    }
                    mailbox.overrun(from);
                }
                through
            }
        };
        self.shared.dispatched.send_replace(through);
        tokio::task::yield_now().await;
        true
    }

    /// Looks up the watchers of the next events. Holds the lock of the index, and no other for long.
    fn find(&self) -> Pass {
        let mut routing = locked(&self.shared.routing);
        let (entries, through) = {
            let ring = self.ring();
            let Ok(entries) = ring.from_position(routing.cursor, PASS) else {
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
        let mut deliveries: Vec<Delivery> = Vec::new();
        let mut places: HashMap<u64, usize> = HashMap::new();
        for (position, entry) in (routing.cursor..).zip(&entries) {
            let run = Run {
                start: position,
                end: position + 1,
                revision: entry.revision(),
            };
            routing.index.matches(&entry.event().kv.key, |id, mailbox| {
                let place = *places.entry(id).or_insert(deliveries.len());
                let Some(delivery) = deliveries.get_mut(place) else {
                    return deliveries.push(Delivery {
                        mailbox: Arc::clone(mailbox),
                        first: run,
                        more: Vec::new(),
                    });
                };
                match delivery.last() {
                    last if last.end == position => last.end = run.end,
                    _ => delivery.more.push(run),
                }
            });
        }
        routing.cursor += entries.len() as u64;
        routing.matched = through;
        Pass::Deliver(deliveries, through)
    }
}
