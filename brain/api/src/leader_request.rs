//! Requests that only the leader answers, and the RPCs between members by which followers forward them.
//!
//! A handler passes such a request to [`ApiContext::forward`]. The peer port serves nothing else of etcd's API.

use std::convert::Infallible;
use std::sync::Arc;

use prost::Message;
use tonic::client;
use tonic::codegen::StdError;
use tonic::codegen::http::{self, uri::PathAndQuery};
use tonic::server;
use tonic::service::{AxumBody, AxumRouter, Routes};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;

use super::context::ApiContext;
use super::header::HasHeaders;
use super::lease::{LeaseService, RenewLeasesRequest};
use etcd_types::pb::etcdserverpb as pb;
use mvcc::evaluate::MAX_ANSWER_BYTES;
use pb::lease_server::LeaseServer;

/// The longest request of a member in bytes, except for forwarded keys, values, users and roles: these may be as long as from a client.
pub const MAX_SMALL_REQUEST_BYTES: usize = 64 << 10;

/// A request that only the leader answers.
pub trait LeaderRequest: Message + Clone + Default + 'static {
    /// The leader's answer.
    type Answer: HasHeaders + Message + Default + 'static;

    /// The path of the RPC between members. It never changes: members of two versions call each other during an upgrade.
    const PATH: &'static str;

    /// True if the member that the client contacts identifies the client before it forwards the request.
    const IS_IDENTIFIED: bool = true;

    /// True if the leader takes at most [`MAX_SMALL_REQUEST_BYTES`] bytes of a follower; false if as many as of a client.
    const IS_SMALL: bool = false;

    /// Returns true if the answer may take longer than that of other requests. The leader ends the wait when it makes no progress.
    fn is_patient(&self) -> bool {
        false
    }

    /// Answers on the leader. Fails with etcd's status; with `not leader` if nothing was done and another member may lead.
    fn answer(store: &ApiContext, request: &Request<Self>)
    -> impl Future<Output = Result<Self::Answer, Status>> + Send;

    /// Gets the answer of another member, which leads, over a channel to it.
    fn ask(
        leader: Channel,
        request: Request<Self>,
    ) -> impl Future<Output = Result<Response<Self::Answer>, Status>> + Send {
        unary(leader, Self::PATH, request)
    }
}

/// Calls a unary RPC of the leader. The leader has checked sizes as this member would.
async fn unary<Q: Message + 'static, A: Message + Default + 'static>(
    leader: Channel,
    path: &'static str,
    request: Request<Q>,
) -> Result<Response<A>, Status> {
    let mut leader = client::Grpc::new(leader).max_decoding_message_size(usize::MAX);
    let ready = leader.ready().await;
    ready.map_err(|error| Status::unknown(format!("Service was not ready: {}", StdError::from(error))))?;
    let codec = ProstCodec::default();
    leader.unary(request, PathAndQuery::from_static(path), codec).await
}

/// Adds the RPCs of forwarded requests to the routes of the peer port. `longest` is the longest request of a client in bytes. `store`
/// must have a router that is [local only](cluster::forward::LeaderRouter::local_only).
#[must_use]
pub fn serve(routes: Routes, store: ApiContext, longest: usize) -> Routes {
    // Keep-alives are a stream.
    let leases =
        LeaseServer::new(LeaseService::new(store.clone(), None)).max_decoding_message_size(MAX_SMALL_REQUEST_BYTES);
    let served = LeaderRoutes {
        router: routes
            .into_axum_router()
            .route_service(RenewLeasesRequest::PATH, leases),
        store: Arc::new(store),
        longest,
    };
    served
        .with::<pb::PutRequest>()
        .with::<pb::DeleteRangeRequest>()
        .with::<pb::TxnRequest>()
        .with::<pb::CompactionRequest>()
        .with::<pb::LeaseGrantRequest>()
        .with::<pb::LeaseRevokeRequest>()
        .with::<pb::LeaseTimeToLiveRequest>()
        .with::<pb::LeaseLeasesRequest>()
        .with::<pb::AlarmRequest>()
        .with::<pb::AuthenticateRequest>()
        .with::<pb::AuthEnableRequest>()
        .with::<pb::AuthDisableRequest>()
        .with::<pb::AuthUserAddRequest>()
        .with::<pb::AuthUserDeleteRequest>()
        .with::<pb::AuthUserChangePasswordRequest>()
        .with::<pb::AuthUserGrantRoleRequest>()
        .with::<pb::AuthUserRevokeRoleRequest>()
        .with::<pb::AuthRoleAddRequest>()
        .with::<pb::AuthRoleDeleteRequest>()
        .with::<pb::AuthRoleGrantPermissionRequest>()
        .with::<pb::AuthRoleRevokePermissionRequest>()
        .router
        .into()
}

/// The routes of forwarded requests so far.
struct LeaderRoutes {
    router: AxumRouter,
    store: Arc<ApiContext>,
    longest: usize,
}

impl LeaderRoutes {
    fn with<Q: LeaderRequest>(self) -> Self {
        let store = self.store.clone();
        let longest = if Q::IS_SMALL {
            MAX_SMALL_REQUEST_BYTES
        } else {
            self.longest
        };
        let served = service_fn(move |request: http::Request<AxumBody>| {
            let store = store.clone();
            async move {
                let forward = service_fn(move |request: Request<Q>| {
                    let store = store.clone();
                    async move { store.forward(request).await }
                });
                let mut rpc = server::Grpc::new(ProstCodec::default())
                    .max_decoding_message_size(longest)
                    .max_encoding_message_size(MAX_ANSWER_BYTES);
                Ok::<_, Infallible>(rpc.unary(forward, request).await)
            }
        });
        Self {
            router: self.router.route_service(Q::PATH, served),
            ..self
        }
    }
}
