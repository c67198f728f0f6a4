//! Messages from JSON, as Go's `protojson` reads them with `DiscardUnknown`: what it takes is taken, what it refuses is refused, with its
//! texts.

use std::collections::HashSet;

use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, Value};

use super::numbers;

/// Levels of nested messages, as prost limits them where it decodes them. Go has 10,000.
const MAX_DEPTH: usize = 100;

/// The longest text of a request that an error repeats, in bytes. Go repeats all of it.
const MAX_ECHO_BYTES: usize = 1024;

/// The error of a text that ends too early.
const EOF_ERROR: &str = "unexpected EOF";

/// Reads a message from one JSON value, whose syntax was checked.
///
/// # Errors
/// Go's text for what is wrong.
pub(super) fn decode(value: &[u8], kind: &MessageDescriptor) -> Result<DynamicMessage, String> {
    let mut reader = ProtojsonReader { text: value, at: 0 };
    reader.message(kind, 0).map_err(|error| format!("proto: {error}"))
}

/// A scalar, a string or the beginning of something, where it begins.
struct JsonToken {
    start: usize,
    what: Scalar,
}

enum Scalar {
    Null,
    Bool(bool),
    /// A number, in the form that the JSON has.
    Number(String),
    String(String),
    /// A bracket or a brace.
    Bracket,
}

/// The outcome of reading one value of a field.
enum FieldRead {
    Value(Value),
    /// The name of an enum value that is not known: it is ignored.
    Ignored,
}

struct ProtojsonReader<'a> {
    text: &'a [u8],
    at: usize,
}

