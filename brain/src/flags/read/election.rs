//! The flags of the election.

use std::time::Duration;

use election::Config as Timing;

use super::super::config::{ElectionLockKind, ElectionOptions, LeaseOptions, Storage};
use super::Values;
use etcd_types::url::Url;

pub(super) fn read(values: &Values<'_>, storage: &Storage) -> Result<ElectionOptions, String> {
    let by_lease = values.one_of("election", &[("storage", false), ("lease", true)])?;
    let lock = if by_lease {
        ElectionLockKind::Lease(lease(values, storage)?)
    } else {
        for name in ["lease-namespace", "lease-name", "lease-kubeconfig"] {
            if !values.text(name).is_empty() {
                return Err(format!("{} needs --election lease", values.origin(name)));
            }
        }
        ElectionLockKind::Storage
    };
    let defaults = match by_lease {
        true => Timing::lease(""),
        false => Timing::storage(""),
    };
    Ok(ElectionOptions {
        lock,
        lease_duration: duration(values, "election-lease-duration", defaults.lease_duration)?,
        renew_deadline: duration(values, "election-renew-deadline", defaults.renew_deadline)?,
        retry_period: duration(values, "election-retry-period", defaults.retry_period)?,
    })
}

fn lease(values: &Values<'_>, storage: &Storage) -> Result<LeaseOptions, String> {
    if *storage == Storage::Embedded {
        return Err("--election lease needs --storage tikv: a data directory has only one member".to_owned());
    }
    let given = |name| Some(values.text(name)).filter(|text| !text.is_empty());
    let name = given("lease-name").ok_or("--election lease needs --lease-name")?;
    Ok(LeaseOptions {
        kubeconfig: given("lease-kubeconfig").map(Into::into),
        namespace: given("lease-namespace").map(str::to_owned),
        name: name.to_owned(),
    })
}

/// Reads a duration. The elector checks durations against each other.
fn duration(values: &Values<'_>, name: &str, default: Duration) -> Result<Duration, String> {
    match values.text(name) {
        "" => Ok(default),
        _ => values.duration(name),
    }
}

/// Returns the URL on which plain HTTP serves the leader's name.
pub(super) fn leader_http(values: &Values<'_>) -> Result<Option<Url>, String> {
    let address = values.text("leader-http");
    if address.is_empty() {
        return Ok(None);
    }
    let url = Url::parse(&format!("http://{address}"));
    url.and_then(|url| url.check_bind().map(|()| Some(url)))
        .map_err(|what| values.error("leader-http", what))
}
