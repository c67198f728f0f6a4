//! Clients of etcd by others: what they print about a brain is what they print about etcd.

use std::process::Command;

use e2e::progress::Progress;
use e2e::server::{Program, Server};
use e2e::tools::cache::Cache;
use e2e::tools::go;
use e2e::tools::python::Python;

use crate::harness::deadline;

/// Runs a client on both with the URL of the server, and returns what it printed.
fn prints_the_same(client: impl Fn(&str) -> String) -> String {
    let progress = Progress::stderr();
    let printed = [Program::etcd(&progress).unwrap(), Program::kubebrain().unwrap()].map(|server| {
        let server = Server::start(&server, &[]).unwrap();
        let printed = client(server.endpoint());
        server.stop().unwrap();
        printed
    });
    let [etcd, brain] = printed;
    assert_eq!(brain, etcd);
    brain
}

fn python_prints_the_same(program: &str) -> String {
    let _deadline = deadline();
    let python = Python::prepare(&Progress::stderr()).unwrap();
    prints_the_same(|url| python.output(program, &[url.trim_start_matches("http://")]).unwrap())
}

#[test]
fn packages_of_clientv3_get_the_same_answers() {
    let _deadline = deadline();
    let built = go::CLIENTV3
        .build(&Cache::open().unwrap(), &Progress::stderr())
        .unwrap();
    let printed = prints_the_same(|url| {
        let output = Command::new(built.join("clientv3")).arg(url).output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{printed}{said}");
        printed
    });
    assert!(printed.contains("listed: map[service/b:"), "{printed}");
}

#[test]
fn patroni_elects_a_leader_through_the_gateway() {
    let printed = python_prints_the_same("patroni_election.py");
    assert!(printed.contains("one leads: True False"), "{printed}");
}

#[test]
fn python_package_etcd3_gets_the_same_answers() {
    let printed = python_prints_the_same("etcd3_client.py");
    assert!(printed.contains("lock: True False"), "{printed}");
}