impl ProtojsonReader<'_> {
    /// Reads an object as a message.
    fn message(&mut self, kind: &MessageDescriptor, depth: usize) -> Result<DynamicMessage, String> {
        if depth > MAX_DEPTH {
            return Err("exceeded max recursion depth".to_owned());
        }
        if self.peek() != b'{' {
            return Err(self.unexpected());
        }
        self.at += 1;
        let mut message = DynamicMessage::new(kind.clone());
        let (mut seen, mut set) = (HashSet::new(), HashSet::new());
        while self.has_more(b'}')? {
            let start = self.at;
            let name = self.string()?;
            let raw = self.echo(start).to_owned();
            self.skip(b':');
            match field(kind, &name) {
                None => self.skip_value()?,
                Some(field) => {
                    if !seen.insert(field.number()) {
                        return Err(self.error(start, &format!("duplicate field {raw}")));
                    }
                    if self.peek() == b'n' {
                        self.skip_value()?;
                    } else {
                        if let Some(oneof) = field.containing_oneof()
                            && !set.insert(oneof.name().to_owned())
                        {
                            let oneof = oneof.full_name().to_owned();
                            return Err(
                                self.error(start, &format!("error parsing {raw}, oneof {oneof} is already set"))
                            );
                        }
                        self.field(&mut message, &field, depth)?;
                    }
                }
            }
            self.skip(b',');
        }
        self.at += 1;
        Ok(message)
    }

    /// Reads the value of a field.
    fn field(&mut self, message: &mut DynamicMessage, field: &FieldDescriptor, depth: usize) -> Result<(), String> {
        if !field.is_list() {
            if let FieldRead::Value(value) = self.single(field, depth)? {
                message.set_field(field, value);
            }
            return Ok(());
        }
        if self.peek() != b'[' {
            return Err(self.unexpected());
        }
        self.at += 1;
        let mut items = Vec::new();
        while self.has_more(b']')? {
            if let FieldRead::Value(value) = self.single(field, depth)? {
                items.push(value);
            }
            self.skip(b',');
        }
        self.at += 1;
        message.set_field(field, Value::List(items));
        Ok(())
    }

    /// Reads one value of a field.
    fn single(&mut self, field: &FieldDescriptor, depth: usize) -> Result<FieldRead, String> {
        if let Kind::Message(kind) = field.kind() {
            let message = self.message(&kind, depth + 1)?;
            return Ok(FieldRead::Value(Value::Message(message)));
        }
        let token = self.token()?;
        let read = match (field.kind(), token.what) {
            (Kind::Enum(_), Scalar::Number(text)) => signed32(&text).map(Value::EnumNumber),
            (Kind::Enum(kind), Scalar::String(name)) => match kind.get_value_by_name(&name) {
                Some(value) => Some(Value::EnumNumber(value.number())),
                None => return Ok(FieldRead::Ignored),
            },
            (kind, what) => scalar(&kind, what),
        };
        let read = read.map(FieldRead::Value);
        read.ok_or_else(|| {
            let (kind, name) = (kind_name(&field.kind()), field.json_name());
            let raw = self.echo(token.start);
            self.error(token.start, &format!("invalid value for {kind} field {name}: {raw}"))
        })
    }

    /// Reads a scalar, or the first byte of an object or an array.
    fn token(&mut self) -> Result<JsonToken, String> {
        let first = self.peek();
        let start = self.at;
        let what = match first {
            b'"' => Scalar::String(self.string()?),
            b'{' | b'[' => {
                self.at += 1;
                Scalar::Bracket
            }
            _ => {
                let rest = &self.text[start..];
                let len = rest.iter().take_while(|byte| is_of_scalar(**byte)).count();
                self.at += len.max(1).min(rest.len());
                let text = self.raw(start).to_owned();
                match text.as_str() {
                    "null" => Scalar::Null,
                    "true" => Scalar::Bool(true),
                    "false" => Scalar::Bool(false),
                    _ => Scalar::Number(text),
                }
            }
        };
        Ok(JsonToken { start, what })
    }

    /// Reads a string.
    fn string(&mut self) -> Result<String, String> {
        self.peek();
        let start = self.at;
        let len = string_len(&self.text[start..]);
        self.at += len;
        let body = self.text[start..self.at]
            .get(1..len.saturating_sub(1))
            .unwrap_or_default();
        unescape(body).map_err(|what| match what.as_str() {
            EOF_ERROR => what,
            _ => {
                let (line, column) = position(&self.text[..start]);
                format!("syntax error (line {line}:{column}): {what}")
            }
        })
    }

    /// Leaves a value out, but looks at its strings.
    fn skip_value(&mut self) -> Result<(), String> {
        let mut open = 0_usize;
        loop {
            match self.peek() {
                b'}' | b']' => {
                    self.at += 1;
                    open = open.saturating_sub(1);
                }
                b',' | b':' => {
                    self.at += 1;
                    continue;
                }
                _ => {
                    if matches!(self.token()?.what, Scalar::Bracket) {
                        open += 1;
                    }
                }
            }
            if open == 0 {
                return Ok(());
            }
            if self.at >= self.text.len() {
                return Err(EOF_ERROR.to_owned());
            }
        }
    }

    /// Returns true if something comes before the closing bracket.
    fn has_more(&mut self, close: u8) -> Result<bool, String> {
        let next = self.peek();
        if self.at >= self.text.len() {
            return Err(EOF_ERROR.to_owned());
        }
        Ok(next != close)
    }

    /// Skips blanks. Returns the next byte; 0 at the end.
    fn peek(&mut self) -> u8 {
        let blanks = self.text[self.at..].iter().take_while(|byte| is_blank(**byte)).count();
        self.at += blanks;
        self.text.get(self.at).copied().unwrap_or_default()
    }

    /// Skips a byte, if it is the next one.
    fn skip(&mut self, byte: u8) {
        if self.peek() == byte {
            self.at += 1;
        }
    }

    /// The text from `start` on that was read.
    fn raw(&self, start: usize) -> &str {
        std::str::from_utf8(&self.text[start..self.at]).unwrap_or_default()
    }

    /// Returns the beginning of the text from `start` on, as an error repeats it.
    fn echo(&self, start: usize) -> &str {
        cut(self.raw(start))
    }

    fn unexpected(&mut self) -> String {
        self.peek();
        let start = self.at;
        match self.token() {
            Err(error) => error,
            Ok(_) => {
                let (line, column) = position(&self.text[..start]);
                format!(
                    "syntax error (line {line}:{column}): unexpected token {}",
                    self.echo(start)
                )
            }
        }
    }

    fn error(&self, start: usize, what: &str) -> String {
        let (line, column) = position(&self.text[..start]);
        format!("(line {line}:{column}): {what}")
    }
}

/// The beginning of a text, of [`MAX_ECHO_BYTES`] bytes at most.
pub(super) fn cut(text: &str) -> &str {
    let end = (0..=MAX_ECHO_BYTES.min(text.len()))
        .rev()
        .find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or_default()]
}

/// The field of a name: that of JSON, or that of the `.proto` file.
fn field(kind: &MessageDescriptor, name: &str) -> Option<FieldDescriptor> {
    kind.get_field_by_json_name(name)
        .or_else(|| kind.get_field_by_name(name))
}

