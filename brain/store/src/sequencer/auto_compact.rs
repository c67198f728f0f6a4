//! Automatic compaction: `--auto-compaction-mode` and `--auto-compaction-retention`.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::sequencer::command::SequencerHandle;
use etcd_types::errors::Error;
use etcd_types::types::Revision;

/// The history that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    /// Revisions that are younger than this.
    Age(Duration),
    /// This number of revisions.
    Revisions(i64),
}

/// Interval at which a number of revisions is enforced, as in etcd.
const REVISION_CHECK_INTERVAL: Duration = Duration::from_secs(5 * 60);

/// The longest interval at which an age is enforced, as in etcd: so one to two ages of history are kept, or one age and an hour.
const MAX_AGE_INTERVAL: Duration = Duration::from_secs(3600);

/// Looks at the newest revision in one interval, as in etcd.
const SAMPLES_PER_INTERVAL: u32 = 10;

/// The newest revision at past times, as far back as needed, and when history was compacted. The rules are those of etcd's
/// `periodic.go`.
#[derive(Debug)]
struct PeriodicRetention {
    /// One for each step, the oldest first.
    samples: VecDeque<Revision>,
    /// The most that are kept.
    most: usize,
    /// The revision that was compacted last, and when; at first the time of the start.
    last: (Revision, Instant),
    /// The time from there to the next compaction.
    base: Duration,
    /// The time between two later ones.
    interval: Duration,
}

impl PeriodicRetention {
    fn new(age: Duration, now: Instant) -> Self {
        let interval = age.min(MAX_AGE_INTERVAL);
        let steps = age.as_nanos() * u128::from(SAMPLES_PER_INTERVAL) / interval.as_nanos().max(1);
        Self {
            samples: VecDeque::new(),
            most: usize::try_from(steps).unwrap_or(usize::MAX).saturating_add(1),
            last: (0, now),
            base: age,
            interval,
        }
    }

    /// The time between two samples.
    fn step(&self) -> Duration {
        (self.interval / SAMPLES_PER_INTERVAL).max(Duration::from_millis(100))
    }

    /// Records the newest revision.
    fn sample(&mut self, revision: Revision) {
        self.samples.push_back(revision);
        if self.samples.len() > self.most {
            self.samples.pop_front();
        }
    }

    /// Returns the revision to compact at, one step after a sample, if that is due.
    fn due(&self, now: Instant) -> Option<Revision> {
        let oldest = self.samples.front().copied()?;
        (now.duration_since(self.last.1) >= self.base && oldest != self.last.0).then_some(oldest)
    }

    /// History was compacted at that revision.
    fn compacted(&mut self, revision: Revision, now: Instant) {
        self.last = (revision, now);
        self.base = self.interval;
    }
}

/// Compacts until `stop`. `revision` returns the newest one. Never fails: a failed compaction is repeated with the next one.
pub async fn run(
    retention: Retention,
    sequencer: SequencerHandle,
    revision: impl Fn() -> Revision + Send,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut periodic = match retention {
        Retention::Age(age) => Some(PeriodicRetention::new(age, Instant::now())),
        Retention::Revisions(_) => None,
    };
    let step = periodic
        .as_ref()
        .map_or(REVISION_CHECK_INTERVAL, PeriodicRetention::step);
    loop {
        if let Some(periodic) = &mut periodic {
            periodic.sample(revision());
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(step) => {}
        }
        let target = match retention {
            Retention::Age(_) => periodic.as_ref().and_then(|periodic| periodic.due(Instant::now())),
            Retention::Revisions(kept) => Some(revision() - kept).filter(|target| *target > 0),
        };
        let Some(target) = target else { continue };
        match sequencer.compact(target).await.result {
            Ok(_) => tracing::info!(revision = target, "completed auto compaction"),
            Err(Error::Compacted) => {}
            // The leader compacts.
            Err(Error::NotLeader) => continue,
            Err(error) => {
                tracing::warn!(%error, revision = target, "failed auto compaction");
                continue;
            }
        }
        if let Some(periodic) = &mut periodic {
            periodic.compacted(target, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays `minutes` minutes in which each minute has a revision, from 1 on; returns when history was compacted, and at which revision.
    async fn play(age: Duration, minutes: u64) -> Vec<(u64, Revision)> {
        let begin = Instant::now();
        let (mut periodic, mut compacted) = (PeriodicRetention::new(age, begin), Vec::new());
        let step = periodic.step().as_secs() / 60;
        for minute in (0..minutes).step_by(usize::try_from(step).unwrap()) {
            periodic.sample(Revision::try_from(minute).unwrap() + 1);
            let now = begin + Duration::from_secs((minute + step) * 60);
            if let Some(target) = periodic.due(now) {
                compacted.push((minute + step, target));
                periodic.compacted(target, now);
            }
        }
        compacted
    }

    #[tokio::test(start_paused = true)]
    async fn age_is_enforced_once_in_an_age_or_an_hour() {
        let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
        assert_eq!(play(minutes(30), 120).await, [(30, 1), (60, 28), (90, 58), (120, 88)]);
        assert_eq!(play(minutes(180), 300).await, [(180, 1), (240, 55), (300, 115)]);
        assert_eq!(play(minutes(400), 300).await, []);
    }

    #[tokio::test(start_paused = true)]
    async fn unchanged_revision_and_failure_leave_a_compaction_due() {
        let begin = Instant::now();
        let mut periodic = PeriodicRetention::new(Duration::from_secs(10), begin);
        let at = |seconds| begin + Duration::from_secs(seconds);
        (0..10).for_each(|_| periodic.sample(5));
        assert_eq!(periodic.due(at(9)), None);
        assert_eq!(periodic.due(at(10)), Some(5));
        assert_eq!(periodic.due(at(11)), Some(5), "nobody said that it was done");
        periodic.compacted(5, at(11));
        (0..10).for_each(|_| periodic.sample(6));
        assert_eq!(periodic.due(at(30)), None, "5 is compacted");
        periodic.sample(6);
        assert_eq!(periodic.due(at(31)), Some(6));
    }
}
