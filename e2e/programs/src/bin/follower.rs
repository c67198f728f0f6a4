//! A brain that follows: takes the flags of one member, and starts two others on a mock of TiKV before it.
//!
//! Its arguments and its output are the member's own. The kernel ends all of them with this process, even if it is killed.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use programs::members::{self, Members};
use programs::server::{self, Program};
use programs::tikv::Tikv;
use programs::tools::own::Programs;

fn main() -> anyhow::Result<ExitCode> {
    let flags: Vec<String> = std::env::args().skip(1).collect();
    let flag = |name: &str| {
        let found = flags.iter().find_map(|flag| flag.strip_prefix(name)?.strip_prefix('='));
        found.with_context(|| format!("{name} is missing"))
    };
    let guest = format!("{}={}", flag("--name")?, flag("--initial-advertise-peer-urls")?);
    // the one beside this program: $KUBEBRAIN_BIN may name this program itself
    let program = Program {
        name: "kubebrain",
        path: Programs::find()?.get("kubebrain")?,
    };
    // the process that kills this program removes its files
    let site = Path::new(flag("--data-dir")?)
        .parent()
        .context("--data-dir has no parent")?;
    if tempfile::env::override_temp_dir(site).is_err() {
        bail!("temporary files have a place already");
    }
    let tikv = Tikv::for_test()?;
    let others = Members::brains_with(
        Some(guest.clone()),
        &program,
        tikv.pd(),
        2,
        &members::PATIENT_ELECTION_FLAGS,
    )?;
    let mut command = server::command(&program);
    command.args(&flags).args(others.shared_flags());
    let status = server::spawn(command)?.wait().context("wait for the follower")?;
    match status.code() {
        Some(code) => Ok(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))),
        None => bail!("the follower {guest} ended: {status}"),
    }
}
