//! Counts changes of leader.

use prometheus::IntCounter;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::forward::{LeaderLease, Role};

/// The last known leader.
enum LastLeader {
    Nobody,
    /// This member led, by the lease of a term.
    Here(LeaderLease),
    /// Another member led.
    There(u64),
}

/// Counts each new leader, the first one included, and each term of this member, until `stop`. Losing the leader is no change, nor
/// is finding the same one again.
pub async fn count(
    mut roles: watch::Receiver<Role>,
    changes: IntCounter,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut known = LastLeader::Nobody;
    loop {
        if let Some(now) = other(&known, &roles.borrow_and_update()) {
            changes.inc();
            known = now;
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            changed = roles.changed() => if changed.is_err() {
                // The role is no longer published.
                stop.cancelled().await;
                return Ok(());
            }
        }
    }
}

/// Returns the leader, if it is not the same as before.
fn other(known: &LastLeader, role: &Role) -> Option<LastLeader> {
    match (role, known) {
        (Role::Leading(lease), LastLeader::Here(before)) if lease.is(before) => None,
        (Role::Leading(lease), _) => Some(LastLeader::Here(lease.clone())),
        (Role::Following(leader), LastLeader::There(before)) if leader.member == *before => None,
        (Role::Following(leader), _) => Some(LastLeader::There(leader.member)),
        (Role::Nobody | Role::Transferring | Role::Stopped, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::{LeaderClient, ReadIndexBatcher};
    use tonic::transport::Channel;

    fn following(member: u64) -> Role {
        let channel = Channel::from_static("http://127.0.0.1:1").connect_lazy();
        let (reads, _) = ReadIndexBatcher::new(channel.clone(), 1, std::time::Duration::ZERO);
        Role::Following(LeaderClient { member, channel, reads })
    }

    #[tokio::test]
    async fn each_other_leader_is_a_change() {
        let mut known = LastLeader::Nobody;
        let mut changes = |role: Role| {
            let now = other(&known, &role);
            let changed = now.is_some();
            known = now.unwrap_or(std::mem::replace(&mut known, LastLeader::Nobody));
            changed
        };
        assert!(!changes(Role::Nobody));
        assert!(changes(following(1)), "the first one");
        assert!(!changes(Role::Nobody));
        assert!(!changes(following(1)), "the same one again");
        assert!(changes(following(2)));
        let lease = LeaderLease::none();
        assert!(changes(Role::Leading(lease.clone())));
        assert!(!changes(Role::Leading(lease)));
        assert!(!changes(Role::Transferring));
        assert!(changes(Role::Leading(LeaderLease::none())), "another term");
        assert!(changes(following(2)));
    }
}
