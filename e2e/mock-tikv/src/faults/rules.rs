//! The form of a fault, in Rust and in JSON.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::hex;
use crate::rpc::Rpc;

/// Names a fault while it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FaultId(pub u64);

/// Effect of a fault on a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    /// The request is not executed. The caller gets `UNAVAILABLE`, or, silently, no answer at all until its own timeout.
    LoseRequest {
        #[serde(default)]
        silent: bool,
    },
    /// The request is executed, even if the caller gives up while it runs. The caller gets the same as for a lost request.
    LoseReply {
        #[serde(default)]
        silent: bool,
    },
    /// The request is executed late, but in any case: even if the caller has given up by then. The caller waits.
    DelayRequest {
        #[serde(rename = "ms", with = "millis")]
        by: Duration,
    },
    /// The request is executed at once and answered late.
    DelayReply {
        #[serde(rename = "ms", with = "millis")]
        by: Duration,
    },
    /// The caller gets `UNAVAILABLE` at once; the request arrives after a time, or when held messages are delivered.
    Late {
        #[serde(default, rename = "ms", with = "maybe_millis")]
        after: Option<Duration>,
    },
    /// The request is executed and answered, and arrives once more after a time, or when held messages are delivered.
    Duplicate {
        #[serde(default, rename = "ms", with = "maybe_millis")]
        after: Option<Duration>,
    },
    /// The request is not executed; the answer is a region error.
    Region { error: RegionFault },
    /// The request is not executed; the call fails with this code, as from a proxy, a message size limit, or a server that is short of
    /// memory.
    Refuse { code: RefusalCode, message: String },
}

/// Failure of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    ResourceExhausted,
    OutOfRange,
    Internal,
    Unavailable,
    Cancelled,
    Unknown,
}

impl From<RefusalCode> for tonic::Code {
    fn from(code: RefusalCode) -> Self {
        match code {
            RefusalCode::ResourceExhausted => Self::ResourceExhausted,
            RefusalCode::OutOfRange => Self::OutOfRange,
            RefusalCode::Internal => Self::Internal,
            RefusalCode::Unavailable => Self::Unavailable,
            RefusalCode::Cancelled => Self::Cancelled,
            RefusalCode::Unknown => Self::Unknown,
        }
    }
}

/// Which region error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RegionFault {
    /// Without naming a leader, as during an election.
    NotLeader,
    RegionNotFound,
    EpochNotMatch,
    ServerIsBusy,
    StaleCommand,
    StoreNotMatch,
    RaftEntryTooLarge,
    MaxTimestampNotSynced,
    ReadIndexNotReady,
    DiskFull,
    /// Requests whose `disk_full_opt` permits it are executed anyway.
    DiskAlmostFull,
}

/// A fault: to which requests, what, how often.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    pub rpc: Rpc,
    pub action: Action,
    /// Only at this store; any when absent.
    #[serde(default)]
    pub store: Option<u64>,
    /// Only requests one of whose keys begins with this prefix; in JSON as hexadecimal digits.
    #[serde(default, with = "hex::serde")]
    pub key_prefix: Vec<u8>,
    /// Only requests of at least this size in bytes.
    #[serde(default)]
    pub min_bytes: usize,
    /// Number of matching requests that are let through first.
    #[serde(default)]
    pub skip: u64,
    /// Happens at most this often; without a limit when absent.
    #[serde(default)]
    pub count: Option<u64>,
    /// From 0 to 1.
    #[serde(default = "always")]
    pub probability: f64,
}

fn always() -> f64 {
    1.0
}

/// Reason that a fault was not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultError {
    #[error("the probability is not between 0 and 1")]
    Probability,
    #[error("{0:?} is not sent to a region, so it cannot get a region error")]
    NoRegion(Rpc),
    #[error("a message of the stream of timestamps can only be lost or delayed")]
    Stream,
}

impl Fault {
    /// A fault of every such request, for ever.
    #[must_use]
    pub fn new(rpc: Rpc, action: Action) -> Self {
        Self {
            rpc,
            action,
            store: None,
            key_prefix: Vec::new(),
            min_bytes: 0,
            skip: 0,
            count: None,
            probability: always(),
        }
    }

    /// The same, at most `count` times.
    #[must_use]
    pub fn times(mut self, count: u64) -> Self {
        self.count = Some(count);
        self
    }

    /// The same, after `skip` requests that are let through.
    #[must_use]
    pub fn after(mut self, skip: u64) -> Self {
        self.skip = skip;
        self
    }

    /// The same, by chance.
    #[must_use]
    pub fn with_probability(mut self, probability: f64) -> Self {
        self.probability = probability;
        self
    }

    /// The same, at one store only.
    #[must_use]
    pub fn at_store(mut self, store: u64) -> Self {
        self.store = Some(store);
        self
    }

    /// The same, only for keys that begin with `prefix`.
    #[must_use]
    pub fn on_keys(mut self, prefix: impl Into<Vec<u8>>) -> Self {
        self.key_prefix = prefix.into();
        self
    }

    /// The same, only for requests of at least `min` bytes.
    #[must_use]
    pub fn with_min_bytes(mut self, min: usize) -> Self {
        self.min_bytes = min;
        self
    }

    pub(super) fn check(&self) -> Result<(), FaultError> {
        if !(0.0..=1.0).contains(&self.probability) {
            return Err(FaultError::Probability);
        }
        match self.action {
            Action::Region { .. } if !self.rpc.is_regional() => Err(FaultError::NoRegion(self.rpc)),
            Action::Late { .. } | Action::Duplicate { .. } | Action::Refuse { .. } if self.rpc == Rpc::Tso => {
                Err(FaultError::Stream)
            }
            _ => Ok(()),
        }
    }
}

/// A fault that is set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FaultState {
    pub id: FaultId,
    pub fault: Fault,
    /// Requests that fitted.
    pub seen: u64,
    /// Requests to which it happened.
    pub happened: u64,
}

pub(crate) mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(by: &Duration, out: S) -> Result<S::Ok, S::Error> {
        by.as_millis().serialize(out)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }
}

mod maybe_millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[expect(clippy::ref_option, reason = "serde hands it over so")]
    pub(super) fn serialize<S: Serializer>(after: &Option<Duration>, out: S) -> Result<S::Ok, S::Error> {
        after.map(|after| after.as_millis()).serialize(out)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(Duration::from_millis))
    }
}
