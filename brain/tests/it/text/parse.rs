//! Text to requests.

use bytes::Bytes;

use crate::wire::{Request, pb};
use pb::compare::TargetUnion;
use pb::range_request::{SortOrder, SortTarget};
use pb::request_op::Request as Op;

/// # Panics
/// The text is no request.
pub(super) fn request(text: &str) -> Request {
    let mut words = Words {
        words: text.split_whitespace().collect(),
        next: 0,
    };
    let request = words.request();
    assert_eq!(words.next, words.words.len(), "{text:?} goes on after the request");
    request
}

struct Words<'t> {
    words: Vec<&'t str>,
    next: usize,
}

impl<'t> Words<'t> {
    fn peek(&self) -> Option<&'t str> {
        self.words.get(self.next).copied()
    }

    fn take(&mut self) -> &'t str {
        let word = self
            .peek()
            .unwrap_or_else(|| panic!("{:?} is not complete", self.words));
        self.next += 1;
        word
    }

    /// The next word that belongs to this operation.
    fn option(&mut self) -> Option<&'t str> {
        let word = self.peek().filter(|word| !matches!(*word, ";" | "?" | ":" | ")"))?;
        self.next += 1;
        Some(word)
    }

    fn accept(&mut self, word: &str) -> bool {
        let there = self.peek() == Some(word);
        self.next += usize::from(there);
        there
    }

    fn number(&mut self) -> i64 {
        number(self.take())
    }

    fn request(&mut self) -> Request {
        match self.take() {
            "put" => Request::Put(self.put()),
            "get" => Request::Range(self.get()),
            "del" => Request::Delete(self.del()),
            "txn" => Request::Txn(self.txn()),
            "compact" => Request::Compact(pb::CompactionRequest {
                revision: self.number(),
                physical: false,
            }),
            "grant" => {
                let id = self.number();
                Request::Grant(pb::LeaseGrantRequest { id, ttl: self.number() })
            }
            "revoke" => Request::Revoke(pb::LeaseRevokeRequest { id: self.number() }),
            "alive" => Request::KeepAlive(pb::LeaseKeepAliveRequest { id: self.number() }),
            "ttl" => {
                let id = self.number();
                Request::TimeToLive(pb::LeaseTimeToLiveRequest {
                    id,
                    keys: self.accept("keys"),
                })
            }
            "leases" => Request::Leases(pb::LeaseLeasesRequest {}),
            word => panic!("{word:?} is no request"),
        }
    }

    fn put(&mut self) -> pb::PutRequest {
        let mut put = pb::PutRequest {
            key: bytes(self.take()),
            ..pb::PutRequest::default()
        };
        while let Some(word) = self.option() {
            match word.split_once('=') {
                Some(("lease", id)) => put.lease = number(id),
                _ if word == "prev" => put.prev_kv = true,
                _ if word == "ignore-value" => put.ignore_value = true,
                _ if word == "ignore-lease" => put.ignore_lease = true,
                _ => put.value = bytes(word),
            }
        }
        put
    }

    fn get(&mut self) -> pb::RangeRequest {
        let (key, range_end) = keys(self.take());
        let mut range = pb::RangeRequest {
            key,
            range_end,
            ..pb::RangeRequest::default()
        };
        while let Some(word) = self.option() {
            if let Some(revision) = word.strip_prefix('@') {
                range.revision = number(revision);
                continue;
            }
            match word.split_once('=').unwrap_or((word, "")) {
                ("limit", n) => range.limit = number(n),
                ("min-mod", n) => range.min_mod_revision = number(n),
                ("max-mod", n) => range.max_mod_revision = number(n),
                ("min-create", n) => range.min_create_revision = number(n),
                ("max-create", n) => range.max_create_revision = number(n),
                ("by", target) => range.set_sort_target(sort_target(target)),
                ("asc", _) => range.set_sort_order(SortOrder::Ascend),
                ("desc", _) => range.set_sort_order(SortOrder::Descend),
                ("keys", _) => range.keys_only = true,
                ("count", _) => range.count_only = true,
                _ => panic!("{word:?} is no option of get"),
            }
        }
        range
    }

    fn del(&mut self) -> pb::DeleteRangeRequest {
        let (key, range_end) = keys(self.take());
        pb::DeleteRangeRequest {
            key,
            range_end,
            prev_kv: self.accept("prev"),
        }
    }

    fn txn(&mut self) -> pb::TxnRequest {
        let mut txn = pb::TxnRequest::default();
        while let Some(word) = self.option() {
            txn.compare.push(compare(word));
        }
        if self.accept("?") {
            txn.success = self.ops();
            if self.accept(":") {
                txn.failure = self.ops();
            }
        }
        txn
    }

    fn ops(&mut self) -> Vec<pb::RequestOp> {
        let mut ops = Vec::new();
        loop {
            let nested = self.accept("(");
            let request = match self.request() {
                Request::Range(range) => Op::RequestRange(range),
                Request::Put(put) => Op::RequestPut(put),
                Request::Delete(delete) => Op::RequestDeleteRange(delete),
                Request::Txn(txn) => Op::RequestTxn(txn),
                other => panic!("{other:?} cannot be part of a txn"),
            };
            assert!(!nested || self.accept(")"), "a parenthesis is not closed");
            ops.push(pb::RequestOp { request: Some(request) });
            if !self.accept(";") {
                return ops;
            }
        }
    }
}

