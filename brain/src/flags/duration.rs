//! Durations in Go's format: `5s`, `1m30s`, `100ms`, `1.5h`.

use std::time::Duration;

/// The units with their nanoseconds, ordered such that `ms` precedes its prefix `m`.
const UNITS: &[(&str, u64)] = &[
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Parses a non-negative duration in Go's format. The error does not contain the value.
pub fn parse(text: &str) -> Result<Duration, String> {
    if text.starts_with('-') {
        return Err("a negative duration".to_owned());
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err("an empty duration".to_owned());
    }
    let mut total: u128 = 0;
    while !rest.is_empty() {
        let (nanos, behind) = term(rest)?;
        total += nanos;
        rest = behind;
    }
    match u64::try_from(total) {
        Ok(nanos) if i64::try_from(nanos).is_ok() => Ok(Duration::from_nanos(nanos)),
        _ => Err("a duration beyond 292 years".to_owned()),
    }
}

/// Parses one number with its unit; returns nanoseconds and the rest of the text.
fn term(text: &str) -> Result<(u128, &str), String> {
    let number_len = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, behind) = text.split_at(number_len);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') || whole.len() > 19 {
        return Err("not a duration such as 5s, 1m30s or 100ms".to_owned());
    }
    let unit_len = behind
        .find(|c: char| c.is_ascii_digit() || c == '.')
        .unwrap_or(behind.len());
    let (unit, behind) = behind.split_at(unit_len);
    let Some((_, scale)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err(match unit {
            "" => "a duration without a unit".to_owned(),
            _ => format!("unknown unit {unit:?} of a duration"),
        });
    };
    let scale = u128::from(*scale);
    let mut nanos = digits(whole) * scale;
    // Digits below a nanosecond are ignored.
    let fraction = &fraction[..fraction.len().min(18)];
    nanos += digits(fraction) * scale / 10_u128.pow(u32::try_from(fraction.len()).unwrap_or(0));
    Ok((nanos, behind))
}

/// Parses at most 19 digits as a number; no digits are 0.
fn digits(text: &str) -> u128 {
    text.bytes().fold(0, |sum, digit| sum * 10 + u128::from(digit - b'0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_of_go_are_read() {
        for (text, nanos) in [
            ("0", 0),
            ("0s", 0),
            ("5s", 5_000_000_000),
            ("+5s", 5_000_000_000),
            ("1m30s", 90_000_000_000),
            ("100ms", 100_000_000),
            ("1.5h", 5_400_000_000_000),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("2h45m0.5s", 9_900_500_000_000),
            ("7us", 7_000),
            ("7\u{b5}s", 7_000),
            ("3ns", 3),
            ("0.123456789123456789123s", 123_456_789),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
    }

    #[test]
    fn durations_that_go_refuses_are_refused() {
        for text in [
            "",
            "5",
            "s",
            ".s",
            "-5s",
            "5x",
            "5s ",
            "1..5s",
            "5 s",
            "1s-1s",
            "\u{e9}",
            "99999999999999999999s",
            "9999999h",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
