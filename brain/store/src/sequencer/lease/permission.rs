//! Leases whose keys a user may write, all of them: they are not checked again for each put that attaches another key.
//!
//! Invariant: the user recorded for a lease may write all its keys, at the recorded auth revision. All keys were checked then, and no other
//! user has attached one since; keys that the user attaches are checked with each request.

use std::collections::HashMap;

use etcd_types::types::{Caller, LeaseId};
use mvcc::op::Op;

/// Leases that are noted at most.
const MAX_NOTED_LEASES: usize = 16_384;

/// See the module.
#[derive(Debug, Default)]
pub(in crate::sequencer) struct PermittedLeases {
    noted: HashMap<LeaseId, NotedPermission>,
}

#[derive(Debug)]
struct NotedPermission {
    user: String,
    /// Of users and roles.
    revision: u64,
}

impl PermittedLeases {
    /// Returns true if the caller may write all keys of a lease, as of the revision of users and roles.
    pub(in crate::sequencer) fn contains(&self, id: LeaseId, caller: &Caller, revision: u64) -> bool {
        let Caller::User(user) = caller else { return false };
        user.revision >= revision
            && self
                .noted
                .get(&id)
                .is_some_and(|noted| noted.user == user.name && noted.revision == revision)
    }

    /// Notes that the caller may write all keys of a lease.
    pub(in crate::sequencer) fn note(&mut self, id: LeaseId, caller: &Caller, revision: u64) {
        let Caller::User(user) = caller else { return };
        if self.contains(id, caller, revision) {
            return;
        }
        if self.noted.len() >= MAX_NOTED_LEASES {
            self.noted.clear();
        }
        let user = user.name.clone();
        self.noted.insert(id, NotedPermission { user, revision });
    }

    /// Forgets all.
    pub(in crate::sequencer) fn clear(&mut self) {
        self.noted.clear();
    }

    /// Forgets the leases that a request names on behalf of others than who is noted for them.
    pub(in crate::sequencer) fn forget_of_others(&mut self, op: &Op, caller: &Caller) {
        if self.noted.is_empty() {
            return;
        }
        match op {
            Op::Put(put) => {
                let is_noted =
                    |noted: &NotedPermission| matches!(caller, Caller::User(user) if user.name == noted.user);
                if self.noted.get(&put.lease).is_some_and(|noted| !is_noted(noted)) {
                    self.noted.remove(&put.lease);
                }
            }
            Op::Txn(txn) => {
                for op in txn.success.iter().chain(&txn.failure) {
                    self.forget_of_others(op, caller);
                }
            }
            Op::Range(_) | Op::Delete(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;

    use super::*;
    use etcd_types::types::Identity;
    use mvcc::op::{PutOp, TxnOp};

    fn user(name: &str, revision: u64) -> Caller {
        let name = name.to_owned();
        Caller::User(Arc::new(Identity { name, revision }))
    }

    #[test]
    fn lease_is_permitted_until_another_attaches_a_key_or_permissions_change() {
        let id = LeaseId(7);
        let put = Op::Put(PutOp {
            key: Bytes::new(),
            value: Bytes::new(),
            lease: id,
            prev_kv: false,
            ignore_value: false,
            ignore_lease: false,
        });
        let nested = Op::Txn(TxnOp {
            failure: vec![put.clone()],
            ..TxnOp::default()
        });
        let a = user("a", 3);
        for (op, other) in [(&put, user("b", 3)), (&nested, Caller::Server)] {
            let mut permitted = PermittedLeases::default();
            permitted.note(id, &a, 3);
            permitted.forget_of_others(op, &a);
            assert!(permitted.contains(id, &a, 3));
            assert!(!permitted.contains(LeaseId(8), &a, 3), "another lease");
            assert!(!permitted.contains(id, &user("b", 3), 3), "another user");
            assert!(!permitted.contains(id, &a, 4), "other permissions");
            assert!(
                !permitted.contains(id, &user("a", 2), 3),
                "identified before they changed"
            );
            permitted.forget_of_others(op, &other);
            assert!(!permitted.contains(id, &a, 3), "{other:?} attached a key");
        }
    }

    #[test]
    fn noted_leases_are_bounded() {
        let (mut permitted, a) = (PermittedLeases::default(), user("a", 1));
        for id in 0..3 * MAX_NOTED_LEASES as i64 {
            permitted.note(LeaseId(id), &a, 1);
            assert!(permitted.noted.len() <= MAX_NOTED_LEASES);
            assert!(permitted.contains(LeaseId(id), &a, 1));
        }
    }
}
