//! `backup`: backups of clusters, made now or by schedules.

use std::io::Write;
use std::time::Duration;

use clap::{Args, Subcommand};
use k8s_openapi::jiff::Timestamp;

use super::connect::TargetNamespace;
use super::{OutputFormat, json};

mod list;
mod now;
mod restore;
mod template;
#[cfg(test)]
mod tests;
mod verify;

#[derive(Debug, Subcommand)]
pub(super) enum BackupCommand {
    /// Make a backup of a cluster
    ///
    /// Creates a KubeBrainBackup with the destination, the encryption and the user of the cluster's spec.backup, or of a schedule's template.
    /// It has the label kubebrain.io/manual and does not count as a backup of the schedule: no retention deletes it, and the deletion policy
    /// is Keep unless the template has another one.
    ///
    /// Requires the right to create backups, and to get clusters, or schedules with --from-schedule. --wait also requires the right to list and
    /// watch backups. A user with the right to create backups can store all keys of the cluster elsewhere.
    Now(BackupOptions),
    /// Have the operator read a backup again, and compare all of it with what was written
    ///
    /// Sets the annotation kubebrain.io/verify. The operator runs a Job, and records the result in the status.
    ///
    /// Requires the right to get and patch backups, and with --wait to list and watch them.
    Verify {
        /// Name of the KubeBrainBackup
        name: String,
        /// Wait for the result; the exit code is 1 unless the backup is as it was written
        #[arg(long)]
        wait: bool,
        /// Maximum time to wait
        #[arg(long, default_value = "1h", value_parser = super::duration, requires = "wait")]
        timeout: Duration,
    },
    /// Restore a backup into a new cluster
    ///
    /// Creates a KubeBrainCluster whose spec.bootstrap names the backup; the operator restores it before the first member starts. The rest of
    /// the spec is that of the cluster that the backup is of, without fields that belong to that one alone, such as the place of its archive
    /// and the names in its certificates: they are listed on standard error. With --dry-run the new cluster is printed, for example for git.
    ///
    /// Requires the right to get backups and clusters, and to create clusters without --dry-run. --wait also requires the right to list and
    /// watch clusters. A user with the right to create clusters can read every backup whose Secret is in the namespace.
    Restore(restore::RestoreOptions),
    /// List backups and schedules
    ///
    /// Requires the right to list backups; without the right to list schedules, only backups are shown.
    List {
        /// Name of the KubeBrainCluster; the backups of all are listed if not given
        cluster: Option<String>,
        /// Output format
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
}

/// The backup that `backup now` makes.
#[derive(Debug, Args)]
pub(super) struct BackupOptions {
    /// Name of the KubeBrainCluster
    pub(super) cluster: String,
    /// Name of the KubeBrainBackup; default: the name of the cluster and the time
    #[arg(long)]
    pub(super) name: Option<String>,
    /// KubeBrainBackupSchedule whose template is used instead of spec.backup
    #[arg(long, value_name = "SCHEDULE")]
    pub(super) from_schedule: Option<String>,
    /// Wait until the backup is complete; the exit code is 1 if it fails
    #[arg(long)]
    pub(super) wait: bool,
    /// Maximum time to wait
    #[arg(long, default_value = "1h", value_parser = super::duration, requires = "wait")]
    pub(super) timeout: Duration,
}

/// Runs one command and writes its output to `out`.
pub(super) async fn execute(
    target: &TargetNamespace,
    command: BackupCommand,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    match command {
        BackupCommand::Now(options) => {
            let name = now::create(target, &options, Timestamp::now(), out).await?;
            if options.wait {
                now::until_complete(target, &name, options.timeout, out).await?;
            }
        }
        BackupCommand::Verify { name, wait, timeout } => {
            let request = verify::request(target, &name, out).await?;
            if wait {
                verify::until_verified(target, (&name, &request), timeout, out).await?;
            }
        }
        BackupCommand::Restore(options) => {
            Box::pin(restore::run(target, &options, out, &mut std::io::stderr())).await?;
        }
        BackupCommand::List { cluster, output } => {
            let list = list::view(target, cluster.as_deref()).await?;
            match output {
                OutputFormat::Table => write!(out, "{}", list.table(Timestamp::now()))?,
                OutputFormat::Json => json(out, &list)?,
            }
        }
    }
    Ok(())
}
