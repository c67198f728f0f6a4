//! Kubernetes' own tests of its storage layer, unmodified.

use std::path::Path;
use std::time::Duration;

use e2e::deadline::Deadline;
use e2e::progress::Progress;
use e2e::server::Program;
use e2e::upstream::{CACHER, ETCD3, FACTORY, Suite};

/// The watch cache's tests wait for many timers.
const PATIENCE: Duration = Duration::from_secs(40 * 60);

fn passes(suite: Suite) {
    let _deadline = Deadline::within(PATIENCE);
    let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join(suite.package.replace('/', "-") + ".log");
    suite
        .run(&Program::kubebrain().unwrap(), &log, &Progress::stderr())
        .unwrap();
}

#[test]
fn kube_apiservers_store_passes_its_own_tests() {
    passes(ETCD3);
}

#[test]
fn connecting_with_tls_health_and_readiness_passes_its_own_tests() {
    passes(FACTORY);
}

#[test]
#[ignore = "minutes of waiting for timers: make test-long"]
fn kube_apiservers_watch_cache_passes_its_own_tests() {
    passes(CACHER);
}
