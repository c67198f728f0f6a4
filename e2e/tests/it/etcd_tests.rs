//! Etcd's own end-to-end tests, with a brain in etcd's place.
//!
//! They start programs named `etcd` and `etcdctl` from a directory that is given. A brain in a data directory is a cluster of one: tests of
//! more members are left out, and so are those of raft, of etcd's files, and of members that come and go by request.

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use programs::command::output;
use programs::progress::Progress;
use programs::server::Program;
use programs::tools::cache::ToolCache;
use programs::tools::go;
use programs::watchdog::Watchdog;

/// Building etcd's tests, and running them two at a time.
const SUITE_TIMEOUT: Duration = Duration::from_secs(40 * 60);
/// For one of etcd's tests.
const TEST_TIMEOUT_FLAG: &str = "-test.timeout=3m";
const CONCURRENT_TESTS: usize = 2;

/// Tests of three members, as part of tests of one.
const THREE_MEMBERS: &str = "./Peer(TLS|AutoTLS)";

/// Tests of a package that are run, and those of them that are not, with the reason.
struct Package {
    name: &'static str,
    only: &'static [&'static str],
    skipped: &'static [(&'static str, &'static [&'static str])],
}

const PACKAGES: &[Package] = &[
    Package {
        name: "common",
        only: &["Test"],
        skipped: &[
            (
                "three members",
                &[
                    "TestAuthMemberRemove",
                    "TestCompact",
                    "TestDefragOnline",
                    "TestDefragmentWith",
                    "TestEndpoint",
                    "TestHashKVWith",
                    "TestKVGetNoQuorum",
                    "TestMemberRemove",
                    "TestStatusWith",
                ],
            ),
            (
                "members are those of --initial-cluster",
                &["TestAuthMemberAdd", "TestMemberAdd"],
            ),
            ("a quota of 13 pages: that much is not flushed", &["TestAlarm"]),
        ],
    },
    Package {
        name: "e2e",
        only: &[
            "TestAuth",
            "TestCtlV3",
            "TestCurl",
            "TestDeleteEvent",
            "TestLeaseRevokeDuringRenew",
            "TestServerJson",
            "TestStartWatcher",
            "TestWarningApply",
            "TestWatch",
        ],
        skipped: &[
            (
                "three members",
                &[
                    "PeerTLS",
                    "TestAuthority",
                    "TestCtlV3AuthEndpointHealth",
                    "TestCtlV3MoveLeaderScenarios",
                ],
            ),
            (
                "members are those of --initial-cluster",
                &[
                    "TestAuthCluster",
                    "TestCtlV3AuthMemberUpdate",
                    "TestCtlV3ConsistentMemberList",
                    "TestCtlV3MemberAdd",
                    "TestCtlV3MemberListSerializable",
                    "TestCtlV3MemberPromote",
                    "TestCtlV3MemberUpdate",
                    "TestCurlV3ClusterOperations",
                ],
            ),
            ("etcd's files", &["TestCtlV3DefragOffline", "TestCtlV3SnapshotCorrupt"]),
            ("raft's term in the output", &["TestCtlV3GetFormat"]),
            (
                "a client whose certificate is that of its authority",
                &["TestCtlV3AuthCertCNWithWithConcurrentOperation"],
            ),
            ("latencies under load", &["TestWatchDelay"]),
            (
                "counted when the end of a client is seen, asked for before",
                &["TestV3Metrics"],
            ),
        ],
    },
];

impl Package {
    fn wants(&self, test: &str) -> bool {
        let mut skipped = self.skipped.iter().flat_map(|(_, names)| *names);
        self.only.iter().any(|start| test.starts_with(start)) && !skipped.any(|name| test.contains(name))
    }
}

/// Runs one of etcd's tests in a network of its own; what it printed if it failed.
fn run(program: &Path, bin: &Path, test: &str) -> Result<(), String> {
    let cwd = program.parent().unwrap();
    let mut command = Command::new("unshare");
    command.args(["--net", "--", "sh", "-ec", r#"ip link set lo up; exec "$0" "$@""#]);
    command
        .arg(program)
        .arg("-bin-dir")
        .arg(bin)
        .arg("-cert-dir")
        .arg(cwd.join("../fixtures"));
    command.args([
        "-test.v",
        TEST_TIMEOUT_FLAG,
        "-test.run",
        &format!("^{test}$"),
        "-test.skip",
        THREE_MEMBERS,
    ]);
    let printed = command.current_dir(cwd).output().map_err(|error| error.to_string())?;
    match printed.status.success() {
        true => Ok(()),
        false => Err(format!("{test}:\n{}", String::from_utf8_lossy(&printed.stdout))),
    }
}

#[test]
#[ignore = "minutes: make test-long"]
fn etcds_own_tests_pass_on_a_brain() {
    let _deadline = Watchdog::within(SUITE_TIMEOUT);
    let (cache, progress) = (ToolCache::open().unwrap(), Progress::stderr());
    let tests = go::etcd_tests(&cache, &progress).unwrap();
    let etcd = go::ETCD.build(&cache, &progress).unwrap();
    let bin = tempfile::tempdir().unwrap();
    let link = |program: &Path, name| std::os::unix::fs::symlink(program, bin.path().join(name)).unwrap();
    link(&Program::kubebrain().unwrap().path, "etcd");
    link(&etcd.join("etcdctl"), "etcdctl");
    link(&etcd.join("etcdutl"), "etcdutl");
    let (mut passed, mut failed) = (0, Vec::new());
    for package in PACKAGES {
        let program = tests.join(package.name);
        let listed = output(Command::new(&program).current_dir(&tests).args(["-test.list", "."])).unwrap();
        let wanted = listed
            .lines()
            .filter(|test| test.starts_with("Test") && package.wants(test));
        let wanted = Mutex::new(wanted);
        let next = || wanted.lock().unwrap().next();
        let worker = || -> Vec<_> {
            std::iter::from_fn(next)
                .map(|test| run(&program, bin.path(), test))
                .collect()
        };
        let results: Vec<_> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..CONCURRENT_TESTS).map(|_| scope.spawn(worker)).collect();
            workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
        });
        passed += results.iter().filter(|result| result.is_ok()).count();
        failed.extend(results.into_iter().filter_map(Result::err));
    }
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n"));
    assert!(passed > 100, "{passed} tests");
}
