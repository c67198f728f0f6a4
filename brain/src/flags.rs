//! The command line: etcd's flags, defaults and `ETCD_*` variables.
//!
//! A flag works, or is accepted with one warning that it has no effect here, or is refused with a reason. The table decides which;
//! no flag is ignored silently. A flag takes precedence over its variable, and its last occurrence over earlier ones.

use std::collections::BTreeMap;
use std::ffi::OsString;

use clap::builder::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction};

use table::{FLAGS, Flag, Kind, Treatment};

mod bootstrap;
mod config;
mod debug;
pub mod duration;
mod file;
mod import;
mod number;
mod read;
mod snapshot;
mod table;
#[cfg(test)]
mod values;
mod wipe;
mod yaml;

pub use bootstrap::{Bootstrap, BootstrapError};
pub use config::{
    AutoCompaction, Config, Dump, Dumped, ElectionLockKind, ElectionOptions, ImportCommand, LeaseOptions, Limits,
    Quota, SnapshotCommand, Storage, TikvOptions,
};
pub use read::features;

/// The action that the command line requests.
#[derive(Debug, Clone, PartialEq)]
pub enum Asked {
    /// Serve; log the warnings first.
    Serve(Box<Config>, Vec<String>),
    /// Print this and exit.
    Print(String),
}

/// An error of the command line, as one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FlagError(String);

/// Parses the arguments after the program's name, and the environment. Fails with the first error, which names the flag or
/// variable.
pub fn parse(
    args: impl IntoIterator<Item = OsString>,
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Asked, FlagError> {
    let mut args: Vec<OsString> = args.into_iter().collect();
    let wipes = args.first().is_some_and(|first| first == wipe::WIPE);
    if wipes {
        args.remove(0);
        wipe::confirmed(&mut args)?;
    }
    let dump = match debug::take(&mut args)? {
        Some(debug::Taken::Help(help)) => return Ok(Asked::Print(help)),
        Some(debug::Taken::Dump(dump)) => Some(dump),
        None => None,
    };
    let snapshot = match snapshot::take(&mut args)? {
        Some(snapshot::Taken::Help(help)) => return Ok(Asked::Print(help)),
        Some(snapshot::Taken::Command(command)) => Some(command),
        None => None,
    };
    let env: Vec<_> = env.into_iter().collect();
    let import = match import::take(&mut args, &env)? {
        Some(import::Taken::Help(help)) => return Ok(Asked::Print(help)),
        Some(import::Taken::Command(command)) => Some(command),
        None => None,
    };
    let mut warnings = Vec::new();
    let command = command();
    let args = two_dashes(args, &mut warnings);
    let matches = match command.clone().try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(error) if error.kind() == ErrorKind::DisplayHelp => return Ok(Asked::Print(error.to_string())),
        Err(error) => return Err(one_line(&error)),
    };
    let mut given = BTreeMap::new();
    for flag in FLAGS {
        if let Some(value) = matches.get_one::<String>(flag.name) {
            given.insert(flag.name, Given::new(flag, format!("--{}", flag.name), value)?);
        }
    }
    let reads_file = |given: &BTreeMap<_, Given>| {
        given
            .get(file::CONFIG_FILE)
            .is_some_and(|given| !given.value.is_empty())
    };
    // Subcommands take the store from the command line alone, not from variables.
    let reads_variables = !wipes && dump.is_none() && snapshot.is_none() && import.is_none();
    for (flag, variable, value) in variables(env.into_iter().filter(|_| reads_variables), &mut warnings) {
        if !given.contains_key(flag.name) {
            given.insert(flag.name, Given::new(flag, variable, &value)?);
        }
    }
    if given.get("version").is_some_and(|given| given.value == "true") {
        return Ok(Asked::Print(etcd_types::version::describe()));
    }
    if reads_file(&given) && reads_variables {
        given = from_file(given, &mut warnings)?;
    }
    let Settled { given, faults } = settle(given, &mut warnings)?;
    let mut config = read::config(&given, faults, &mut warnings).map_err(FlagError)?;
    if wipes {
        wipe::check(given.keys().copied(), &config)?;
        config.wipes = true;
    }
    if let Some(dump) = dump {
        debug::check(given.keys().copied(), &mut config)?;
        config.dump = Some(dump);
    }
    if let Some(command) = snapshot {
        snapshot::check(given.keys().copied(), &mut config, &command)?;
        config.snapshot = Some(command);
    }
    if let Some(command) = import {
        import::check(given.keys().copied(), &config)?;
        config.import = Some(*command);
    }
    Ok(Asked::Serve(Box::new(config), warnings))
}

