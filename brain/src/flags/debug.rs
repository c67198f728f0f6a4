//! `kubebrain debug`: the command line of the dumps. The flags that select the store are the server's.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use super::config::{Dump, Dumped};
use super::read::storage::TIKV_STORE;
use super::{Config, FlagError};
use telemetry::logs::LogLevel;

/// The subcommand.
const DEBUG: &str = "debug";

const COMMANDS: [(&str, Dumped); 3] = [
    ("dump-log", Dumped::Log),
    ("dump-rows", Dumped::Rows),
    ("dump-manifest", Dumped::Manifest),
];

/// Flags of the server that the subcommand accepts, apart from [`TIKV_STORE`].
const FLAGS: [&str; 6] = ["name", "data-dir", "storage", "log-outputs", "log-level", "log-format"];

const HELP: &str = "\
Prints the stored data, read only, as one JSON object per line

Usage: kubebrain debug dump-log      [--limit N] [flags]
       kubebrain debug dump-rows     [--limit N] [--prefix KEY] [--values] [flags]
       kubebrain debug dump-manifest [flags]

dump-log prints barriers and batches of requests from the watermark on: slot, epoch, revisions, number of requests, bytes. Records after the
last whole batch are printed as uncommitted. dump-rows prints rows in the order of their keys. dump-manifest prints the manifest: who may
write the rows, and which part of the log is in them. Keys and values are printed with escapes, as \\x00.

  --limit N     print at most N lines
  --prefix KEY  only rows of keys that begin with KEY; rows of leases belong to no key
  --values      print the values of keys, too

Flags locate the store, as for the server: --data-dir (or --name), or --storage tikv with --tikv-pd-endpoints, --tikv-key-prefix,
--tikv-cluster-id, --tikv-ca, --tikv-cert and --tikv-key; --log-outputs, --log-level and --log-format. No variables are read.

A data directory is refused while a server holds it, and no server starts on it while it is read. Rows are read from a copy of their
journals in $TMPDIR, with links to their tables. On TiKV members may keep running: rows are read at one point in time, the log as it grows.
";

/// The request of the subcommand and its own options.
pub(super) enum Taken {
    /// Print this and exit.
    Help(String),
    /// Print what is stored.
    Dump(Dump),
}

/// Removes the subcommand and its own options from the arguments; returns `None` if the subcommand is absent. Fails if there is no
/// such dump, or if it does not accept an option.
pub(super) fn take(args: &mut Vec<OsString>) -> Result<Option<Taken>, FlagError> {
    if args.first().is_none_or(|first| first != DEBUG) {
        return Ok(None);
    }
    args.remove(0);
    if args
        .iter()
        .any(|arg| ["-h", "-help", "--help"].iter().any(|help| arg == help))
    {
        return Ok(Some(Taken::Help(HELP.to_owned())));
    }
    let what = args.first().map(|name| name.to_string_lossy().into_owned());
    let found = COMMANDS.into_iter().find(|(name, _)| what.as_deref() == Some(name));
    let Some((command, what)) = found else {
        let names = COMMANDS.map(|(name, _)| name).join(", ");
        return Err(FlagError(match what {
            Some(other) => format!("debug has no {other:?}, only {names}"),
            None => format!("debug needs one of {names}"),
        }));
    };
    args.remove(0);
    let mut dump = Dump {
        what,
        limit: None,
        prefix: Vec::new(),
        values: false,
    };
    let mut others = Vec::with_capacity(args.len());
    let mut rest = std::mem::take(args).into_iter();
    while let Some(arg) = rest.next() {
        let bytes = arg.clone().into_vec();
        let Some(option) = DumpOption::of(&bytes) else {
            others.push(arg);
            continue;
        };
        if !option.suits(what) {
            return Err(FlagError(format!("{command} takes no {}", option.name())));
        }
        if option == DumpOption::Values {
            dump.values = true;
            continue;
        }
        let inline = bytes
            .iter()
            .position(|byte| *byte == b'=')
            .map(|at| bytes[at + 1..].to_vec());
        let value = inline.or_else(|| rest.next().map(OsString::into_vec));
        let value = value.ok_or_else(|| FlagError(format!("{} needs a value", option.name())))?;
        if option == DumpOption::Prefix {
            dump.prefix = value;
            continue;
        }
        let number = String::from_utf8_lossy(&value).into_owned();
        let limit = number
            .parse()
            .map_err(|_| FlagError(format!("--limit must be a number of lines, not {number:?}")))?;
        dump.limit = Some(limit);
    }
    *args = others;
    Ok(Some(Taken::Dump(dump)))
}

/// Refuses a flag that a dump does not accept.
pub(super) fn check(given: impl Iterator<Item = &'static str>, config: &mut Config) -> Result<(), FlagError> {
    let names: Vec<&str> = given.collect();
    if let Some(name) = names
        .iter()
        .find(|name| !FLAGS.contains(name) && !TIKV_STORE.contains(name))
    {
        return Err(FlagError(format!("debug takes no --{name}")));
    }
    if !names.contains(&"log-level") {
        config.log.level = LogLevel::Warn;
    }
    Ok(())
}

/// The options of dumps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DumpOption {
    Limit,
    Prefix,
    Values,
}

impl DumpOption {
    fn of(arg: &[u8]) -> Option<Self> {
        let name = arg.split(|byte| *byte == b'=').next().unwrap_or_default();
        match name {
            b"--limit" | b"-limit" => Some(Self::Limit),
            b"--prefix" | b"-prefix" => Some(Self::Prefix),
            b"--values" | b"-values" if arg.len() == name.len() => Some(Self::Values),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Limit => "--limit",
            Self::Prefix => "--prefix",
            Self::Values => "--values",
        }
    }

    fn suits(self, what: Dumped) -> bool {
        match self {
            Self::Limit => what != Dumped::Manifest,
            Self::Prefix | Self::Values => what == Dumped::Rows,
        }
    }
}
