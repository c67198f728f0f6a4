//! Bytes in the headers of RPCs, in base64.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// Decodes the value of a header, padded or not, as grpc-go does.
///
/// # Errors
/// The place of the first byte that is wrong.
pub(super) fn decode(value: &[u8]) -> Result<Vec<u8>, usize> {
    let padding = match value.len() % 4 {
        0 => DecodePaddingMode::RequireCanonical,
        _ => DecodePaddingMode::RequireNone,
    };
    let config = GeneralPurposeConfig::new()
        .with_decode_padding_mode(padding)
        .with_decode_allow_trailing_bits(true);
    let decoded = GeneralPurpose::new(&STANDARD, config).decode(value);
    decoded.map_err(|error| match error {
        base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => at,
        _ => value.len(),
    })
}
