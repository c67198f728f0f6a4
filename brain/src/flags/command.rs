//! The clap commands: that of the program, made from the table, and what those of the subcommands are made of.

use std::path::PathBuf;

use clap::builder::Command;
use clap::{Arg, ArgAction, ArgMatches, value_parser};

use super::read::storage::TIKV_STORE;
use super::table::{FLAGS, Flag, Kind, Treatment};
use super::{FlagError, backup, debug, go_bool, import, snapshot, wipe};

/// Flags that locate a store which a subcommand creates, apart from [`TIKV_STORE`].
pub(super) const STORE: [&str; 3] = ["data-dir", "storage", "initial-cluster-token"];

/// Flags of the log, which every subcommand accepts.
pub(super) const LOG: [&str; 3] = ["log-outputs", "log-level", "log-format"];

/// Returns the command of the program. It parses syntax and prints help; the table decides what a flag does.
#[must_use]
pub fn program() -> Command {
    Command::new("kubebrain")
        .about("An etcd v3-compatible server for Kubernetes")
        .disable_version_flag(true)
        .args_override_self(true)
        .args_conflicts_with_subcommands(true)
        .args(FLAGS.iter().map(arg))
        .subcommands([
            wipe::command(),
            debug::command(),
            snapshot::command(),
            import::command(),
            backup::command(),
        ])
        .after_help(
            "Each flag can also be set by a variable: --data-dir by ETCD_DATA_DIR. A flag wins over its variable. A file given by --config-file \
             replaces both. Subcommands take the flags that locate the store, and no variables.",
        )
}

/// Returns flags of the table for a subcommand.
pub(super) fn flags(names: &[&str]) -> impl Iterator<Item = Arg> {
    let named = names.iter().map(|name| Flag::named(name));
    named.map(|flag| arg(flag.expect("subcommands name flags of the table")))
}

/// Returns the flags that locate a store, and those of the log. The first ones are `others`.
pub(super) fn store_flags(others: &[&str]) -> impl Iterator<Item = Arg> {
    flags(others).chain(flags(&TIKV_STORE)).chain(flags(&LOG))
}

/// Makes a command log only warnings unless asked for more, because it prints a result.
pub(super) fn quiet(command: Command) -> Command {
    command.mut_arg("log-level", |arg| {
        let level = Flag::named("log-level").expect("the table has the log's flags");
        let level = Flag {
            default: "warn",
            ..*level
        };
        arg.default_value(level.default)
            .hide_default_value(true)
            .help(help(&level))
    })
}

/// Returns a flag with a value.
pub(super) fn option(name: &'static str, value: &'static str, help: impl Into<String>) -> Arg {
    Arg::new(name)
        .long(name)
        .action(ArgAction::Set)
        .allow_hyphen_values(true)
        .num_args(1)
        .value_name(value)
        .help(help.into())
}

/// Returns a flag that is true without a value.
pub(super) fn switch(name: &'static str, help: impl Into<String>) -> Arg {
    option(name, "true|false", help)
        .num_args(0..=1)
        .require_equals(true)
        .default_missing_value("true")
        .value_parser(|text: &str| go_bool(text).ok_or("must be true or false"))
}

/// Returns the file that a command reads.
pub(super) fn file(help: &'static str) -> Arg {
    Arg::new("FILE")
        .required(true)
        .value_parser(value_parser!(PathBuf))
        .help(help)
}

fn arg(flag: &Flag) -> Arg {
    let arg = match flag.kind {
        Kind::Text => option(flag.name, "VALUE", help(flag)),
        // Errors of variables and of flags are the same: `Given` parses both.
        Kind::Bool => switch(flag.name, help(flag)).value_parser(value_parser!(String)),
    };
    arg.help_heading(flag.group.heading())
        .hide_short_help(!matches!(flag.treatment, Treatment::Works(_)))
}

fn help(flag: &Flag) -> String {
    match flag.treatment {
        Treatment::Works(help) if flag.default.is_empty() || flag.name == "version" => help.to_owned(),
        Treatment::Works(help) => format!("{help} [default: {}]", flag.default),
        Treatment::Idle(why) => format!("no effect here: {why}"),
        Treatment::Refused(why) => format!("refused: {why}"),
        Treatment::Bootstrap(why) => format!("refused at the first start, without effect later: {why}"),
        Treatment::Renamed(new) => format!("old name of --{new}"),
        Treatment::Gate(gate) => format!("old name of --feature-gates={gate}=..."),
    }
}

/// Returns the value of an argument, if it is one of the command and given.
pub(super) fn value<T: Clone + Send + Sync + 'static>(args: &ArgMatches, name: &str) -> Option<T> {
    args.try_get_one(name).ok().flatten().cloned()
}

/// Returns true if a switch is set.
pub(super) fn is_set(args: &ArgMatches, name: &str) -> bool {
    value(args, name).unwrap_or(false)
}

/// Returns true if the store is in TiKV.
pub(super) fn is_on_tikv(args: &ArgMatches) -> bool {
    value::<String>(args, "storage").is_some_and(|storage| storage == "tikv")
}

/// Refuses a command that writes a store which is not named: it takes none by default.
pub(super) fn check_store_is_named(command: &str, args: &ArgMatches) -> Result<(), FlagError> {
    let needed = if is_on_tikv(args) {
        "tikv-key-prefix"
    } else {
        "data-dir"
    };
    match value::<String>(args, needed) {
        Some(_) => Ok(()),
        None => Err(FlagError(format!("{command} needs --{needed}"))),
    }
}
