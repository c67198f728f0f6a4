//! The values that a flag of the brain takes.

/// Units of Go's durations in nanoseconds. `ms` comes before its prefix `m`.
const UNITS: [(&str, u128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// The values that a flag takes, as far as its bounds define them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// Any text, including values that only the brain can check.
    Text,
    /// A boolean as Go parses it.
    Bool,
    /// A whole number within these bounds.
    Number(i128, i128),
    /// A duration as Go parses it, within these bounds in nanoseconds.
    Duration(u128, u128),
    /// One of these words, separated by `|`.
    OneOf(&'static str),
}

impl Values {
    /// Parses the words of a table line that describe the values.
    pub(super) fn read(words: &[&'static str]) -> Option<Self> {
        Some(match words {
            [] | ["text"] => Self::Text,
            ["bool"] => Self::Bool,
            ["number", least, most] => Self::Number(least.parse().ok()?, most.parse().ok()?),
            ["duration", least, most] => Self::Duration(least.parse().ok()?, most.parse().ok()?),
            ["one-of", words] => Self::OneOf(words),
            _ => return None,
        })
    }

    /// Returns what is wrong with a value, in words; `None` if no fault is known.
    #[must_use]
    pub fn fault(self, value: &str) -> Option<String> {
        match self {
            Self::Text => None,
            Self::Bool => {
                let known = [
                    "1", "t", "T", "TRUE", "true", "True", "0", "f", "F", "FALSE", "false", "False",
                ];
                (!known.contains(&value)).then(|| "is neither true nor false".to_owned())
            }
            Self::Number(least, most) => match whole(value) {
                Some(number) if (least..=most).contains(&number) => None,
                Some(_) => Some(format!("is not in {least} to {most}")),
                None => Some("is not an integer".to_owned()),
            },
            Self::Duration(least, most) => match nanoseconds(value) {
                Some(taken) if (least..=most).contains(&taken) => None,
                Some(_) if value.len() > 64 => Some("is not a duration".to_owned()),
                Some(taken) if taken < least => Some(format!("is shorter than {}", shown(least))),
                Some(_) => Some(format!("is longer than {}", shown(most))),
                None => Some("is not a duration such as 5s, 1m30s or 100ms".to_owned()),
            },
            Self::OneOf(words) if words.split('|').any(|word| word == value) => None,
            Self::OneOf(words) => {
                let words: Vec<&str> = words.split('|').filter(|word| !word.is_empty()).collect();
                Some(format!("is none of {}", words.join(", ")))
            }
        }
    }
}

/// Parses a whole number as Go's flags do: base 16 after `0x`, base 8 after `0o` or `0`, base 2 after `0b`, with underscores between
/// digits. Returns `None` if the text is not a number.
fn whole(text: &str) -> Option<i128> {
    let (sign, text) = match text.strip_prefix('-') {
        Some(text) => (-1, text),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefix = text.get(..2).unwrap_or_default().to_ascii_lowercase();
    let (radix, digits) = match prefix.as_str() {
        "0x" => (16, &text[2..]),
        "0o" => (8, &text[2..]),
        "0b" => (2, &text[2..]),
        _ if text.len() > 1 && text.starts_with('0') => (8, &text[1..]),
        _ => (10, text),
    };
    // Go allows an underscore after a digit, or after the prefix of the base.
    let is_behind = radix == 10 && digits.starts_with('_');
    if is_behind || digits.contains("__") || digits.ends_with('_') || digits.starts_with(['+', '-']) {
        return None;
    }
    let number = i128::from_str_radix(&digits.replace('_', ""), radix).ok()?;
    Some(sign * number)
}

/// Parses a duration as Go does, but without negative ones. Returns `None` if the text is not a duration.
fn nanoseconds(text: &str) -> Option<u128> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(0);
    }
    let mut total: Option<u128> = None;
    while !rest.is_empty() {
        let number = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let (number, behind) = rest.split_at(number);
        let unit = behind
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(unit);
        let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') || whole.len() > 19 {
            return None;
        }
        let digits = |text: &str| {
            text.bytes()
                .fold(0_u128, |sum, digit| sum * 10 + u128::from(digit - b'0'))
        };
        // Digits below a nanosecond are ignored.
        let fraction = &fraction[..fraction.len().min(18)];
        let places = u32::try_from(fraction.len()).ok()?;
        let term = digits(whole) * scale + digits(fraction) * scale / 10_u128.pow(places);
        total = Some(total.unwrap_or_default().saturating_add(term));
        rest = behind;
    }
    total
}

fn shown(nanoseconds: u128) -> String {
    match nanoseconds {
        whole if whole % 1_000_000_000 == 0 => format!("{}s", whole / 1_000_000_000),
        other => format!("{other}ns"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(values: Values, value: &str, fault: Option<&str>) {
        assert_eq!(values.fault(value).as_deref(), fault, "{values:?} {value:?}");
    }

    #[test]
    fn values_are_held_against_their_bounds() {
        let number = Values::Number(4, 31);
        check(number, "4", None);
        check(number, "31", None);
        check(number, "32", Some("is not in 4 to 31"));
        for good in ["+4", "0x10", "0X_1f", "0o17", "010", "0b1_00", "1_0"] {
            check(number, good, None);
        }
        check(number, "040", Some("is not in 4 to 31"));
        check(number, "-4", Some("is not in 4 to 31"));
        for bad in [
            "abc",
            "",
            "1.0",
            "1e2",
            "0x",
            "08",
            "_4",
            "4_",
            "1__0",
            "--4",
            "0x-4",
            " 4",
            "99999999999999999999999999999999999999999",
        ] {
            check(number, bad, Some("is not an integer"));
        }
        check(Values::Bool, "true", None);
        check(Values::Bool, "yes", Some("is neither true nor false"));
        check(Values::OneOf("basic|extensive"), "extensive", None);
        check(Values::OneOf("|a|b"), "", None);
        check(Values::OneOf("|a|b"), "c", Some("is none of a, b"));
        check(Values::Text, "anything", None);
    }

    #[test]
    fn durations_are_those_of_go() {
        let duration = Values::Duration(1, 30_000_000_000);
        for good in ["30s", "1ns", "+.5s", "1.5s", "10s20000ms", "1\u{b5}s"] {
            check(duration, good, None);
        }
        check(duration, "0", Some("is shorter than 1ns"));
        check(duration, "31s", Some("is longer than 30s"));
        for bad in ["", "5", "-1s", "1d", "s", "1..2s", "1h1", "\u{e9}"] {
            check(duration, bad, Some("is not a duration such as 5s, 1m30s or 100ms"));
        }
    }
}