/// Returns the flags that the configuration file gives. As in etcd, all others are ignored then; here with a warning for each.
fn from_file(
    mut given: BTreeMap<&'static str, Given>,
    warnings: &mut Vec<String>,
) -> Result<BTreeMap<&'static str, Given>, FlagError> {
    let Some(Given { origin, value: path }) = given.remove(file::CONFIG_FILE) else {
        return Ok(given);
    };
    for ignored in given.values() {
        warnings.push(format!("{} is ignored: {origin} is given", ignored.origin));
    }
    let text = std::fs::read_to_string(&path).map_err(|error| FlagError(format!("{origin} {path:?}: {error}")))?;
    let found = file::read(&path, &text, warnings)?;
    Ok(found.into_iter().map(|(flag, given)| (flag.name, given)).collect())
}

/// A given value, and the flag or variable that gave it.
#[derive(Debug, Clone)]
struct Given {
    origin: String,
    value: String,
}

impl Given {
    fn new(flag: &Flag, origin: String, value: &str) -> Result<Given, FlagError> {
        let value = match flag.kind {
            Kind::Text => value.to_owned(),
            Kind::Bool => match go_bool(value) {
                Some(value) => value.to_string(),
                None => return Err(FlagError(format!("{origin} must be true or false, not {value:?}"))),
            },
        };
        Ok(Given { origin, value })
    }
}

/// Parses a boolean as Go does.
fn go_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// The values after the table was applied.
struct Settled {
    given: BTreeMap<&'static str, Given>,
    /// The reasons why no store can be begun with them.
    faults: Vec<String>,
}

/// Applies the table: renames old names, warns of flags without effect, refuses misleading ones.
fn settle(given: BTreeMap<&'static str, Given>, warnings: &mut Vec<String>) -> Result<Settled, FlagError> {
    let mut faults = Vec::new();
    let mut settled = BTreeMap::new();
    let mut gates = Vec::new();
    let listed_gates = given
        .get("feature-gates")
        .map_or("", |given| given.value.as_str())
        .to_owned();
    for (name, this) in &given {
        let Some(flag) = Flag::named(name) else { continue };
        match flag.treatment {
            Treatment::Renamed(new) if given.contains_key(new) => {
                return Err(FlagError(format!(
                    "cannot set --{name} and --{new} at the same time, please use --{new} only"
                )));
            }
            Treatment::Renamed(new) => {
                settled.insert(new, this.clone());
            }
            Treatment::Gate(gate) if listed_gates.split(',').any(|pair| pair.split('=').next() == Some(gate)) => {
                return Err(FlagError(format!(
                    "cannot set --{name} and the feature gate {gate} at the same time, please use --feature-gates only"
                )));
            }
            Treatment::Gate(_) if this.value == flag.default => {}
            Treatment::Gate(gate) => gates.push(format!("{gate}={}", this.value)),
            _ => {
                settled.insert(*name, this.clone());
            }
        }
    }
    for (name, this) in &settled {
        let Some(flag) = Flag::named(name).filter(|flag| this.value != flag.default) else {
            continue;
        };
        match flag.treatment {
            Treatment::Idle(why) => warnings.push(format!("{} has no effect here: {why}", this.origin)),
            Treatment::Refused(why) => return Err(FlagError(format!("{} is not supported: {why}", this.origin))),
            Treatment::Bootstrap(why) => faults.push(format!("{} is not supported: {why}", this.origin)),
            _ => {}
        }
    }
    if !gates.is_empty() {
        gates.extend((!listed_gates.is_empty()).then_some(listed_gates));
        let origin = "--feature-gates".to_owned();
        settled.insert(
            "feature-gates",
            Given {
                origin,
                value: gates.join(","),
            },
        );
    }
    Ok(Settled { given: settled, faults })
}

/// Returns the flags given by the environment. Empty variables count as absent; unknown ones cause a warning.
fn variables(
    env: impl IntoIterator<Item = (OsString, OsString)>,
    warnings: &mut Vec<String>,
) -> Vec<(&'static Flag, String, String)> {
    let mut found = Vec::new();
    for (variable, value) in env {
        let Some(variable) = variable.to_str().filter(|name| name.starts_with("ETCD_")) else {
            continue;
        };
        let flag = FLAGS
            .iter()
            .find(|flag| flag.variable() == variable && !["version", "check"].contains(&flag.name));
        match (flag, value.into_string()) {
            (_, Ok(value)) if value.is_empty() => {}
            (Some(flag), Ok(value)) => found.push((flag, variable.to_owned(), value)),
            _ => warnings.push(format!("unrecognized environment variable {variable}")),
        }
    }
    found
}

/// Flags of long ago, which etcd takes with any value and ignores.
const FORGOTTEN: [&str; 13] = [
    "cluster-active-size",
    "cluster-remove-delay",
    "cluster-sync-interval",
    "config",
    "force",
    "max-result-buffer",
    "max-retry-attempts",
    "peer-heartbeat-interval",
    "peer-election-timeout",
    "retry-interval",
    "snapshot",
    "v",
    "vv",
];

