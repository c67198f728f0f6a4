//! The members of the cluster that this one knows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};

use etcd_types::pb::etcdserverpb as pb;

/// The members of the cluster, as far as they are known.
#[derive(Debug, Clone)]
pub struct Members(Arc<MemberList>);

#[derive(Debug)]
struct MemberList {
    members: watch::Sender<BTreeMap<u64, pb::Member>>,
    /// Notified when an unknown member is looked up.
    missed: Notify,
}

impl Members {
    /// Creates a list of these members.
    #[must_use]
    pub fn new(members: impl IntoIterator<Item = pb::Member>) -> Self {
        let members = members.into_iter().map(|member| (member.id, member)).collect();
        Self(Arc::new(MemberList {
            members: watch::Sender::new(members),
            missed: Notify::new(),
        }))
    }

    /// Returns all members, by id.
    #[must_use]
    pub fn list(&self) -> Vec<pb::Member> {
        self.0.members.borrow().values().cloned().collect()
    }

    /// Subscribes to the known members.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<BTreeMap<u64, pb::Member>> {
        self.0.members.subscribe()
    }

    /// Returns true if there is such a member. An unknown one may just have joined: the rows are read again for it, for at most
    /// `look`.
    pub async fn has(&self, id: u64, look: Duration) -> bool {
        let mut members = self.watch();
        if members.borrow().contains_key(&id) {
            return true;
        }
        self.0.missed.notify_one();
        let found = members.wait_for(|members| members.contains_key(&id));
        matches!(tokio::time::timeout(look, found).await, Ok(Ok(_)))
    }

    /// Waits until an unknown member is looked up.
    pub async fn asked_for(&self) {
        self.0.missed.notified().await;
    }

    /// Replaces the list by these members.
    pub fn replace(&self, members: impl IntoIterator<Item = pb::Member>) {
        let members: BTreeMap<u64, pb::Member> = members.into_iter().map(|member| (member.id, member)).collect();
        self.0.members.send_if_modified(|known| {
            let changed = *known != members;
            *known = members;
            changed
        });
    }

    /// Records names and URLs that members report. An entry without a name belongs to a member that never started: it replaces no
    /// known entry.
    pub fn learn(&self, members: impl IntoIterator<Item = pb::Member>) {
        self.0.members.send_if_modified(|known| {
            let mut changed = false;
            for member in members {
                if member.name.is_empty() && known.contains_key(&member.id) {
                    continue;
                }
                changed |= known.get(&member.id) != Some(&member);
                known.insert(member.id, member);
            }
            changed
        });
    }
}
