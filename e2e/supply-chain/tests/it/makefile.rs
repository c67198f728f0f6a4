//! The Makefile builds programs from packages that have them. Cargo would say so only when the target is made.

use std::collections::BTreeMap;
use std::process::Command;

use crate::root;

/// Returns what a command printed.
fn printed(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the programs of each package of the workspace.
fn programs() -> BTreeMap<String, Vec<String>> {
    let args = ["metadata", "--no-deps", "--offline", "--format-version", "1"];
    let metadata: serde_json::Value = serde_json::from_str(&printed(env!("CARGO"), &args)).unwrap();
    let name = |of: &serde_json::Value| of["name"].as_str().unwrap().to_owned();
    let packages = metadata["packages"].as_array().unwrap().iter();
    packages
        .map(|package| {
            let targets = package["targets"].as_array().unwrap().iter();
            let programs = targets.filter(|target| target["kind"][0] == "bin").map(name);
            (name(package), programs.collect())
        })
        .collect()
}

/// Returns the values of an option that is given several times.
fn values<'a>(command: &'a str, option: &str) -> Vec<&'a str> {
    let mut words = command.split_whitespace();
    let mut found = Vec::new();
    while let Some(word) = words.next() {
        if word == option {
            found.push(words.next().unwrap());
        }
    }
    found
}

#[test]
fn packages_have_the_programs_that_are_built_of_them() {
    let programs = programs();
    let commands = printed("make", &["--dry-run", "demo-programs", "release-programs-amd64"]);
    let commands: Vec<&str> = commands.lines().filter(|line| line.contains("--bin ")).collect();
    assert_eq!(commands.len(), 3, "{commands:?}");
    for command in commands {
        let packages = values(command, "--package");
        let has = |program: &str| {
            packages
                .iter()
                .any(|package| programs[*package].iter().any(|own| own == program))
        };
        let missing: Vec<&str> = values(command, "--bin")
            .into_iter()
            .filter(|program| !has(program))
            .collect();
        assert!(missing.is_empty(), "{packages:?} have no {missing:?}");
    }
}
