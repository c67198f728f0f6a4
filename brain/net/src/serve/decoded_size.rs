//! Estimates the memory of a decoded request from its bytes: an empty operation takes two bytes on the wire and hundreds in memory.

use etcd_types::errors::Error;
use etcd_types::pb::etcdserverpb as pb;
use mvcc::op::{Compare, Op};

/// Lists grow by doubling, and their elements are checked and copied into lists of operations.
const OPERATION_BYTES: usize = 2 * (size_of::<pb::RequestOp>() + size_of::<Op>());
const COMPARE_BYTES: usize = 2 * (size_of::<pb::Compare>() + size_of::<Compare>());

/// Bytes are copied out of the receive buffer.
const COPIES_PER_BYTE: usize = 2;

/// The memory per byte on the wire of requests without operations, at most: lists of empty strings.
const FLAT_BYTES_PER_WIRE_BYTE: usize = 32;

/// The depth of groups beyond the decoder's limit.
const MAX_GROUP_DEPTH: usize = 100;

/// The most txns in one another. The decoder takes 100 levels of messages; a nested txn has two, and its innermost operations have a few
/// more.
const MAX_NESTED_TXNS: usize = 45;

/// Returns approximately the most memory that a message of an RPC takes in addition to its bytes. Fails with [`Error::TooManyOps`]
/// for a txn that has more than `max_ops` operations in one of its lists, and with [`Error::RequestTooLarge`] for one with more than
/// [`MAX_NESTED_TXNS`] in one another.
pub(super) fn decoded_bytes(path: &str, message: &[u8], max_ops: usize) -> Result<usize, Error> {
    let copies = message.len().saturating_mul(COPIES_PER_BYTE);
    match path {
        "/etcdserverpb.KV/Txn" => {
            let mut counted = OperationCount::default();
            counted.txn(message, 0, Some(max_ops))?;
            let operations = counted.operations.saturating_mul(OPERATION_BYTES);
            Ok(copies
                .saturating_add(operations)
                .saturating_add(counted.compares.saturating_mul(COMPARE_BYTES)))
        }
        path if path.starts_with("/etcdserverpb.KV/") || path.starts_with("/etcdserverpb.Lease/") => Ok(copies),
        _ => Ok(message.len().saturating_mul(FLAT_BYTES_PER_WIRE_BYTE)),
    }
}

/// The number of operations and compares, including those of nested txns.
#[derive(Debug, Default)]
struct OperationCount {
    operations: usize,
    compares: usize,
}

impl OperationCount {
    fn txn(&mut self, message: &[u8], depth: usize, max_ops: Option<usize>) -> Result<(), Error> {
        if depth > MAX_NESTED_TXNS {
            return Err(Error::RequestTooLarge);
        }
        let mut lists = [0_usize; 3];
        for field in MessageFields(message) {
            let (field, bytes) = match field {
                Ok(field) => field,
                Err(unread) => {
                    self.unread(unread);
                    break;
                }
            };
            let list = match field {
                1 => {
                    self.compares += 1;
                    0
                }
                2 | 3 => {
                    self.operations += 1;
                    for field in MessageFields(bytes) {
                        match field {
                            Ok((4, txn)) => self.txn(txn, depth + 1, None)?,
                            Ok(_) => {}
                            Err(unread) => self.unread(unread),
                        }
                    }
                    field - 1
                }
                _ => continue,
            };
            lists[list] += 1;
            if max_ops.is_some_and(|most| lists[list] > most) {
                return Err(Error::TooManyOps);
            }
        }
        Ok(())
    }

    /// Counts bytes that cannot be parsed as if they were the smallest operations and compares.
    fn unread(&mut self, UnreadBytes(bytes): UnreadBytes) {
        self.operations += bytes / 2;
        self.compares += bytes / 2;
    }
}

/// The length-delimited fields of a message; all others, including groups, are skipped as prost does.
struct MessageFields<'a>(&'a [u8]);

/// The number of bytes that cannot be parsed, from the first bad field on.
struct UnreadBytes(usize);

impl<'a> Iterator for MessageFields<'a> {
    type Item = Result<(usize, &'a [u8]), UnreadBytes>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.0.is_empty() {
            let left = self.0.len();
            let Some(field) = self.field() else {
                self.0 = &[];
                return Some(Err(UnreadBytes(left)));
            };
            if let Some(bytes) = field.bytes
                && let Ok(number) = usize::try_from(field.number)
            {
                return Some(Ok((number, bytes)));
            }
        }
        None
    }
}

impl<'a> MessageFields<'a> {
    /// Returns the next field; a group counts as one field.
    fn field(&mut self) -> Option<MessageField<'a>> {
        // The numbers of the open groups.
        let mut groups = Vec::new();
        loop {
            let tag = varint(&mut self.0)?;
            let number = tag >> 3;
            let mut field = MessageField { number, bytes: None };
            match tag & 7 {
                0 => {
                    varint(&mut self.0)?;
                }
                1 => {
                    self.take(8)?;
                }
                5 => {
                    self.take(4)?;
                }
                2 => {
                    let len = usize::try_from(varint(&mut self.0)?).ok()?;
                    field.bytes = Some(self.take(len)?);
                }
                3 if groups.len() < MAX_GROUP_DEPTH => groups.push(number),
                4 if groups.pop() == Some(number) => {}
                _ => return None,
            }
            if groups.is_empty() {
                return Some(field);
            }
        }
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }
}

