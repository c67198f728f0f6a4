//! Comments and texts of programs are in plain English: words that readers stumbled over do not come back.

use std::fs;
use std::path::PathBuf;

use regex::Regex;

use crate::{files, root};

/// A pattern that prose must not have, the phrases that it does not mean, and what to write instead.
struct Rule {
    pattern: &'static str,
    except: Option<&'static str>,
    instead: &'static str,
}

const RULES: &[Rule] = &[
    rule(r"\bbehind\b", "after, for time").except(
        r"\b(fall|falls|fell|fallen|falling|far|is|are|was|were|be|versions?|slots?|bytes|events?|lag|lags|runs?) behind\b|\bbehind the (leader|head|log|others)\b",
    ),
    rule(r"(?i)\b(nobody|somebody|whoever)\b", "no client, another member, the caller"),
    rule(r"(?i)\bmeanwhile\b", "while …"),
    rule(r"\b(go|goes|went|going|gone) on\b", "continues"),
    rule(r"\bshall\b", "must"),
    rule(r"\b(is|are|was|were) to be\b", "must be"),
    rule(r"\b(has|have|had) to\b", "must"),
    rule(r"(?i)\bso many\b", "N"),
    rule(r"\b(as )?of which\b", "whose, per"),
    rule(r"(^|[.:] )(What|Who|Whom|Whose|Whether)\b", "subject, verb, object"),
    rule(r"\b(is|are|was|were|be|been) told\b", "is sent, is reported"),
    rule(r"\ball the same\b", "anyway"),
    rule(r"\b(is|are|was|were|be) there\b", "exists"),
    rule(r"\b(lies|lie|lay|lain)\b", "is"),
    rule(r"\bstands?\b", "is, remains").except(r"\bstands? for\b"),
];

/// Further patterns that log lines, errors and help texts must not have.
const TEXT_RULES: &[Rule] = &[
    rule(r"\bunder way\b", "in progress, in-flight, running"),
    rule(r"\banew\b", "again, new"),
    rule(r"\bagain and again\b", "keeps …ing, repeatedly"),
    rule(r"\bcut short\b", "truncated"),
    rule(r"\bfrom now on\b", "now"),
    rule(r"^(what|who|whom|whose|whether)\b", "subject, verb, object"),
    rule(
        r"\b(cannot be|is|are) (noted|shown|heard)\b",
        "recorded, presented, received",
    ),
    rule(r"\blooks? (whether|after)\b", "check whether, manage"),
];

/// Beginnings of texts that are not ours or not prose.
const ALLOWED: &[&str] = &[
    // names of steps in the scripts of the differential test
    "lock behind",
    "campaign behind",
    "Lock behind",
    "Campaign behind",
    // the MIT licence
    "Permission is hereby granted",
];

const fn rule(pattern: &'static str, instead: &'static str) -> Rule {
    Rule {
        pattern,
        except: None,
        instead,
    }
}

impl Rule {
    const fn except(self, phrases: &'static str) -> Rule {
        Rule {
            except: Some(phrases),
            ..self
        }
    }
}

/// Returns the comment that a line is, without its slashes.
fn comment(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("//")?;
    Some(rest.trim_start_matches(['/', '!']).trim())
}

/// A rule that is ready to be applied.
struct Compiled {
    pattern: Regex,
    except: Option<Regex>,
    instead: &'static str,
}

fn compile<'a>(rules: impl IntoIterator<Item = &'a Rule>) -> Vec<Compiled> {
    let compile = |rule: &Rule| Compiled {
        pattern: Regex::new(rule.pattern).unwrap(),
        except: rule.except.map(|phrases| Regex::new(phrases).unwrap()),
        instead: rule.instead,
    };
    rules.into_iter().map(compile).collect()
}

