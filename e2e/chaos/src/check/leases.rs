//! Leases expire in time: not early, and not long after their last keep-alive.

use std::time::Duration;

use super::operations::RevisionOwners;
use super::timeline::Timeline;
use crate::history::{Event, History, LeaseHistory};

pub(super) fn check(history: &History, timeline: &Timeline, owned: &RevisionOwners, wrong: &mut Vec<String>) {
    for (revision, change) in timeline.changes() {
        if owned.by(revision).is_some() {
            continue;
        }
        // a revision that no operation made: the expiry of a lease
        for event in &change.events {
            let before = timeline.state(revision - 1).and_then(|state| state.get(event.key()));
            let lease = before.and_then(|kv| history.leases.iter().find(|lease| lease.id == kv.lease));
            match (event, lease) {
                (Event::Delete { .. }, Some(lease)) => in_time(lease, revision, change.seen, wrong),
                _ => wrong.push(format!(
                    "no client requested the change of revision {revision}: {event:?}"
                )),
            }
        }
        let one = |pair: &[Event]| lease_of(timeline, revision, &pair[0]) == lease_of(timeline, revision, &pair[1]);
        if !change.events.windows(2).all(one) {
            wrong.push(format!("revision {revision} ended more than one lease"));
        }
    }
    let Some(end) = timeline.state(history.end) else { return };
    for kv in end.values().filter(|kv| kv.lease != 0) {
        wrong.push(format!("{kv:?} outlived its lease"));
    }
}

fn lease_of(timeline: &Timeline, revision: i64, event: &Event) -> Option<i64> {
    Some(timeline.state(revision - 1)?.get(event.key())?.lease)
}

/// Neither before its time, nor renewed after its end.
fn in_time(lease: &LeaseHistory, revision: i64, seen: Duration, wrong: &mut Vec<String>) {
    if lease.revoked.is_some_and(|revoked| revoked < seen) {
        return;
    }
    let renewed = lease.renewed.iter().map(|(called, _)| *called).max();
    let due = renewed.unwrap_or_default() + lease.ttl;
    if seen < due {
        wrong.push(format!(
            "revision {revision} took {} at {seen:?}, before its lease was due at {due:?}: {lease:?}",
            lease.key
        ));
    }
}
