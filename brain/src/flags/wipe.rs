//! `kubebrain wipe`: accepts only those flags that select the store in a TiKV cluster.

use std::ffi::OsString;

use super::read::storage::TIKV_STORE;
use super::{Config, FlagError, Storage};

/// The subcommand.
pub(super) const WIPE: &str = "wipe";

/// Flags that the subcommand accepts, apart from `--yes` and [`TIKV_STORE`].
const FLAGS: [&str; 5] = [
    "storage",
    "initial-cluster-token",
    "log-outputs",
    "log-level",
    "log-format",
];

/// Removes `--yes` from the arguments. Fails if it is missing.
pub(super) fn confirmed(args: &mut Vec<OsString>) -> Result<(), FlagError> {
    let all = args.len();
    args.retain(|arg| arg != "--yes" && arg != "-yes");
    if args.len() < all
        || args
            .iter()
            .any(|arg| ["-h", "-help", "--help"].iter().any(|help| arg == help))
    {
        return Ok(());
    }
    Err(FlagError(
        "wipe deletes everything below the key prefix: use --yes to confirm".to_owned(),
    ))
}

/// Refuses a flag that `wipe` does not accept, or the lack of one that it needs.
pub(super) fn check(given: impl Iterator<Item = &'static str>, config: &Config) -> Result<(), FlagError> {
    let names: Vec<&str> = given.collect();
    if let Some(name) = names
        .iter()
        .find(|name| !FLAGS.contains(name) && !TIKV_STORE.contains(name))
    {
        return Err(FlagError(format!("wipe takes no --{name}")));
    }
    if config.storage == Storage::Embedded {
        return Err(FlagError(
            "wipe needs --storage tikv: delete a data directory as any other directory".to_owned(),
        ));
    }
    if !names.contains(&"tikv-key-prefix") {
        return Err(FlagError("wipe needs --tikv-key-prefix".to_owned()));
    }
    Ok(())
}
