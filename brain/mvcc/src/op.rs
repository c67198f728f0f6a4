//! Requests and their results, free of the wire.

use std::cmp::Ordering;

use bytes::Bytes;

use etcd_types::types::{KeyValue, LeaseId, Revision};

/// One key or a range of keys, in the form that etcd's API has it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Span {
    /// The key, or the first key of the range.
    pub key: Bytes,
    /// Empty: just `key`. One 0x00 byte: all keys from `key` on. Else the end of the range, not part of it.
    pub end: Bytes,
}

impl Span {
    /// Just one key.
    #[must_use]
    pub fn key(key: Bytes) -> Self {
        Self { key, end: Bytes::new() }
    }

    /// Names one key, which need not exist.
    #[must_use]
    pub fn is_point(&self) -> bool {
        self.end.is_empty()
    }

    /// Reaches to the end of the key space.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.end.as_ref() == [0]
    }

    /// The first key after the span; `None` if it reaches to the end.
    #[must_use]
    pub fn limit(&self) -> Option<Bytes> {
        match () {
            () if self.is_open() => None,
            () if self.is_point() => {
                let mut next = self.key.to_vec();
                next.push(0);
                Some(next.into())
            }
            () => Some(self.end.clone()),
        }
    }

    /// `key` is one of the span's.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        if self.is_point() {
            key == self.key
        } else {
            key >= self.key && (self.is_open() || key < self.end.as_ref())
        }
    }

    /// No key can be in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.is_point() && !self.is_open() && self.key >= self.end
    }
}

/// The order of a range's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SortTarget {
    /// The key.
    Key,
    /// The version.
    Version,
    /// The create revision.
    Create,
    /// The mod revision.
    Mod,
    /// The value.
    Value,
}

/// In which order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SortOrder {
    /// The natural order of the store, which is by key.
    None,
    /// Smallest first.
    Ascend,
    /// Largest first.
    Descend,
}

/// A read of one key or many.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RangeOp {
    /// Which keys.
    pub span: Span,
    /// The most pairs to answer with; 0 means all.
    pub limit: i64,
    /// The revision to read at; 0 or less means the newest.
    pub revision: Revision,
    /// The order.
    pub order: SortOrder,
    /// The field to order by.
    pub target: SortTarget,
    /// Leave the values out.
    pub keys_only: bool,
    /// Leave the pairs out.
    pub count_only: bool,
    /// Lower and upper bound of the mod revision; 0 is none.
    pub mod_revision: (Revision, Revision),
    /// Lower and upper bound of the create revision; 0 is none.
    pub create_revision: (Revision, Revision),
}

impl RangeOp {
    /// The newest state of a span.
    #[must_use]
    pub fn all(span: Span) -> Self {
        Self {
            span,
            limit: 0,
            revision: 0,
            order: SortOrder::None,
            target: SortTarget::Key,
            keys_only: false,
            count_only: false,
            mod_revision: (0, 0),
            create_revision: (0, 0),
        }
    }

    /// True if values are returned or sorted by.
    #[must_use]
    pub fn reads_values(&self) -> bool {
        !self.count_only && (!self.keys_only || self.target == SortTarget::Value)
    }

    /// Returns the number of pairs, in key order, that decide the answer.
    #[must_use]
    pub fn enough(&self) -> usize {
        match usize::try_from(self.limit) {
            Ok(limit) if limit > 0 && !self.needs_all() => limit.saturating_add(1),
            _ => usize::MAX,
        }
    }

    /// Returns true if all pairs must be read before the limit can be applied: etcd applies it late if the request has an order other
    /// than NONE or a bound on revisions.
    #[must_use]
    pub fn needs_all(&self) -> bool {
        self.order != SortOrder::None || self.mod_revision != (0, 0) || self.create_revision != (0, 0)
    }
}

/// Sets one key.
#[derive(Debug, Clone)]
pub struct PutOp {
    /// The key.
    pub key: Bytes,
    /// Its new value.
    pub value: Bytes,
    /// The lease to attach it to.
    pub lease: LeaseId,
    /// Answer with the version before.
    pub prev_kv: bool,
    /// Keep the value; the key must exist.
    pub ignore_value: bool,
    /// Keep the lease; the key must exist.
    pub ignore_lease: bool,
}

/// Deletes keys.
#[derive(Debug, Clone)]
pub struct DeleteOp {
    /// Which keys.
    pub span: Span,
    /// Return the deleted pairs.
    pub prev_kv: bool,
}

/// The field that a compare looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CompareTarget {
    /// The version.
    Version(i64),
    /// The create revision.
    Create(Revision),
    /// The mod revision.
    Mod(Revision),
    /// The value.
    Value(Bytes),
    /// The lease.
    Lease(i64),
    /// A number that etcd does not know: equal to any operand.
    Unknown,
}

/// The relation that must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompareResult {
    /// Equal to the operand.
    Equal,
    /// Greater than it.
    Greater,
    /// Less than it.
    Less,
    /// Not equal to it.
    NotEqual,
    /// A number that etcd does not know: it holds always.
    Unknown,
}

/// A condition of a txn.
#[derive(Debug, Clone)]
pub struct Compare {
    /// Which keys; all of them must satisfy it.
    pub span: Span,
    /// The compared field, and the operand.
    pub target: CompareTarget,
    /// The comparison that must hold between them.
    pub result: CompareResult,
}

