//! The syntax of JSON, with the errors of Go's `encoding/json`: grpc-gateway reads a value by it before it makes a message of the value.

/// Deepest nesting of objects and arrays, as in Go.
const MAX_DEPTH: usize = 10_000;

/// A value at the beginning of some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct JsonValue {
    /// Its bytes.
    pub(super) len: usize,
    /// Its objects, and the elements of its arrays.
    pub(super) parts: usize,
}

/// The state of the scanner: the tokens that may come next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScannerState {
    /// A value, or `]`.
    ValueOrEnd,
    Value,
    /// The name of a field, or `}`.
    NameOrEnd,
    Name,
    /// After a value or a name.
    After,
    InString,
    /// After a backslash.
    Escape,
    /// This number of hexadecimal digits.
    Hex(u8),
    /// After a minus.
    Minus,
    /// After a zero that begins a number.
    Zero,
    /// After another digit.
    Digits,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
    /// The rest of a word, and the whole word.
    Word(&'static str, &'static str),
}

/// The kind of an open bracket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OpenBracket {
    /// An object, before a colon.
    Key,
    /// An object, after a colon.
    Field,
    Array,
}

/// Reads the value at the beginning of `bytes`. The rest is ignored.
///
/// # Errors
/// Go's text for the error.
pub(super) fn check(bytes: &[u8]) -> Result<JsonValue, String> {
    let mut scanner = JsonScanner {
        state: ScannerState::Value,
        open: Vec::new(),
        parts: 0,
    };
    for (at, byte) in bytes.iter().enumerate() {
        let parts = scanner.parts;
        if scanner.step(*byte)? {
            return Ok(JsonValue { len: at, parts });
        }
        if scanner.state == ScannerState::After && scanner.open.is_empty() && matches!(byte, b'}' | b']' | b'"') {
            return Ok(JsonValue {
                len: at + 1,
                parts: scanner.parts,
            });
        }
    }
    // A number ends with the bytes.
    match scanner.step(b' ') {
        Ok(true) => Ok(JsonValue {
            len: bytes.len(),
            parts: scanner.parts,
        }),
        _ => Err("unexpected EOF".to_owned()),
    }
}

struct JsonScanner {
    state: ScannerState,
    open: Vec<OpenBracket>,
    parts: usize,
}

