//! `kubebrain snapshot`: snapshots of etcd and kubebrain are described, or made a store.

use clap::builder::Command;
use clap::{Arg, ArgMatches, value_parser};

use super::attempts::{attempt_flags, attempts};
use super::command::{LOG, STORE};
use super::command::{check_store_is_named, file, flags, is_set, option, quiet, store_flags, switch, value};
use super::{AttemptOptions, FlagError, SnapshotCommand, Subcommand};

const STATUS: &str =
    "Prints hash, revision, number of keys, size and version of a snapshot, as `etcdutl snapshot status` does";

const RESTORE: &str = "\
All of the snapshot since its compacted revision is restored: keys with their revisions and versions, leases, users and roles; auth stays \
enabled if it was. The new store gets ids of its own. In the end it is read back and compared with the snapshot. Alarms and members are not \
restored. The target must be empty, or hold a part of the same snapshot: after an interruption or a crash the same command continues. No \
server starts on it before it is complete. It takes up to three times the size of the snapshot on disk.

Flags locate the store, as for the server, but without defaults: --data-dir, or --storage tikv with --tikv-pd-endpoints and \
--tikv-key-prefix. --initial-cluster-token must be that of the members. No variables are read.";

/// Returns the flags that make clients of the old store read a restored one again.
pub(super) fn bump_flags() -> [Arg; 2] {
    let bump = "increase of the newest revision after the restore, so that clients that know later revisions of the old store find no revision \
                twice";
    let mark = "make the newest revision after the restore the compacted one, so that watches from earlier revisions end and their clients list \
                again; required with --bump-revision, and refused without it, as by `etcdutl snapshot restore`";
    [
        option("bump-revision", "N", bump).value_parser(value_parser!(u64)),
        switch("mark-compacted", mark),
    ]
}

/// Reads [`bump_flags`]: 0 if the revision stays.
pub(super) fn bump_revision(args: &ArgMatches) -> Result<u64, FlagError> {
    let bump = value(args, "bump-revision").unwrap_or_default();
    // As in etcd, each of these flags needs the other.
    if (bump > 0) != is_set(args, "mark-compacted") {
        return Err(FlagError("--mark-compacted required if --bump-revision > 0".to_owned()));
    }
    Ok(bump)
}

pub(super) fn command() -> Command {
    let hash = "accept a file without a checksum at its end, as etcd's own member/snap/db, or with a wrong one";
    let reading = |name: &'static str, about: &'static str| {
        let command = Command::new(name).about(about).arg(file("the snapshot"));
        command.arg(switch("skip-hash-check", hash))
    };
    // There is none, and its error says where a snapshot comes from.
    let save = Command::new("save").hide(true).disable_help_flag(true);
    Command::new("snapshot")
        .about("Reads snapshots of etcd and kubebrain, as saved by `etcdctl snapshot save`")
        .subcommand_required(true)
        .subcommands([
            quiet(reading("status", STATUS).args(flags(&LOG))),
            reading("restore", "Creates a new store from a snapshot")
                .visible_alias("import")
                .after_help(RESTORE)
                .args(bump_flags())
                .args(attempt_flags(
                    "do nothing if the target holds a complete store, and delete a part of another snapshot or backup there",
                ))
                .args(store_flags(&STORE)),
            save.arg(
                Arg::new("rest")
                    .num_args(0..)
                    .trailing_var_arg(true)
                    .allow_hyphen_values(true),
            ),
        ])
}

pub(super) fn read(action: &str, args: &ArgMatches) -> Result<Subcommand, FlagError> {
    if action == "save" {
        let text = "snapshot has no \"save\": take one by `etcdctl snapshot save`";
        return Err(FlagError(text.to_owned()));
    }
    let command = SnapshotCommand {
        file: value(args, "FILE").unwrap_or_default(),
        skip_hash_check: is_set(args, "skip-hash-check"),
        bump_revision: bump_revision(args)?,
        restores: action == "restore",
        attempts: match action {
            "restore" => attempts(args)?,
            _ => AttemptOptions::default(),
        },
    };
    if command.restores {
        check_store_is_named("snapshot restore", args)?;
    }
    Ok(Subcommand::Snapshot(command))
}
