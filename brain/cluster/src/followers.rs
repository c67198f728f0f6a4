//! The members that follow this one now.

use std::collections::BTreeMap;

use tokio::sync::watch;

/// The followers with open streams, by member id. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Followers(watch::Sender<BTreeMap<u64, Follower>>);

#[derive(Debug, Default)]
struct Follower {
    /// The identity in the election; `None` while it cannot lead.
    identity: Option<String>,
    streams: u64,
}

impl Followers {
    /// Returns the election identity of a follower that can lead: of the one with this id, or of any if no id is given.
    #[must_use]
    pub fn identity(&self, id: Option<u64>) -> Option<String> {
        let followers = self.0.borrow();
        match id {
            Some(id) => followers.get(&id)?.identity.clone(),
            None => followers.values().rev().find_map(|follower| follower.identity.clone()),
        }
    }

    /// Waits until this member follows and can lead.
    pub async fn follows(&self, id: u64) {
        // The sending side is `self`.
        drop(
            self.0
                .subscribe()
                .wait_for(|followers| followers.get(&id).is_some_and(|follower| follower.identity.is_some()))
                .await,
        );
    }

    /// Registers a follower until the returned guard is dropped; without an identity if it cannot lead.
    pub(super) fn enter(&self, id: u64, identity: Option<String>) -> FollowerGuard {
        self.0.send_modify(|followers| {
            let follower = followers.entry(id).or_default();
            follower.identity = identity;
            follower.streams += 1;
        });
        FollowerGuard(self.clone(), id)
    }
}

/// The registration of a follower, until its stream ends.
pub(super) struct FollowerGuard(Followers, u64);

impl Drop for FollowerGuard {
    fn drop(&mut self) {
        self.0.0.send_modify(|followers| {
            if let Some(follower) = followers.get_mut(&self.1) {
                follower.streams -= 1;
                if follower.streams == 0 {
                    followers.remove(&self.1);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_member_follows_while_one_of_its_streams_is_open() {
        let followers = Followers::default();
        let other = followers.enter(1, Some("one".to_owned()));
        assert_eq!(followers.identity(Some(2)), None);
        let ((), first) = tokio::join!(followers.follows(2), async {
            followers.enter(2, Some("two".to_owned()))
        });
        let second = followers.enter(2, Some("two, started anew".to_owned()));
        drop(first);
        assert_eq!(followers.identity(Some(2)).as_deref(), Some("two, started anew"));
        // The newest stream of a follower counts.
        let third = followers.enter(2, None);
        assert_eq!(followers.identity(Some(2)), None, "it cannot lead");
        assert_eq!(followers.identity(None).as_deref(), Some("one"), "the other one can");
        drop((third, second, other));
        assert_eq!(followers.identity(None), None);
    }
}
