//! Kubernetes' own tests of its storage layer, unmodified.

use std::path::Path;
use std::time::Duration;

use programs::conformance::{CACHER, ConformanceSuite, ETCD3, FACTORY};
use programs::progress::Progress;
use programs::server::Program;
use programs::watchdog::Watchdog;

/// The watch cache's tests wait for many timers.
const SUITE_TIMEOUT: Duration = Duration::from_secs(40 * 60);

fn passes(suite: ConformanceSuite, program: &Program) {
    let _deadline = Watchdog::within(SUITE_TIMEOUT);
    let log = format!("{} {}.log", suite.package, program.name).replace(['/', ' '], "-");
    let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join(log);
    suite.run(program, &log, &Progress::stderr()).unwrap();
}

#[test]
fn kube_apiservers_store_passes_its_own_tests() {
    passes(ETCD3, &Program::kubebrain().unwrap());
}

/// Each of them starts a cluster of its own.
#[test]
fn kube_apiservers_store_passes_its_own_tests_through_a_follower() {
    passes(ETCD3, &Program::follower().unwrap());
}

#[test]
fn connecting_with_tls_health_and_readiness_passes_its_own_tests() {
    passes(FACTORY, &Program::kubebrain().unwrap());
}

#[test]
#[ignore = "minutes of waiting for timers: make test-long"]
fn kube_apiservers_watch_cache_passes_its_own_tests() {
    passes(CACHER, &Program::kubebrain().unwrap());
}
