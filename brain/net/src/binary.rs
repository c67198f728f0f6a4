//! Bytes in base64, as Go's programs take them: in the headers of RPCs, and in JSON.

use base64::Engine as _;
use base64::alphabet::{Alphabet, STANDARD};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// Returns a decoder of a text of this length: padded if that is the length of a padded text. Bits that are too many are ignored.
pub(super) fn decoder(alphabet: &Alphabet, len: usize) -> GeneralPurpose {
    let padding = match len % 4 {
        0 => DecodePaddingMode::RequireCanonical,
        _ => DecodePaddingMode::RequireNone,
    };
    let config = GeneralPurposeConfig::new()
        .with_decode_padding_mode(padding)
        .with_decode_allow_trailing_bits(true);
    GeneralPurpose::new(alphabet, config)
}

/// Decodes the value of a header, padded or not, as grpc-go does.
///
/// # Errors
/// The place of the first byte that is wrong.
pub(super) fn decode(value: &[u8]) -> Result<Vec<u8>, usize> {
    let decoded = decoder(&STANDARD, value.len()).decode(value);
    decoded.map_err(|error| match error {
        base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => at,
        _ => value.len(),
    })
}
