//! The same requests to a brain and to etcd.

use std::time::Duration;

use differential::shrink::Programs;
use differential::{FLAGS, Report, compare, replay, text};
use programs::members::{self, Members};
use programs::progress::Progress;
use programs::server::{Program, Server};
use programs::tikv::Tikv;
use programs::watchdog::Watchdog;

/// Set these to make a run happen again, or a longer one.
const SEED_VARIABLE: &str = "KUBEBRAIN_SEED";
const REQUESTS_VARIABLE: &str = "KUBEBRAIN_REQUESTS";

/// Beside what the requests may take: building etcd.
const SETUP_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// For a request to both, on a busy machine.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(20);

fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|error| panic!("{name}={value}: {error}")))
}

/// To look for a short script.
const SHRINK_TIMEOUT: Duration = Duration::from_secs(20);

async fn run(subject: &Program, subject_flags: &[&str], requests: usize) -> Report {
    let _deadline = patience(requests);
    let etcd = Server::start(&Program::etcd(&Progress::stderr()).unwrap(), FLAGS).unwrap();
    let subject = Server::start(subject, &[FLAGS, subject_flags].concat()).unwrap();
    let report = differ(&etcd, &subject, requests).await;
    etcd.stop().unwrap();
    subject.stop().unwrap();
    report
}

fn patience(requests: usize) -> Watchdog {
    Watchdog::within(SETUP_TIMEOUT + REQUEST_TIMEOUT * u32::try_from(requests).unwrap())
}

async fn differ(etcd: &Server, subject: &Server, requests: usize) -> Report {
    let progress = Progress::stderr();
    let seed = number(SEED_VARIABLE).unwrap_or(862_469_932);
    progress.say(format_args!(
        "{SEED_VARIABLE}={seed}: {requests} requests to etcd and {}",
        subject.name()
    ));
    let report = compare(etcd, subject, seed, requests, &progress).await.unwrap();
    progress.say(&report);
    report
}

#[tokio::test(flavor = "multi_thread")]
async fn a_brain_answers_as_etcd_does() {
    let requests = usize::try_from(number(REQUESTS_VARIABLE).unwrap_or(20_000)).unwrap();
    let report = run(&Program::kubebrain().unwrap(), &[], requests).await;
    assert!(report.equal(), "{report}");
    assert!(report.events > 0 && report.requests >= requests);
}

/// Each through a member that does not lead.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_of_three_brains_answers_as_a_follower_of_three_etcds_does() {
    let requests = usize::try_from(number(REQUESTS_VARIABLE).unwrap_or(20_000) / 4).unwrap();
    let _deadline = patience(requests);
    let tikv = Tikv::for_test().unwrap();
    // on TiKV there is none by default
    let quota = "--quota-backend-bytes=2147483648";
    let flags = [FLAGS, &members::PATIENT_ELECTION_FLAGS, &[quota]].concat();
    let brains = Members::brains(&Program::kubebrain().unwrap(), tikv.pd(), 3, &flags).unwrap();
    let etcds = Members::etcds(&Program::etcd(&Progress::stderr()).unwrap(), 3, FLAGS).unwrap();
    let (one, other) = (etcds.followers().await.unwrap(), brains.followers().await.unwrap());
    let (etcd, brain) = (etcds.server(one[0]).unwrap(), brains.server(other[0]).unwrap());
    let report = differ(etcd, brain, requests).await;
    assert!(report.equal(), "{report}");
    assert!(report.events > 0 && report.requests >= requests);
    assert!(brains.followers().await.unwrap().contains(&other[0]), "it leads by now");
    etcds.stop().unwrap();
    brains.stop().unwrap();
}

/// Proves that the comparison itself is right.
#[tokio::test(flavor = "multi_thread")]
async fn etcd_answers_as_etcd_does() {
    let etcd = Program::etcd(&Progress::stderr()).unwrap();
    let requests = usize::try_from(number(REQUESTS_VARIABLE).unwrap_or(2_000)).unwrap();
    let report = run(&etcd, &[], requests).await;
    assert!(report.equal(), "{report}");
}

/// Proves that it can see a difference, and show it in few steps.
#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_with_other_limits_is_told_apart() {
    let _deadline = patience(2_000);
    let etcd = Program::etcd(&Progress::stderr()).unwrap();
    let programs = Programs {
        reference: etcd.clone(),
        subject: etcd,
        subject_flags: vec!["--max-txn-ops=5".to_owned()],
    };
    let (reference, subject) = programs.start().unwrap();
    let report = differ(&reference, &subject, 2_000).await;
    assert!(!report.equal());
    assert!(
        report.to_string().contains("too many operations in txn request"),
        "{report}"
    );
    let shortened = programs
        .shorten(&report, SHRINK_TIMEOUT, &Progress::stderr())
        .await
        .unwrap();
    let steps = text::read(&shortened.expect("the difference comes again")).unwrap();
    assert_eq!(steps.len(), 1, "{steps:?}");
    let (reference, subject) = programs.start().unwrap();
    let found = replay(&reference, &subject, &steps).await.unwrap();
    assert_eq!(found.first().unwrap().1, report.differences.first().unwrap().1);
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_that_showed_a_difference_show_none() {
    let _deadline = patience(0);
    let programs = Programs {
        reference: Program::etcd(&Progress::stderr()).unwrap(),
        subject: Program::kubebrain().unwrap(),
        subject_flags: Vec::new(),
    };
    let scripts = include_str!("differential/mended.txt").split("\n\n");
    let scripts: Vec<_> = scripts.map(|script| text::read(script).unwrap()).collect();
    for steps in scripts.iter().filter(|steps| !steps.is_empty()) {
        let (etcd, brain) = programs.start().unwrap();
        let found = replay(&etcd, &brain, steps).await.unwrap();
        assert!(found.is_empty(), "{found}");
        etcd.stop().unwrap();
        brain.stop().unwrap();
    }
    assert!(scripts.iter().any(|steps| !steps.is_empty()));
}
