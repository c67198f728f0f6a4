//! Three brains on one TiKV cluster, broken in every way, with clients that keep account.

use std::process::Command;
use std::time::Duration;

use programs::tikv::{REAL_PD_VARIABLE, Tikv};
use programs::tools::own::Programs;
use programs::watchdog::Watchdog;

/// Set this for a longer run.
const ROUNDS_VARIABLE: &str = "KUBEBRAIN_ROUNDS";

/// For a round, on a busy machine.
const ROUND_TIMEOUT: Duration = Duration::from_secs(90);

/// The program, and what it stores in where that is not a mock of its own.
fn chaos(args: &[String], pd: Option<&str>, limit: Duration) {
    let _deadline = Watchdog::within(limit);
    let programs = Programs::find().unwrap();
    let mut chaos = Command::new(programs.get("kubebrain-chaos").unwrap());
    // The programs of tests are linked dynamically, so that their clock can be set.
    chaos
        .args(args)
        .arg("--with-clock")
        .arg(programs.get("kubebrain").unwrap());
    if let Some(pd) = pd {
        chaos.env(REAL_PD_VARIABLE, pd);
    }
    assert!(chaos.status().unwrap().success());
}

#[test]
fn clients_of_broken_clusters_see_nothing_that_etcd_would_not_show() {
    let rounds: u32 = std::env::var(ROUNDS_VARIABLE).map_or(20, |rounds| rounds.parse().unwrap());
    chaos(&[format!("--rounds={rounds}")], None, ROUND_TIMEOUT * rounds);
}

#[test]
fn members_of_a_cluster_that_runs_already_are_broken_likewise() {
    let tikv = Tikv::for_test().unwrap();
    let logs = "--logs=/var/log/kubebrain-chaos/named-cluster".to_owned();
    chaos(&["--rounds=2".to_owned(), logs], Some(tikv.pd()), 2 * ROUND_TIMEOUT);
}

#[test]
fn a_write_whose_reply_is_lost_is_done_once_and_wholly_or_not_at_all() {
    let logs = "--logs=/var/log/kubebrain-chaos/lost-replies".to_owned();
    chaos(
        &["--rounds=1".to_owned(), "--lost-replies=1000".to_owned(), logs],
        None,
        4 * ROUND_TIMEOUT,
    );
}

#[test]
fn stores_are_cut_off_silent_and_killed_one_by_one() {
    for fault in ["one-store", "log-store", "silent-region", "store-crash"] {
        let logs = format!("--logs=/var/log/kubebrain-chaos/{fault}");
        chaos(
            &["--rounds=1".to_owned(), format!("--fault={fault}"), logs],
            None,
            3 * ROUND_TIMEOUT,
        );
    }
}
