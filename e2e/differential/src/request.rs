//! Requests of a script.

use prost::Message as _;

use super::json::{self, Rpc};

/// Lease ids from here on are names: each server's own choice of an id is kept in a table.
pub use testkit::requests::NAMED_LEASES;

/// Stands for the id of the member that a request is sent to.
pub const OWN_MEMBER: u64 = 0x7a00_0000_0000_0000;

/// Stands for the peer URLs of the member that a request is sent to.
pub const OWN_PEER_URLS: &str = "own";

/// A table of the methods with one request and one response: the variant of [`Request`] and of the answer, the method, its path in the
/// gateway, its messages, and how a client calls it. The given macro is invoked with all of it.
macro_rules! with_unary_methods {
    ($then:ident) => {
        $then! {
            Range, "etcdserverpb.KV/Range", "kv/range", pb::RangeRequest, pb::RangeResponse, kv.range;
            Put, "etcdserverpb.KV/Put", "kv/put", pb::PutRequest, pb::PutResponse, kv.put;
            DeleteRange, "etcdserverpb.KV/DeleteRange", "kv/deleterange", pb::DeleteRangeRequest, pb::DeleteRangeResponse, kv.delete_range;
            Txn, "etcdserverpb.KV/Txn", "kv/txn", pb::TxnRequest, pb::TxnResponse, kv.txn;
            Compact, "etcdserverpb.KV/Compact", "kv/compaction", pb::CompactionRequest, pb::CompactionResponse, kv.compact;
            Revoke, "etcdserverpb.Lease/LeaseRevoke", "lease/revoke", pb::LeaseRevokeRequest, pb::LeaseRevokeResponse, lease.lease_revoke;
            TimeToLive, "etcdserverpb.Lease/LeaseTimeToLive", "lease/timetolive", pb::LeaseTimeToLiveRequest, pb::LeaseTimeToLiveResponse, lease.lease_time_to_live;
            Leases, "etcdserverpb.Lease/LeaseLeases", "lease/leases", pb::LeaseLeasesRequest, pb::LeaseLeasesResponse, lease.lease_leases;
            MemberList, "etcdserverpb.Cluster/MemberList", "cluster/member/list", pb::MemberListRequest, pb::MemberListResponse, cluster.member_list;
            MemberAdd, "etcdserverpb.Cluster/MemberAdd", "cluster/member/add", pb::MemberAddRequest, pb::MemberAddResponse, cluster.member_add;
            MemberRemove, "etcdserverpb.Cluster/MemberRemove", "cluster/member/remove", pb::MemberRemoveRequest, pb::MemberRemoveResponse, cluster.member_remove;
            MemberUpdate, "etcdserverpb.Cluster/MemberUpdate", "cluster/member/update", pb::MemberUpdateRequest, pb::MemberUpdateResponse, cluster.member_update;
            MemberPromote, "etcdserverpb.Cluster/MemberPromote", "cluster/member/promote", pb::MemberPromoteRequest, pb::MemberPromoteResponse, cluster.member_promote;
            Status, "etcdserverpb.Maintenance/Status", "maintenance/status", pb::StatusRequest, pb::StatusResponse, maintenance.status;
            Alarm, "etcdserverpb.Maintenance/Alarm", "maintenance/alarm", pb::AlarmRequest, pb::AlarmResponse, maintenance.alarm;
            Hash, "etcdserverpb.Maintenance/Hash", "maintenance/hash", pb::HashRequest, pb::HashResponse, maintenance.hash;
            HashKv, "etcdserverpb.Maintenance/HashKV", "maintenance/hashkv", pb::HashKvRequest, pb::HashKvResponse, maintenance.hash_kv;
            Defragment, "etcdserverpb.Maintenance/Defragment", "maintenance/defragment", pb::DefragmentRequest, pb::DefragmentResponse, maintenance.defragment;
            MoveLeader, "etcdserverpb.Maintenance/MoveLeader", "maintenance/transfer-leadership", pb::MoveLeaderRequest, pb::MoveLeaderResponse, maintenance.move_leader;
            Downgrade, "etcdserverpb.Maintenance/Downgrade", "maintenance/downgrade", pb::DowngradeRequest, pb::DowngradeResponse, maintenance.downgrade;
            AuthEnable, "etcdserverpb.Auth/AuthEnable", "auth/enable", pb::AuthEnableRequest, pb::AuthEnableResponse, auth.auth_enable;
            AuthDisable, "etcdserverpb.Auth/AuthDisable", "auth/disable", pb::AuthDisableRequest, pb::AuthDisableResponse, auth.auth_disable;
            AuthStatus, "etcdserverpb.Auth/AuthStatus", "auth/status", pb::AuthStatusRequest, pb::AuthStatusResponse, auth.auth_status;
            Authenticate, "etcdserverpb.Auth/Authenticate", "auth/authenticate", pb::AuthenticateRequest, pb::AuthenticateResponse, auth.authenticate;
            UserAdd, "etcdserverpb.Auth/UserAdd", "auth/user/add", pb::AuthUserAddRequest, pb::AuthUserAddResponse, auth.user_add;
            UserGet, "etcdserverpb.Auth/UserGet", "auth/user/get", pb::AuthUserGetRequest, pb::AuthUserGetResponse, auth.user_get;
            UserList, "etcdserverpb.Auth/UserList", "auth/user/list", pb::AuthUserListRequest, pb::AuthUserListResponse, auth.user_list;
            UserDelete, "etcdserverpb.Auth/UserDelete", "auth/user/delete", pb::AuthUserDeleteRequest, pb::AuthUserDeleteResponse, auth.user_delete;
            ChangePassword, "etcdserverpb.Auth/UserChangePassword", "auth/user/changepw", pb::AuthUserChangePasswordRequest, pb::AuthUserChangePasswordResponse, auth.user_change_password;
            GrantRole, "etcdserverpb.Auth/UserGrantRole", "auth/user/grant", pb::AuthUserGrantRoleRequest, pb::AuthUserGrantRoleResponse, auth.user_grant_role;
            RevokeRole, "etcdserverpb.Auth/UserRevokeRole", "auth/user/revoke", pb::AuthUserRevokeRoleRequest, pb::AuthUserRevokeRoleResponse, auth.user_revoke_role;
            RoleAdd, "etcdserverpb.Auth/RoleAdd", "auth/role/add", pb::AuthRoleAddRequest, pb::AuthRoleAddResponse, auth.role_add;
            RoleGet, "etcdserverpb.Auth/RoleGet", "auth/role/get", pb::AuthRoleGetRequest, pb::AuthRoleGetResponse, auth.role_get;
            RoleList, "etcdserverpb.Auth/RoleList", "auth/role/list", pb::AuthRoleListRequest, pb::AuthRoleListResponse, auth.role_list;
            RoleDelete, "etcdserverpb.Auth/RoleDelete", "auth/role/delete", pb::AuthRoleDeleteRequest, pb::AuthRoleDeleteResponse, auth.role_delete;
            GrantPermission, "etcdserverpb.Auth/RoleGrantPermission", "auth/role/grant", pb::AuthRoleGrantPermissionRequest, pb::AuthRoleGrantPermissionResponse, auth.role_grant_permission;
            RevokePermission, "etcdserverpb.Auth/RoleRevokePermission", "auth/role/revoke", pb::AuthRoleRevokePermissionRequest, pb::AuthRoleRevokePermissionResponse, auth.role_revoke_permission;
            Lock, "v3lockpb.Lock/Lock", "lock/lock", lock::LockRequest, lock::LockResponse, lock.lock;
            Unlock, "v3lockpb.Lock/Unlock", "lock/unlock", lock::UnlockRequest, lock::UnlockResponse, lock.unlock;
            Campaign, "v3electionpb.Election/Campaign", "election/campaign", election::CampaignRequest, election::CampaignResponse, election.campaign;
            Proclaim, "v3electionpb.Election/Proclaim", "election/proclaim", election::ProclaimRequest, election::ProclaimResponse, election.proclaim;
            Leader, "v3electionpb.Election/Leader", "election/leader", election::LeaderRequest, election::LeaderResponse, election.leader;
            Resign, "v3electionpb.Election/Resign", "election/resign", election::ResignRequest, election::ResignResponse, election.resign;
        }
    };
}
use wire::{etcdserverpb as pb, v3electionpb as election, v3lockpb as lock};
pub(super) use with_unary_methods;

