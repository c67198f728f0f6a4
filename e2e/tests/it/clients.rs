//! Clients of etcd by others: what they print about a brain is what they print about etcd.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};
use programs::command::output;
use programs::progress::Progress;
use programs::server::{Program, Server};
use programs::tools::cache::ToolCache;
use programs::tools::python::Python;
use programs::tools::{crates, go};

use crate::harness::deadline;

/// Runs a client on both at a time with the URL of the server, and returns what it printed.
fn prints_the_same(client: impl Fn(&str) -> String + Sync) -> String {
    let progress = Progress::stderr();
    let servers = [Program::etcd(&progress).unwrap(), Program::kubebrain().unwrap()];
    let client = &client;
    let printed = |server: Program| {
        let server = Server::start(&server, &[]).unwrap();
        let printed = client(server.endpoint());
        server.stop().unwrap();
        printed
    };
    let [etcd, brain] = std::thread::scope(|scope| {
        let runs = servers.map(|server| scope.spawn(move || printed(server)));
        runs.map(|run| run.join().unwrap())
    });
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
        .build(&ToolCache::open().unwrap(), &Progress::stderr())
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

/// Runs the tests of the crate `etcd-client` on a server, and returns the lines with their results.
///
/// They connect to etcd's own port of localhost, expect a user who may do all, and wait 4 s until their tokens have ended. etcd looks for
/// those once a second: with 2 s to live they have ended a second before that, and no request takes as long as they live.
fn etcd_client_on(server: &Program, tests: &Path) -> anyhow::Result<Vec<String>> {
    let server = Server::start_alone(server, &["--auth-token-ttl=2"])?;
    let etcdctl = go::ETCD
        .build(&ToolCache::open()?, &Progress::stderr())?
        .join("etcdctl");
    for args in [
        &["user", "add", "root", "--new-user-password=rootpwd"][..],
        &["role", "add", "root"],
        &["user", "grant-role", "root", "root"],
    ] {
        output(server.beside(&etcdctl).args(args))?;
    }
    let mut results = Vec::new();
    // The skipped test adds a fourth member, which the test does not start itself.
    for (name, args) in [
        ("client", &["--include-ignored", "--skip", "test_cluster"][..]),
        ("namespace", &[]),
    ] {
        let printed = server
            .beside(&tests.join(name))
            .args(args)
            .output()
            .context("start tests")?;
        let said = String::from_utf8_lossy(&printed.stdout);
        ensure!(
            printed.status.success(),
            "on {}:\n{said}\n{}",
            server.name(),
            server.last_lines()
        );
        let tests = said
            .lines()
            .filter(|line| line.starts_with("test ") && !line.starts_with("test result"));
        results.extend(tests.map(|line| format!("{name}: {line}")));
    }
    results.sort();
    server.stop()?;
    Ok(results)
}

#[test]
fn etcd_client_passes_its_own_tests() {
    let _deadline = deadline();
    let progress = Progress::stderr();
    let tests = crates::etcd_client_tests(&ToolCache::open().unwrap(), &progress).unwrap();
    let servers = [Program::etcd_next(&progress).unwrap(), Program::kubebrain().unwrap()];
    let [etcd, brain] = std::thread::scope(|scope| {
        let tests = &tests;
        let runs = servers.map(|server| scope.spawn(move || etcd_client_on(&server, tests)));
        runs.map(|run| run.join().unwrap().unwrap())
    });
    assert_eq!(brain, etcd);
    assert_eq!(brain.len(), 28, "{brain:#?}");
}