/// Returns the first word of `text` that a rule rejects, with what to write instead.
fn stumble(text: &str, rules: &[Compiled]) -> Option<String> {
    rules.iter().find_map(|rule| {
        let left = rule.except.as_ref().map(|except| except.replace_all(text, ""));
        let word = rule.pattern.find(left.as_deref().unwrap_or(text))?;
        Some(format!("{:?}, better {:?}", word.as_str(), rule.instead))
    })
}

/// Returns the sources with their paths below the root.
fn sources() -> Vec<(String, String)> {
    let mut all = Vec::new();
    files(&root(), "rs", &mut all);
    assert!(all.len() > 500, "{} sources", all.len());
    let read = |file: PathBuf| {
        let name = file.strip_prefix(root()).unwrap().display().to_string();
        (name, fs::read_to_string(&file).unwrap())
    };
    all.into_iter().map(read).collect()
}

/// Returns the string literals of a source, each with its line. Continued lines are joined, placeholders are left out.
fn literals(source: &str) -> Vec<(usize, String)> {
    const TOKENS: [&str; 6] = [
        "//[^\n]*",
        r#"\br"([^"]*)""#,
        r##"\br#"(.*?)"#"##,
        r###"\br##"(.*?)"##"###,
        r#""((?:[^"\\]|\\.)*)""#,
        r"'(?:\\[^']+|[^'\\])'",
    ];
    let token = format!("(?s){}", TOKENS.join("|"));
    let (token, joint) = (Regex::new(&token).unwrap(), Regex::new(r"\\\n\s*").unwrap());
    let placeholder = Regex::new(r"\{[^{}]*\}").unwrap();
    let mut found = Vec::new();
    for token in token.captures_iter(source) {
        let Some(text) = (1..=4).find_map(|group| token.get(group)) else {
            continue;
        };
        let line = source[..text.start()].matches('\n').count() + 1;
        let joined = joint.replace_all(text.as_str(), "");
        found.push((line, placeholder.replace_all(&joined, "{}").into_owned()));
    }
    found
}

/// Returns the part of a source that ends before its own tests; `None` for a file of tests.
fn product<'a>(name: &str, source: &'a str) -> Option<&'a str> {
    let is_test = ["/tests/", "/tests.rs", "/fuzz/", "/fake_"]
        .iter()
        .any(|part| name.contains(part));
    (!is_test).then(|| source.split("#[cfg(test)]\nmod ").next().unwrap_or(source))
}

#[test]
fn comments_are_in_plain_words() {
    let rules = compile(RULES);
    let mut found = Vec::new();
    for (name, text) in sources() {
        for (number, line) in text.lines().enumerate() {
            let Some(said) = comment(line) else { continue };
            if let Some(stumble) = stumble(said, &rules) {
                found.push(format!("{name}:{}: {stumble}: {said}", number + 1));
            }
        }
    }
    assert!(found.is_empty(), "{} lines:\n{}", found.len(), found.join("\n"));
}

#[test]
fn texts_of_programs_are_in_plain_words() {
    let rules = compile(RULES.iter().chain(TEXT_RULES));
    let (mut read, mut found) = (0, Vec::new());
    for (name, source) in sources() {
        let Some(source) = product(&name, &source) else {
            continue;
        };
        for (line, text) in literals(source) {
            // A single word is a name.
            if !text.contains(' ') || ALLOWED.iter().any(|allowed| text.starts_with(allowed)) {
                continue;
            }
            read += 1;
            if let Some(stumble) = stumble(&text, &rules) {
                found.push(format!("{name}:{line}: {stumble}: {text}"));
            }
        }
    }
    assert!(read > 2_000, "{read} texts");
    assert!(found.is_empty(), "{} texts:\n{}", found.len(), found.join("\n"));
}

#[test]
fn literals_are_found_with_their_lines() {
    let source =
        "// \"no\"\nlet c = '\"'; // '\nbail!(\"one \\\n    two {x:?}\");\nlet r = r#\"three \"four\" five\"#;";
    let found = [(3, "one two {}".to_owned()), (5, "three \"four\" five".to_owned())];
    assert_eq!(literals(source), found);
}
