//! Integers as Go's flags have them: decimal, `0x10`, `0o10` or `010`, `0b10`, with underscores between digits.

/// Parses an integer.
#[must_use]
pub(super) fn parse(text: &str) -> Option<i128> {
    let (is_negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, &lower[2..]),
        [b'0', b'o', ..] => (8, &lower[2..]),
        [b'0', b'b', ..] => (2, &lower[2..]),
        [b'0', _, ..] => (8, &lower[1..]),
        _ => (10, lower.as_str()),
    };
    // An underscore must follow a digit or a prefix, and precede a digit.
    let digits = match radix {
        10 => digits,
        _ => digits.strip_prefix('_').unwrap_or(digits),
    };
    if digits.is_empty() || digits.starts_with(['_', '+', '-']) || digits.ends_with('_') || digits.contains("__") {
        return None;
    }
    let plain: String = digits.chars().filter(|digit| *digit != '_').collect();
    let number = i128::from_str_radix(&plain, radix).ok()?;
    Some(if is_negative { -number } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_those_of_go() {
        for (text, number) in [
            ("5", Some(5)),
            ("-5", Some(-5)),
            ("+5", Some(5)),
            ("0", Some(0)),
            ("1_000", Some(1_000)),
            ("0x10", Some(16)),
            ("0X1F", Some(31)),
            ("010", Some(8)),
            ("0o10", Some(8)),
            ("0b11", Some(3)),
            ("0_7", Some(7)),
            ("0x_1", Some(1)),
            ("18446744073709551615", Some(i128::from(u64::MAX))),
            ("08", None),
            ("", None),
            ("-", None),
            ("--5", None),
            ("0x", None),
            ("0x-1", None),
            (" 5", None),
            ("5 ", None),
            ("1e3", None),
            ("5.", None),
            ("_5", None),
            ("5_", None),
            ("1__0", None),
            ("\u{e9}", None),
            ("99999999999999999999999999999999999999999", None),
        ] {
            assert_eq!(parse(text), number, "{text:?}");
        }
    }
}
