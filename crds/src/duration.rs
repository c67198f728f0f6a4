//! Durations as users write them in a resource: `2160h`, `1h30m`, `1500ms`.
//!
//! The units are those of CEL's `duration()`: everything that the API server accepts parses here, and nothing else does.

use std::time::Duration;

/// A text that is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a duration: use numbers with the units h, m, s or ms, as in 1h30m or 1500ms")]
pub struct Error {
    /// The rejected text.
    pub text: String,
}

/// Parses a duration of one or more parts, each a whole number with one of the units `h`, `m`, `s`, `ms`.
///
/// # Errors
/// The text is empty, has a part without number or unit, an unknown unit, or a value out of range.
pub fn parse(text: &str) -> Result<Duration, Error> {
    let error = || Error { text: text.to_owned() };
    let mut rest = text;
    let mut total = Duration::ZERO;
    if rest.is_empty() {
        return Err(error());
    }
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let number: u64 = rest[..digits].parse().map_err(|_| error())?;
        rest = &rest[digits..];
        let (unit, length) = if rest.starts_with("ms") {
            (Duration::from_millis(1), 2)
        } else {
            match rest.as_bytes().first() {
                Some(b'h') => (Duration::from_secs(3600), 1),
                Some(b'm') => (Duration::from_secs(60), 1),
                Some(b's') => (Duration::from_secs(1), 1),
                _ => return Err(error()),
            }
        };
        rest = &rest[length..];
        let number = u32::try_from(number).map_err(|_| error())?;
        let part = unit.checked_mul(number).ok_or_else(error)?;
        total = total.checked_add(part).ok_or_else(error)?;
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_of_every_unit_add_up() {
        assert_eq!(parse("2160h"), Ok(Duration::from_secs(2160 * 3600)));
        assert_eq!(parse("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse("1500ms"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse("1m1s1ms"), Ok(Duration::from_millis(61_001)));
    }

    #[test]
    fn malformed_duration_is_refused_by_name() {
        for text in ["", "1", "h", "1d", "-1h", "1.5h", "1h ", "99999999999h", "1h2"] {
            assert_eq!(parse(text), Err(Error { text: text.to_owned() }), "{text:?}");
        }
    }
}
