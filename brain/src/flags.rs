//! The command line: etcd's flags, defaults and `ETCD_*` variables.
//!
//! A flag works, or is accepted with one warning that it has no effect here, or is refused with a reason. The table decides which;
//! no flag is ignored silently. A flag takes precedence over its variable, and its last occurrence over earlier ones.

use std::collections::BTreeMap;
use std::ffi::OsString;

use clap::ArgMatches;
use clap::error::ErrorKind;

use line::Line;

mod attempts;
mod backup;
mod bootstrap;
mod command;
mod config;
mod debug;
pub mod duration;
mod file;
mod import;
mod line;
mod number;
mod read;
mod snapshot;
mod table;
#[cfg(test)]
mod values;
mod wipe;
mod yaml;

pub use bootstrap::{Bootstrap, BootstrapError};
pub use command::program;
pub use config::{
    AttemptOptions, AutoCompaction, BackupAction, BackupChoice, BackupCommand, Config, DeletedBackup, Dump, Dumped,
    ElectionLockKind, ElectionOptions, ImportCommand, LeaseOptions, Limits, Quota, RestorePoint, SnapshotCommand,
    Storage, Subcommand, TikvOptions,
};
pub use read::features;
pub use table::{FLAGS, Flag, Group, Kind, Treatment};

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
    let env: Vec<_> = env.into_iter().collect();
    let mut warnings = Vec::new();
    let program = command::program();
    let line = Line::new(&program, args, &mut warnings);
    let matches = match program.clone().try_get_matches_from(&line.args) {
        Ok(matches) => matches,
        Err(error) if error.kind() == ErrorKind::DisplayHelp => return Ok(Asked::Print(error.to_string())),
        Err(error) => return Err(line.error(&error)),
    };
    let (subcommand, matches) = subcommand(&matches, &env)?;
    let mut given = BTreeMap::new();
    for flag in FLAGS {
        if let Some(value) = command::value::<String>(matches, flag.name) {
            given.insert(flag.name, Given::new(flag, format!("--{}", flag.name), &value)?);
        }
    }
    // Subcommands take the store from the command line alone, not from variables.
    if subcommand.is_none() {
        for (flag, variable, value) in variables(env, &mut warnings) {
            if !given.contains_key(flag.name) {
                given.insert(flag.name, Given::new(flag, variable, &value)?);
            }
        }
    }
    if given.get("version").is_some_and(|given| given.value == "true") {
        return Ok(Asked::Print(etcd_types::version::describe()));
    }
    given = from_file(given, &mut warnings)?;
    let Settled { given, faults } = settle(given, &mut warnings)?;
    let mut config = read::config(&given, faults, &mut warnings).map_err(FlagError)?;
    config.subcommand = subcommand;
    Ok(Asked::Serve(Box::new(config), warnings))
}

/// Returns the subcommand, if there is one, and what holds the flags.
fn subcommand<'a>(
    matches: &'a ArgMatches,
    env: &[(OsString, OsString)],
) -> Result<(Option<Subcommand>, &'a ArgMatches), FlagError> {
    let Some((name, args)) = matches.subcommand() else {
        return Ok((None, matches));
    };
    let (inner, args) = args.subcommand().unwrap_or(("", args));
    let subcommand = match name {
        "wipe" => wipe::read(args)?,
        "debug" => debug::read(inner, args),
        "snapshot" => snapshot::read(inner, args)?,
        "backup" => backup::read(inner, args, env)?,
        _ => import::read(args, env)?,
    };
    Ok((Some(subcommand), args))
}

/// Returns the flags that the configuration file gives, if there is one. As in etcd, all others are ignored then; here with a warning for
/// each.
fn from_file(
    mut given: BTreeMap<&'static str, Given>,
    warnings: &mut Vec<String>,
) -> Result<BTreeMap<&'static str, Given>, FlagError> {
    let file = given.remove(file::CONFIG_FILE).filter(|given| !given.value.is_empty());
    let Some(Given { origin, value: path }) = file else {
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

#[cfg(test)]
mod tests;
