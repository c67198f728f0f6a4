//! `kubebrain wipe`: takes only those flags that locate the store in a TiKV cluster.

use clap::ArgMatches;
use clap::builder::Command;

use super::command::{check_store_is_named, is_on_tikv, is_set, store_flags, switch};
use super::{FlagError, Subcommand};

pub(super) fn command() -> Command {
    Command::new("wipe")
        .about("Deletes everything below a key prefix of TiKV that no member uses any more")
        .arg(switch("yes", "confirm the deletion; required"))
        .args(store_flags(&["storage", "initial-cluster-token"]))
}

pub(super) fn read(args: &ArgMatches) -> Result<Subcommand, FlagError> {
    if !is_set(args, "yes") {
        let text = "wipe deletes everything below the key prefix: use --yes to confirm";
        return Err(FlagError(text.to_owned()));
    }
    if !is_on_tikv(args) {
        let text = "wipe needs --storage tikv: delete a data directory as any other directory";
        return Err(FlagError(text.to_owned()));
    }
    check_store_is_named("wipe", args)?;
    Ok(Subcommand::Wipe)
}
