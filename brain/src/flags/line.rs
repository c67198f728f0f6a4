//! The command line between the user and clap: the forms of flags that Go takes, and errors in one line.

use std::error::Error as _;
use std::ffi::OsString;

use clap::builder::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::FlagError;

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

/// Arguments in the form that clap takes, and the command that they are for.
pub(super) struct Line<'a> {
    /// The arguments, the program's name first.
    pub(super) args: Vec<OsString>,
    command: &'a Command,
    /// The words that name the command, such as `snapshot restore`; `kubebrain` without a subcommand.
    name: String,
    is_subcommand: bool,
}

impl<'a> Line<'a> {
    /// Replaces Go's `-flag` by `--flag`, and removes flags that etcd has forgotten. Values stay unchanged.
    pub(super) fn new(
        program: &'a Command,
        args: impl IntoIterator<Item = OsString>,
        warnings: &mut Vec<String>,
    ) -> Line<'a> {
        let mut args = args.into_iter().peekable();
        let (mut command, mut names) = (program, Vec::new());
        while let Some(found) = args.peek().and_then(|name| command.find_subcommand(name)) {
            command = found;
            names.extend(args.next());
        }
        let words: Vec<_> = names.iter().map(|name| name.to_string_lossy()).collect();
        let is_subcommand = !words.is_empty();
        let name = if is_subcommand {
            words.join(" ")
        } else {
            "kubebrain".to_owned()
        };
        let mut line = Line {
            args: vec!["kubebrain".into()],
            command,
            name,
            is_subcommand,
        };
        line.args.extend(names);
        while let Some(arg) = args.next() {
            let text = arg.to_string_lossy().into_owned();
            let flag = text.trim_start_matches('-');
            let bare = flag.split('=').next().unwrap_or(flag);
            match text.as_str() {
                "--" => {
                    line.args.push(arg);
                    line.args.extend(args);
                    break;
                }
                "-" | "-h" => line.args.push(arg),
                "-help" => line.args.push("--help".into()),
                text if !text.starts_with('-') => line.args.push(arg),
                _ if !line.is_subcommand && FORGOTTEN.contains(&bare) => {
                    warnings.push(format!("--{bare} has no effect: etcd ignores it, too"));
                }
                text => {
                    let mut dashed = OsString::from(if text.starts_with("--") { "" } else { "-" });
                    dashed.push(&arg);
                    let has_value = line.takes_value(bare) && flag == bare;
                    line.args.push(dashed);
                    line.args.extend(has_value.then(|| args.next()).flatten());
                }
            }
        }
        line
    }

    /// Returns true if the next argument is the value of this flag.
    fn takes_value(&self, flag: &str) -> bool {
        let mut known = self.command.get_arguments();
        known.any(|arg| arg.get_long() == Some(flag) && !arg.is_require_equals_set())
    }

    /// Formats an error of clap as one line that names the command and the argument.
    pub(super) fn error(&self, error: &clap::Error) -> FlagError {
        let context = |kind| match error.get(kind) {
            Some(ContextValue::String(text)) => text.clone(),
            Some(ContextValue::Strings(texts)) => texts.first().cloned().unwrap_or_default(),
            _ => String::new(),
        };
        let (command, arg) = (&self.name, context(ContextKind::InvalidArg));
        let name = arg.split([' ', '=', '[']).next().unwrap_or_default();
        let other = context(ContextKind::InvalidSubcommand);
        FlagError(match error.kind() {
            ErrorKind::UnknownArgument => {
                let given = if arg.starts_with('-') {
                    arg.clone()
                } else {
                    format!("{arg:?}")
                };
                match (context(ContextKind::SuggestedArg), self.is_subcommand) {
                    (near, false) if near.is_empty() => format!("unknown flag {given}: see --help"),
                    (near, true) if near.is_empty() => {
                        format!("{command} takes no {given}: see kubebrain {command} --help")
                    }
                    (near, false) => format!("unknown flag {given}: did you mean {near}?"),
                    (near, true) => format!("{command} takes no {given}: did you mean {near}?"),
                }
            }
            ErrorKind::MissingRequiredArgument => format!("{command} needs {name}"),
            ErrorKind::InvalidValue | ErrorKind::TooFewValues => format!("{name} needs a value"),
            ErrorKind::ValueValidation => {
                let value = context(ContextKind::InvalidValue);
                let why = error.source().map(ToString::to_string).unwrap_or_default();
                format!("{name} is not valid: {value:?}: {why}")
            }
            ErrorKind::InvalidUtf8 => "an argument is not valid UTF-8".to_owned(),
            ErrorKind::MissingSubcommand => format!("{command} needs one of {}", self.subcommands()),
            ErrorKind::InvalidSubcommand => format!("{command} has no {other:?}, only {}", self.subcommands()),
            // After a flag there is no subcommand.
            ErrorKind::ArgumentConflict if !other.is_empty() => format!("{other:?} is not a valid flag"),
            _ => {
                let text = error.to_string();
                let first = text.lines().next().unwrap_or("bad command line");
                first.trim_start_matches("error: ").to_owned()
            }
        })
    }

    /// Returns the names that may follow.
    fn subcommands(&self) -> String {
        let all = self.command.get_subcommands().filter(|command| !command.is_hide_set());
        let names = all.flat_map(|command| std::iter::once(command.get_name()).chain(command.get_visible_aliases()));
        names.collect::<Vec<_>>().join(", ")
    }
}
