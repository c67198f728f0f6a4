//! JSON values, one after the other, in bytes that come in pieces.

use bytes::{Buf as _, Bytes, BytesMut};

/// Finds the end of each top-level value. Values are not checked here; the parser does that.
#[derive(Debug, Default)]
pub(super) struct ValueSplitter {
    buffer: BytesMut,
    /// Bytes of the buffer that were looked at.
    scanned: usize,
    /// Brackets and braces that are open.
    depth: usize,
    string: QuoteState,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum QuoteState {
    #[default]
    Outside,
    Inside,
    /// After a backslash.
    Escaped,
}

impl ValueSplitter {
    /// Takes more bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Bytes that are held.
    pub(super) fn held(&self) -> usize {
        self.buffer.len()
    }

    /// Returns true if nothing but blanks is held.
    pub(super) fn is_blank(&mut self) -> bool {
        self.skip_blanks();
        self.buffer.is_empty()
    }

    /// Returns the next value that is complete.
    pub(super) fn next(&mut self) -> Option<Bytes> {
        self.skip_blanks();
        while let Some(&byte) = self.buffer.get(self.scanned) {
            let is_first = self.scanned == 0;
            match (self.string, byte) {
                (QuoteState::Escaped, _) => self.string = QuoteState::Inside,
                (QuoteState::Inside, b'\\') => self.string = QuoteState::Escaped,
                (QuoteState::Inside, b'"') => self.string = QuoteState::Outside,
                (QuoteState::Inside, _) => {}
                (QuoteState::Outside, b'"') => self.string = QuoteState::Inside,
                (QuoteState::Outside, b'{' | b'[') => self.depth += 1,
                (QuoteState::Outside, b'}' | b']') => self.depth = self.depth.saturating_sub(1),
                (QuoteState::Outside, _) => {}
            }
            self.scanned += 1;
            if self.depth > 0 || self.string != QuoteState::Outside {
                continue;
            }
            // A number or a word ends before what follows it; everything else ends with its last byte.
            let is_closed = matches!(byte, b'}' | b']' | b'"');
            let ends_before = byte.is_ascii_whitespace() && !is_first;
            if is_closed || ends_before {
                return Some(self.take());
            }
        }
        None
    }

    /// Returns what is left where the bytes end: an incomplete value, or a number or a word.
    pub(super) fn rest(&mut self) -> Option<Bytes> {
        self.skip_blanks();
        (!self.buffer.is_empty()).then(|| {
            self.scanned = self.buffer.len();
            self.take()
        })
    }

    fn take(&mut self) -> Bytes {
        let len = std::mem::take(&mut self.scanned);
        (self.depth, self.string) = (0, QuoteState::Outside);
        self.buffer.split_to(len).freeze()
    }

    fn skip_blanks(&mut self) {
        if self.scanned == 0 {
            let blanks = self.buffer.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            self.buffer.advance(blanks);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(pieces: &[&str]) -> (Vec<String>, Option<String>) {
        let (mut values, mut found) = (ValueSplitter::default(), Vec::new());
        let text = |bytes: Bytes| String::from_utf8(bytes.to_vec()).unwrap();
        for piece in pieces {
            values.push(piece.as_bytes());
            found.extend(std::iter::from_fn(|| values.next()).map(text));
        }
        (found, values.rest().map(text))
    }

    #[test]
    fn values_end_where_json_ends_them() {
        let text = r#" {"a":"}\"{","b":[1,{"c":2}]}{}
            [1] "x\"y" 12 true {"open": "#;
        let whole = split(&[text]);
        let expected = [
            r#"{"a":"}\"{","b":[1,{"c":2}]}"#,
            "{}",
            "[1]",
            r#""x\"y""#,
            "12 ",
            "true ",
        ];
        assert_eq!(whole.0, expected.map(str::to_owned));
        assert_eq!(whole.1.as_deref(), Some(r#"{"open": "#));
        // However they are cut, they are the same.
        for at in 0..text.len() {
            assert_eq!(split(&[&text[..at], &text[at..]]), whole, "cut at {at}");
        }
        assert_eq!(split(&[" \n"]), (vec![], None));
        assert_eq!(split(&["7"]), (vec![], Some("7".to_owned())));
    }
}
