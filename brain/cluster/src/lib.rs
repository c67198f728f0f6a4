//! Leadership and membership: the election's lock, terms, followers, peers, and requests that only the leader answers.
//!
//! It must not know etcd's services.

use election::Record;
use tokio::sync::watch;

pub mod discovery;
pub mod duplicate_member;
pub mod follow;
pub mod followers;
pub mod forward;
pub mod leadership;
pub mod liveness;
pub mod lock;
pub mod lock_latency;
pub mod member_id;
pub mod members;
pub mod membership;
pub mod node;
pub mod peer;
pub mod peer_auth;
pub mod peers;
pub mod prefix_owner;
pub mod self_hosted_lease;
pub mod term;

pub mod leader_changes;

mod peer_io;
mod probe;

/// The record that this member writes into its lock while it leads.
pub type Renewals = watch::Receiver<Option<Record>>;
