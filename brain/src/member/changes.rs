//! Counts changes of leader.

use prometheus::IntCounter;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::api::elsewhere::{Right, Role};

/// Who was last known to lead.
enum Known {
    Nobody,
    /// This member, by the right of a term.
    Here(Right),
    /// Another member.
    There(u64),
}

/// Counts each leader that is not the one before, the first one, too, and each term of this member's own, until `stop`.
/// Losing sight of a leader is no change, nor is hearing of the same one again.
///
/// # Errors
/// None.
pub(super) async fn count(
    mut roles: watch::Receiver<Role>,
    changes: IntCounter,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut known = Known::Nobody;
    loop {
        if let Some(now) = other(&known, &roles.borrow_and_update()) {
            changes.inc();
            known = now;
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            changed = roles.changed() => if changed.is_err() {
                // Nobody says any more who leads.
                stop.cancelled().await;
                return Ok(());
            }
        }
    }
}

/// Who leads, if that is somebody else than before.
fn other(known: &Known, role: &Role) -> Option<Known> {
    match (role, known) {
        (Role::Leading(right), Known::Here(before)) if right.is(before) => None,
        (Role::Leading(right), _) => Some(Known::Here(right.clone())),
        (Role::Following(leader), Known::There(before)) if leader.member == *before => None,
        (Role::Following(leader), _) => Some(Known::There(leader.member)),
        (Role::Nobody | Role::Leaving | Role::Stopped, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::elsewhere::{Leader, Reads};
    use tonic::transport::Channel;

    fn following(member: u64) -> Role {
        let channel = Channel::from_static("http://127.0.0.1:1").connect_lazy();
        let (reads, _) = Reads::new(channel.clone(), 1);
        Role::Following(Leader { member, channel, reads })
    }

    #[tokio::test]
    async fn each_other_leader_is_a_change() {
        let mut known = Known::Nobody;
        let mut changes = |role: Role| {
            let now = other(&known, &role);
            let changed = now.is_some();
            known = now.unwrap_or(std::mem::replace(&mut known, Known::Nobody));
            changed
        };
        assert!(!changes(Role::Nobody));
        assert!(changes(following(1)), "the first one");
        assert!(!changes(Role::Nobody));
        assert!(!changes(following(1)), "the same one again");
        assert!(changes(following(2)));
        let right = Right::none();
        assert!(changes(Role::Leading(right.clone())));
        assert!(!changes(Role::Leading(right)));
        assert!(!changes(Role::Leaving));
        assert!(changes(Role::Leading(Right::none())), "another term");
        assert!(changes(following(2)));
    }
}
