//! Liveness: this member learns of commits from its leader, by its own lease as the leader, or by reading the log itself.
//!
//! Clients get `no leader` only when none of the three works, because their watches would stall.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::forward::Role;
use runtime::clock::since_boot;

/// Election timeouts of silence after which liveness ends, as in etcd.
const SILENT_ELECTION_TIMEOUTS: u32 = 3;

/// The time at which this member last read the log to its end. Clones share it.
#[derive(Debug, Clone)]
pub struct Liveness(Arc<AtomicU64>);

impl Default for Liveness {
    /// Returns a liveness that starts now.
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(millis(since_boot()))))
    }
}

impl Liveness {
    /// Records that the log was read just now.
    pub fn note(&self) {
        self.0.store(millis(since_boot()), Ordering::Release);
    }

    fn age(&self, now: Duration) -> Duration {
        Duration::from_millis(millis(now).saturating_sub(self.0.load(Ordering::Acquire)))
    }
}

/// Publishes liveness to `shown` until `stop`. It begins with true.
pub async fn run(
    liveness: Liveness,
    roles: watch::Receiver<Role>,
    election_timeout: Duration,
    shown: watch::Sender<bool>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut look = tokio::time::interval(election_timeout / 4);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // A leader's lease may end before the leader learns that it lost its lock: silence is counted from then on, too.
    let mut led = since_boot();
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            _ = look.tick() => {}
        }
        let now = since_boot();
        if hears(&roles.borrow(), now) {
            led = now;
        }
        let silence = liveness.age(now).min(now.saturating_sub(led));
        let has = silence < SILENT_ELECTION_TIMEOUTS * election_timeout;
        shown.send_if_modified(|shown| std::mem::replace(shown, has) != has);
    }
}

fn hears(role: &Role, now: Duration) -> bool {
    match role {
        Role::Leading(lease) => lease.holds(now),
        Role::Following(_) | Role::Transferring => true,
        Role::Nobody | Role::Stopped => false,
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::LeaderLease;

    const ELECTION_TIMEOUT: Duration = Duration::from_millis(20);

    struct Watched {
        liveness: Liveness,
        roles: watch::Sender<Role>,
        shown: watch::Receiver<bool>,
        _running: runtime::tasks::Owned<anyhow::Result<()>>,
    }

    fn watched(role: Role) -> Watched {
        let (liveness, roles) = (Liveness::default(), watch::Sender::new(role));
        let (sender, shown) = watch::channel(true);
        let running = run(
            liveness.clone(),
            roles.subscribe(),
            ELECTION_TIMEOUT,
            sender,
            CancellationToken::new(),
        );
        Watched {
            liveness,
            roles,
            shown,
            _running: runtime::tasks::Owned::start(running),
        }
    }

    #[tokio::test]
    async fn silence_of_leader_and_log_is_no_contact_until_one_is_heard() {
        let mut watched = watched(Role::Nobody);
        watched.shown.wait_for(|has| !has).await.unwrap();
        watched.liveness.note();
        watched.shown.wait_for(|has| *has).await.unwrap();
        watched.shown.wait_for(|has| !has).await.unwrap();
        watched.roles.send_replace(Role::Leading(LeaderLease::unbounded()));
        watched.shown.wait_for(|has| *has).await.unwrap();
    }

    #[tokio::test]
    async fn a_leader_without_a_right_is_none() {
        let mut watched = watched(Role::Leading(LeaderLease::none()));
        watched.shown.wait_for(|has| !has).await.unwrap();
    }

    #[tokio::test]
    async fn a_leader_hears_itself() {
        let watched = watched(Role::Leading(LeaderLease::unbounded()));
        let mut shown = watched.shown.clone();
        let lost = tokio::time::timeout(10 * ELECTION_TIMEOUT, shown.wait_for(|has| !has));
        assert!(lost.await.is_err());
    }
}
