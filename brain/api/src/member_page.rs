//! The `/member` response of a member with a store.

use std::time::Duration;

use super::context::ApiContext;
use super::health::StoreHealth;
use cluster::forward;
use cluster::members::Members;
use etcd_types::version;
use mvcc::row;
use net::http::member::{
    DescribeMember, LeaderRef, LeaderTerm, MemberPage, MemberRole, SpaceInUse, StorageInUse, StoredFormats,
};
use net::http::{AlarmKind, HealthChecks as _};

/// The timeout of the test reads: storage that answers later counts as not ready.
const HEALTH_READ_TIMEOUT: Duration = Duration::from_secs(1);

/// Describes a member by its store.
pub struct AboutStore {
    /// The member's name.
    pub name: String,
    /// The members of the cluster.
    pub members: Members,
    /// The storage in use.
    pub storage: StorageInUse,
    /// Returns the space of the storage.
    pub space: Box<dyn Fn() -> SpaceInUse + Send + Sync>,
    /// The store.
    pub store: ApiContext,
}

fn hex(id: u64) -> String {
    format!("{id:016x}")
}

#[tonic::async_trait]
impl DescribeMember for AboutStore {
    async fn describe(&self) -> MemberPage {
        let health = StoreHealth(self.store.clone());
        let (linearizable, serializable) = tokio::join!(
            tokio::time::timeout(HEALTH_READ_TIMEOUT, health.linearizable_read()),
            tokio::time::timeout(HEALTH_READ_TIMEOUT, health.serializable_read()),
        );
        let alarms = health.alarms();
        // Both are read at the same time, so that role, leader and epoch match as closely as possible.
        let (role, epoch) = (self.store.router.role(), self.store.state.epoch());
        let (role, leader) = match role {
            forward::Role::Leading(_) => (MemberRole::Leader, Some(self.store.member_id)),
            forward::Role::Following(leader) => (MemberRole::Follower, Some(leader.member)),
            forward::Role::Transferring | forward::Role::Nobody | forward::Role::Stopped => (MemberRole::None, None),
        };
        MemberPage {
            name: self.name.clone(),
            member_id: hex(self.store.member_id),
            cluster_id: hex(self.store.cluster_id),
            version: version::KUBEBRAIN,
            formats: StoredFormats {
                lowest: row::STORED_FORMAT,
                highest: row::STORED_FORMAT_WITH_AUTH,
                written: match self.store.state.auth().load().was_changed() {
                    true => row::STORED_FORMAT_WITH_AUTH,
                    false => row::STORED_FORMAT,
                },
            },
            role,
            ready: matches!(linearizable, Ok(Ok(()))) && !alarms.contains(&AlarmKind::Corrupt),
            epoch,
            revision: self.store.state.view().revision,
            applied_slot: self.store.state.committed().0,
            leader: leader.map(|id| LeaderRef {
                name: self.name_of(id),
                member_id: hex(id),
            }),
            alarms: alarms.into_iter().map(AlarmKind::name).collect(),
            storage: StorageInUse {
                reachable: matches!(serializable, Ok(Ok(()))),
                ..self.storage.clone()
            },
            space: (self.space)(),
            tls: None,
        }
    }

    fn term(&self) -> LeaderTerm {
        let leader = match self.store.router.role() {
            forward::Role::Leading(_) => self.store.member_id,
            forward::Role::Following(leader) => leader.member,
            forward::Role::Transferring | forward::Role::Nobody | forward::Role::Stopped => 0,
        };
        LeaderTerm {
            epoch: self.store.state.epoch(),
            leader,
        }
    }

    async fn changed(&self, seen: LeaderTerm) {
        let (mut roles, mut epochs) = (self.store.router.watch(), self.store.state.epochs());
        while self.term() == seen {
            let ended = tokio::select! {
            changed = roles.changed() => changed.is_err(),
            changed = epochs.changed() => changed.is_err(),
            };
            if ended {
                return;
            }
        }
    }
}

impl AboutStore {
    fn name_of(&self, id: u64) -> String {
        if id == self.store.member_id {
            return self.name.clone();
        }
        let members = self.members.list();
        let known = members.into_iter().find(|member| member.id == id);
        known.map(|member| member.name).unwrap_or_default()
    }
}
