//! The flags for several members: their names, their election and their discovery.

use super::*;
use cluster::discovery::SrvDiscovery;

const TIKV: &str = "--storage tikv --tikv-pd-endpoints 127.0.0.1:2379";

fn with_tikv(flags: &str) -> Config {
    let (config, warnings) = serve(&format!("{TIKV} {flags}"));
    assert_eq!(warnings, Vec::<String>::new(), "{flags}");
    config
}

#[test]
fn the_lock_decides_the_timing_that_is_not_given() {
    let timing = |flags| {
        let options = with_tikv(flags).election;
        [options.lease_duration, options.renew_deadline, options.retry_period].map(|duration| duration.as_millis())
    };
    assert_eq!(timing(""), [2_000, 1_500, 400]);
    assert_eq!(timing("--election storage"), [2_000, 1_500, 400]);
    assert_eq!(timing("--election lease --lease-name b"), [15_000, 10_000, 2_000]);
    let given = "--election-lease-duration 5s --election-renew-deadline 4s --election-retry-period 1s";
    assert_eq!(timing(given), [5_000, 4_000, 1_000]);
    assert_eq!(
        timing(&format!("--election lease --lease-name b {given}")),
        [5_000, 4_000, 1_000]
    );
}

#[test]
fn a_lease_is_named_and_found() {
    assert_eq!(with_tikv("").election.lock, ElectionLockKind::Storage);
    let lease = |flags: &str| match with_tikv(&format!("--election lease {flags}")).election.lock {
        ElectionLockKind::Lease(lease) => lease,
        ElectionLockKind::Storage => panic!("{flags}: no lease"),
    };
    let found = LeaseOptions {
        kubeconfig: None,
        namespace: None,
        name: "brain".to_owned(),
    };
    assert_eq!(lease("--lease-name brain"), found);
    assert_eq!(
        lease("--lease-name brain --lease-namespace tenant --lease-kubeconfig /etc/k"),
        LeaseOptions {
            kubeconfig: Some("/etc/k".into()),
            namespace: Some("tenant".to_owned()),
            ..found
        }
    );
}

#[test]
fn members_are_found_in_one_way_only() {
    assert_eq!(with_tikv("").discovery, None);
    let found = with_tikv("--discovery-srv brains.ns.svc --discovery-srv-name tenant").discovery;
    let wanted = SrvDiscovery {
        domain: "brains.ns.svc".to_owned(),
        name: "tenant".to_owned(),
    };
    assert_eq!(found, Some(wanted));
}

#[test]
fn leaders_are_told_of_where_asked() {
    assert_eq!(serve("").0.leader_http, None);
    let url = serve("--leader-http 0.0.0.0:4040").0.leader_http.unwrap();
    assert_eq!(url.host_port(), Some(("0.0.0.0", 4040)));
}

#[test]
fn conflicting_flags_are_refused() {
    for (flags, reason) in [
        ("--election raft", "none of storage, lease"),
        ("--election lease", "needs --lease-name"),
        ("--lease-name b", "--lease-name needs --election lease"),
        ("--lease-kubeconfig k", "--lease-kubeconfig needs --election lease"),
        ("--election-lease-duration 5", "without a unit"),
        (
            "--discovery-srv d --initial-cluster default=http://a:1",
            "choose one of --initial-cluster and --discovery-srv",
        ),
        ("--leader-http 4040", "form \"host:port\""),
        ("--leader-http http://0.0.0.0:4040", "must not contain a path"),
        ("--leader-http example.org:4040", "expected IP"),
    ] {
        let error = refused(&format!("{TIKV} {flags}"));
        assert!(error.contains(reason), "{flags}: {error}");
    }
    let error = refused("--election lease --lease-name b");
    assert!(error.contains("needs --storage tikv"), "{error}");
}
