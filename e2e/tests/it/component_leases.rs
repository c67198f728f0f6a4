//! The Leases of a kubelet, a controller manager and a scheduler on the store.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::{StreamExt as _, pin_mut};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use kube::runtime::{WatchStreamExt as _, watcher};
use tokio::time::Instant;

use crate::harness::shared;

/// Time for which leases are observed.
const OBSERVED_TIME: Duration = Duration::from_secs(60);

/// By namespace and name: how soon the holder renews it, twice over for a busy machine.
const LEASES: [(&str, &str, Duration); 3] = [
    ("kube-node-lease", "node1", Duration::from_secs(30)),
    ("kube-system", "kube-controller-manager", Duration::from_secs(10)),
    ("kube-system", "kube-scheduler", Duration::from_secs(10)),
];

#[tokio::test(flavor = "multi_thread")]
async fn leases_are_renewed_for_a_minute() {
    let it = shared().await;
    let client = it.cluster.client().await.unwrap();
    let leases = watcher(Api::<Lease>::all(client), watcher::Config::default())
        .default_backoff()
        .applied_objects();
    pin_mut!(leases);
    let mut renewals = BTreeMap::<(String, String), Vec<(Instant, Lease)>>::new();
    let end = Instant::now() + OBSERVED_TIME;
    while let Ok(lease) = tokio::time::timeout_at(end, leases.next()).await {
        let lease = lease.expect("a watch does not end").unwrap();
        let name = (
            lease.metadata.namespace.clone().unwrap(),
            lease.metadata.name.clone().unwrap(),
        );
        renewals.entry(name).or_default().push((Instant::now(), lease));
    }
    for (namespace, name, at_most) in LEASES {
        let seen = &renewals[&(namespace.to_owned(), name.to_owned())];
        let gap = seen
            .windows(2)
            .map(|pair| pair[1].0 - pair[0].0)
            .max()
            .expect("it was renewed");
        let gap = gap.max(end.saturating_duration_since(seen.last().unwrap().0));
        assert!(gap <= at_most, "{namespace}/{name} was not renewed for {gap:?}");
        let specs = || seen.iter().map(|(_, lease)| lease.spec.as_ref().unwrap());
        assert!(
            specs().map(|spec| &spec.renew_time).is_sorted(),
            "{namespace}/{name} was renewed backwards"
        );
        let mut holders: Vec<_> = specs().map(|spec| spec.holder_identity.clone()).collect();
        holders.dedup();
        assert_eq!(holders.len(), 1, "{namespace}/{name} changed hands: {holders:?}");
    }
    tokio::task::block_in_place(|| it.watch_agrees_with_list());
}
