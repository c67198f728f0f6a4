//! Strings in the Huffman code of HPACK (RFC 7541, appendix B).

use std::sync::LazyLock;

/// The length of each byte's code in bits. Codes count up in the order of lengths, then of bytes; the code that ends a string is not used.
#[rustfmt::skip]
const CODE_LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];

const MAX_CODE_BITS: usize = 30;

struct HuffmanCode {
    /// The bytes in the order of their codes.
    bytes: Vec<u8>,
    /// For each length: the first code, the place of its byte in `bytes`, and the number of codes.
    of_length: [HuffmanCodes; MAX_CODE_BITS + 1],
}

#[derive(Debug, Clone, Copy, Default)]
struct HuffmanCodes {
    first: u32,
    at: u32,
    count: u32,
}

static HUFFMAN_CODE: LazyLock<HuffmanCode> = LazyLock::new(|| {
    let mut code = HuffmanCode {
        bytes: Vec::with_capacity(256),
        of_length: [HuffmanCodes::default(); MAX_CODE_BITS + 1],
    };
    let (mut next, mut at) = (0, 0);
    for (length, codes) in code.of_length.iter_mut().enumerate() {
        let bytes = (0..=u8::MAX).filter(|byte| usize::from(CODE_LENGTHS[usize::from(*byte)]) == length);
        let before = code.bytes.len();
        code.bytes.extend(bytes);
        let count = (code.bytes.len() - before) as u32;
        next <<= 1;
        *codes = HuffmanCodes { first: next, at, count };
        next += count;
        at += count;
    }
    code
});

/// Returns the string; `None` if it is not one.
pub(super) fn decode(coded: &[u8]) -> Option<Vec<u8>> {
    let mut string = Vec::with_capacity(coded.len() * 8 / 5);
    let (mut code, mut length) = (0_u32, 0_usize);
    for byte in coded {
        for bit in (0..8).rev() {
            code = code << 1 | u32::from(byte >> bit & 1);
            length += 1;
            let codes = HUFFMAN_CODE.of_length.get(length)?;
            if let Some(nth) = code.checked_sub(codes.first)
                && nth < codes.count
            {
                string.push(*HUFFMAN_CODE.bytes.get((codes.at + nth) as usize)?);
                (code, length) = (0, 0);
            }
        }
    }
    // The rest of the last byte is filled with ones.
    (length < 8 && code == (1 << length) - 1).then_some(string)
}

/// Returns a string of `count` zeros, which have the shortest code: five bits, none of them set.
pub(super) fn zeros(count: usize) -> Vec<u8> {
    let bits = 5 * count;
    let mut coded = vec![0; bits.div_ceil(8)];
    if let Some(last) = coded.last_mut() {
        let filled = (8 - bits % 8) % 8;
        *last = ((1_u16 << filled) - 1) as u8;
    }
    coded
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Strings of RFC 7541, appendix C, and one that Go's encoder has made.
    #[test]
    fn strings_of_the_standard_are_decoded() {
        let bytes = |hex: &str| -> Vec<u8> {
            let pairs = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
            pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
        };
        for (coded, string) in [
            ("f1e3c2e5f23a6ba0ab90f4ff", "www.example.com"),
            ("a8eb10649cbf", "no-cache"),
            ("9d29ad171863c78f0b97c8e9ae82ae43d3", "https://www.example.com"),
            ("", ""),
        ] {
            assert_eq!(decode(&bytes(coded)).as_deref(), Some(string.as_bytes()));
        }
        for damaged in ["f1e3c2e5f23a6ba0ab90f400", "ff", "ffffffff", "00ffff"] {
            assert_eq!(decode(&bytes(damaged)), None, "{damaged}");
        }
    }

    #[test]
    fn zeros_are_decoded_to_as_many() {
        for count in 0..100 {
            assert_eq!(decode(&zeros(count)), Some(vec![b'0'; count]));
        }
    }
}
