//! Comments are in plain English: words that readers stumbled over do not come back.

use std::fs;

use regex::Regex;

use crate::{files, root};

/// A pattern that comments must not have, the phrases that it does not mean, and what to write instead.
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

#[test]
fn comments_are_in_plain_words() {
    let compiled: Vec<(Regex, Option<Regex>, &Rule)> = RULES
        .iter()
        .map(|rule| {
            let except = rule.except.map(|phrases| Regex::new(phrases).unwrap());
            (Regex::new(rule.pattern).unwrap(), except, rule)
        })
        .collect();
    let (mut sources, mut found) = (Vec::new(), Vec::new());
    files(&root(), "rs", &mut sources);
    assert!(sources.len() > 500, "{} sources", sources.len());
    for file in sources {
        let text = fs::read_to_string(&file).unwrap();
        for (number, line) in text.lines().enumerate() {
            let Some(said) = comment(line) else { continue };
            for (pattern, except, rule) in &compiled {
                let left = except.as_ref().map(|except| except.replace_all(said, ""));
                if let Some(word) = pattern.find(left.as_deref().unwrap_or(said)) {
                    let name = file.strip_prefix(root()).unwrap().display();
                    let (number, word) = (number + 1, word.as_str());
                    found.push(format!("{name}:{number}: {word:?}, better {:?}: {said}", rule.instead));
                }
            }
        }
    }
    assert!(found.is_empty(), "{} lines:\n{}", found.len(), found.join("\n"));
}
