//! Private keys as cert-manager and openssl write them: PKCS#1 for RSA and SEC1 for elliptic curves. The signing library here takes PKCS#8,
//! which wraps either of them after the name of its algorithm.

/// `rsaEncryption`, with its empty parameters.
const RSA_ALGORITHM: &[u8] = &[
    0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00,
];
/// `ecPublicKey`.
const EC_ALGORITHM: &[u8] = &[0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
/// The number zero, which is the version.
const VERSION_ZERO: &[u8] = &[0x02, 0x01, 0x00];

const SEQUENCE_TAG: u8 = 0x30;
const OCTET_STRING_TAG: u8 = 0x04;
/// The parameters of a SEC1 key: the name of its curve.
const EC_PARAMETERS_TAG: u8 = 0xa0;

/// Returns the first PKCS#1 or SEC1 private key of a PEM text as PKCS#8. Returns the text unchanged if it has no such key.
pub fn to_pkcs8(text: &str) -> String {
    let blocks = pem::parse_many(text).unwrap_or_default();
    let converted = blocks.iter().find_map(|block| match block.tag() {
        "RSA PRIVATE KEY" => Some(wrap(RSA_ALGORITHM, block.contents())),
        "EC PRIVATE KEY" => {
            let curve = curve(block.contents())?;
            Some(wrap(
                &element(SEQUENCE_TAG, &[EC_ALGORITHM, curve].concat()),
                block.contents(),
            ))
        }
        _ => None,
    });
    let config = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    converted.map_or_else(
        || text.to_owned(),
        |key| pem::encode_config(&pem::Pem::new("PRIVATE KEY", key), config),
    )
}

fn wrap(algorithm: &[u8], key: &[u8]) -> Vec<u8> {
    let key = element(OCTET_STRING_TAG, key);
    element(SEQUENCE_TAG, &[VERSION_ZERO, algorithm, &key].concat())
}

/// Returns the name of the curve in a SEC1 key, with its tag.
fn curve(key: &[u8]) -> Option<&[u8]> {
    let (tag, mut inside, _) = next(key)?;
    if tag != SEQUENCE_TAG {
        return None;
    }
    while let Some((tag, content, rest)) = next(inside) {
        if tag == EC_PARAMETERS_TAG {
            return Some(content);
        }
        inside = rest;
    }
    None
}

/// Returns tag and content of the first DER element, and the bytes after it.
fn next(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let count = usize::from(first & 0x7f);
        if count == 0 || count > 4 {
            return None;
        }
        let (bytes, rest) = rest.split_at_checked(count)?;
        (bytes.iter().fold(0, |sum, byte| (sum << 8) | usize::from(*byte)), rest)
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    let bytes = content.len().to_be_bytes();
    match content.len() {
        length @ 0..0x80 => out.extend(u8::try_from(length)),
        _ => {
            let significant: Vec<u8> = bytes.iter().copied().skip_while(|byte| *byte == 0).collect();
            // At most eight bytes.
            out.extend(u8::try_from(significant.len()).map(|count| 0x80 | count));
            out.extend(significant);
        }
    }
    out.extend_from_slice(content);
    out
}

#[cfg(test)]
mod tests {
    use crate::certificates::{Authority, CertificatePair};

    use super::*;

    #[test]
    fn authority_of_cert_manager_signs() {
        for (certificate, key) in [
            (
                include_str!("../../fixtures/authorities/rsa.crt"),
                include_str!("../../fixtures/authorities/rsa.key"),
            ),
            (
                include_str!("../../fixtures/authorities/p256.crt"),
                include_str!("../../fixtures/authorities/p256.key"),
            ),
            (
                include_str!("../../fixtures/authorities/p384.crt"),
                include_str!("../../fixtures/authorities/p384.key"),
            ),
        ] {
            let load = |key: String| {
                Authority::load(CertificatePair {
                    certificate: certificate.to_owned(),
                    key,
                })
            };
            assert!(load(key.to_owned()).is_err(), "no conversion is needed: {key}");
            load(to_pkcs8(key)).unwrap();
        }
    }

    #[test]
    fn other_keys_stay_as_they_are() {
        for text in [
            "",
            "x",
            "-----BEGIN EC PRIVATE KEY-----\nMAA=\n-----END EC PRIVATE KEY-----\n",
        ] {
            assert_eq!(to_pkcs8(text), text);
        }
    }
}
