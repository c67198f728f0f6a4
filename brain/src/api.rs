//! The gRPC API: etcd's services over the modules below. Protobuf types stay in this module.

/// Answers a request on the leader: by a method of the service here, or by the same RPC of the leader, with this member's id in the
/// header.
// It is a macro because each RPC of a client is a method of its own.
macro_rules! by_leader {
    ($service:ident . $here:ident, $client:ident . $rpc:ident, $request:expr) => {{
        let there = |leader, request| async move {
            let mut answer = $client(leader).$rpc(request).await?;
            $service.store.stamp_member(&mut answer.get_mut().header);
            Ok(answer)
        };
        let here = |request| $service.$here(request);
        $service.store.on_leader($request, here, there).await
    }};
}

pub mod about;
pub mod auth;
pub mod cluster;
pub mod concurrency;
pub mod context;
pub mod election;
pub mod health;
pub mod kv;
pub mod lease;
pub mod lock;
pub mod maintenance;
pub mod request;
pub mod response;
pub mod watch;
