//! Requests of a script.

use crate::wire::etcdserverpb as pb;

/// Lease ids from here on are names: each server's own choice of an id is kept in a table.
pub const NAMED_LEASES: i64 = 0x7a00_0000_0000_0000;

/// One step. Lease ids in it may be names.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "a few thousand live one after the other")]
pub enum Request {
    /// KV.Range.
    Range(pb::RangeRequest),
    /// KV.Put.
    Put(pb::PutRequest),
    /// KV.DeleteRange.
    DeleteRange(pb::DeleteRangeRequest),
    /// KV.Txn.
    Txn(pb::TxnRequest),
    /// KV.Compact.
    Compact(pb::CompactionRequest),
    /// Lease.LeaseGrant; with id 0 the server's choice gets this name.
    Grant(pb::LeaseGrantRequest, i64),
    /// Lease.LeaseGrant with a time so short that the lease is revoked at once, unless it has ended already.
    GrantShort(pb::LeaseGrantRequest),
    /// Lease.LeaseRevoke.
    Revoke(i64),
    /// Lease.LeaseKeepAlive, once.
    KeepAlive(i64),
    /// Lease.LeaseTimeToLive.
    TimeToLive(pb::LeaseTimeToLiveRequest),
    /// Lease.LeaseLeases.
    Leases,
    /// Cluster.MemberList.
    MemberList(pb::MemberListRequest),
    /// Cluster.MemberAdd, with addresses that are refused.
    MemberAdd(pb::MemberAddRequest),
    /// Cluster.MemberRemove of an unknown member.
    MemberRemove(pb::MemberRemoveRequest),
    /// Cluster.MemberUpdate of an unknown member.
    MemberUpdate(pb::MemberUpdateRequest),
    /// Cluster.MemberPromote of an unknown member.
    MemberPromote(pb::MemberPromoteRequest),
    /// Maintenance.Status.
    Status,
    /// Maintenance.Alarm.
    Alarm(pb::AlarmRequest),
    /// Maintenance.Hash.
    Hash,
    /// Maintenance.HashKV.
    HashKv(pb::HashKvRequest),
    /// Maintenance.Defragment.
    Defragment,
    /// Maintenance.MoveLeader.
    MoveLeader(pb::MoveLeaderRequest),
    /// Maintenance.Downgrade.
    Downgrade(pb::DowngradeRequest),
    /// Auth.AuthStatus.
    AuthStatus,
    /// A watch create request on stream `stream`, as the first of a new stream if `fresh`.
    Watch {
        /// Which of the streams.
        stream: usize,
        /// True if the stream is opened anew with it, the old one dropped.
        fresh: bool,
        /// The keys to watch.
        create: pb::WatchCreateRequest,
    },
    /// A watch cancel request.
    Cancel {
        /// Which of the streams.
        stream: usize,
        /// The watcher.
        id: i64,
        /// True if there is such a watcher: only then is there an answer.
        known: bool,
    },
    /// Progress requests until all events up to this revision have come.
    Settle {
        /// Which of the streams.
        stream: usize,
        /// The store's revision.
        revision: i64,
    },
}

impl Request {
    /// Returns true if it may change what is stored or watched.
    pub fn writes(&self) -> bool {
        use Request as R;
        matches!(
            self,
            R::Put(_) | R::DeleteRange(_) | R::Txn(_) | R::Compact(_) | R::Revoke(_) | R::Watch { .. }
        )
    }

    /// The name of the method.
    pub fn method(&self) -> &'static str {
        match self {
            Self::Range(_) => "Range",
            Self::Put(_) => "Put",
            Self::DeleteRange(_) => "DeleteRange",
            Self::Txn(_) => "Txn",
            Self::Compact(_) => "Compact",
            Self::Grant(..) | Self::GrantShort(_) => "LeaseGrant",
            Self::Revoke(_) => "LeaseRevoke",
            Self::KeepAlive(_) => "LeaseKeepAlive",
            Self::TimeToLive(_) => "LeaseTimeToLive",
            Self::Leases => "LeaseLeases",
            Self::MemberList(_) => "MemberList",
            Self::MemberAdd(_) => "MemberAdd",
            Self::MemberRemove(_) => "MemberRemove",
            Self::MemberUpdate(_) => "MemberUpdate",
            Self::MemberPromote(_) => "MemberPromote",
            Self::Status => "Status",
            Self::Alarm(_) => "Alarm",
            Self::Hash => "Hash",
            Self::HashKv(_) => "HashKV",
            Self::Defragment => "Defragment",
            Self::MoveLeader(_) => "MoveLeader",
            Self::Downgrade(_) => "Downgrade",
            Self::AuthStatus => "AuthStatus",
            Self::Watch { .. } => "Watch create",
            Self::Cancel { .. } => "Watch cancel",
            Self::Settle { .. } => "Watch events",
        }
    }
}
