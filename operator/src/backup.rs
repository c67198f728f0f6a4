//! Passes over backups.

use std::time::Duration;

use crds::KubeBrainBackup;
use k8s_openapi::jiff::Timestamp;
use kube::{Api, ResourceExt as _};
use plan::backup::{self, BackupProgress, events, status_of};
use tracing::info;

use crate::archive::BackupReports;
use crate::cache::received::ObjectStub;
use crate::context::Context;
use crate::pass::PassError;
use crate::passes::{self, RECONCILE_ERROR, ReconciledKind};
use crate::publish::{Precondition, write_status};

mod deletion;
mod reconcile;
#[cfg(test)]
mod tests;
mod verification;

pub(crate) use reconcile::{Found, look};

impl ReconciledKind for KubeBrainBackup {
    fn is_settled(&self) -> bool {
        backup::is_settled(self)
    }

    fn observed(&self, reports: &BackupReports) {
        reports.backed_up(self);
        reports.verified(self, backup::verification::is_damaged(self));
    }

    fn gone(&self, reports: &BackupReports) {
        reports.verified(self, false);
    }

    fn relisting(reports: &BackupReports) {
        reports.forget_damage();
    }

    async fn reconcile(context: &Context, namespace: &str, name: &str) -> Result<Option<Duration>, PassError> {
        Box::pin(reconcile::reconcile(context, namespace, name)).await
    }

    async fn report(&self, context: &Context, words: String) -> Result<(), PassError> {
        // A backup that has ended stays so.
        if backup::has_ended(self) && self.metadata.deletion_timestamp.is_none() {
            return verification::report(context, self, words).await;
        }
        let progress = match self.metadata.deletion_timestamp {
            Some(_) => BackupProgress::Deleting {
                message: words,
                is_trouble: true,
            },
            None => BackupProgress::Waiting {
                reason: RECONCILE_ERROR,
                message: words,
            },
        };
        publish(context, self, &progress).await
    }
}

fn stubs(context: &Context, namespace: &str) -> Api<ObjectStub> {
    passes::stubs::<KubeBrainBackup>(context, namespace)
}

/// Writes the status if it differs, and publishes Events about its changes.
async fn publish(context: &Context, backup: &KubeBrainBackup, progress: &BackupProgress) -> Result<(), PassError> {
    publish_status(context, backup, status_of(backup, progress, Timestamp::now())).await
}

async fn publish_status(
    context: &Context,
    backup: &KubeBrainBackup,
    status: crds::KubeBrainBackupStatus,
) -> Result<(), PassError> {
    if backup.status.as_ref() == Some(&status) {
        return Ok(());
    }
    let namespace = backup.namespace().unwrap_or_default();
    if write_status(&stubs(context, &namespace), backup, Precondition::Exists, &status)
        .await?
        .is_none()
    {
        return Ok(());
    }
    for event in events(backup, &status) {
        info!(reason = event.reason, "{}", event.note);
        context.events.publish(backup, event).await;
    }
    Ok(())
}

/// Interval between passes over a backup that waits or runs.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
