//! `kubebrain snapshot`: the command line. The flags that select the store are the server's.

use std::ffi::OsString;
use std::path::PathBuf;

use super::config::{SnapshotCommand, Storage};
use super::read::storage::TIKV_STORE;
use super::table::{Flag, Kind};
use super::{Config, FlagError};
use telemetry::logs::LogLevel;

/// The subcommand.
const SNAPSHOT: &str = "snapshot";

/// Flags of the server that the subcommand accepts, apart from those that select the store.
pub(super) const LOG_FLAGS: [&str; 3] = ["log-outputs", "log-level", "log-format"];

/// Flags that select the store, apart from [`TIKV_STORE`].
pub(super) const STORE_FLAGS: [&str; 3] = ["data-dir", "storage", "initial-cluster-token"];

const HELP: &str = "\
Reads snapshots of etcd and kubebrain, as saved by `etcdctl snapshot save`

Usage: kubebrain snapshot status  FILE [--skip-hash-check]
       kubebrain snapshot restore FILE --data-dir DIR [--skip-hash-check] [--bump-revision N --mark-compacted] [flags]
       kubebrain snapshot restore FILE --storage tikv --tikv-pd-endpoints PD --tikv-key-prefix PREFIX [flags]

status prints hash, revision, number of keys, size and version of a snapshot, as `etcdutl snapshot status` does.

restore, or import, creates a new store from a snapshot: keys with their revisions and versions, all of history since the compacted
revision, leases, users and roles; auth stays enabled if it was. The new store gets ids of its own. In the end it is read back and compared
with the snapshot. Alarms and members are not restored. The target must be empty, or hold a part of the same snapshot: after an interruption
or a crash the same command continues. No server starts on it before it is complete. It takes up to three times the size of the snapshot on
disk.

  --skip-hash-check  accept a file without a checksum at its end, as etcd's own member/snap/db, or with a wrong one
  --bump-revision    increase of the newest revision after the restore, so that clients that know later revisions of the old store find no
                     revision twice
  --mark-compacted   make the newest revision after the restore the compacted one, so that watches from earlier revisions end and their
                     clients list again; required with --bump-revision, and refused without it, as by `etcdutl snapshot restore`

Flags locate the store, as for the server: --data-dir, or --storage tikv with --tikv-pd-endpoints, --tikv-key-prefix, --tikv-cluster-id,
--tikv-ca, --tikv-cert, --tikv-key and --initial-cluster-token, which must be that of the members; --log-outputs, --log-level and
--log-format. No variables are read.
";

/// The request of the subcommand.
pub(super) enum Taken {
    /// Print this and exit.
    Help(String),
    /// Read a snapshot.
    Command(SnapshotCommand),
}

/// Removes the subcommand and its own arguments; returns `None` if the subcommand is absent. Fails if it does not accept an argument,
/// or if one is missing.
pub(super) fn take(args: &mut Vec<OsString>) -> Result<Option<Taken>, FlagError> {
    if args.first().is_none_or(|first| first != SNAPSHOT) {
        return Ok(None);
    }
    args.remove(0);
    let is_help = |arg: &OsString| ["-h", "-help", "--help"].iter().any(|help| arg == help);
    if args.iter().any(is_help) {
        return Ok(Some(Taken::Help(HELP.to_owned())));
    }
    let name = args.first().map(|name| name.to_string_lossy().into_owned());
    let restores = match name.as_deref() {
        Some("restore" | "import") => true,
        Some("status") => false,
        Some("save") => {
            return Err(FlagError(
                "snapshot has no \"save\": take one by `etcdctl snapshot save`".to_owned(),
            ));
        }
        Some(other) => {
            return Err(FlagError(format!(
                "snapshot has no {other:?}, only status, restore, import"
            )));
        }
        None => return Err(FlagError("snapshot needs one of status, restore, import".to_owned())),
    };
    args.remove(0);
    let (mut files, mut others, mut own) = (Vec::new(), Vec::new(), OwnFlags::default());
    let mut rest = std::mem::take(args).into_iter();
    while let Some(arg) = rest.next() {
        let text = arg.to_string_lossy().into_owned();
        if !text.starts_with('-') {
            files.push(PathBuf::from(arg));
        } else if !own.take(text.trim_start_matches('-'), restores, &mut rest)? {
            let name = text.trim_start_matches('-');
            let flag = Flag::named(name.split('=').next().unwrap_or(name));
            let flag = flag.ok_or_else(|| FlagError(format!("unknown flag {text}: see kubebrain snapshot --help")))?;
            others.push(arg);
            if flag.kind == Kind::Text && !name.contains('=') {
                others.extend(rest.next());
            }
        }
    }
    *args = others;
    own.check()?;
    let mut files = files.into_iter();
    match (files.next(), files.next()) {
        (Some(file), None) => Ok(Some(Taken::Command(SnapshotCommand {
            file,
            skip_hash_check: own.skip_hash_check,
            bump_revision: own.bump_revision,
            restores,
        }))),
        (Some(_), Some(other)) => Err(FlagError(format!("snapshot takes one file, not also {other:?}"))),
        (None, _) => Err(FlagError("snapshot needs a file".to_owned())),
    }
}

