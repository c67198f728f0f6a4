//! Permissions, and the ranges of keys that those of all roles of a user open together.

use bytes::Bytes;
use prost::Message;

use crate::op::Span;

/// The kind of access to keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// They are read or watched.
    Read,
    /// They are put or deleted.
    Write,
}

/// A permission on one key or a range. Stored, and part of records.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Permission {
    /// etcd's number: 0 to read, 1 to write, 2 for both. Any other opens nothing.
    #[prost(int32, tag = "1")]
    pub kind: i32,
    /// The key, or the first one of the range.
    #[prost(bytes = "bytes", tag = "2")]
    pub key: Bytes,
    /// As in a range request: empty for one key, a 0x00 for all from `key` on, or the end of the range.
    #[prost(bytes = "bytes", tag = "3")]
    pub range_end: Bytes,
}

const READ: i32 = 0;
const WRITE: i32 = 1;
/// etcd's number of a permission to read and to write.
pub(super) const READWRITE: i32 = 2;

impl Permission {
    /// The permission that the role root has.
    #[must_use]
    pub fn everything() -> Self {
        Self {
            kind: READWRITE,
            key: Bytes::new(),
            range_end: Bytes::from_static(&[0]),
        }
    }

    /// Returns true if it is for this range.
    #[must_use]
    pub fn is_on(&self, key: &[u8], range_end: &[u8]) -> bool {
        self.key == key && self.range_end == range_end
    }

    /// Returns true if it names a range that can hold keys.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let span = self.span();
        !span.key.is_empty() && !span.is_empty()
    }

    fn span(&self) -> Span {
        Span {
            key: self.key.clone(),
            end: self.range_end.clone(),
        }
    }

    fn permits(&self, access: Access) -> bool {
        match access {
            Access::Read => matches!(self.kind, READ | READWRITE),
            Access::Write => matches!(self.kind, WRITE | READWRITE),
        }
    }
}

/// Ranges of keys, merged: ascending, with gaps between them. A `None` is the end of the key space.
#[derive(Debug, Default, PartialEq, Eq)]
struct KeyRanges(Vec<(Bytes, Option<Bytes>)>);

impl KeyRanges {
    fn of(spans: impl Iterator<Item = Span>) -> Self {
        let mut sorted: Vec<_> = spans.map(|span| (span.key.clone(), span.limit())).collect();
        sorted.sort_by(|a, b| a.0.cmp(&b.0));
        let mut merged: Vec<(Bytes, Option<Bytes>)> = Vec::with_capacity(sorted.len());
        for (key, limit) in sorted {
            match merged.last_mut() {
                // Ranges that only touch are one, too.
                Some((_, end)) if end.as_ref().is_none_or(|end| key <= *end) => {
                    if ends_before(end.as_ref(), limit.as_ref()) {
                        *end = limit;
                    }
                }
                _ => merged.push((key, limit)),
            }
        }
        Self(merged)
    }

    fn contain(&self, span: &Span) -> bool {
        let behind = self.0.partition_point(|(begin, _)| *begin <= span.key);
        let Some((_, end)) = behind.checked_sub(1).and_then(|at| self.0.get(at)) else {
            return false;
        };
        end.as_ref().is_none_or(|end| span.key < *end) && !ends_before(end.as_ref(), span.limit().as_ref())
    }
}

/// Returns true if a range that ends there ends before another one does; `None` is the end of the key space.
fn ends_before(end: Option<&Bytes>, other: Option<&Bytes>) -> bool {
    match (end, other) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(end), Some(other)) => end < other,
    }
}

/// The keys that a user may read, and those that it may write, by all its roles together.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RangePermissions {
    read: KeyRanges,
    write: KeyRanges,
}

impl RangePermissions {
    /// Merges permissions: a request may reach over several of them.
    #[must_use]
    pub fn of<'p>(permissions: impl Iterator<Item = &'p Permission> + Clone) -> Self {
        let ranges = |access| {
            let permissions = permissions.clone().filter(move |permission| permission.permits(access));
            KeyRanges::of(permissions.map(Permission::span))
        };
        Self {
            read: ranges(Access::Read),
            write: ranges(Access::Write),
        }
    }

    /// Returns true if all keys of the span may be accessed.
    #[must_use]
    pub fn permit(&self, access: Access, span: &Span) -> bool {
        match access {
            Access::Read => self.read.contain(span),
            Access::Write => self.write.contain(span),
        }
    }
}
