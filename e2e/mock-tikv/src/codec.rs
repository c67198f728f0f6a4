//! Keys as PD and raft know them: memory-comparable, in groups of eight bytes with a marker each.
//!
//! Clients of the transaction API send plain keys to TiKV and encoded ones to PD; region bounds on the wire are encoded.

/// Bytes of the key in one group.
const GROUP_BYTES: usize = 8;
/// The marker of a group without padding; one less for every byte of padding.
const FULL_GROUP_MARKER: u8 = 0xFF;

/// The encoded form of `key`. Encoded keys sort as the plain ones do.
pub(crate) fn encode(key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity((key.len() / GROUP_BYTES + 1) * (GROUP_BYTES + 1));
    let mut padding = 0u8;
    for group in key.chunks(GROUP_BYTES) {
        out.extend_from_slice(group);
        padding = (GROUP_BYTES - group.len()) as u8;
        out.resize(out.len() + usize::from(padding), 0);
        out.push(FULL_GROUP_MARKER - padding);
    }
    if padding == 0 {
        // The last group is never a full one.
        out.resize(out.len() + GROUP_BYTES, 0);
        out.push(FULL_GROUP_MARKER - GROUP_BYTES as u8);
    }
    out
}

/// A region's bound as it goes over the wire: no bound stays no bound.
pub(crate) fn encode_bound(key: &[u8]) -> Vec<u8> {
    if key.is_empty() { Vec::new() } else { encode(key) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_padded_and_marked() {
        assert_eq!(encode(b""), [0, 0, 0, 0, 0, 0, 0, 0, 247]);
        assert_eq!(encode(b"abc"), [97, 98, 99, 0, 0, 0, 0, 0, 250]);
        assert_eq!(encode(b"12345678")[8..], [255, 0, 0, 0, 0, 0, 0, 0, 0, 247]);
    }

    #[test]
    fn encoded_keys_sort_like_plain_ones() {
        let mut keys: Vec<&[u8]> = vec![
            b"",
            b"\0",
            b"\0\0",
            b"a",
            b"a\0",
            b"aaaaaaaa",
            b"aaaaaaaa\0",
            b"aaaaaaaab",
            b"b",
        ];
        keys.sort_unstable();
        let encoded: Vec<_> = keys.iter().map(|key| encode(key)).collect();
        assert!(encoded.is_sorted());
    }
}
