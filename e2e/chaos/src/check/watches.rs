//! The guarantees of etcd's watches: ordered, unique, atomic, resumable, reliable, bookmarkable.
//!
//! Source: <https://etcd.io/docs/v3.6/learning/api_guarantees/#watch-apis>.

use super::model::KeyStates;
use super::timeline::Timeline;
use crate::history::{Event, History, KeySelector, Message, MessageContent, RoundTime, StreamAttempt, WatcherHistory};

/// A client notices a member's end a little later than the member ends.
const END_NOTICE_DELAY: RoundTime = RoundTime::from_secs(2);

pub(super) fn check(history: &History, timeline: &Timeline, wrong: &mut Vec<String>) {
    for watcher in &history.watchers {
        let mut reached = vec![history.base; watcher.watches.len()];
        for attempt in &watcher.attempts {
            let mut reader = StreamReader {
                watcher,
                history,
                timeline,
                next: attempt.from.clone(),
                ended: vec![false; watcher.watches.len()],
            };
            for message in &attempt.messages {
                if let Err(what) = reader.read(message) {
                    wrong.push(format!(
                        "a watch of {:?} at member {}, opened at {:?} from {:?}: {what}",
                        watcher.watches, watcher.member, attempt.opened, attempt.from
                    ));
                    break;
                }
            }
            reached = reader.next.iter().map(|next| next - 1).collect();
            breaks(watcher, attempt, history, wrong);
        }
        if let Some(short) = reached.iter().find(|reached| **reached < history.end) {
            wrong.push(format!(
                "a watch of {:?} at member {} ended at revision {short} of {}",
                watcher.watches, watcher.member, history.end
            ));
        }
    }
}

/// A stream breaks only when its member goes.
fn breaks(watcher: &WatcherHistory, attempt: &StreamAttempt, history: &History, wrong: &mut Vec<String>) {
    let Some((at, how)) = &attempt.broke else { return };
    let away = |absence: &&crate::history::MemberAbsence| {
        absence.member == watcher.member && absence.from <= *at && *at <= absence.until + END_NOTICE_DELAY
    };
    if !history.absences.iter().any(|absence| away(&absence)) {
        wrong.push(format!(
            "a watch stream at member {} broke at {at:?} though the member stayed: {how}",
            watcher.member
        ));
    }
}

struct StreamReader<'a> {
    watcher: &'a WatcherHistory,
    history: &'a History,
    timeline: &'a Timeline,
    /// The lowest revision that each watch may send next.
    next: Vec<i64>,
    ended: Vec<bool>,
}

impl StreamReader<'_> {
    fn read(&mut self, message: &Message) -> Result<(), String> {
        match &message.told {
            MessageContent::Events(events) => {
                let watch = message.watch.ok_or("events of no watch")?;
                self.events(watch, events, message.revision)
            }
            MessageContent::Progress => {
                let watches = match message.watch {
                    Some(watch) => watch..watch + 1,
                    None => 0..self.watcher.watches.len(),
                };
                for watch in watches.filter(|watch| !self.ended[*watch]).collect::<Vec<_>>() {
                    self.progress(watch, message.revision)?;
                }
                Ok(())
            }
            MessageContent::Compacted(revision) => {
                let watch = message.watch.ok_or("a compaction of no watch")?;
                self.ended[watch] = true;
                let asked = |(at, of): &(RoundTime, i64)| *at < message.at && of >= revision;
                if *revision > self.next[watch] && self.history.compactions.iter().any(asked) {
                    self.next[watch] = *revision;
                    return Ok(());
                }
                Err(format!(
                    "canceled for compaction {revision}, waiting for {}",
                    self.next[watch]
                ))
            }
            MessageContent::Canceled(why) => Err(format!("canceled: {why}")),
        }
    }

    fn events(&mut self, watch: usize, events: &[Event], header: i64) -> Result<(), String> {
        if self.ended[watch] {
            return Err("events after its end".to_owned());
        }
        let last = events.last().ok_or("a message without events")?.revision();
        if header < last {
            return Err(format!("the header says {header}, the last event {last}"));
        }
        for told in events.chunk_by(|a, b| a.revision() == b.revision()) {
            let revision = told[0].revision();
            let expected = self.expected(watch, revision)?;
            let mut told = told.to_vec();
            told.sort_by(|a, b| a.key().cmp(b.key()));
            if !self.same(&told, &expected) {
                return Err(format!("revision {revision} is {told:?}, not {expected:?}"));
            }
            self.next[watch] = revision + 1;
        }
        Ok(())
    }

    fn progress(&mut self, watch: usize, revision: i64) -> Result<(), String> {
        // a watch of the future has sent all of the past
        let keys = &self.watcher.watches[watch];
        for untold in self.next[watch]..=revision {
            if self.part(keys, untold).is_some() {
                return Err(format!(
                    "progress {revision} ahead of the event at {untold} of {keys:?}"
                ));
            }
        }
        self.next[watch] = self.next[watch].max(revision + 1);
        Ok(())
    }

    /// Events that a watch must send at that revision. An error if another revision must come first, or none is due.
    fn expected(&self, watch: usize, revision: i64) -> Result<Vec<Event>, String> {
        let keys = &self.watcher.watches[watch];
        let next = self.next[watch];
        if revision < next {
            return Err(format!("revision {revision} after {}", next - 1));
        }
        if let Some(skipped) = (next..revision).find(|skipped| self.part(keys, *skipped).is_some()) {
            return Err(format!("revision {revision} without {skipped}"));
        }
        self.part(keys, revision)
            .ok_or_else(|| format!("revision {revision}, which changed none of {keys:?}"))
    }

    /// Returns true if the received events are the expected ones. If a revision is compacted, its events may lack the previous key-value
    /// pairs.
    fn same(&self, told: &[Event], expected: &[Event]) -> bool {
        let lenient = |event: &Event| self.history.compactions.iter().any(|(_, of)| *of >= event.revision());
        let mut pairs = told.iter().zip(expected);
        told.len() == expected.len()
            && pairs.all(|(told, expected)| {
                told == expected || (lenient(told) && told.bare() == *told && *told == expected.bare())
            })
    }

    /// Events of a revision that belong to these keys.
    fn part(&self, keys: &KeySelector, revision: i64) -> Option<Vec<Event>> {
        let change = self.timeline.change(revision)?;
        let before = self.timeline.state(revision - 1)?;
        let of_keys = change.events.iter().filter(|event| keys.contain(event.key()));
        let events: Vec<Event> = of_keys.map(|event| self.with_prev(event, before)).collect();
        (!events.is_empty()).then_some(events)
    }

    fn with_prev(&self, event: &Event, before: &KeyStates) -> Event {
        let mut event = event.clone();
        let known = before.get(event.key()).cloned();
        match &mut event {
            Event::Put { prev, .. } | Event::Delete { prev, .. } => *prev = known.filter(|_| self.watcher.prev),
        }
        event
    }
}
