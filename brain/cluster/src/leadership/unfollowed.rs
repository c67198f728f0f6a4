//! How long the holder of the lock could not be followed.

use std::time::Duration;

use tokio::time::Instant;

/// Longer than any election: a leader that cannot be followed for this long needs a human.
const CANNOT_FOLLOW_TIMEOUT: Duration = Duration::from_secs(60);

/// A stream of at least this length was one that worked, however it ended: its leader may have been killed.
const WORKING_STREAM: Duration = Duration::from_secs(5);

/// Since when no stream of the leader worked.
#[derive(Debug)]
pub(super) struct Unfollowed {
    since: Instant,
}

impl Unfollowed {
    /// A leader that was not dialled yet.
    pub(super) fn new() -> Self {
        Self { since: Instant::now() }
    }

    /// A stream that was dialled at `dialled` has ended; `in_order` if the leader ended it.
    pub(super) fn ended(&mut self, dialled: Instant, (was_following, in_order): (bool, bool)) {
        if in_order || (was_following && dialled.elapsed() >= WORKING_STREAM) {
            self.since = Instant::now();
        }
    }

    /// Returns true if that is too long for an election.
    pub(super) fn too_long(&self) -> bool {
        self.since.elapsed() > CANNOT_FOLLOW_TIMEOUT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn leader_that_was_followed_for_long_and_is_killed_is_no_leader_that_cannot_be_followed() {
        let mut unfollowed = Unfollowed::new();
        let dialled = Instant::now();
        advance(CANNOT_FOLLOW_TIMEOUT * 2).await;
        unfollowed.ended(dialled, (true, false));
        assert!(!unfollowed.too_long());
        let dialled = Instant::now();
        advance(CANNOT_FOLLOW_TIMEOUT).await;
        unfollowed.ended(dialled, (false, false));
        assert!(!unfollowed.too_long());
        advance(Duration::from_millis(1)).await;
        assert!(unfollowed.too_long(), "it was not dialled successfully since");
        unfollowed.ended(Instant::now(), (false, true));
        assert!(!unfollowed.too_long(), "it ended the stream in order");
    }

    #[tokio::test(start_paused = true)]
    async fn leader_whose_streams_all_break_at_once_cannot_be_followed() {
        let mut unfollowed = Unfollowed::new();
        for _ in 0..61 {
            let dialled = Instant::now();
            advance(Duration::from_secs(1)).await;
            unfollowed.ended(dialled, (true, false));
        }
        assert!(unfollowed.too_long());
    }
}
