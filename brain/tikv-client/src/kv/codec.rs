use crate::internal_err;
use crate::Result;

const ENC_GROUP_SIZE: usize = 8;
const ENC_MARKER: u8 = 0xff;
const ENC_PADDING: [u8; ENC_GROUP_SIZE] = [0; ENC_GROUP_SIZE];

/// Returns the maximum encoded bytes size.
///
/// Duplicate from components/tikv_util/src/codec/bytes.rs.
pub(crate) fn max_encoded_bytes_size(n: usize) -> usize {
    (n / ENC_GROUP_SIZE + 1) * (ENC_GROUP_SIZE + 1)
}

/// Refer: <https://github.com/facebook/mysql-5.6/wiki/MyRocks-record-format#memcomparable-format>
///
/// Duplicate from components/tikv_util/src/codec/bytes.rs.
pub(crate) fn encode_bytes(key: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(max_encoded_bytes_size(key.len()));
    let mut rest = key;
    loop {
        let group = &rest[..rest.len().min(ENC_GROUP_SIZE)];
        let pad = ENC_GROUP_SIZE - group.len();
        encoded.extend_from_slice(group);
        encoded.extend_from_slice(&ENC_PADDING[..pad]);
        encoded.push(ENC_MARKER - pad as u8);
        // A key of whole groups ends with an empty one.
        if pad > 0 {
            return encoded;
        }
        rest = &rest[ENC_GROUP_SIZE..];
    }
}

/// Decodes bytes which are encoded by `encode_bytes` before just in place without malloc.
///
/// Duplicate from components/tikv_util/src/codec/bytes.rs.
pub(crate) fn decode_bytes_in_place(data: &mut Vec<u8>) -> Result<()> {
    if data.is_empty() {
        return Ok(());
    }
    let mut write_offset = 0;
    let mut read_offset = 0;
    loop {
        let marker_offset = read_offset + ENC_GROUP_SIZE;
        if marker_offset >= data.len() {
            return Err(internal_err!("unexpected EOF, original key = {:?}", data));
        };

        data.copy_within(read_offset..marker_offset, write_offset);
        write_offset += ENC_GROUP_SIZE;
        // everytime make ENC_GROUP_SIZE + 1 elements as a decode unit
        read_offset += ENC_GROUP_SIZE + 1;

        // the last byte in decode unit is for marker which indicates pad size
        let marker = data[marker_offset];
        let pad_size = (ENC_MARKER - marker) as usize;

        if pad_size > 0 {
            if pad_size > ENC_GROUP_SIZE {
                return Err(internal_err!("invalid key padding"));
            }

            // check the padding pattern whether validate or not
            if data[write_offset - pad_size..write_offset] != ENC_PADDING[..pad_size] {
                return Err(internal_err!("invalid key padding"));
            }
            data.truncate(write_offset - pad_size);
            return Ok(());
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn test_enc_dec_bytes() {
        let pairs = [
            (vec![], vec![0, 0, 0, 0, 0, 0, 0, 0, 247]),
            (vec![0], vec![0, 0, 0, 0, 0, 0, 0, 0, 248]),
            (vec![1, 2, 3], vec![1, 2, 3, 0, 0, 0, 0, 0, 250]),
            (vec![1, 2, 3, 0], vec![1, 2, 3, 0, 0, 0, 0, 0, 251]),
            (vec![1, 2, 3, 4, 5, 6, 7], vec![1, 2, 3, 4, 5, 6, 7, 0, 254]),
            (
                vec![0, 0, 0, 0, 0, 0, 0, 0],
                vec![0, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0, 0, 0, 0, 0, 0, 0, 247],
            ),
            (
                vec![1, 2, 3, 4, 5, 6, 7, 8],
                vec![1, 2, 3, 4, 5, 6, 7, 8, 255, 0, 0, 0, 0, 0, 0, 0, 0, 247],
            ),
            (
                vec![1, 2, 3, 4, 5, 6, 7, 8, 9],
                vec![1, 2, 3, 4, 5, 6, 7, 8, 255, 9, 0, 0, 0, 0, 0, 0, 0, 248],
            ),
        ];

        for (source, mut encoded) in pairs {
            assert_eq!(encode_bytes(&source), encoded);
            decode_bytes_in_place(&mut encoded).unwrap();
            assert_eq!(source, encoded);
        }
    }

    #[test]
    fn malformed_bytes_are_refused() {
        for malformed in [
            &[1, 2, 3][..],
            &[0, 0, 0, 0, 0, 0, 0, 0, 246],
            &[0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[0, 0, 0, 0, 0, 0, 0, 1, 248],
            &[0, 0, 0, 0, 0, 0, 0, 0, 255],
        ] {
            decode_bytes_in_place(&mut malformed.to_vec()).unwrap_err();
        }
    }
}
