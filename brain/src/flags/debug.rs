//! `kubebrain debug`: the dumps of what is stored.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use clap::builder::Command;
use clap::{ArgMatches, value_parser};

use super::command::{is_set, option, quiet, store_flags, switch, value};
use super::{Dump, Dumped, Subcommand};

const NOTES: &str = "\
Keys and values are printed with escapes, as \\x00. Flags locate the store, as for the server. No variables are read.

A data directory is refused while a server holds it, and no server starts on it while it is read. Rows are read from a copy of their \
manifests in $TMPDIR, with links to their tables. On TiKV members may keep running: rows are read at one point in time, the log as it grows.";

pub(super) fn command() -> Command {
    let dump = |name: &'static str, about: &'static str| {
        let command = Command::new(name).about(about).after_help(NOTES);
        quiet(command.args(store_flags(&["name", "data-dir", "storage"])))
    };
    let limit = option("limit", "N", "print at most N lines").value_parser(value_parser!(u64));
    let log = "Prints barriers and batches of requests from the watermark on: slot, epoch, revisions, number of requests, bytes. Records \
               after the last whole batch are printed as uncommitted";
    let manifest = "Prints the manifest: who may write the rows, and which part of the log is in them";
    let prefix = option(
        "prefix",
        "KEY",
        "only rows of keys that begin with KEY; rows of leases belong to no key",
    );
    Command::new("debug")
        .about("Prints the stored data, read only, as one JSON object per line")
        .after_help(NOTES)
        .subcommand_required(true)
        .subcommands([
            dump("dump-log", log).arg(limit.clone()),
            dump("dump-rows", "Prints rows in the order of their keys")
                .arg(limit)
                .arg(prefix.value_parser(value_parser!(OsString)))
                .arg(switch("values", "print the values of keys, too")),
            dump("dump-manifest", manifest),
        ])
}

pub(super) fn read(dump: &str, args: &ArgMatches) -> Subcommand {
    Subcommand::Dump(Dump {
        what: match dump {
            "dump-log" => Dumped::Log,
            "dump-rows" => Dumped::Rows,
            _ => Dumped::Manifest,
        },
        limit: value(args, "limit"),
        prefix: value::<OsString>(args, "prefix").unwrap_or_default().into_vec(),
        values: is_set(args, "values"),
    })
}
