//! Clients of etcd by others: what they print about a brain is what they print about etcd.

use e2e::progress::Progress;
use e2e::server::{Program, Server};
use e2e::tools::python::Python;

use crate::harness::deadline;

/// Runs a program on both, and returns what it printed.
fn prints_the_same(program: &str) -> String {
    let _deadline = deadline();
    let progress = Progress::stderr();
    let python = Python::prepare(&progress).unwrap();
    let printed = [Program::etcd(&progress).unwrap(), Program::kubebrain().unwrap()].map(|server| {
        let server = Server::start(&server, &[]).unwrap();
        let address = server.endpoint().trim_start_matches("http://");
        let printed = python.output(program, &[address]).unwrap();
        server.stop().unwrap();
        printed
    });
    let [etcd, brain] = printed;
    assert_eq!(brain, etcd);
    brain
}

#[test]
fn patroni_elects_a_leader_through_the_gateway() {
    let printed = prints_the_same("patroni_election.py");
    assert!(printed.contains("one leads: True False"), "{printed}");
}

#[test]
fn python_package_etcd3_gets_the_same_answers() {
    let printed = prints_the_same("etcd3_client.py");
    assert!(printed.contains("lock: True False"), "{printed}");
}
