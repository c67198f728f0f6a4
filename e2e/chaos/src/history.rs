//! The history of one round: operations of clients, and their results.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

/// Time since the round began, on the one clock that all clients share.
pub(crate) type RoundTime = Duration;

/// Written value: no two writes write the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(crate) struct WrittenValue(pub(crate) u64);

impl fmt::Debug for WrittenValue {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.0 >> 32, self.0 & u64::from(u32::MAX))
    }
}

/// A key with its value, as etcd shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Kv {
    pub(crate) key: String,
    pub(crate) value: WrittenValue,
    pub(crate) create: i64,
    pub(crate) modified: i64,
    pub(crate) version: i64,
    pub(crate) lease: i64,
}

/// Which keys an operation is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum KeySelector {
    One(String),
    Prefix(String),
}

impl KeySelector {
    pub(crate) fn contain(&self, key: &str) -> bool {
        match self {
            Self::One(one) => one == key,
            Self::Prefix(prefix) => key.starts_with(prefix.as_str()),
        }
    }
}

/// One operation of a txn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Op {
    Put {
        key: String,
        value: WrittenValue,
        lease: i64,
        prev: bool,
    },
    Delete {
        keys: KeySelector,
        prev: bool,
    },
    Range {
        keys: KeySelector,
        /// 0 is the newest.
        revision: i64,
    },
}

/// A condition of a txn: all of them compare for equality.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Compare {
    Modified(String, i64),
    Version(String, i64),
    Value(String, WrittenValue),
}

impl Compare {
    pub(crate) fn key(&self) -> &str {
        match self {
            Self::Modified(key, _) | Self::Version(key, _) | Self::Value(key, _) => key,
        }
    }
}

/// By which method a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum RequestMethod {
    /// `then` is one operation, sent as what it is.
    Plain,
    /// The same, and a range that any member may answer alone.
    Serializable,
    Txn,
}

/// A request. Unless it is a transaction, it has no conditions and one operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Request {
    pub(crate) method: RequestMethod,
    pub(crate) compares: Vec<Compare>,
    pub(crate) then: Vec<Op>,
    pub(crate) otherwise: Vec<Op>,
}

impl Request {
    pub(crate) fn plain(op: Op) -> Self {
        Self {
            method: RequestMethod::Plain,
            compares: Vec::new(),
            then: vec![op],
            otherwise: Vec::new(),
        }
    }

    /// All that it may put.
    pub(crate) fn values(&self) -> impl Iterator<Item = WrittenValue> {
        self.then.iter().chain(&self.otherwise).filter_map(|op| match op {
            Op::Put { value, .. } => Some(*value),
            _ => None,
        })
    }

    /// Returns true if it may change anything.
    pub(crate) fn writes(&self) -> bool {
        let ops = self.then.iter().chain(&self.otherwise);
        ops.into_iter().any(|op| !matches!(op, Op::Range { .. }))
    }
}

/// The answer to one operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum OpAnswer {
    Put { prev: Option<Kv> },
    Delete { deleted: i64, prev: Vec<Kv> },
    Range { kvs: Vec<Kv>, count: i64 },
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Answer {
    pub(crate) revision: i64,
    pub(crate) succeeded: bool,
    pub(crate) done: Vec<OpAnswer>,
}

impl Answer {
    /// Returns true if the request made a revision of its own.
    pub(crate) fn wrote(&self) -> bool {
        self.done.iter().any(|done| match done {
            OpAnswer::Put { .. } => true,
            OpAnswer::Delete { deleted, .. } => *deleted > 0,
            OpAnswer::Range { .. } => false,
        })
    }
}

/// Outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Outcome {
    Answered(Answer),
    /// The revision that was asked for is compacted.
    Compacted,
    /// An error, or no answer at all: done or not.
    Unknown(String),
}

/// A request and what became of it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Operation {
    pub(crate) client: usize,
    pub(crate) member: usize,
    pub(crate) called: RoundTime,
    pub(crate) returned: RoundTime,
    pub(crate) request: Request,
    pub(crate) outcome: Outcome,
}

/// A change of one key, as a watch tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Event {
    Put {
        kv: Kv,
        prev: Option<Kv>,
    },
    Delete {
        key: String,
        revision: i64,
        prev: Option<Kv>,
    },
}

impl Event {
    pub(crate) fn key(&self) -> &str {
        match self {
            Self::Put { kv, .. } => &kv.key,
            Self::Delete { key, .. } => key,
        }
    }

    pub(crate) fn revision(&self) -> i64 {
        match self {
            Self::Put { kv, .. } => kv.modified,
            Self::Delete { revision, .. } => *revision,
        }
    }

    /// Without what came before it, which only some watches ask for.
    pub(crate) fn bare(&self) -> Self {
        let mut bare = self.clone();
        match &mut bare {
            Self::Put { prev, .. } | Self::Delete { prev, .. } => *prev = None,
        }
        bare
    }
}

/// One message of a watch stream.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Message {
    pub(crate) at: RoundTime,
    /// Which of the stream's watches; all of them when absent.
    pub(crate) watch: Option<usize>,
    pub(crate) revision: i64,
    pub(crate) told: MessageContent,
}

/// Content of a message.
#[derive(Clone, Debug, Serialize)]
pub(crate) enum MessageContent {
    /// All of one or more revisions.
    Events(Vec<Event>),
    /// Everything up to its revision has been sent.
    Progress,
    /// The watch ends: what it wants next is compacted, up to this.
    Compacted(i64),
    /// The watch ends for another reason.
    Canceled(String),
}

/// One life of a watch stream.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct StreamAttempt {
    pub(crate) opened: RoundTime,
    /// The first revision that each watch asked for.
    pub(crate) from: Vec<i64>,
    pub(crate) messages: Vec<Message>,
    /// When and how it broke; absent when the client ended it.
    pub(crate) broke: Option<(RoundTime, String)>,
}

/// A stream that is opened again whenever it breaks, and continues where it was.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct WatcherHistory {
    pub(crate) member: usize,
    pub(crate) watches: Vec<KeySelector>,
    pub(crate) prev: bool,
    pub(crate) attempts: Vec<StreamAttempt>,
}

/// A lease, whose one key holds its id.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LeaseHistory {
    pub(crate) id: i64,
    pub(crate) ttl: Duration,
    pub(crate) key: String,
    /// When each grant or keep-alive that gave it its whole TTL was called, and when it was answered.
    pub(crate) renewed: Vec<(RoundTime, RoundTime)>,
    /// When it was first asked to be revoked.
    pub(crate) revoked: Option<RoundTime>,
}

/// When a member was away for its clients.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct MemberAbsence {
    pub(crate) member: usize,
    pub(crate) from: RoundTime,
    /// When it was back.
    pub(crate) until: RoundTime,
}

/// All of it.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct History {
    /// The revision before the first of the round. No key of the round existed then.
    pub(crate) base: i64,
    /// The last revision of the round.
    pub(crate) end: i64,
    pub(crate) operations: Vec<Operation>,
    pub(crate) watchers: Vec<WatcherHistory>,
    pub(crate) leases: Vec<LeaseHistory>,
    pub(crate) absences: Vec<MemberAbsence>,
    /// When each compaction was first requested, and its revision.
    pub(crate) compactions: Vec<(RoundTime, i64)>,
}
