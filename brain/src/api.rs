//! gRPC in and out: etcd's services over the modules below. Protobuf types stop here.

/// Has a request answered by whoever leads: by a method of the service here, or by the same RPC of the leader, in this
/// member's name.
// A macro, for each RPC of a client is a method of its own.
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
