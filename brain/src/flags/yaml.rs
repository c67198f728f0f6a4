//! YAML as etcd reads it: the first document, by way of JSON. Of two equal keys the last one counts, and merge keys are merged.

use std::fmt;

use serde::de::{Deserialize, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess as _, Visitor};

/// A value. Numbers are texts.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

/// The key whose mapping is merged into the one around it.
const MERGE: &str = "<<";

/// Reads the first document of a text; none is a null.
pub(super) fn read(text: &str) -> Result<Node, serde_yaml::Error> {
    match serde_yaml::Deserializer::from_str(text).next() {
        Some(document) => Node::deserialize(document),
        None => Ok(Node::Null),
    }
}

/// Parses a word that is a boolean in YAML 1.1.
pub(super) fn word(text: &str) -> Option<bool> {
    match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => Some(true),
        "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => Some(false),
        _ => None,
    }
}

impl Node {
    /// Returns a key of a mapping, which JSON has as a text.
    fn into_key(self) -> Option<String> {
        match self {
            Node::Text(text) | Node::Number(text) => Some(text),
            Node::Bool(bool) => Some(bool.to_string()),
            Node::Null | Node::List(_) | Node::Map(_) => None,
        }
    }
}

/// Adds one or several merged mappings after the existing entries.
fn merge(entries: &mut Vec<(String, Node)>, merged: Node) {
    match merged {
        Node::Map(more) => {
            for (key, value) in more {
                if entries.iter().all(|(own, _)| *own != key) {
                    entries.push((key, value));
                }
            }
        }
        Node::List(all) => all.into_iter().for_each(|one| merge(entries, one)),
        _ => {}
    }
}

/// Writes a float as JSON would, if it is a whole number.
fn float(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e18 {
        format!("{value:.0}")
    } else {
        value.to_string()
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Number(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Number(value.to_string()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Node, E> {
        Ok(Node::Number(value.to_string()))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Node, E> {
        Ok(Node::Number(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Number(float(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Node, A::Error> {
        let (mut entries, mut merged) = (Vec::new(), Vec::new());
        while let Some((key, value)) = fields.next_entry::<Node, Node>()? {
            let key = key
                .into_key()
                .ok_or_else(|| A::Error::custom("a key is not a string"))?;
            if key == MERGE {
                merged.push(value);
                continue;
            }
            entries.retain(|(own, _)| *own != key);
            entries.push((key, value));
        }
        merged.into_iter().for_each(|more| merge(&mut entries, more));
        Ok(Node::Map(entries))
    }

    /// A value with a tag of its own.
    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<Node, A::Error> {
        let (_, value): (String, _) = data.variant()?;
        value.newtype_variant()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Node {
        match read(&format!("a: {text}")).unwrap() {
            Node::Map(mut entries) => entries.remove(0).1,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn numbers_and_words_are_those_of_json() {
        let number = |text: &str| Node::Number(text.to_owned());
        let text = |text: &str| Node::Text(text.to_owned());
        for (yaml, node) in [
            ("8e9", number("8000000000")),
            ("8.0", number("8")),
            ("1.5", number("1.5")),
            ("0x10", number("16")),
            ("0o10", number("8")),
            ("18446744073709551615", number("18446744073709551615")),
            ("-0", number("0")),
            // Flags read these as numbers.
            ("010", text("010")),
            ("1_000", text("1_000")),
            ("5s", text("5s")),
            ("yes", text("yes")),
            ("!!str 7", text("7")),
            ("true", Node::Bool(true)),
            ("~", Node::Null),
            ("", Node::Null),
        ] {
            assert_eq!(of(yaml), node, "{yaml}");
        }
    }

    #[test]
    fn last_of_equal_keys_counts_and_only_the_first_document() {
        let map = |entries: &[(&str, &str)]| {
            let entries = entries.iter();
            Node::Map(
                entries
                    .map(|(key, value)| ((*key).to_owned(), Node::Number((*value).to_owned())))
                    .collect(),
            )
        };
        assert_eq!(read("a: 1\nb: 2\na: 3").unwrap(), map(&[("b", "2"), ("a", "3")]));
        assert_eq!(read("---\na: 1\n---\na: 2\n").unwrap(), map(&[("a", "1")]));
        assert_eq!(read("").unwrap(), Node::Null);
        assert_eq!(read("# nothing\n").unwrap(), Node::Null);
        assert_eq!(read("1: 2\ntrue: 3").unwrap(), map(&[("1", "2"), ("true", "3")]));
        let merged = read("x: &x {b: 1, c: 2}\ny: {<<: *x, b: 3}").unwrap();
        let Node::Map(entries) = merged else {
            panic!("{merged:?}")
        };
        assert_eq!(entries[1].1, map(&[("b", "3"), ("c", "2")]));
    }
}
