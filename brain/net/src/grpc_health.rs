//! The health checks of gRPC, which kubelet's `grpc` probes and load balancers ask for. As in etcd, there is one service: the server as a
//! whole, with an empty name.

use std::future::ready;

use futures::stream::{BoxStream, StreamExt as _, once};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use etcd_types::pb::healthpb::health_check_response::ServingStatus;
use etcd_types::pb::healthpb::health_server::Health;
use etcd_types::pb::healthpb::{HealthCheckRequest, HealthCheckResponse, HealthListRequest, HealthListResponse};

/// The name of the server as a whole.
const WHOLE_SERVER: &str = "";

/// Serves as long as it is not stopped.
#[derive(Debug)]
pub struct HealthService {
    /// The server begins to stop: it does not serve any more.
    pub stop: CancellationToken,
}

impl HealthService {
    fn status(&self) -> HealthCheckResponse {
        answer(match self.stop.is_cancelled() {
            true => ServingStatus::NotServing,
            false => ServingStatus::Serving,
        })
    }
}

#[tonic::async_trait]
impl Health for HealthService {
    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        match request.get_ref().service.as_str() {
            WHOLE_SERVER => Ok(Response::new(self.status())),
            _ => Err(Status::not_found("unknown service")),
        }
    }

    async fn list(&self, _: Request<HealthListRequest>) -> Result<Response<HealthListResponse>, Status> {
        let statuses = [(WHOLE_SERVER.to_owned(), self.status())];
        Ok(Response::new(HealthListResponse {
            statuses: statuses.into(),
        }))
    }

    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let (is_known, stop) = (request.get_ref().service == WHOLE_SERVER, self.stop.clone());
        let now = match is_known {
            true => self.status(),
            false => answer(ServingStatus::ServiceUnknown),
        };
        let later = once(stop.cancelled_owned())
            .filter(move |()| ready(is_known))
            .map(|()| answer(ServingStatus::NotServing));
        let statuses = once(ready(now)).chain(later).map(Ok);
        Ok(Response::new(statuses.boxed()))
    }
}

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(service: &str) -> Request<HealthCheckRequest> {
        Request::new(HealthCheckRequest {
            service: service.to_owned(),
        })
    }

    #[tokio::test]
    async fn the_server_is_all_that_is_known_and_serves_until_it_stops() {
        let health = HealthService {
            stop: CancellationToken::new(),
        };
        let (serving, not) = (answer(ServingStatus::Serving), answer(ServingStatus::NotServing));
        let listed = async || {
            health
                .list(Request::new(HealthListRequest {}))
                .await
                .unwrap()
                .into_inner()
                .statuses
        };
        assert_eq!(health.check(asked("")).await.unwrap().into_inner(), serving);
        assert_eq!(listed().await, [(String::new(), serving)].into());
        let unknown = health.check(asked("etcdserverpb.KV")).await.unwrap_err();
        assert_eq!(
            (unknown.code(), unknown.message()),
            (tonic::Code::NotFound, "unknown service")
        );
        let watched = health.watch(asked("")).await.unwrap().into_inner();
        let other = health.watch(asked("other")).await.unwrap().into_inner();
        health.stop.cancel();
        let watched: Vec<_> = watched.map(Result::unwrap).collect().await;
        assert_eq!(watched, [serving, not]);
        let other: Vec<_> = other.map(Result::unwrap).collect().await;
        assert_eq!(other, [answer(ServingStatus::ServiceUnknown)]);
        assert_eq!(listed().await, [(String::new(), not)].into());
    }
}
