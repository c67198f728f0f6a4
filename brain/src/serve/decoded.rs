//! How much memory a request takes when it is decoded, by a look at its bytes: an operation that is empty takes two bytes on
//! the wire and hundreds in memory.

use crate::api::status::Error;
use crate::mvcc::op::{Compare, Op};
use crate::pb::etcdserverpb as pb;

/// Lists grow by doubling, and what they hold is checked and copied into a list of our own.
const OPERATION: usize = 2 * (size_of::<pb::RequestOp>() + size_of::<Op>());
const COMPARE: usize = 2 * (size_of::<pb::Compare>() + size_of::<Compare>());

/// Bytes are copied out of the receive buffer.
const COPIES: usize = 2;

/// What requests take at most that have no operations, by their bytes on the wire: lists of empty strings.
const FLAT: usize = 32;

/// Nested deeper than the decoder goes.
const DEPTH: usize = 100;

/// Bytes that a message of an RPC takes beside its own, at most about.
///
/// # Errors
/// [`Error::TooManyOps`] for a txn with more operations in one of its own lists than `max_ops`.
pub(super) fn decoded_bytes(path: &str, message: &[u8], max_ops: usize) -> Result<usize, Error> {
    let copies = message.len().saturating_mul(COPIES);
    match path {
        "/etcdserverpb.KV/Txn" => {
            let mut counted = Counted::default();
            counted.txn(message, 0, Some(max_ops))?;
            let operations = counted.operations.saturating_mul(OPERATION);
            Ok(copies
                .saturating_add(operations)
                .saturating_add(counted.compares.saturating_mul(COMPARE)))
        }
        path if path.starts_with("/etcdserverpb.KV/") || path.starts_with("/etcdserverpb.Lease/") => Ok(copies),
        _ => Ok(message.len().saturating_mul(FLAT)),
    }
}

/// Operations and compares, those of nested txns included.
#[derive(Debug, Default)]
struct Counted {
    operations: usize,
    compares: usize,
}

impl Counted {
    fn txn(&mut self, message: &[u8], depth: usize, max_ops: Option<usize>) -> Result<(), Error> {
        if depth > DEPTH {
            return Ok(());
        }
        let mut lists = [0_usize; 3];
        for (field, bytes) in Fields(message) {
            let list = match field {
                1 => {
                    self.compares += 1;
                    0
                }
                2 | 3 => {
                    self.operations += 1;
                    let nested = Fields(bytes).filter(|(kind, _)| *kind == 4);
                    for (_, txn) in nested {
                        self.txn(txn, depth + 1, None)?;
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
}

/// The fields of a message that have a length, until its end or until it does not read.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = (usize, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let tag = varint(&mut self.0)?;
            let skipped = match tag & 7 {
                0 => {
                    varint(&mut self.0)?;
                    continue;
                }
                1 => 8,
                5 => 4,
                2 => usize::try_from(varint(&mut self.0)?).ok()?,
                _ => return None,
            };
            let (bytes, rest) = self.0.split_at_checked(skipped)?;
            self.0 = rest;
            if tag & 7 == 2 {
                return Some((usize::try_from(tag >> 3).ok()?, bytes));
            }
        }
    }
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
        let mut counted = Counted::default();
        counted.txn(&message, 0, Some(12)).unwrap();
        assert_eq!((counted.operations, counted.compares), (4 * 11 + 3, 8));
        for len in 0..message.len() {
            let _ = decoded_bytes(TXN, &message[..len], 128);
        }
    }

    #[test]
    fn plain_requests_take_little_more_than_their_bytes() {
        assert_eq!(decoded_bytes("/etcdserverpb.KV/Put", &[0; 100], 1), Ok(200));
        assert_eq!(decoded_bytes("/etcdserverpb.Cluster/MemberAdd", &[0; 100], 1), Ok(3200));
    }
}
