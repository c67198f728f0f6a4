//! Sections and tables of clap commands.

use clap::builder::Command;
use clap::{Arg, ArgAction};

use crate::markdown::{code, codes, prose, sentence, table, wrap};

/// Returns a section for each subcommand: its description, usage and arguments. Arguments that `is_shared` are only named.
pub(crate) fn sections(command: &Command, level: usize, is_shared: &dyn Fn(&Arg) -> bool) -> String {
    let mut page = String::new();
    let notes = text(command.get_after_help());
    for command in own_subcommands(command) {
        let path = command.get_bin_name().unwrap_or(command.get_name());
        page.push_str(&format!("{} {path}\n\n", "#".repeat(level)));
        let about = command.get_long_about().or(command.get_about());
        page.push_str(&paragraphs(&text(about)));
        let aliases = codes(command.get_visible_aliases());
        if !aliases.is_empty() {
            page.push_str(&format!("Another name: {aliases}.\n\n"));
        }
        if own_subcommands(command).next().is_none() {
            page.push_str(&usage(command, is_shared));
        }
        // Those of the command above hold for this one, too.
        if text(command.get_after_help()) != notes {
            page.push_str(&paragraphs(&text(command.get_after_help())));
        }
        page.push_str(&sections(command, level + 1, is_shared));
    }
    page
}

/// Returns the table of a command's arguments.
pub(crate) fn arguments<'a>(args: impl Iterator<Item = &'a Arg>) -> String {
    let rows = args.map(|arg| {
        let (meaning, default) = meaning(arg);
        [code(&syntax(arg)), default, meaning]
    });
    table(["argument", "default", "meaning"], rows)
}

/// Returns the table of flags that variables set, too.
pub(crate) fn flags_with_variables(command: &Command) -> String {
    let args = command.get_arguments().filter(|arg| is_own(arg));
    let rows = args.map(|arg| {
        let (meaning, default) = meaning(arg);
        let variable = arg.get_env().map(|name| code(&name.to_string_lossy()));
        let flag = arg.get_long().unwrap_or_default();
        [
            code(&format!("--{flag}")),
            variable.unwrap_or_default(),
            default,
            meaning,
        ]
    });
    table(["flag", "variable", "default", "meaning"], rows)
}

/// Splits the sentence that says the default from a help text.
pub(crate) fn split_default(help: &str) -> (&str, Option<&str>) {
    let inline = help
        .split_once(" [default: ")
        .map(|(help, rest)| (help, rest.trim_end_matches(']')));
    let default = inline.or_else(|| help.split_once("; default: "));
    default.map_or((help, None), |(help, default)| (help, Some(default)))
}

fn usage(command: &Command, is_shared: &dyn Fn(&Arg) -> bool) -> String {
    let usage = command.clone().render_usage().to_string();
    let mut page = format!("```\n{}\n```\n\n", usage.trim_start_matches("Usage: "));
    let args = command
        .get_arguments()
        .filter(|arg| is_own(arg) && !arg.is_global_set());
    let (shared, own): (Vec<_>, Vec<_>) = args.partition(|arg| is_shared(arg));
    if !own.is_empty() {
        page.push_str(&format!("{}\n", arguments(own.into_iter())));
    }
    if !shared.is_empty() {
        let names = codes(
            shared
                .into_iter()
                .filter_map(Arg::get_long)
                .map(|name| format!("--{name}")),
        );
        page.push_str(&format!("{}\n\n", wrap(&format!("It also takes {names}."))));
    }
    page
}

/// Returns the meaning of an argument, and its default.
fn meaning(arg: &Arg) -> (String, String) {
    let help = text(arg.get_help());
    let (help, described) = split_default(&help);
    let choices = arg.get_possible_values();
    let explained = choices.iter().filter_map(|choice| {
        let help = choice.get_help()?.to_string();
        Some(format!("`{}`: {}", choice.get_name(), help.trim_end_matches('.')))
    });
    let explained = explained.collect::<Vec<_>>().join("; ");
    let meaning = match explained.is_empty() {
        true => prose(help),
        false => format!("{}. {explained}", prose(help)),
    };
    let values = arg.get_default_values().iter().map(|value| value.to_string_lossy());
    let default = match described {
        Some(text) => prose(text),
        None if matches!(arg.get_action(), ArgAction::SetTrue) => String::new(),
        None => codes(values),
    };
    (meaning, default)
}

/// Returns how an argument is written.
fn syntax(arg: &Arg) -> String {
    let value = arg.get_value_names().and_then(|names| names.first());
    let value = value.filter(|_| arg.get_action().takes_values() && !arg.is_require_equals_set());
    let Some(long) = arg.get_long() else {
        return arg.get_id().to_string().to_uppercase();
    };
    let short = arg.get_short().map(|short| format!("-{short}, ")).unwrap_or_default();
    let value = value.map(|value| format!(" {value}")).unwrap_or_default();
    format!("{short}--{long}{value}")
}

fn own_subcommands(command: &Command) -> impl Iterator<Item = &Command> {
    let all = command.get_subcommands();
    all.filter(|command| !command.is_hide_set() && command.get_name() != "help")
}

/// Returns true unless clap has added an argument.
fn is_own(arg: &Arg) -> bool {
    !["help", "version"].contains(&arg.get_id().as_str())
}

fn paragraphs(text: &str) -> String {
    let paragraphs = text.split("\n\n").filter(|paragraph| !paragraph.is_empty());
    paragraphs
        .map(|paragraph| format!("{}\n\n", wrap(&prose(&sentence(paragraph)))))
        .collect()
}

fn text(text: Option<&clap::builder::StyledStr>) -> String {
    text.map(ToString::to_string).unwrap_or_default()
}