/// The value of a scalar; `None` if it does not fit.
fn scalar(kind: &Kind, what: Scalar) -> Option<Value> {
    Some(match (kind, what) {
        (Kind::Bool, Scalar::Bool(value)) => Value::Bool(value),
        (Kind::String, Scalar::String(text)) => Value::String(text),
        (Kind::Bytes, Scalar::String(text)) => Value::Bytes(numbers::bytes(&text)?.into()),
        (Kind::Int32 | Kind::Sint32 | Kind::Sfixed32, Scalar::Number(text) | Scalar::String(text)) => {
            Value::I32(signed32(&text)?)
        }
        (Kind::Int64 | Kind::Sint64 | Kind::Sfixed64, Scalar::Number(text) | Scalar::String(text)) => {
            Value::I64(numbers::integer(&text)?.try_into().ok()?)
        }
        (Kind::Uint32 | Kind::Fixed32, Scalar::Number(text) | Scalar::String(text)) => {
            Value::U32(numbers::integer(&text)?.try_into().ok()?)
        }
        (Kind::Uint64 | Kind::Fixed64, Scalar::Number(text) | Scalar::String(text)) => {
            Value::U64(numbers::integer(&text)?.try_into().ok()?)
        }
        _ => return None,
    })
}

fn signed32(text: &str) -> Option<i32> {
    numbers::integer(text)?.try_into().ok()
}

/// The name of a kind in errors.
fn kind_name(kind: &Kind) -> &'static str {
    match kind {
        Kind::Double => "double",
        Kind::Float => "float",
        Kind::Int32 => "int32",
        Kind::Int64 => "int64",
        Kind::Uint32 => "uint32",
        Kind::Uint64 => "uint64",
        Kind::Sint32 => "sint32",
        Kind::Sint64 => "sint64",
        Kind::Fixed32 => "fixed32",
        Kind::Fixed64 => "fixed64",
        Kind::Sfixed32 => "sfixed32",
        Kind::Sfixed64 => "sfixed64",
        Kind::Bool => "bool",
        Kind::String => "string",
        Kind::Bytes => "bytes",
        Kind::Message(_) => "message",
        Kind::Enum(_) => "enum",
    }
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t')
}

/// True for the bytes of numbers and words.
fn is_of_scalar(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.' | b'_')
}

/// The bytes of the string at the beginning of a text, with its quotes.
fn string_len(text: &[u8]) -> usize {
    let mut bytes = text.iter().enumerate().skip(1);
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => return at + 1,
            b'\\' => {
                bytes.next();
            }
            _ => {}
        }
    }
    text.len()
}

/// The text of a string's body.
fn unescape(body: &[u8]) -> Result<String, String> {
    let body = std::str::from_utf8(body).map_err(|_| "invalid UTF-8 in string".to_owned())?;
    let mut text = String::with_capacity(body.len());
    let mut rest = body;
    while let Some(at) = rest.find('\\') {
        let (plain, escape) = rest.split_at(at);
        text.push_str(plain);
        let (character, len) = match escape.as_bytes().get(1) {
            Some(b'b') => ('\u{8}', 2),
            Some(b'f') => ('\u{c}', 2),
            Some(b'n') => ('\n', 2),
            Some(b'r') => ('\r', 2),
            Some(b't') => ('\t', 2),
            Some(b'u') => unicode(escape)?,
            Some(byte) => (char::from(*byte), 2),
            None => return Err(EOF_ERROR.to_owned()),
        };
        text.push(character);
        rest = escape.get(len..).unwrap_or_default();
    }
    text.push_str(rest);
    Ok(text)
}

/// Reads one escape `\u` with four digits, or a surrogate pair of them. Returns the character and the bytes that it takes.
fn unicode(escape: &str) -> Result<(char, usize), String> {
    let unit = |at: usize| {
        let digits = escape.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(digits, 16).ok()
    };
    let first = unit(0).ok_or_else(|| EOF_ERROR.to_owned())?;
    if let Some(character) = char::from_u32(first.into()) {
        return Ok((character, 6));
    }
    let pair = unit(6).and_then(|second| char::decode_utf16([first, second]).next()?.ok());
    match pair {
        Some(character) => Ok((character, 12)),
        None if escape.len() < 12 => Err(EOF_ERROR.to_owned()),
        None => Err(format!(
            "invalid escape code {:?} in string",
            escape.get(6..12).unwrap_or_default()
        )),
    }
}

/// Returns line and column after some text.
fn position(before: &[u8]) -> (usize, usize) {
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    let last = before.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    (line, String::from_utf8_lossy(last).chars().count() + 1)
}

#[cfg(test)]
mod tests;
