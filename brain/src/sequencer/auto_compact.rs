//! Automatic compaction: `--auto-compaction-mode` and `--auto-compaction-retention`.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::sequencer::command::Handle;
use crate::types::{Error, Revision};

/// The history that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    /// Revisions that are younger than this.
    Age(Duration),
    /// So many revisions.
    Revisions(i64),
}

/// Interval at which a number of revisions is enforced, as in etcd.
const INTERVAL: Duration = Duration::from_secs(5 * 60);

/// The longest interval at which an age is enforced, as in etcd: so history of one to two ages is there, or of one age and an hour.
const LONGEST_INTERVAL: Duration = Duration::from_secs(3600);

/// Looks at the newest revision in one interval, as in etcd.
const SAMPLES: u32 = 10;

/// The newest revision at past times, as far back as needed, and when history was compacted.
#[derive(Debug)]
struct Periodic {
    age: Duration,
    taken: VecDeque<(Instant, Revision)>,
    /// The newest revision that is old enough.
    old: Option<Revision>,
    /// The time of the next compaction.
    due: Instant,
}

impl Periodic {
    fn new(age: Duration, now: Instant) -> Self {
        Self {
            age,
            taken: VecDeque::new(),
            old: None,
            due: now + age,
        }
    }

    /// The time between two compactions.
    fn interval(age: Duration) -> Duration {
        age.min(LONGEST_INTERVAL)
    }

    /// Records the newest revision; returns the one to compact at, if that is due.
    fn note(&mut self, now: Instant, revision: Revision) -> Option<Revision> {
        self.taken.push_back((now, revision));
        while let Some((taken, revision)) = self.taken.front()
            && now.duration_since(*taken) >= self.age
        {
            self.old = Some(*revision);
            self.taken.pop_front();
        }
        self.old.filter(|_| now >= self.due)
    }

    /// History was compacted.
    fn compacted(&mut self, now: Instant) {
        self.old = None;
        self.due = now + Self::interval(self.age);
    }
}

/// Compacts until `stop`. `revision` returns the newest one. Never fails: a failed compaction is repeated with the next one.
pub async fn run(
    retention: Retention,
    sequencer: Handle,
    revision: impl Fn() -> Revision + Send,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let step = match retention {
        Retention::Age(age) => (Periodic::interval(age) / SAMPLES).max(Duration::from_millis(100)),
        Retention::Revisions(_) => INTERVAL,
    };
    let mut ticks = tokio::time::interval(step);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut periodic = match retention {
        Retention::Age(age) => Some(Periodic::new(age, Instant::now())),
        Retention::Revisions(_) => None,
    };
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            _ = ticks.tick() => {}
        }
        let target = match retention {
            Retention::Age(_) => periodic
                .as_mut()
                .and_then(|periodic| periodic.note(Instant::now(), revision())),
            Retention::Revisions(kept) => Some(revision() - kept).filter(|target| *target > 0),
        };
        let Some(target) = target else { continue };
        match sequencer.compact(target).await.result {
            Ok(_) => tracing::info!(revision = target, "completed auto compaction"),
            // Nothing was written since, or the leader does it.
            Err(Error::Compacted | Error::NotLeader) => {}
            Err(error) => {
                tracing::warn!(%error, revision = target, "failed auto compaction");
                continue;
            }
        }
        if let Some(periodic) = &mut periodic {
            periodic.compacted(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays `hours` hours in which each minute has a revision; returns when history was compacted, and at which revision.
    async fn play(age: Duration, hours: u64) -> Vec<(u64, Revision)> {
        let begin = Instant::now();
        let (mut periodic, mut compacted) = (Periodic::new(age, begin), Vec::new());
        for minute in 0..=hours * 60 {
            let now = begin + Duration::from_secs(minute * 60);
            let revision = Revision::try_from(minute).unwrap();
            if let Some(target) = periodic.note(now, revision) {
                compacted.push((minute, target));
                periodic.compacted(now);
            }
        }
        compacted
    }

    #[tokio::test(start_paused = true)]
    async fn age_is_enforced_once_in_an_age_or_an_hour() {
        let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
        assert_eq!(play(minutes(30), 2).await, [(30, 0), (60, 30), (90, 60), (120, 90)]);
        assert_eq!(play(minutes(180), 5).await, [(180, 0), (240, 60), (300, 120)]);
        assert_eq!(play(minutes(400), 5).await, []);
    }

    #[tokio::test(start_paused = true)]
    async fn compaction_that_failed_is_due_again() {
        let begin = Instant::now();
        let mut periodic = Periodic::new(Duration::from_secs(10), begin);
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(periodic.note(at(0), 5), None);
        assert_eq!(periodic.note(at(10), 8), Some(5));
        assert_eq!(periodic.note(at(11), 9), Some(5), "nobody said that it was done");
        periodic.compacted(at(11));
        assert_eq!(periodic.note(at(20), 9), None);
        assert_eq!(
            periodic.note(at(21), 9),
            Some(9),
            "the newest of those that are old enough"
        );
    }
}