fn compare(word: &str) -> pb::Compare {
    let (target, rest) = word.split_once('(').unwrap_or_else(|| panic!("{word:?} is no compare"));
    let (span, rest) = rest.split_once(')').unwrap_or_else(|| panic!("{word:?} is no compare"));
    let (result, operand) = match rest.as_bytes() {
        [b'!', b'=', ..] => (3, &rest[2..]),
        [b'=', ..] => (0, &rest[1..]),
        [b'>', ..] => (1, &rest[1..]),
        [b'<', ..] => (2, &rest[1..]),
        _ => panic!("{word:?} is no compare"),
    };
    let (target, union) = match target {
        "version" => (0, TargetUnion::Version(number(operand))),
        "create" => (1, TargetUnion::CreateRevision(number(operand))),
        "mod" => (2, TargetUnion::ModRevision(number(operand))),
        "value" => (3, TargetUnion::Value(bytes(operand))),
        "lease" => (4, TargetUnion::Lease(number(operand))),
        _ => panic!("{word:?} is no compare"),
    };
    let (key, range_end) = keys(span);
    pb::Compare {
        result,
        target,
        key,
        range_end,
        target_union: Some(union),
    }
}

fn sort_target(word: &str) -> SortTarget {
    match word {
        "key" => SortTarget::Key,
        "version" => SortTarget::Version,
        "create" => SortTarget::Create,
        "mod" => SortTarget::Mod,
        "value" => SortTarget::Value,
        _ => panic!("nothing is sorted by {word:?}"),
    }
}

fn number(word: &str) -> i64 {
    word.parse().unwrap_or_else(|_| panic!("{word:?} is no number"))
}

/// Key and end of `a`, `a..c`, `a..` or `a*`.
fn keys(word: &str) -> (Bytes, Bytes) {
    if let Some(prefix) = word.strip_suffix('*') {
        let key = bytes(prefix);
        let end = testkit::requests::prefix_end(&key);
        return (key, end);
    }
    match word.split_once("..") {
        None => (bytes(word), Bytes::new()),
        Some((key, "")) => (bytes(key), Bytes::from_static(b"\0")),
        Some((key, end)) => (bytes(key), bytes(end)),
    }
}

fn bytes(word: &str) -> Bytes {
    let mut bytes = Vec::new();
    let mut parts = word.split("\\x");
    bytes.extend(parts.next().unwrap_or_default().bytes());
    for part in parts {
        let (hex, rest) = part.split_at(2);
        bytes.push(u8::from_str_radix(hex, 16).unwrap());
        bytes.extend(rest.bytes());
    }
    Bytes::from(bytes)
}
