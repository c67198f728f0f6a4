//! Requests that only the leader answers, and the RPCs between members by which followers forward them.
//!
//! A handler passes such a request to [`ApiContext::forward`].

use prost::Message;
use tonic::client;
use tonic::codegen::StdError;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use super::context::ApiContext;
use super::header::HasHeaders;
use engine::rows::Rows;

/// A request that only the leader answers.
pub trait LeaderRequest: Message + Clone + Default + 'static {
    /// The leader's answer.
    type Answer: HasHeaders + Message + Default + 'static;

    /// The path of the RPC between members. It never changes: members of two versions call each other during an upgrade.
    const PATH: &'static str;

    /// True if the member that the client contacts identifies the client before it forwards the request.
    const IS_IDENTIFIED: bool = true;

    /// Returns true if the answer may take longer than that of other requests. The leader ends the wait when it makes no progress.
    fn is_patient(&self) -> bool {
        false
    }

    /// Answers on the leader. Fails with etcd's status; with `not leader` if nothing was done and another member may lead.
    fn answer<R: Rows>(
        store: &ApiContext<R>,
        request: &Request<Self>,
    ) -> impl Future<Output = Result<Self::Answer, Status>> + Send;

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
