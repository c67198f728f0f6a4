//! The ranges of keys in a request.

use pb::request_op::Request as Op;
use wire::etcdserverpb as pb;

use crate::request::Request;

/// Returns true if a range ends where it begins, or before.
pub(super) fn any_inverted(request: &Request) -> bool {
    match request {
        Request::Range(range) => is_inverted(&range.key, &range.range_end),
        Request::DeleteRange(delete) => is_inverted(&delete.key, &delete.range_end),
        Request::Watch { create, .. } => is_inverted(&create.key, &create.range_end),
        Request::Txn(txn) => any_in_txn(txn),
        _ => false,
    }
}

fn any_in_txn(txn: &pb::TxnRequest) -> bool {
    let compares = &txn.compare;
    let mut ops = txn
        .success
        .iter()
        .chain(&txn.failure)
        .filter_map(|op| op.request.as_ref());
    compares
        .iter()
        .any(|compare| is_inverted(&compare.key, &compare.range_end))
        || ops.any(|op| match op {
            Op::RequestRange(range) => is_inverted(&range.key, &range.range_end),
            Op::RequestDeleteRange(delete) => is_inverted(&delete.key, &delete.range_end),
            Op::RequestTxn(txn) => any_in_txn(txn),
            Op::RequestPut(_) => false,
        })
}

fn is_inverted(key: &[u8], range_end: &[u8]) -> bool {
    !range_end.is_empty() && range_end != [0] && range_end <= key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_without_an_end_are_not_inverted() {
        for (key, end, inverted) in [
            ("b", "a", true),
            ("a", "a", true),
            ("a", "b", false),
            ("a", "", false),
            ("a", "\0", false),
        ] {
            assert_eq!(is_inverted(key.as_bytes(), end.as_bytes()), inverted, "{key} {end}");
        }
    }
}
