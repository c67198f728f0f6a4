//! Files that others are derived from.

use std::path::Path;

use anyhow::{Context as _, ensure};
use serde::Deserialize as _;
use serde_json::Value;

/// First line of a file that holds nothing written by hand.
pub(crate) const DERIVED_HEADER: &str = "# Rendered by `make manifests`; do not edit.\n";

/// Reads a file below the directory.
///
/// # Errors
/// It cannot be read.
pub(crate) fn read(directory: &Path, name: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(directory.join(name)).with_context(|| format!("read {name}"))
}

/// Removes the lines that are comments: they stay in the source alone.
///
/// # Errors
/// The text is not YAML, or such a line is part of a value.
pub(crate) fn without_comments(text: &str) -> anyhow::Result<String> {
    let is_comment = |line: &&str| line.trim_start().starts_with('#');
    let bare: String = text.split_inclusive('\n').filter(|line| !is_comment(line)).collect();
    ensure!(
        documents(&bare)? == documents(text)?,
        "a line of a value begins with #: write the value in another form"
    );
    Ok(bare)
}

fn documents(text: &str) -> anyhow::Result<Vec<Value>> {
    let all = serde_yaml::Deserializer::from_str(text).map(Value::deserialize);
    all.collect::<Result<_, _>>().context("read YAML")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_left_out() {
        let text = "# About a.\na: 1 # stays\n  # About b.\nb: '#'\n";
        assert_eq!(without_comments(text).unwrap(), "a: 1 # stays\nb: '#'\n");
    }

    #[test]
    fn a_value_is_not_taken_for_a_comment() {
        let error = without_comments("a: |\n  first\n  # second\n").unwrap_err();
        assert!(error.to_string().contains("begins with #"), "{error}");
    }
}