/// Returns the arguments with Go's `-flag` replaced by `--flag`, without those that etcd has forgotten. Values stay unchanged.
fn two_dashes(args: impl IntoIterator<Item = OsString>, warnings: &mut Vec<String>) -> Vec<OsString> {
    let mut out = vec![OsString::from("kubebrain")];
    let mut is_value = false;
    for arg in args {
        let Some(text) = arg
            .to_str()
            .filter(|text| !is_value && text.starts_with('-') && text.len() > 1)
        else {
            is_value = false;
            out.push(arg);
            continue;
        };
        let name = text.trim_start_matches('-');
        let bare = name.split('=').next().unwrap_or(name);
        if FORGOTTEN.contains(&bare) {
            warnings.push(format!("--{bare} has no effect: etcd ignores it, too"));
            continue;
        }
        let flag = Flag::named(bare);
        is_value = flag.is_some_and(|flag| flag.kind == Kind::Text && !name.contains('='));
        match text {
            "-h" | "--" => out.push(arg),
            "-help" => out.push("--help".into()),
            _ if !text.starts_with("--") => out.push(format!("-{text}").into()),
            _ => out.push(arg),
        }
    }
    out
}

/// Builds a clap command from the table: it handles only syntax and help.
fn command() -> Command {
    let mut command = Command::new("kubebrain")
        .about("An etcd v3-compatible server for Kubernetes")
        .override_usage("kubebrain [flags]\n       kubebrain wipe --storage tikv --tikv-pd-endpoints <PD> --tikv-key-prefix <PREFIX> [flags] --yes\n       kubebrain debug dump-log|dump-rows|dump-manifest [flags]\n       kubebrain snapshot restore|import|status <FILE> [flags]\n       kubebrain import --from-endpoints <URLS> [flags]")
        .disable_version_flag(true)
        .args_override_self(true)
        .after_help(
            "Each flag can also be set by a variable: --data-dir by ETCD_DATA_DIR. A flag wins over its variable. A file given by --config-file \
             replaces both.\n\n\
             `kubebrain wipe --yes` deletes everything below a key prefix of TiKV that no member uses any more. It takes the flags that locate TiKV, --initial-cluster-token and those of the log, and reads no variables.\n\n\
             `kubebrain debug dump-log`, `dump-rows` and `dump-manifest` print the stored data, read only: see `kubebrain debug --help`.\n\n\
             `kubebrain snapshot restore` creates a new store from a snapshot of etcd or kubebrain, `snapshot status` describes a snapshot: see \
             `kubebrain snapshot --help`.\n\n\
             `kubebrain import` copies a running etcd into a new store and follows it: see `kubebrain import --help`.",
        );
    for flag in FLAGS {
        command = command.arg(arg(flag));
    }
    command
}

fn arg(flag: &'static Flag) -> Arg {
    let arg = Arg::new(flag.name)
        .long(flag.name)
        .action(ArgAction::Set)
        .allow_hyphen_values(true);
    let arg = match flag.kind {
        Kind::Text => arg.num_args(1).value_name("VALUE"),
        Kind::Bool => arg
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .value_name("true|false"),
    };
    let help = match flag.treatment {
        Treatment::Works(help) if flag.default.is_empty() || flag.name == "version" => help.to_owned(),
        Treatment::Works(help) => format!("{help} [default: {}]", flag.default),
        Treatment::Idle(why) => format!("no effect here: {why}"),
        Treatment::Refused(why) => format!("refused: {why}"),
        Treatment::Bootstrap(why) => format!("refused at the first start, without effect later: {why}"),
        Treatment::Renamed(new) => format!("old name of --{new}"),
        Treatment::Gate(gate) => format!("old name of --feature-gates={gate}=..."),
    };
    let hidden = matches!(
        flag.treatment,
        Treatment::Idle(_)
            | Treatment::Refused(_)
            | Treatment::Bootstrap(_)
            | Treatment::Renamed(_)
            | Treatment::Gate(_)
    );
    arg.help(help)
        .help_heading(flag.group.heading())
        .hide_short_help(hidden)
}

/// Formats an error of clap as one line that names the argument.
fn one_line(error: &clap::Error) -> FlagError {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => texts.first().cloned(),
        _ => None,
    };
    let arg = context(ContextKind::InvalidArg).unwrap_or_default();
    let name = arg.split([' ', '=', '[']).next().unwrap_or_default();
    FlagError(match error.kind() {
        ErrorKind::UnknownArgument if !arg.starts_with('-') => format!("{arg:?} is not a valid flag"),
        ErrorKind::UnknownArgument => match context(ContextKind::SuggestedArg) {
            Some(near) => format!("unknown flag {arg}: did you mean {near}?"),
            None => format!("unknown flag {arg}: see --help"),
        },
        ErrorKind::InvalidValue | ErrorKind::TooFewValues => format!("{name} needs a value"),
        ErrorKind::InvalidUtf8 => "an argument is not valid UTF-8".to_owned(),
        _ => error
            .to_string()
            .lines()
            .next()
            .unwrap_or("bad command line")
            .trim_start_matches("error: ")
            .to_owned(),
    })
}

#[cfg(test)]
mod tests;
