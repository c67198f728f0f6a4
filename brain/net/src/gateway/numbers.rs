//! Numbers and bytes in JSON, as Go's protobuf reads them.

use base64::Engine as _;
use base64::alphabet::{STANDARD, URL_SAFE};

use crate::binary;

/// The parts of a JSON number.
struct NumberParts<'a> {
    is_negative: bool,
    /// Digits before the point; empty for a single zero.
    whole: &'a [u8],
    /// Digits after the point, without zeros at their end.
    fraction: &'a [u8],
    exponent: &'a str,
}

/// Returns the whole number that a JSON number is: `100`, `1e2`, `1.0`, `100e-2`; `None` if it is none, or has more than 20 digits.
pub(super) fn integer(text: &str) -> Option<i128> {
    let NumberParts {
        is_negative,
        whole,
        fraction,
        exponent,
    } = parts(text)?;
    if whole.is_empty() && fraction.is_empty() {
        return Some(0);
    }
    let exponent = match exponent {
        "" => 0,
        text => text.parse::<i32>().ok()?,
    };
    let mut digits = whole.to_vec();
    if let Ok(exponent) = usize::try_from(exponent) {
        if fraction.len() > exponent || whole.len().saturating_add(exponent) > 20 {
            return None;
        }
        digits.extend_from_slice(fraction);
        digits.resize(whole.len() + exponent, b'0');
    } else {
        let shift = usize::try_from(exponent.unsigned_abs()).ok()?;
        let left = whole.len().checked_sub(shift)?;
        if !fraction.is_empty() || digits[left..].iter().any(|digit| *digit != b'0') {
            return None;
        }
        digits.truncate(left);
    }
    if digits.is_empty() || digits.len() > 30 {
        return None;
    }
    let number = digits
        .iter()
        .fold(0_i128, |number, digit| number * 10 + i128::from(digit - b'0'));
    Some(if is_negative { -number } else { number })
}

/// Splits a JSON number; `None` if the text is none.
fn parts(text: &str) -> Option<NumberParts<'_>> {
    let (is_negative, rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (whole, rest) = split_digits(rest);
    let whole = match whole.as_bytes() {
        [] | [b'0', _, ..] => return None,
        b"0" => &[],
        whole => whole,
    };
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) => match split_digits(rest) {
            ("", _) => return None,
            split => split,
        },
        None => ("", rest),
    };
    let exponent = match rest.strip_prefix(['e', 'E']) {
        Some(exponent) => {
            let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
                return None;
            }
            exponent
        }
        None if rest.is_empty() => "",
        None => return None,
    };
    Some(NumberParts {
        is_negative,
        whole,
        fraction: fraction.trim_end_matches('0').as_bytes(),
        exponent,
    })
}

fn split_digits(text: &str) -> (&str, &str) {
    let len = text.bytes().take_while(u8::is_ascii_digit).count();
    text.split_at(len)
}

/// Decodes base64 as Go's protobuf does: of the alphabet for URLs if it has one of that one's letters, padded if its length is that of a
/// padded text. Line ends are left out. Bits that are too many are ignored.
pub(super) fn bytes(text: &str) -> Option<Vec<u8>> {
    let alphabet = match text.contains(['-', '_']) {
        true => &URL_SAFE,
        false => &STANDARD,
    };
    let engine = binary::decoder(alphabet, text.len());
    if text.contains(['\r', '\n']) {
        let text: String = text.chars().filter(|letter| !matches!(letter, '\r' | '\n')).collect();
        return engine.decode(text).ok();
    }
    engine.decode(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_those_of_go() {
        for (text, number) in [
            ("0", Some(0)),
            ("-0", Some(0)),
            ("0.0", Some(0)),
            ("0e99", Some(0)),
            ("1.0", Some(1)),
            ("1e2", Some(100)),
            ("1E+2", Some(100)),
            ("1.5e1", Some(15)),
            ("100e-2", Some(1)),
            ("-9223372036854775808", Some(i128::from(i64::MIN))),
            ("18446744073709551615", Some(i128::from(u64::MAX))),
            ("1e19", Some(10_000_000_000_000_000_000)),
            ("1e20", None),
            ("1.5", None),
            ("15e-1", None),
            ("1e-1", None),
            ("10e-2", None),
            ("100e-3", None),
            ("01", None),
            ("+1", None),
            (" 1", None),
            ("1.", None),
            (".5", None),
            ("1e", None),
            ("0x1", None),
            ("1_0", None),
            ("", None),
            ("-", None),
            ("1e99999999999", None),
        ] {
            assert_eq!(integer(text), number, "{text}");
        }
    }

    #[test]
    fn base64_is_that_of_go() {
        for (text, decoded) in [
            ("", Some(&b""[..])),
            ("Zm9v", Some(b"foo")),
            ("Zm8=", Some(b"fo")),
            ("Zm8", Some(b"fo")),
            ("Zg==", Some(b"f")),
            ("Zg", Some(b"f")),
            // Half of the padding.
            ("Zg=", None),
            ("Zg===", None),
            ("-_-_", Some(&[0xfb, 0xff, 0xbf])),
            ("+/+/", Some(&[0xfb, 0xff, 0xbf])),
            ("-_+/", None),
            // Bits that no byte takes.
            ("Zh==", Some(b"f")),
            ("Zm9v\n", Some(b"foo")),
            ("Zg==\n", None),
            ("Zg=\n", None),
            ("Zm9v\r\n\r\n", Some(b"foo")),
            ("Zm\n\n\n\n9v", Some(b"foo")),
            ("Zm9 v", None),
            ("Z", None),
        ] {
            assert_eq!(bytes(text).as_deref(), decoded, "{text:?}");
        }
    }
}
