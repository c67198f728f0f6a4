//! PEM, read as Go's encoding/pem does: text around blocks, CRLF, headers, and blocks that do not decode are skipped.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// Go does not look at the unused bits of the last character.
const LENIENT_BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical),
);

/// One block of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PemBlock {
    /// The words after BEGIN.
    pub(super) label: String,
    pub(super) der: Vec<u8>,
    /// True if a header says that the contents are encrypted.
    pub(super) is_encrypted: bool,
}

/// A block whose end was not read yet.
struct OpenPemBlock<'a> {
    label: &'a [u8],
    base64: Vec<u8>,
    in_headers: bool,
    is_encrypted: bool,
}

/// Returns the blocks of a file in their order.
pub(super) fn blocks(bytes: &[u8]) -> Vec<PemBlock> {
    let mut blocks = Vec::new();
    let mut begun: Option<OpenPemBlock<'_>> = None;
    for line in bytes.split(|byte| *byte == b'\n') {
        let line = line.trim_ascii_end();
        if let Some(rest) = line.strip_prefix(b"-----BEGIN ") {
            // Without its dashes it begins nothing, and ends what was begun.
            begun = rest.strip_suffix(b"-----").map(|label| OpenPemBlock {
                label,
                base64: Vec::new(),
                in_headers: true,
                is_encrypted: false,
            });
        } else if let Some(rest) = line.strip_prefix(b"-----END ") {
            blocks.extend(begun.take().and_then(|begun| begun.end(rest)));
        } else if let Some(begun) = &mut begun {
            begun.push(line);
        }
    }
    blocks
}

impl OpenPemBlock<'_> {
    fn push(&mut self, line: &[u8]) {
        if self.in_headers && line.contains(&b':') {
            self.is_encrypted |= line.ends_with(b"ENCRYPTED");
            return;
        }
        self.in_headers = false;
        let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r');
        self.base64.extend(line.iter().filter(|byte| !is_blank(byte)));
    }

    /// Returns the block, if the line ends it and its contents decode.
    fn end(self, rest: &[u8]) -> Option<PemBlock> {
        if rest.strip_suffix(b"-----")? != self.label {
            return None;
        }
        Some(PemBlock {
            label: String::from_utf8_lossy(self.label).into_owned(),
            der: LENIENT_BASE64.decode(&self.base64).ok()?,
            is_encrypted: self.is_encrypted,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answers are those of Go 1.26.
    #[test]
    fn blocks_are_found_as_go_finds_them() {
        let found = |text: &str| {
            let blocks = blocks(text.as_bytes()).into_iter();
            let all: Vec<_> = blocks.map(|block| format!("{}:{:?}", block.label, block.der)).collect();
            all.join(" ")
        };
        for (text, blocks) in [
            ("-----BEGIN A-----\nAAEC\n-----END A-----\n", "A:[0, 1, 2]"),
            ("-----BEGIN A-----\r\nAAEC\r\n-----END A-----\r\n", "A:[0, 1, 2]"),
            ("-----BEGIN A-----\nAAEC\n-----END A-----", "A:[0, 1, 2]"),
            ("text\n-----BEGIN A-----\nAAEC\n-----END A-----\nmore", "A:[0, 1, 2]"),
            (
                "-----BEGIN A-----\nAA EC\n\n AAEC\n-----END A-----",
                "A:[0, 1, 2, 0, 1, 2]",
            ),
            ("-----BEGIN A-----\nK: v\n\nAAEC\n-----END A-----", "A:[0, 1, 2]"),
            ("-----BEGIN A-----\nAA==\n-----END A-----", "A:[0]"),
            ("-----BEGIN A-----\nAB==\n-----END A-----", "A:[0]"),
            ("-----BEGIN A-----\n-----END A-----", "A:[]"),
            // Broken blocks are skipped.
            (
                "-----BEGIN A-----\nA!EC\n-----END A-----\n-----BEGIN B-----\nAAEC\n-----END B-----",
                "B:[0, 1, 2]",
            ),
            ("-----BEGIN A-----\nAA\n-----END A-----", ""),
            ("-----BEGIN A-----\nAAEC\n-----END B-----", ""),
            ("-----BEGIN A-----\nAAEC\n", ""),
            (
                "-----BEGIN A-----\nAAEC\n-----BEGIN B-----\nAAEC\n-----END B-----",
                "B:[0, 1, 2]",
            ),
            ("\u{feff}-----BEGIN A-----\nAAEC\n-----END A-----", ""),
            (" -----BEGIN A-----\nAAEC\n-----END A-----", ""),
        ] {
            assert_eq!(found(text), blocks, "{text:?}");
        }
    }
}
