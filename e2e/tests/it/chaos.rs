//! Three brains on one TiKV cluster, broken in every way, with clients that keep account.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use e2e::deadline::Deadline;
use e2e::tools::own::Programs;

/// Set this for a longer run.
const ROUNDS: &str = "KUBEBRAIN_ROUNDS";
/// The brain whose clock can be set: `make` builds it and says where it is.
const DYNAMIC: &str = "KUBEBRAIN_DYNAMIC";

/// For a round, on a busy machine.
const EACH: Duration = Duration::from_secs(90);

fn chaos(args: &[String], limit: Duration) {
    let _deadline = Deadline::within(limit);
    let brain = std::env::var_os(DYNAMIC).map(PathBuf::from);
    let brain = brain.unwrap_or_else(|| panic!("{DYNAMIC} is not set: `make test` builds that brain and sets it"));
    let chaos = Programs::find().unwrap().get("chaos").unwrap();
    let status = Command::new(chaos).args(args).arg("--with-clock").arg(brain).status();
    assert!(status.unwrap().success());
}

#[test]
fn clients_of_broken_clusters_see_nothing_that_etcd_would_not_show() {
    let rounds: u32 = std::env::var(ROUNDS).map_or(20, |rounds| rounds.parse().unwrap());
    chaos(&[format!("--rounds={rounds}")], EACH * rounds);
}

#[test]
fn a_write_whose_reply_is_lost_is_done_once_and_wholly_or_not_at_all() {
    let logs = "--logs=/var/log/kubebrain/lost-replies".to_owned();
    chaos(
        &["--rounds=1".to_owned(), "--lost-replies=1000".to_owned(), logs],
        4 * EACH,
    );
}