/// The user of a request, by the token that the server gave last.
#[derive(Clone, Debug, PartialEq)]
pub struct By {
    /// The user; for one who never got a token, a token that no server gave.
    pub user: String,
    /// The header that holds the token, of those that etcd looks at.
    pub header: String,
}

/// One step of a script.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The request.
    pub request: Request,
    /// The user, if there is one.
    pub by: Option<By>,
    /// True if it is sent as JSON over the gateway, which is possible for requests that [`Request::as_json`] supports.
    pub gateway: bool,
}

impl Step {
    /// A request over gRPC.
    pub fn new(request: Request, by: Option<By>) -> Self {
        Self {
            request,
            by,
            gateway: false,
        }
    }
}

macro_rules! requests {
    ($($name:ident, $method:literal, $path:literal, $request:ty, $response:ty, $client:ident.$call:ident;)*) => {
        /// One request. Lease ids in it may be names.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(
            missing_docs,
            clippy::large_enum_variant,
            reason = "a few thousand live at once; most are the request of the method of that name"
        )]
        pub enum Request {
            $($name($request),)*
            /// Lease.LeaseGrant; with id 0 the server's choice gets this name.
            Grant(pb::LeaseGrantRequest, i64),
            /// Lease.LeaseGrant with a time so short that the lease is revoked at once, unless it has ended already.
            GrantShort(pb::LeaseGrantRequest),
            /// Lease.LeaseKeepAlive, once.
            KeepAlive(pb::LeaseKeepAliveRequest),
            /// A watch create request on stream `stream`, as the first of a new stream if `fresh`.
            Watch {
                /// Which of the streams.
                stream: usize,
                /// True if it opens a new stream and drops the old one.
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
                /// True if there is such a watcher: the server answers only then.
                known: bool,
            },
            /// Progress requests until all events up to this revision have come.
            Settle {
                /// Which of the streams.
                stream: usize,
                /// The store's revision.
                revision: i64,
            },
            /// Lock.Lock of a lock that is held; it is unlocked when this one waits.
            LockBehind(lock::LockRequest, lock::UnlockRequest),
            /// Election.Campaign while there is a leader, which resigns when this one waits.
            CampaignBehind(election::CampaignRequest, election::ResignRequest),
            /// Election.Observe, up to the first response.
            Observe(election::LeaderRequest),
            /// Maintenance.Snapshot, to its end.
            Snapshot,
        }

        impl Request {
            /// The method, its path in the gateway and the bytes of the message, if it has one request and one response.
            pub fn unary(&self) -> Option<(Rpc, Vec<u8>)> {
                match self {
                    $(Self::$name(message) => Some((Rpc { method: $method, path: $path }, message.encode_to_vec())),)*
                    _ => None,
                }
            }

            /// The request of a method, from the JSON form of its message.
            ///
            /// # Errors
            ///
            /// There is no such method, or it is not its message.
            pub fn of_unary(method: &str, message: &serde_json::Value) -> anyhow::Result<Self> {
                let bytes = json::to_bytes(&json::input(method)?, message)?;
                match method {
                    $($method => Ok(Self::$name(<$request>::decode(bytes.as_slice())?)),)*
                    _ => anyhow::bail!("no method {method}"),
                }
            }

            /// The name of the method.
            pub fn method(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => $method.rsplit('/').next().unwrap_or($method),)*
                    Self::Grant(..) | Self::GrantShort(_) => "LeaseGrant",
                    Self::KeepAlive(_) => "LeaseKeepAlive",
                    Self::Watch { .. } => "Watch create",
                    Self::Cancel { .. } => "Watch cancel",
                    Self::Settle { .. } => "Watch events",
                    Self::LockBehind(..) => "Lock behind",
                    Self::CampaignBehind(..) => "Campaign behind",
                    Self::Observe(_) => "Observe",
                    Self::Snapshot => "Snapshot",
                }
            }
        }
    };
}
with_unary_methods!(requests);

