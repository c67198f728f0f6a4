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

/// An age is enforced by a tenth of it, but at least this often.
const LONGEST_STEP: Duration = Duration::from_secs(6 * 60);

/// The newest revision at past times, as far back as needed.
#[derive(Debug, Default)]
struct Samples {
    taken: VecDeque<(Instant, Revision)>,
}

impl Samples {
    /// Records the newest revision; returns the newest one that is at least `age` old.
    fn note(&mut self, now: Instant, revision: Revision, age: Duration) -> Option<Revision> {
        self.taken.push_back((now, revision));
        let mut old = None;
        while let Some((taken, revision)) = self.taken.front()
            && now.duration_since(*taken) >= age
        {
            old = Some(*revision);
            self.taken.pop_front();
        }
        old
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
        Retention::Age(age) => (age / 10).clamp(Duration::from_millis(100), LONGEST_STEP),
        Retention::Revisions(_) => INTERVAL,
    };
    let mut ticks = tokio::time::interval(step);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut samples = Samples::default();
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            _ = ticks.tick() => {}
        }
        let target = match retention {
            Retention::Age(age) => samples.note(Instant::now(), revision(), age),
            Retention::Revisions(kept) => Some(revision() - kept).filter(|target| *target > 0),
        };
        let Some(target) = target else { continue };
        match sequencer.compact(target).await.result {
            Ok(_) => tracing::debug!(revision = target, "compacted without being asked"),
            // The leader does it.
            Err(Error::Compacted | Error::NotLeader) => {}
            Err(error) => tracing::warn!(%error, revision = target, "could not compact"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn old_revisions_are_compacted_and_none_younger() {
        let (age, mut samples) = (Duration::from_secs(10), Samples::default());
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(samples.note(at(0), 5, age), None);
        assert_eq!(samples.note(at(9), 7, age), None);
        assert_eq!(samples.note(at(10), 8, age), Some(5));
        assert_eq!(samples.note(at(11), 9, age), None);
        assert_eq!(
            samples.note(at(30), 9, age),
            Some(9),
            "the newest of those that are old enough"
        );
    }
}