/// A field, with its bytes if it is length-delimited.
struct MessageField<'a> {
    number: u64,
    bytes: Option<&'a [u8]>,
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..70).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use prost::Message as _;

    const TXN: &str = "/etcdserverpb.KV/Txn";

    fn nested(ops: usize, depth: usize) -> pb::TxnRequest {
        let op = |request| pb::RequestOp { request };
        let mut success = vec![op(None); ops];
        if depth > 0 {
            let txn = pb::request_op::Request::RequestTxn(nested(ops, depth - 1));
            success.push(op(Some(txn)));
        }
        pb::TxnRequest {
            compare: vec![pb::Compare::default(); 2],
            success,
            failure: vec![op(None)],
        }
    }

    #[test]
    fn empty_operations_are_counted_at_their_size_in_memory() {
        let message = nested(1_000_000, 0).encode_to_vec();
        let bytes = decoded_bytes(TXN, &message, usize::MAX).unwrap();
        assert!(bytes >= 100 * message.len(), "{bytes} of {}", message.len());
        assert_eq!(decoded_bytes(TXN, &message, 128), Err(Error::TooManyOps));
    }

    #[test]
    fn operations_of_nested_txns_are_counted() {
        let message = nested(10, 3).encode_to_vec();
        let mut counted = OperationCount::default();
        counted.txn(&message, 0, Some(12)).unwrap();
        assert_eq!((counted.operations, counted.compares), (4 * 11 + 3, 8));
        for len in 0..message.len() {
            let _ = decoded_bytes(TXN, &message[..len], 128);
        }
    }

    #[test]
    fn more_txns_in_one_another_than_can_be_decoded_are_refused() {
        use pb::request_op::Request;
        let around = |request| pb::TxnRequest {
            success: vec![pb::RequestOp { request: Some(request) }],
            ..pb::TxnRequest::default()
        };
        let put = Request::RequestPut(pb::PutRequest::default());
        let txns = |depth| (0..depth).fold(around(put.clone()), |txn, _| around(Request::RequestTxn(txn)));
        let taken = txns(MAX_NESTED_TXNS).encode_to_vec();
        assert!(decoded_bytes(TXN, &taken, 128).is_ok());
        assert!(pb::TxnRequest::decode(&taken[..]).is_ok());
        let refused = txns(MAX_NESTED_TXNS + 1).encode_to_vec();
        assert_eq!(decoded_bytes(TXN, &refused, 128), Err(Error::RequestTooLarge));
    }

    #[test]
    fn operations_behind_a_group_are_counted() {
        let message = [vec![0xa3, 6, 0xa4, 6], [0x12, 0].repeat(1_000)].concat();
        assert_eq!(pb::TxnRequest::decode(&message[..]).unwrap().success.len(), 1_000);
        let mut counted = OperationCount::default();
        counted.txn(&message, 0, None).unwrap();
        assert_eq!(counted.operations, 1_000);
        assert_eq!(decoded_bytes(TXN, &message, 128), Err(Error::TooManyOps));
        // A group that never ends, or ends before it begins: all of it may be operations.
        for broken in [[0xa3, 6], [0xa4, 6]] {
            let message = [broken.to_vec(), [0x12, 0].repeat(1_000)].concat();
            let mut counted = OperationCount::default();
            counted.txn(&message, 0, None).unwrap();
            assert!(counted.operations >= 1_000);
        }
    }

    /// Returns the number of operations and compares of a decoded txn.
    fn real(txn: &pb::TxnRequest) -> (usize, usize) {
        let mut counts = (txn.success.len() + txn.failure.len(), txn.compare.len());
        for op in txn.success.iter().chain(&txn.failure) {
            if let Some(pb::request_op::Request::RequestTxn(txn)) = &op.request {
                let (operations, compares) = real(txn);
                counts = (counts.0 + operations, counts.1 + compares);
            }
        }
        counts
    }

    /// Generates parts of messages, valid and broken ones.
    fn part() -> impl Strategy<Value = Vec<u8>> {
        let leaf = prop_oneof![
            8 => Just(vec![0x12, 0]),
            4 => Just(vec![0x0a, 0]),
            4 => Just(vec![0x1a, 0]),
            2 => Just(vec![0xa3, 6, 0xa4, 6]),
            1 => Just(vec![0xa3, 6, 0x13, 0x12, 0, 0x14, 0xa4, 6]),
            2 => Just(vec![0xa0, 6, 5]),
            1 => Just(vec![0xa1, 6, 1, 2, 3, 4, 5, 6, 7, 8]),
            1 => Just(vec![0xa5, 6, 1, 2, 3, 4]),
            1 => proptest::collection::vec(any::<u8>(), 1..4),
        ];
        leaf.prop_recursive(4, 64, 8, |part| {
            (proptest::collection::vec(part, 0..8), any::<bool>()).prop_map(|(parts, nests)| {
                let parts = parts.concat();
                let delimited = |tag: u8, bytes: &[u8]| {
                    let mut message = vec![tag];
                    prost::encoding::encode_varint(bytes.len() as u64, &mut message);
                    message.extend(bytes);
                    message
                };
                if nests {
                    delimited(0x12, &delimited(0x22, &parts))
                } else {
                    parts
                }
            })
        })
    }

    proptest! {
        #[test]
        fn count_is_never_below_that_of_the_decoder(parts in proptest::collection::vec(part(), 0..20)) {
            let message = parts.concat();
            let mut counted = OperationCount::default();
            counted.txn(&message, 0, None).unwrap();
            if let Ok(txn) = pb::TxnRequest::decode(&message[..]) {
                let (operations, compares) = real(&txn);
                prop_assert!(counted.operations >= operations && counted.compares >= compares);
            }
        }
    }

    #[test]
    fn plain_requests_take_little_more_than_their_bytes() {
        assert_eq!(decoded_bytes("/etcdserverpb.KV/Put", &[0; 100], 1), Ok(200));
        assert_eq!(decoded_bytes("/etcdserverpb.Cluster/MemberAdd", &[0; 100], 1), Ok(3200));
    }
}
