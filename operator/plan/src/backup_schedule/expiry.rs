//! The backups of a schedule that are kept no longer.

use std::time::Duration;

use crds::backup_schedule::BackupRetention;
use kube::ResourceExt;
use retention::{Retainable, Retention};

use super::{DeletedBackup, OwnBackup};

const SECONDS_PER_DAY: u64 = 24 * 3_600;

/// Refuses a retention that cannot be read.
pub(super) fn check(retention: Option<&BackupRetention>) -> Result<(), String> {
    retention.map_or(Ok(()), |retention| rules(retention).map(|_| ()))
}

fn rules(retention: &BackupRetention) -> Result<Retention, String> {
    let count = |number: Option<i32>| usize::try_from(number.unwrap_or_default()).unwrap_or_default();
    let within = retention.keep_within.as_deref().map(duration).transpose()?;
    Ok(Retention {
        last: count(retention.keep_last),
        within,
        hourly: count(retention.keep_hourly),
        daily: count(retention.keep_daily),
        weekly: count(retention.keep_weekly),
        monthly: count(retention.keep_monthly),
        yearly: count(retention.keep_yearly),
    })
}

/// Parses a duration, or a number of days.
fn duration(text: &str) -> Result<Duration, String> {
    let days = text.strip_suffix('d').and_then(|days| days.parse::<u32>().ok());
    match days {
        Some(days) => Ok(Duration::from_secs(u64::from(days) * SECONDS_PER_DAY)),
        None => crds::duration::parse(text).map_err(|error| format!("retention.keepWithin: {error}")),
    }
}

/// Returns the backups to delete, the oldest one first. Neither a backup that is not finished is among them, nor the newest complete one of
/// a store, nor one whose objects would stay: a user sets `deletionPolicy: Keep` to keep a backup.
pub(super) fn expired(
    retention: Option<&BackupRetention>,
    failed_backups: i32,
    own: &[OwnBackup<'_>],
) -> Vec<DeletedBackup> {
    let present: Vec<_> = own.iter().filter(|own| !own.is_leaving()).collect();
    let failed = present.iter().filter(|own| own.since("Failed").is_some());
    let most = usize::try_from(failed_backups).unwrap_or_default();
    let surplus = failed.clone().count().saturating_sub(most);
    let failed = failed
        .take(surplus)
        .map(|own| deleted(own, "there are newer failed ones"));
    let complete = present.iter().filter(|own| own.completed().is_some());
    let rules = retention.and_then(|retention| rules(retention).ok());
    let Some(rules) = rules.filter(|rules| !rules.is_empty()) else {
        return failed.collect();
    };
    let retainable: Vec<_> = complete.clone().map(|own| retainable(own)).collect();
    let kept = rules.apply(&retainable);
    let expires = |own: &OwnBackup<'_>| {
        let rules = kept.get(own.backup.name_any().as_str());
        rules.is_some_and(|rules| rules.is_empty()) && own.takes_its_objects()
    };
    let complete = complete.filter(|own| expires(own));
    failed
        .chain(complete.map(|own| deleted(own, "no rule of the retention keeps it")))
        .collect()
}

/// A backup is counted with those of the same store, as by `kubebrain backup prune`: another store under the same name, such as an empty one
/// that was made by mistake, displaces none.
fn retainable(own: &OwnBackup<'_>) -> Retainable {
    let store = own.backup.status.as_ref().and_then(|status| status.cluster_id.clone());
    Retainable {
        time: own.time.into(),
        name: own.backup.name_any(),
        cluster: store.unwrap_or_default(),
    }
}

fn deleted(own: &OwnBackup<'_>, why: &'static str) -> DeletedBackup {
    DeletedBackup {
        name: own.backup.name_any(),
        uid: own.backup.uid(),
        resource_version: None,
        why,
    }
}