impl Request {
    /// The method, its path in the gateway and the bytes of the message, if it can be sent there.
    pub fn as_json(&self) -> Option<(Rpc, Vec<u8>)> {
        let (method, path, bytes) = match self {
            Self::Grant(grant, _) => ("etcdserverpb.Lease/LeaseGrant", "lease/grant", grant.encode_to_vec()),
            Self::KeepAlive(keep) => (
                "etcdserverpb.Lease/LeaseKeepAlive",
                "lease/keepalive",
                keep.encode_to_vec(),
            ),
            Self::Observe(observe) => (
                "v3electionpb.Election/Observe",
                "election/observe",
                observe.encode_to_vec(),
            ),
            Self::Snapshot => ("etcdserverpb.Maintenance/Snapshot", "maintenance/snapshot", Vec::new()),
            other => return other.unary(),
        };
        Some((Rpc { method, path }, bytes))
    }

    /// Returns true if it may change what is stored or watched.
    pub fn writes(&self) -> bool {
        use Request as R;
        !matches!(
            self,
            R::Range(_)
                | R::TimeToLive(_)
                | R::Leases(_)
                | R::KeepAlive(_)
                | R::Leader(_)
                | R::Observe(_)
                | R::MemberList(_)
                | R::Status(_)
                | R::Alarm(_)
                | R::Hash(_)
                | R::HashKv(_)
                | R::AuthStatus(_)
                | R::MemberAdd(_)
                | R::MemberRemove(_)
                | R::MemberUpdate(_)
                | R::MemberPromote(_)
                | R::Defragment(_)
                | R::MoveLeader(_)
                | R::Downgrade(_)
                | R::Grant(..)
                | R::GrantShort(_)
                | R::UserGet(_)
                | R::UserList(_)
                | R::RoleGet(_)
                | R::RoleList(_)
                | R::Snapshot
                | R::Cancel { .. }
                | R::Settle { .. }
        )
    }
}
