//! The part of etcd's API that members serve each other.

use api::context::ApiContext;
use api::leader_request;
use bytes::Bytes;
use cluster::forward::LeaderRouter;
use engine::log::MemLog;
use engine::rows::mem::MemRows;
use tonic::Status;
use tonic::codegen::{Service as _, http};
use tonic::service::{AxumBody, Routes};

use crate::engine::Engine;

/// The RPCs by which members forward requests. Members of other versions call them: one that is missing breaks an upgrade.
const FORWARDED_RPCS: &[&str] = &[
    "/etcdserverpb.KV/Put",
    "/etcdserverpb.KV/DeleteRange",
    "/etcdserverpb.KV/Txn",
    "/etcdserverpb.KV/Compact",
    "/etcdserverpb.Lease/LeaseGrant",
    "/etcdserverpb.Lease/LeaseRevoke",
    "/etcdserverpb.Lease/LeaseKeepAlive",
    "/etcdserverpb.Lease/LeaseTimeToLive",
    "/etcdserverpb.Lease/LeaseLeases",
    "/etcdserverpb.Maintenance/Alarm",
    "/etcdserverpb.Auth/AuthEnable",
    "/etcdserverpb.Auth/AuthDisable",
    "/etcdserverpb.Auth/Authenticate",
    "/etcdserverpb.Auth/UserAdd",
    "/etcdserverpb.Auth/UserDelete",
    "/etcdserverpb.Auth/UserChangePassword",
    "/etcdserverpb.Auth/UserGrantRole",
    "/etcdserverpb.Auth/UserRevokeRole",
    "/etcdserverpb.Auth/RoleAdd",
    "/etcdserverpb.Auth/RoleDelete",
    "/etcdserverpb.Auth/RoleGrantPermission",
    "/etcdserverpb.Auth/RoleRevokePermission",
];

/// RPCs that every member answers itself, and paths that name no RPC.
const REFUSED_RPCS: &[&str] = &[
    "/etcdserverpb.KV/Range",
    "/etcdserverpb.KV/RangeStream",
    "/etcdserverpb.Watch/Watch",
    "/etcdserverpb.Cluster/MemberList",
    "/etcdserverpb.Cluster/MemberRemove",
    "/etcdserverpb.Maintenance/Status",
    "/etcdserverpb.Maintenance/Defragment",
    "/etcdserverpb.Maintenance/Hash",
    "/etcdserverpb.Maintenance/HashKV",
    "/etcdserverpb.Maintenance/Snapshot",
    "/etcdserverpb.Maintenance/MoveLeader",
    "/etcdserverpb.Maintenance/Downgrade",
    "/etcdserverpb.Auth/AuthStatus",
    "/etcdserverpb.Auth/UserGet",
    "/etcdserverpb.Auth/UserList",
    "/etcdserverpb.Auth/RoleGet",
    "/etcdserverpb.Auth/RoleList",
    "/v3lockpb.Lock/Lock",
    "/v3electionpb.Election/Campaign",
    "/etcdserverpb.Lease/Put",
    "/etcdserverpb.KV/put",
    "/etcdserverpb.KV/Put/",
    "/Put",
];

/// An empty message, which is a valid request of every RPC.
const EMPTY_MESSAGE: &[u8] = &[0; 5];

#[tokio::test]
async fn peer_port_serves_forwarded_requests_alone() {
    let engine = Engine::start(MemLog::new(), MemRows::new()).await.unwrap();
    let store = ApiContext {
        router: LeaderRouter::single_member().local_only(),
        ..engine.kv.store.clone()
    };
    let mut routes = leader_request::serve(Routes::default(), store, 1 << 20);
    let mut is_served = async |path: &'static str| {
        let request = http::Request::post(path)
            .header("content-type", "application/grpc")
            .body(AxumBody::from(Bytes::from_static(EMPTY_MESSAGE)));
        let response = routes.call(request.unwrap()).await.unwrap();
        let status = Status::from_header_map(response.headers());
        !status.is_some_and(|status| status.code() == tonic::Code::Unimplemented)
    };
    for path in FORWARDED_RPCS {
        assert!(is_served(path).await, "{path} is forwarded");
    }
    for path in REFUSED_RPCS {
        assert!(!is_served(path).await, "{path} is not forwarded");
    }
    drop(routes);
    engine.stop().await.unwrap();
}