/// The flags that only the subcommand has.
#[derive(Default)]
struct OwnFlags {
    skip_hash_check: bool,
    bump_revision: u64,
    mark_compacted: bool,
}

impl OwnFlags {
    /// Takes a flag without its dashes, and its value. Returns false if it is another one.
    fn take(
        &mut self,
        flag: &str,
        restores: bool,
        rest: &mut impl Iterator<Item = OsString>,
    ) -> Result<bool, FlagError> {
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (flag, None),
        };
        match name {
            "skip-hash-check" => self.skip_hash_check = boolean(name, value)?,
            "mark-compacted" if restores => self.mark_compacted = boolean(name, value)?,
            "bump-revision" if restores => {
                let value = value.or_else(|| rest.next().map(|value| value.to_string_lossy().into_owned()));
                let value = value.ok_or_else(|| FlagError(format!("--{name} needs a number")))?;
                let number = value.parse();
                self.bump_revision = number
                    .map_err(|_| FlagError(format!("--{name} is not valid: {value:?} is not a number of revisions")))?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Refuses one of two flags that need each other, as etcd does.
    fn check(&self) -> Result<(), FlagError> {
        match (self.bump_revision > 0) == self.mark_compacted {
            true => Ok(()),
            false => Err(FlagError("--mark-compacted required if --bump-revision > 0".to_owned())),
        }
    }
}

/// The value of a flag that is true without one, in the spellings that Go takes.
fn boolean(name: &str, value: Option<String>) -> Result<bool, FlagError> {
    match value.as_deref() {
        None | Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(true),
        Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(false),
        Some(other) => Err(FlagError(format!(
            "--{name} is not valid: {other:?} is neither true nor false"
        ))),
    }
}

/// Refuses a flag that the subcommand does not accept, or the lack of one that it needs.
pub(super) fn check(
    given: impl Iterator<Item = &'static str>,
    config: &mut Config,
    command: &SnapshotCommand,
) -> Result<(), FlagError> {
    let names: Vec<&str> = given.collect();
    let selects = |name: &str| STORE_FLAGS.contains(&name) || TIKV_STORE.contains(&name);
    let is_taken = |name: &str| LOG_FLAGS.contains(&name) || (command.restores && selects(name));
    let action = if command.restores { "restore" } else { "status" };
    if let Some(name) = names.iter().find(|name| !is_taken(name)) {
        return Err(FlagError(format!("snapshot {action} takes no --{name}")));
    }
    if !command.restores {
        if !names.contains(&"log-level") {
            config.log.level = LogLevel::Warn;
        }
        return Ok(());
    }
    let needed = match config.storage {
        Storage::Embedded => "data-dir",
        Storage::Tikv(_) => "tikv-key-prefix",
    };
    if !names.contains(&needed) {
        return Err(FlagError(format!("snapshot restore needs --{needed}")));
    }
    Ok(())
}
