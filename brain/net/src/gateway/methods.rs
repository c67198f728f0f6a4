//! The methods that the gateway maps, and their paths.

use std::collections::HashMap;
use std::sync::LazyLock;

use etcd_types::DESCRIPTORS;
use prost_reflect::{DescriptorPool, MessageDescriptor};

/// Paths below `/v3/`, and the service and method of each: the annotations of etcd's `rpc.proto`, `v3lock.proto` and `v3election.proto`.
/// `RangeStream` has none.
const GATEWAY_PATHS: &[(&str, &str, &str)] = &[
    ("kv/range", "etcdserverpb.KV", "Range"),
    ("kv/put", "etcdserverpb.KV", "Put"),
    ("kv/deleterange", "etcdserverpb.KV", "DeleteRange"),
    ("kv/txn", "etcdserverpb.KV", "Txn"),
    ("kv/compaction", "etcdserverpb.KV", "Compact"),
    ("watch", "etcdserverpb.Watch", "Watch"),
    ("lease/grant", "etcdserverpb.Lease", "LeaseGrant"),
    ("lease/revoke", "etcdserverpb.Lease", "LeaseRevoke"),
    ("kv/lease/revoke", "etcdserverpb.Lease", "LeaseRevoke"),
    ("lease/keepalive", "etcdserverpb.Lease", "LeaseKeepAlive"),
    ("lease/timetolive", "etcdserverpb.Lease", "LeaseTimeToLive"),
    ("kv/lease/timetolive", "etcdserverpb.Lease", "LeaseTimeToLive"),
    ("lease/leases", "etcdserverpb.Lease", "LeaseLeases"),
    ("kv/lease/leases", "etcdserverpb.Lease", "LeaseLeases"),
    ("cluster/member/add", "etcdserverpb.Cluster", "MemberAdd"),
    ("cluster/member/remove", "etcdserverpb.Cluster", "MemberRemove"),
    ("cluster/member/update", "etcdserverpb.Cluster", "MemberUpdate"),
    ("cluster/member/list", "etcdserverpb.Cluster", "MemberList"),
    ("cluster/member/promote", "etcdserverpb.Cluster", "MemberPromote"),
    ("maintenance/alarm", "etcdserverpb.Maintenance", "Alarm"),
    ("maintenance/status", "etcdserverpb.Maintenance", "Status"),
    ("maintenance/defragment", "etcdserverpb.Maintenance", "Defragment"),
    ("maintenance/hash", "etcdserverpb.Maintenance", "Hash"),
    ("maintenance/hashkv", "etcdserverpb.Maintenance", "HashKV"),
    ("maintenance/snapshot", "etcdserverpb.Maintenance", "Snapshot"),
    (
        "maintenance/transfer-leadership",
        "etcdserverpb.Maintenance",
        "MoveLeader",
    ),
    ("maintenance/downgrade", "etcdserverpb.Maintenance", "Downgrade"),
    ("auth/enable", "etcdserverpb.Auth", "AuthEnable"),
    ("auth/disable", "etcdserverpb.Auth", "AuthDisable"),
    ("auth/status", "etcdserverpb.Auth", "AuthStatus"),
    ("auth/authenticate", "etcdserverpb.Auth", "Authenticate"),
    ("auth/user/add", "etcdserverpb.Auth", "UserAdd"),
    ("auth/user/get", "etcdserverpb.Auth", "UserGet"),
    ("auth/user/list", "etcdserverpb.Auth", "UserList"),
    ("auth/user/delete", "etcdserverpb.Auth", "UserDelete"),
    ("auth/user/changepw", "etcdserverpb.Auth", "UserChangePassword"),
    ("auth/user/grant", "etcdserverpb.Auth", "UserGrantRole"),
    ("auth/user/revoke", "etcdserverpb.Auth", "UserRevokeRole"),
    ("auth/role/add", "etcdserverpb.Auth", "RoleAdd"),
    ("auth/role/get", "etcdserverpb.Auth", "RoleGet"),
    ("auth/role/list", "etcdserverpb.Auth", "RoleList"),
    ("auth/role/delete", "etcdserverpb.Auth", "RoleDelete"),
    ("auth/role/grant", "etcdserverpb.Auth", "RoleGrantPermission"),
    ("auth/role/revoke", "etcdserverpb.Auth", "RoleRevokePermission"),
    ("lock/lock", "v3lockpb.Lock", "Lock"),
    ("lock/unlock", "v3lockpb.Lock", "Unlock"),
    ("election/campaign", "v3electionpb.Election", "Campaign"),
    ("election/proclaim", "v3electionpb.Election", "Proclaim"),
    ("election/leader", "v3electionpb.Election", "Leader"),
    ("election/observe", "v3electionpb.Election", "Observe"),
    ("election/resign", "v3electionpb.Election", "Resign"),
];

static METHODS: LazyLock<HashMap<&'static str, RpcMethod>> = LazyLock::new(|| {
    // The build wrote them.
    let Ok(pool) = DescriptorPool::decode(DESCRIPTORS) else {
        return HashMap::new();
    };
    let methods = GATEWAY_PATHS.iter().filter_map(|&(path, service, name)| {
        let service = pool.get_service_by_name(service)?;
        let method = service.methods().find(|method| method.name() == name)?;
        Some((
            path,
            RpcMethod {
                rpc: format!("/{}/{name}", service.full_name()),
                input: method.input(),
                output: method.output(),
                takes_stream: method.is_client_streaming(),
                answers_stream: method.is_server_streaming(),
            },
        ))
    });
    methods.collect()
});

/// A method of an RPC service.
#[derive(Debug)]
pub(crate) struct RpcMethod {
    /// Its path in gRPC.
    pub(crate) rpc: String,
    /// The type of its requests.
    pub(crate) input: MessageDescriptor,
    /// The type of its answers.
    pub(crate) output: MessageDescriptor,
    /// It takes a stream of requests.
    pub(crate) takes_stream: bool,
    /// It answers with a stream.
    pub(crate) answers_stream: bool,
}

/// The outcome of looking a path up.
#[derive(Debug, Clone, Copy)]
pub(crate) enum MethodLookup {
    /// The gateway does not serve such paths.
    Elsewhere,
    /// It serves such paths, and there is no method at this one.
    Nothing,
    /// A method.
    Method(&'static RpcMethod),
}

/// Returns the method at an HTTP path. `/v3beta/` is `/v3/`, as in etcd.
pub(crate) fn find(path: &str) -> MethodLookup {
    let rest = path.strip_prefix("/v3/").or_else(|| path.strip_prefix("/v3beta/"));
    match rest {
        None => MethodLookup::Elsewhere,
        Some(rest) => METHODS.get(rest).map_or(MethodLookup::Nothing, MethodLookup::Method),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_has_a_method() {
        assert_eq!(METHODS.len(), GATEWAY_PATHS.len());
        let MethodLookup::Method(watch) = find("/v3beta/watch") else {
            panic!("no method")
        };
        assert_eq!(watch.rpc, "/etcdserverpb.Watch/Watch");
        assert!(watch.takes_stream && watch.answers_stream);
        assert!(matches!(find("/v3/kv/rangestream"), MethodLookup::Nothing));
        assert!(matches!(find("/v2/keys"), MethodLookup::Elsewhere));
    }
}
