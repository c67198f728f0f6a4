//! The decisions of the operator: from a resource and what was observed to objects, steps and a status.
//!
//! Pure: it takes values and gives values, and reads no clock. It must never depend on a client of Kubernetes, an async runtime, HTTP, or
//! another crate of the operator: `operator` and `kubectl-kubebrain` observe, and act on what comes out of here.
//!
//! `spec` reads a resource, `objects` renders what it wants, `certificates` and `issuance` make keys and certificates, `observed` and
//! `member` hold what is known, `steps` plans one pass, and `status` reports on it. `backup` has all of this for a `KubeBrainBackup`,
//! `backup_schedule` for a `KubeBrainBackupSchedule`, `archive` for the archive of a cluster, `bootstrap` for its first data, `space` for the
//! space that its store has left, and `advisory` for what is known about the versions of its members.

pub mod advisory;
pub mod applied;
pub mod archive;
pub mod backup;
pub mod backup_schedule;
pub mod bootstrap;
pub mod certificates;
pub mod cron;
pub mod drift;
pub mod event;
pub mod issuance;
pub mod last_apply;
pub mod maintenance;
pub mod member;
pub mod names;
pub mod objects;
pub mod observed;
pub mod ownership;
pub mod quantity;
pub mod space;
pub mod spec;
pub mod status;
pub mod steps;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
