//! SPDX expressions, as far as crates use them.

use std::collections::BTreeSet;

use super::DependencyPolicy;
use crate::Graph;

/// Crates whose licences are not allowed.
pub(crate) fn findings(policy: &DependencyPolicy, graph: &Graph) -> Vec<String> {
    let bad = graph.packages().filter_map(|package| match &package.licence {
        None => Some(format!("{package} names no licence")),
        Some(licence) if !is_allowed(licence, &policy.licences) => {
            Some(format!("the licence of {package} is not allowed: {licence}"))
        }
        Some(_) => None,
    });
    bad.collect()
}

/// Returns true if an expression can be satisfied. A text that is not an expression cannot.
#[must_use]
pub fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    // The slash is how crates wrote "or" before they used SPDX.
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut reader = ExpressionReader { words: &words, allowed };
    reader.any() == Some(true) && reader.words.is_empty()
}

struct ExpressionReader<'a> {
    words: &'a [&'a str],
    allowed: &'a BTreeSet<String>,
}

impl<'a> ExpressionReader<'a> {
    fn next_is(&mut self, word: &str) -> bool {
        let is = self.words.first() == Some(&word);
        if is {
            self.words = &self.words[1..];
        }
        is
    }

    fn next(&mut self) -> Option<&'a str> {
        let (first, rest) = self.words.split_first()?;
        self.words = rest;
        Some(first)
    }

    fn any(&mut self) -> Option<bool> {
        let mut is = self.all()?;
        while self.next_is("OR") {
            is |= self.all()?;
        }
        Some(is)
    }

    fn all(&mut self) -> Option<bool> {
        let mut is = self.one()?;
        while self.next_is("AND") {
            is &= self.one()?;
        }
        Some(is)
    }

    fn one(&mut self) -> Option<bool> {
        if self.next_is("(") {
            let is = self.any()?;
            return self.next_is(")").then_some(is);
        }
        let mut licence = self.next()?.to_owned();
        if self.next_is("WITH") {
            licence = format!("{licence} WITH {}", self.next()?);
        }
        Some(self.allowed.contains(&licence))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::Package;

    pub(crate) fn package(name: &str, version: &str, licence: &str) -> Package {
        Package {
            name: name.into(),
            version: version.into(),
            licence: Some(licence.into()),
            source: None,
            authors: Vec::new(),
            directory: "/".into(),
        }
    }

    #[test]
    fn expressions_are_read_as_spdx_reads_them() {
        let allowed = ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"]
            .map(str::to_owned)
            .into();
        for (expression, is) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("GPL-3.0 OR MIT", true),
            ("GPL-3.0/MIT", true),
            ("GPL-3.0 AND MIT", false),
            ("MIT AND ISC", true),
            ("(GPL-3.0 OR MIT) AND ISC", true),
            ("GPL-3.0 OR MIT AND GPL-2.0", false),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("Apache-2.0", false),
            ("", false),
            ("MIT)", false),
            ("(MIT", false),
        ] {
            assert_eq!(is_allowed(expression, &allowed), is, "{expression}");
        }
    }

    #[test]
    fn a_crate_without_an_allowed_licence_is_found() {
        let policy = DependencyPolicy {
            licences: ["MIT".to_owned()].into(),
            ..DependencyPolicy::default()
        };
        let mut silent = package("b", "1.0.0", "");
        silent.licence = None;
        let graph = Graph::of([package("a", "1.0.0", "GPL-3.0"), silent, package("c", "1.0.0", "MIT")]);
        assert_eq!(
            findings(&policy, &graph),
            [
                "the licence of a@1.0.0 is not allowed: GPL-3.0",
                "b@1.0.0 names no licence"
            ]
        );
    }
}