impl Compare {
    /// Returns true if the pairs that the span holds satisfy the condition. No pair at all compares as zeros, and never for values.
    #[must_use]
    pub fn holds(&self, kvs: &[KeyValue]) -> bool {
        match kvs {
            [] => !matches!(self.target, CompareTarget::Value(_)) && self.holds_for(&KeyValue::default()),
            kvs => kvs.iter().all(|kv| self.holds_for(kv)),
        }
    }

    fn holds_for(&self, kv: &KeyValue) -> bool {
        let ordering = match &self.target {
            CompareTarget::Version(version) => kv.version.cmp(version),
            CompareTarget::Create(revision) => kv.create_revision.cmp(revision),
            CompareTarget::Mod(revision) => kv.mod_revision.cmp(revision),
            CompareTarget::Value(value) => kv.value.cmp(value),
            CompareTarget::Lease(lease) => kv.lease.0.cmp(lease),
            CompareTarget::Unknown => Ordering::Equal,
        };
        match self.result {
            CompareResult::Equal => ordering == Ordering::Equal,
            CompareResult::NotEqual => ordering != Ordering::Equal,
            CompareResult::Greater => ordering == Ordering::Greater,
            CompareResult::Less => ordering == Ordering::Less,
            CompareResult::Unknown => true,
        }
    }
}

/// Conditions, and the operations to execute if they hold or not.
#[derive(Debug, Clone, Default)]
pub struct TxnOp {
    /// All must hold.
    pub compares: Vec<Compare>,
    /// Done if they do.
    pub success: Vec<Op>,
    /// Done if they do not.
    pub failure: Vec<Op>,
}

impl TxnOp {
    /// The operations to execute if the compares hold, or if they do not.
    #[must_use]
    pub fn branch(&self, holds: bool) -> &[Op] {
        if holds { &self.success } else { &self.failure }
    }

    /// Some operation, nested ones included, may look at many keys.
    #[must_use]
    pub fn looks_at_many(&self) -> bool {
        self.success.iter().chain(&self.failure).any(|op| match op {
            Op::Range(range) => !range.span.is_point(),
            Op::Delete(delete) => !delete.span.is_point(),
            Op::Put(_) => false,
            Op::Txn(nested) => nested.looks_at_many(),
        })
    }
}

/// One operation.
#[derive(Debug, Clone)]
pub enum Op {
    /// Read.
    Range(RangeOp),
    /// Set a key.
    Put(PutOp),
    /// Delete keys.
    Delete(DeleteOp),
    /// A txn, possibly within one.
    Txn(TxnOp),
}

impl Op {
    /// May set a key: refused while there is no space.
    #[must_use]
    pub fn puts(&self) -> bool {
        match self {
            Op::Put(_) => true,
            Op::Range(_) | Op::Delete(_) => false,
            Op::Txn(txn) => txn.success.iter().chain(&txn.failure).any(Op::puts),
        }
    }

    /// Returns the bytes of memory that it takes beside keys and values.
    #[must_use]
    pub fn memory(&self) -> usize {
        let within = match self {
            Op::Range(_) | Op::Put(_) | Op::Delete(_) => 0,
            Op::Txn(txn) => {
                let ops: usize = txn.success.iter().chain(&txn.failure).map(Op::memory).sum();
                ops + txn.compares.len() * size_of::<Compare>()
            }
        };
        size_of::<Self>() + within
    }

    /// Returns true if it may attach keys, and `is` is true for the lease of one.
    pub fn attaches_to(&self, is: &impl Fn(LeaseId) -> bool) -> bool {
        match self {
            Op::Put(put) => put.lease != LeaseId::NONE && is(put.lease),
            Op::Range(_) | Op::Delete(_) => false,
            Op::Txn(txn) => txn.success.iter().chain(&txn.failure).any(|op| op.attaches_to(is)),
        }
    }
}

/// The result of a range.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RangeResult {
    /// The pairs.
    pub kvs: Vec<KeyValue>,
    /// Keys in the span at that revision, whatever limit and bounds say.
    pub count: i64,
    /// The limit left pairs out.
    pub more: bool,
}

/// The result of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpResult {
    /// A range.
    Range(RangeResult),
    /// A put; the version before, if asked for.
    Put(Option<KeyValue>),
    /// A deletion: how many keys, and which, if asked for.
    Delete(i64, Vec<KeyValue>),
    /// A txn.
    Txn(TxnResult),
}

/// The operations that were carried out, those of txns in txns included. Unlike in etcd, compares and previous versions are no ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpCounts {
    /// Ranges.
    pub ranges: u64,
    /// Puts.
    pub puts: u64,
    /// Deletes, whatever they found.
    pub deletes: u64,
}

impl OpCounts {
    fn add(&mut self, result: &OpResult) {
        match result {
            OpResult::Range(_) => self.ranges += 1,
            OpResult::Put(_) => self.puts += 1,
            OpResult::Delete(..) => self.deletes += 1,
            OpResult::Txn(txn) => txn.results.iter().for_each(|(_, result)| self.add(result)),
        }
    }
}

impl OpResult {
    /// Counts what was carried out.
    #[must_use]
    pub fn counts(&self) -> OpCounts {
        let mut counts = OpCounts::default();
        counts.add(self);
        counts
    }
}

impl TxnResult {
    /// Counts what was carried out.
    #[must_use]
    pub fn counts(&self) -> OpCounts {
        let mut counts = OpCounts::default();
        self.results.iter().for_each(|(_, result)| counts.add(result));
        counts
    }
}

/// The result of a txn.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TxnResult {
    /// The conditions held.
    pub succeeded: bool,
    /// One result for each operation of the branch taken, with the revision its header carries.
    pub results: Vec<(Revision, OpResult)>,
}
