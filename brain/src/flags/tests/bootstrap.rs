//! The flags that etcd reads only before there is a store.

use super::*;

const TIKV: &str = "--storage tikv --tikv-pd-endpoints 127.0.0.1:2379";

/// Returns the reason why the flags cannot begin a store; all of them can serve an existing store.
fn begins(line: &str) -> Result<(), String> {
    serve(line).0.bootstrap.check().map_err(|error| error.to_string())
}

#[test]
fn bootstrap_flags_that_do_not_fit_are_refused_at_the_first_start_alone() {
    for (line, reason) in [
        (
            "--initial-cluster a=http://a:1,default=http://b:1",
            "names other members (a)",
        ),
        ("--initial-cluster a=http://a:1", "couldn't find local name \"default\""),
        (
            "--name other --initial-cluster default=http://localhost:2380",
            "couldn't find local name \"other\"",
        ),
        ("--initial-cluster a", "\"a\" is not <name>=<peer URL>"),
        ("--initial-cluster default=ftp://a:1", "URL scheme must be"),
        (
            "--initial-cluster default=http://localhost:2380,default=http://localhost:2380",
            "http://localhost:2380 twice",
        ),
        (
            "--discovery http://d",
            "--discovery is not supported: there is no discovery",
        ),
        (
            "--discovery-endpoints http://d:1",
            "--discovery-endpoints is not supported",
        ),
        ("--discovery-token t", "--discovery-token is not supported"),
        ("--discovery-srv d", "the embedded store has exactly one member"),
    ] {
        let error = begins(line).unwrap_err();
        assert!(error.contains(reason), "{line}: {error}");
    }
    assert_eq!(begins(""), Ok(()));
}

#[test]
fn flags_without_a_discovery_service_start_with_a_warning() {
    for line in [
        "--force-new-cluster",
        "--discovery-dial-timeout 3s",
        "--discovery-proxy http://p:1",
        "--discovery-insecure-transport=false",
        "--discovery-srv-name x",
    ] {
        let (config, warnings) = serve(line);
        assert_eq!(config.bootstrap.check(), Ok(()), "{line}");
        assert!(warnings[0].contains("has no effect"), "{line}: {warnings:?}");
    }
}

#[test]
fn this_member_is_always_among_its_members() {
    let cluster = |flags: &str| {
        let cluster = serve(&format!("{TIKV} {flags}")).0.initial_cluster;
        let texts = cluster.into_iter().map(|(name, urls)| format!("{name}={}", urls[0]));
        texts.collect::<Vec<_>>().join(",")
    };
    assert_eq!(cluster(""), "default=http://localhost:2380");
    assert_eq!(
        cluster("--name a --initial-cluster a=http://a:1,b=http://b:1"),
        "a=http://a:1,b=http://b:1"
    );
    assert_eq!(
        cluster("--name a --initial-cluster b=http://b:1 --initial-advertise-peer-urls http://a:7"),
        "a=http://a:7,b=http://b:1"
    );
}

#[test]
fn peer_urls_of_this_member_must_be_alike_in_both_flags_of_the_first_start() {
    let error = begins(&format!("{TIKV} --name a --initial-cluster a=http://127.0.0.9:1")).unwrap_err();
    let expected = "--initial-cluster has a=http://127.0.0.9:1 but missing from \
        --initial-advertise-peer-urls=http://localhost:2380 (the URLs resolve to different addresses)";
    assert_eq!(error, expected);
    let error = begins(
        "--initial-cluster default=http://127.0.0.9:1 \
        --initial-advertise-peer-urls http://127.0.0.9:1,http://127.0.0.9:2",
    )
    .unwrap_err();
    assert!(
        error.starts_with("--initial-advertise-peer-urls has default=http://127.0.0.9:2 but missing from "),
        "{error}"
    );
    // Names that resolve to the same address are equal, and equal URLs need not resolve.
    for alike in [
        "--initial-cluster default=http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380",
        "--initial-cluster default=http://unknown.invalid:1 --initial-advertise-peer-urls http://unknown.invalid:1",
        "--initial-cluster default=http://[0:0::1]:1 --initial-advertise-peer-urls http://[::1]:1",
    ] {
        assert_eq!(begins(&format!("{TIKV} {alike}")), Ok(()), "{alike}");
    }
    // A name that does not resolve may do so soon.
    let config = serve("--initial-cluster default=http://unknown.invalid:1").0;
    assert!(matches!(config.bootstrap.check(), Err(BootstrapError::Unresolved(_))));
}
