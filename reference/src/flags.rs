//! The page of flags and commands.

use std::collections::BTreeMap;

use brain::flags::{FLAGS, Flag, Treatment};
use clap::Arg;

use crate::commands::{self, split_default};
use crate::markdown::{code, codes, prose, table};
use crate::template::fill;

pub(crate) fn page() -> anyhow::Result<String> {
    let mut program = brain::flags::program();
    program.build();
    let mut plugin = kubectl_kubebrain::command();
    plugin.build();
    let of_kubectl = plugin
        .get_arguments()
        .filter(|arg| arg.is_global_set() && arg.get_id() != "help");
    let is_of_server = |arg: &Arg| arg.get_long().and_then(Flag::named).is_some();
    fill(
        include_str!("../templates/flags.md"),
        [
            ("flags", working()),
            ("idle", idle()),
            ("refused", refused()),
            ("renamed", renamed()),
            ("gates", gates()),
            ("subcommands", commands::sections(&program, 3, &is_of_server)),
            ("operator", commands::flags_with_variables(&operator::command())),
            ("options of kubectl", commands::arguments(of_kubectl)),
            ("plugin", commands::sections(&plugin, 3, &|_| false)),
        ],
    )
}

fn name(flag: &Flag) -> String {
    format!("--{}", flag.name)
}

/// Returns the flags that work, by their groups.
fn working() -> String {
    let mut groups: Vec<(&str, Vec<[String; 3]>)> = Vec::new();
    for flag in FLAGS {
        let Treatment::Works(help) = flag.treatment else {
            continue;
        };
        let (help, described) = split_default(help);
        let default = match described {
            Some(text) => prose(text),
            None if flag.default.is_empty() => String::new(),
            None => code(flag.default),
        };
        let row = [code(&name(flag)), default, prose(help)];
        let heading = flag.group.heading();
        match groups.iter_mut().find(|(group, _)| *group == heading) {
            Some((_, rows)) => rows.push(row),
            None => groups.push((heading, vec![row])),
        }
    }
    let sections = groups.into_iter().map(|(heading, rows)| {
        let table = table(["flag", "default", "meaning"], rows);
        format!("### {heading}\n\n{table}\n")
    });
    sections.collect()
}

/// Returns flags by reasons, in the order of the table.
fn by_reason(reason: impl Fn(Treatment) -> Option<&'static str>) -> Vec<(String, &'static str)> {
    let mut found: BTreeMap<usize, (Vec<String>, &str)> = BTreeMap::new();
    for (at, flag) in FLAGS.iter().enumerate() {
        let Some(why) = reason(flag.treatment) else { continue };
        let same = found.values_mut().find(|(_, other)| *other == why);
        match same {
            Some((flags, _)) => flags.push(name(flag)),
            None => drop(found.insert(at, (vec![name(flag)], why))),
        }
    }
    found.into_values().map(|(flags, why)| (codes(flags), why)).collect()
}

fn idle() -> String {
    let idle = by_reason(|treatment| match treatment {
        Treatment::Idle(why) => Some(why),
        _ => None,
    });
    table(
        ["flag", "reason"],
        idle.into_iter().map(|(flags, why)| [flags, prose(why)]),
    )
}

fn refused() -> String {
    let always = by_reason(|treatment| match treatment {
        Treatment::Refused(why) => Some(why),
        _ => None,
    });
    let at_first = by_reason(|treatment| match treatment {
        Treatment::Bootstrap(why) => Some(why),
        _ => None,
    });
    let row = |when: &'static str| move |(flags, why)| [flags, when.to_owned(), prose(why)];
    let always = always.into_iter().map(row("set to another value than the default"));
    let at_first = at_first.into_iter().map(row("set at the first start; no effect later"));
    table(["flag", "when", "reason"], always.chain(at_first))
}

fn renamed() -> String {
    let renamed = FLAGS.iter().filter_map(|flag| match flag.treatment {
        Treatment::Renamed(new) => Some([code(&name(flag)), code(&format!("--{new}"))]),
        _ => None,
    });
    table(["old name", "flag"], renamed)
}

fn gates() -> String {
    let gates = FLAGS.iter().filter_map(|flag| match flag.treatment {
        Treatment::Gate(gate) => Some([code(&name(flag)), code(gate)]),
        _ => None,
    });
    table(["old name", "gate"], gates)
}
