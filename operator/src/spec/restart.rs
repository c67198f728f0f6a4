//! Wishes to have all brains restarted: `spec.restartedAt`, and the annotation `kubebrain.io/restart`. The newest counts, and one that
//! was acted on is never taken back: a value that goes back in time would restart everything again.

use crds::KubeBrainCluster;
use crds::wishes::RESTART;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

/// The newest wish, as it was written. A text that is no time in RFC 3339 is no wish, unless it is all there ever was.
pub(super) fn wish(cluster: &KubeBrainCluster) -> Option<String> {
    let handled = cluster
        .status
        .as_ref()
        .and_then(|status| status.last_handled_restart.as_ref());
    let annotated = cluster.annotations().get(RESTART);
    let wishes = [handled, cluster.spec.restarted_at.as_ref(), annotated];
    let timed = wishes
        .into_iter()
        .flatten()
        .filter_map(|wish| Some((wish.parse::<Timestamp>().ok()?, wish)));
    // Of equal times the one that was acted on stays: another spelling is no other wish.
    let newest = timed.reduce(|newest, wish| if wish.0 > newest.0 { wish } else { newest });
    newest.map(|(_, wish)| wish.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(handled: Option<&str>, spec: Option<&str>, annotation: Option<&str>, expected: Option<&str>) {
        let mut cluster = crate::fake_cluster::cluster(json!({"restartedAt": spec}));
        cluster.status = Some(serde_json::from_value(json!({"lastHandledRestart": handled})).unwrap());
        if let Some(annotation) = annotation {
            cluster
                .annotations_mut()
                .insert(RESTART.to_owned(), annotation.to_owned());
        }
        assert_eq!(wish(&cluster).as_deref(), expected);
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
}
