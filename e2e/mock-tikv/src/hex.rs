//! Keys in JSON: hexadecimal digits, two for each byte.

/// The digits of `bytes`.
pub(crate) fn encode(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of `digits`; none when they are no such digits.
pub(crate) fn decode(digits: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let byte = |&[high, low]: &[u8; 2]| u8::try_from(digit(high)? << 4 | digit(low)?).ok();
    if rest.is_empty() {
        pairs.iter().map(byte).collect()
    } else {
        None
    }
}

/// For `#[serde(with)]`.
pub(crate) mod serde {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&super::encode(bytes))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let digits = String::deserialize(from)?;
        super::decode(&digits).ok_or_else(|| D::Error::custom("a key is written in hexadecimal digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_and_read_in_digits() {
        assert_eq!(encode(&[0, 0x6b, 0xff]), "006bff");
        assert_eq!(decode("006bFF"), Some(vec![0, 0x6b, 0xff]));
        assert_eq!(decode("6"), None);
        assert_eq!(decode("+6"), None);
        assert_eq!(decode("ä"), None);
    }
}