impl JsonScanner {
    /// Takes one byte. Returns true if the value has ended before it.
    fn step(&mut self, byte: u8) -> Result<bool, String> {
        let is_blank = matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
        self.state = match (self.state, byte) {
            (ScannerState::ValueOrEnd | ScannerState::Value | ScannerState::NameOrEnd | ScannerState::Name, _)
                if is_blank =>
            {
                return Ok(false);
            }
            (ScannerState::ValueOrEnd, b']') | (ScannerState::NameOrEnd, b'}') => self.close(),
            (ScannerState::ValueOrEnd | ScannerState::Value, _) => self.value(byte)?,
            (ScannerState::NameOrEnd | ScannerState::Name, b'"') => ScannerState::InString,
            (ScannerState::NameOrEnd | ScannerState::Name, _) => {
                return Err(invalid(byte, "looking for beginning of object key string"));
            }
            (ScannerState::After, _) => return self.after(byte),
            (ScannerState::InString, b'"') => ScannerState::After,
            (ScannerState::InString, b'\\') => ScannerState::Escape,
            (ScannerState::InString, 0..0x20) => return Err(invalid(byte, "in string literal")),
            (ScannerState::InString, _) => ScannerState::InString,
            (ScannerState::Escape, b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"') => ScannerState::InString,
            (ScannerState::Escape, b'u') => ScannerState::Hex(4),
            (ScannerState::Escape, _) => return Err(invalid(byte, "in string escape code")),
            (ScannerState::Hex(1), _) if byte.is_ascii_hexdigit() => ScannerState::InString,
            (ScannerState::Hex(left), _) if byte.is_ascii_hexdigit() => ScannerState::Hex(left - 1),
            (ScannerState::Hex(_), _) => return Err(invalid(byte, "in \\u hexadecimal character escape")),
            (ScannerState::Word(rest, whole), _) => return self.word(byte, rest, whole),
            _ => return self.number(byte),
        };
        Ok(false)
    }

    /// Takes the first byte of a value.
    fn value(&mut self, byte: u8) -> Result<ScannerState, String> {
        Ok(match byte {
            b'{' => {
                self.parts += 1;
                self.push(OpenBracket::Key)?;
                ScannerState::NameOrEnd
            }
            b'[' => {
                self.parts += 1;
                self.push(OpenBracket::Array)?;
                ScannerState::ValueOrEnd
            }
            b'"' => ScannerState::InString,
            b'-' => ScannerState::Minus,
            b'0' => ScannerState::Zero,
            b'1'..=b'9' => ScannerState::Digits,
            b't' => ScannerState::Word("rue", "true"),
            b'f' => ScannerState::Word("alse", "false"),
            b'n' => ScannerState::Word("ull", "null"),
            _ => return Err(invalid(byte, "looking for beginning of value")),
        })
    }

    /// Takes a byte after a value or a name.
    fn after(&mut self, byte: u8) -> Result<bool, String> {
        self.state = ScannerState::After;
        let Some(open) = self.open.last_mut() else {
            return Ok(true);
        };
        self.state = match (*open, byte) {
            (_, b' ' | b'\t' | b'\r' | b'\n') => ScannerState::After,
            (OpenBracket::Key, b':') => {
                *open = OpenBracket::Field;
                ScannerState::Value
            }
            (OpenBracket::Field, b',') => {
                *open = OpenBracket::Key;
                ScannerState::Name
            }
            (OpenBracket::Array, b',') => {
                self.parts += 1;
                ScannerState::Value
            }
            (OpenBracket::Field, b'}') | (OpenBracket::Array, b']') => self.close(),
            (OpenBracket::Key, _) => return Err(invalid(byte, "after object key")),
            (OpenBracket::Field, _) => return Err(invalid(byte, "after object key:value pair")),
            (OpenBracket::Array, _) => return Err(invalid(byte, "after array element")),
        };
        Ok(false)
    }

    /// Takes a byte of a number, or the one after it.
    fn number(&mut self, byte: u8) -> Result<bool, String> {
        self.state = match (self.state, byte) {
            (ScannerState::Minus, b'0') => ScannerState::Zero,
            (ScannerState::Minus, b'1'..=b'9') | (ScannerState::Digits, b'0'..=b'9') => ScannerState::Digits,
            (ScannerState::Minus, _) => return Err(invalid(byte, "in numeric literal")),
            (ScannerState::Zero | ScannerState::Digits, b'.') => ScannerState::Point,
            (ScannerState::Zero | ScannerState::Digits | ScannerState::Fraction, b'e' | b'E') => ScannerState::Exponent,
            (ScannerState::Point | ScannerState::Fraction, b'0'..=b'9') => ScannerState::Fraction,
            (ScannerState::Point, _) => return Err(invalid(byte, "after decimal point in numeric literal")),
            (ScannerState::Exponent, b'+' | b'-') => ScannerState::ExponentSign,
            (ScannerState::Exponent | ScannerState::ExponentSign | ScannerState::ExponentDigits, b'0'..=b'9') => {
                ScannerState::ExponentDigits
            }
            (ScannerState::Exponent | ScannerState::ExponentSign, _) => {
                return Err(invalid(byte, "in exponent of numeric literal"));
            }
            _ => return self.after(byte),
        };
        Ok(false)
    }

    /// Takes a byte of `true`, `false` or `null`.
    fn word(&mut self, byte: u8, rest: &'static str, whole: &'static str) -> Result<bool, String> {
        let Some(expected) = rest.bytes().next() else {
            return self.after(byte);
        };
        if byte != expected {
            let expected = char::from(expected);
            return Err(invalid(byte, &format!("in literal {whole} (expecting '{expected}')")));
        }
        let rest = rest.get(1..).unwrap_or_default();
        self.state = match rest {
            "" => ScannerState::After,
            _ => ScannerState::Word(rest, whole),
        };
        Ok(false)
    }

    fn push(&mut self, open: OpenBracket) -> Result<(), String> {
        self.open.push(open);
        if self.open.len() > MAX_DEPTH {
            return Err("exceeded max depth".to_owned());
        }
        Ok(())
    }

    fn close(&mut self) -> ScannerState {
        self.open.pop();
        ScannerState::After
    }
}

/// Go's text for a byte that does not fit.
fn invalid(byte: u8, context: &str) -> String {
    let character = match byte {
        b'\'' => "\\'".to_owned(),
        b'"' => "\"".to_owned(),
        b'\\' => "\\\\".to_owned(),
        0x07 => "\\a".to_owned(),
        0x08 => "\\b".to_owned(),
        0x0b => "\\v".to_owned(),
        0x0c => "\\f".to_owned(),
        b'\n' => "\\n".to_owned(),
        b'\r' => "\\r".to_owned(),
        b'\t' => "\\t".to_owned(),
        0..0x20 | 0x7f => format!("\\x{byte:02x}"),
        0x80..=0xa0 | 0xad => format!("\\u{byte:04x}"),
        _ => char::from(byte).to_string(),
    };
    format!("invalid character '{character}' {context}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_ends_where_go_ends_it() {
        for (json, len, parts) in [
            (r#"{"a":[1,{"b":null}]}x"#, 20, 4),
            ("[]", 2, 1),
            (" 7 ", 2, 0),
            ("7x", 1, 0),
            ("-0.5e+7", 7, 0),
            ("nullx", 4, 0),
            (r#""\u00e9\"""#, 10, 0),
        ] {
            assert_eq!(check(json.as_bytes()), Ok(JsonValue { len, parts }), "{json}");
        }
    }

    #[test]
    fn errors_are_gos() {
        for (json, error) in [
            ("", "unexpected EOF"),
            ("{", "unexpected EOF"),
            ("tru", "unexpected EOF"),
            ("1.", "unexpected EOF"),
            ("x", "invalid character 'x' looking for beginning of value"),
            ("'", "invalid character '\\'' looking for beginning of value"),
            ("\u{e9}", "invalid character '\u{c3}' looking for beginning of value"),
            ("trux", "invalid character 'x' in literal true (expecting 'e')"),
            ("01", ""),
            (r#"{"a":01}"#, "invalid character '1' after object key:value pair"),
            (r#"{"a":+1}"#, "invalid character '+' looking for beginning of value"),
            (
                r#"{"a":1.x}"#,
                "invalid character 'x' after decimal point in numeric literal",
            ),
            (r#"{"a":1e}"#, "invalid character '}' in exponent of numeric literal"),
            (r#"{"a":-}"#, "invalid character '}' in numeric literal"),
            (
                r#"{"a":1,}"#,
                "invalid character '}' looking for beginning of object key string",
            ),
            (r#"{"a" 1}"#, "invalid character '1' after object key"),
            (r#"{"a":1]"#, "invalid character ']' after object key:value pair"),
            ("[1 2]", "invalid character '2' after array element"),
            ("[1,]", "invalid character ']' looking for beginning of value"),
            ("\"\n\"", "invalid character '\\n' in string literal"),
            (r#""\x""#, "invalid character 'x' in string escape code"),
            (
                r#""\u00g""#,
                "invalid character 'g' in \\u hexadecimal character escape",
            ),
        ] {
            let found = check(json.as_bytes());
            match error {
                "" => assert!(found.is_ok(), "{json}"),
                _ => assert_eq!(found, Err(error.to_owned()), "{json}"),
            }
        }
        let deep = "[".repeat(MAX_DEPTH + 1);
        assert_eq!(check(deep.as_bytes()), Err("exceeded max depth".to_owned()));
        let deep = format!("{}{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH));
        assert!(check(deep.as_bytes()).is_ok());
    }
}
