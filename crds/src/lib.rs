//! The custom resources of KubeBrain: types, defaults and validation.
//!
//! No client and no I/O: only what a user may write, what the API server refuses, and what the operator reports in the status. Every field
//! carries a doc comment, because `kubectl explain` shows it.

#![allow(
    unreachable_pub,
    reason = "KubeSchema repeats each struct, `pub` included, inside a function; every module here is public"
)]

pub mod backup;
pub mod backup_schedule;
pub mod cluster;
pub mod duration;
pub mod flags;
pub mod wishes;

pub use backup::{KubeBrainBackup, KubeBrainBackupSpec, status::KubeBrainBackupStatus};
pub use backup_schedule::{
    KubeBrainBackupSchedule, KubeBrainBackupScheduleSpec, status::KubeBrainBackupScheduleStatus,
};
pub use cluster::{KubeBrainCluster, KubeBrainClusterSpec, status::KubeBrainClusterStatus};

/// The API group of every resource in this crate.
pub const GROUP: &str = "kubebrain.io";
