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
use super::ring::{Entry, Limit, Run};
use etcd_types::types::Revision;

/// The size of one pass: enough to share the cost of waking a stream, few enough to be quick.
const PASS_LIMIT: Limit = Limit {
    events: 512,
    bytes: usize::MAX,
    through: Revision::MAX,
};
/// The events, and matches of events and groups, after which a pass ends with its revision, and others have the lock.
const MAX_MATCHES_PER_PASS: usize = 1 << 16;
/// The number of mailboxes that are filled before the task yields.
const DELIVERIES_PER_YIELD: usize = 256;

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
    /// There are more runs than a mailbox takes: only the first is here.
    is_overrun: bool,
}

/// The events of a pass, and the watchers that were found up to now.
struct LookUp {
    entries: Vec<Arc<Entry>>,
    /// The position of the first.
    start: u64,
    /// The revision that all of them reach.
    through: Revision,
    /// The number of those that were looked up.
    taken: usize,
    /// The revision that these reach.
    reached: Revision,
    deliveries: Vec<Delivery>,
    /// The delivery of each group.
    places: HashMap<u64, usize>,
}

impl Hub {
    /// Dispatches published revisions until `stop`. Never fails; the result is what [`runtime::tasks::Tasks`] expects.
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
        let through = match self.find().await {
            Pass::Done => return false,
            Pass::Deliver(deliveries, through) => {
                for delivery in deliveries {
                    for mailbox in delivery.mailboxes.iter() {
                        delivery.deliver_to(mailbox, self.shared.options.mailbox_runs);
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
        let some = self.take_ended(DELIVERIES_PER_YIELD);
        let were_any = !some.is_empty();
        drop(some);
        tokio::task::yield_now().await;
        were_any
    }

    /// Looks up the watchers of the next events. A revision of very many events, or with very many watchers, is looked up in steps,
    /// between which others have the lock of the index.
    async fn find(&self) -> Pass {
        let mut look_up = match self.next_events() {
            Ok(look_up) if look_up.through == look_up.reached => return Pass::Done,
            Ok(look_up) => look_up,
            Err(lost) => return lost,
        };
        while !self.look_up(&mut look_up) {
            tokio::task::yield_now().await;
        }
        Pass::Deliver(look_up.deliveries, look_up.reached)
    }

    fn next_events(&self) -> Result<LookUp, Pass> {
        let mut routing = locked(&self.shared.routing);
        let ring = self.ring();
        let Ok(entries) = ring.at_position(routing.cursor, PASS_LIMIT) else {
            let (from, through) = (routing.matched + 1, ring.covers_from() - 1);
            routing.cursor = ring.first();
            drop(ring);
            routing.matched = through;
            return Err(Pass::Lost(routing.index.values().cloned().collect(), from, through));
        };
        let at_end = routing.cursor + entries.len() as u64 == ring.end();
        let last = entries.last().map_or(routing.matched, |last| last.revision());
        Ok(LookUp {
            through: if at_end { ring.through() } else { last },
            entries,
            start: routing.cursor,
            taken: 0,
            reached: routing.matched,
            deliveries: Vec::new(),
            places: HashMap::new(),
        })
    }

    /// Looks up some events. Returns false if the revision has more events. The revision counts as matched from its first event on, so a
    /// watcher that begins or joins during the steps needs none of these events.
    fn look_up(&self, pass: &mut LookUp) -> bool {
        let mut routing = locked(&self.shared.routing);
        let most_runs = self.shared.options.mailbox_runs;
        let (is_continued, mut matches) = (pass.taken > 0, 0);
        while let Some(entry) = pass.entries.get(pass.taken) {
            let (revision, position) = (entry.revision(), pass.start + pass.taken as u64);
            match revision > routing.matched {
                // Watchers that joined since the lock was released are missing from the deliveries so far, but need this revision.
                true if is_continued || matches >= MAX_MATCHES_PER_PASS => return true,
                false if matches >= MAX_MATCHES_PER_PASS => return false,
                true => {
                    let of_it = pass.entries[pass.taken..].iter();
                    let of_it = of_it.take_while(|entry| entry.revision() == revision).count();
                    routing.cursor = position + of_it as u64;
                    (routing.matched, pass.reached) = (revision, revision);
                }
                false => {}
            }
            let (places, deliveries) = (&mut pass.places, &mut pass.deliveries);
            routing.index.matches(&entry.event().kv.key, |group| {
                matches += 1;
                let place = *places.entry(group.id()).or_insert(deliveries.len());
                if place == deliveries.len() {
                    deliveries.push(Delivery::of(group));
                }
                deliveries[place].add(position, revision, most_runs);
            });
            matches += 1;
            pass.taken += 1;
        }
        (routing.matched, pass.reached) = (pass.through, pass.through);
        true
    }
}

impl Delivery {
    fn of(group: &Group<Arc<Mailbox>>) -> Self {
        Self {
            mailboxes: group.members().clone(),
            runs: Vec::new(),
            is_overrun: false,
        }
    }

    /// Adds an event after the others. More runs than a mailbox takes need not be kept.
    fn add(&mut self, position: u64, revision: Revision, most_runs: usize) {
        let run = Run {
            start: position,
            end: position + 1,
            revision,
        };
        let is_full = self.runs.len() >= most_runs.max(1);
        match self.runs.last_mut() {
            _ if self.is_overrun => {}
            Some(last) if last.end == position => last.end = run.end,
            Some(_) if is_full => {
                self.is_overrun = true;
                self.runs = self.runs[..1].to_vec();
            }
            _ => self.runs.push(run),
        }
    }

    fn deliver_to(&self, mailbox: &Mailbox, most_runs: usize) {
        match self.runs.first() {
            Some(first) if self.is_overrun => mailbox.overrun(first.revision),
            _ => mailbox.deliver(&self.runs, most_runs),
        }
    }
}

/// Yields to other tasks after every [`DELIVERIES_PER_YIELD`] mailboxes.
async fn rest_after(filled: &mut usize) {
    *filled += 1;
    if filled.is_multiple_of(DELIVERIES_PER_YIELD) {
        tokio::task::yield_now().await;
    }
}
