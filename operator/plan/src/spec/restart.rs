//! Requests to restart all brains: `spec.restartedAt`, and the annotation `kubebrain.io/restart`. The newest one counts, and one that was
//! acted on is never reverted: a value that goes back in time would restart all brains again.
//!
//! A time in the future is ignored: until then it would hide every other request.

use crds::KubeBrainCluster;
use crds::wishes::{AHEAD, RESTART};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

/// Maximum age of a request that replaces one in the future that an older operator acted on.
const MAX_RECENT_AGE: SignedDuration = SignedDuration::from_hours(1);

/// The restart requests of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RestartRequests {
    /// The newest one, as written.
    pub at: Option<String>,
    /// A request that is invalid, with the reason.
    pub ignored: Option<String>,
}

pub(super) fn wish(cluster: &KubeBrainCluster, now: Timestamp) -> RestartRequests {
    let handled = cluster
        .status
        .as_ref()
        .and_then(|status| status.last_handled_restart.as_ref());
    let handled = handled.and_then(|wish| Some((wish.parse::<Timestamp>().ok()?, wish)));
    let written = [
        ("spec.restartedAt", cluster.spec.restarted_at.as_ref()),
        (
            "the annotation kubebrain.io/restart",
            cluster.annotations().get(RESTART),
        ),
    ];
    let (mut newest, mut ignored) = (handled, None);
    for (place, wish) in written {
        let Some(wish) = wish else { continue };
        let why = match wish.parse::<Timestamp>() {
            Ok(at) if at <= now + AHEAD => {
                let ahead = newest.is_some_and(|(newest, _)| newest > now + AHEAD && at > now - MAX_RECENT_AGE);
                // Of equal times the one that was acted on stays: another notation is not another request.
                if ahead || newest.is_none_or(|(newest, _)| at > newest) {
                    newest = Some((at, wish));
                }
                continue;
            }
            // An operator acted on this time already, so it is not reported as ignored.
            Ok(at) if newest.is_some_and(|(newest, _)| at == newest) => continue,
            Ok(_) => "is in the future",
            Err(_) => "is not a time such as 2026-11-21T00:00:00Z",
        };
        ignored = Some(format!("{place} requests a restart, but {wish:?} {why}: ignored"));
    }
    RestartRequests {
        at: newest.map(|(_, wish)| wish.clone()),
        ignored,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(handled: Option<&str>, spec: Option<&str>, annotation: Option<&str>, expected: Option<&str>) {
        let mut cluster = crate::testing::cluster(json!({"restartedAt": spec}));
        cluster.status = Some(serde_json::from_value(json!({"lastHandledRestart": handled})).unwrap());
        if let Some(annotation) = annotation {
            cluster
                .annotations_mut()
                .insert(RESTART.to_owned(), annotation.to_owned());
        }
        let now = "2026-11-23T00:00:00Z".parse().unwrap();
        assert_eq!(wish(&cluster, now).at.as_deref(), expected);
    }

    #[test]
    fn the_newest_wish_counts_and_none_is_taken_back() {
        let (first, second) = ("2026-11-21T00:00:00Z", "2026-11-22T00:00:00Z");
        check(None, None, None, None);
        check(None, Some(first), None, Some(first));
        check(None, Some(first), Some(second), Some(second));
        check(Some(second), Some(first), None, Some(second));
        check(Some(first), Some(second), None, Some(second));
        check(Some(first), None, None, Some(first));
        check(
            Some("2026-11-21T00:00:00Z"),
            Some("2026-11-21T01:00:00+01:00"),
            None,
            Some(first),
        );
        check(None, None, Some("now"), None);
    }

    #[test]
    fn time_that_lies_ahead_or_is_none_is_ignored_and_said() {
        let (first, ahead) = ("2026-11-21T00:00:00Z", "2036-01-01T00:00:00Z");
        check(None, Some(ahead), None, None);
        check(None, Some(first), Some(ahead), Some(first));
        check(None, Some("2026-13-45T00:00:00Z"), Some(first), Some(first));
        check(None, Some("2026-11-23T00:04:00Z"), None, Some("2026-11-23T00:04:00Z"));
        // An older operator acted on it: a present request counts as newer, but an old one restarts no brain.
        check(
            Some(ahead),
            None,
            Some("2026-11-22T23:59:00Z"),
            Some("2026-11-22T23:59:00Z"),
        );
        check(Some(ahead), Some(first), Some(ahead), Some(ahead));
        let said = |wished: &str| {
            let cluster = crate::testing::cluster(json!({"restartedAt": wished}));
            wish(&cluster, first.parse().unwrap()).ignored.unwrap_or_default()
        };
        assert_eq!(
            said(ahead),
            format!("spec.restartedAt requests a restart, but {ahead:?} is in the future: ignored")
        );
        assert!(said("2026-13-45T00:00:00Z").contains("is not a time such as"));
        assert_eq!(said(first), "");
    }
}
