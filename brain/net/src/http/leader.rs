//! The leader's name, in the format of the leader-elector sidecar: `{"name":"<holder>"}` on every path.

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use http::{Response, StatusCode};
use serde::Serialize;

use super::plain_error;

/// Returns the leader's name; empty while there is no leader.
pub type LeaderName = std::sync::Arc<dyn Fn() -> String + Send + Sync>;

#[derive(Serialize)]
struct LeaderResponse {
    name: String,
}

/// Returns the routes; like the sidecar, they ignore path and method.
pub fn routes(leader: LeaderName) -> Router {
    Router::new().fallback(tell).with_state(leader)
}

/// Answers with the content type that Go sniffs for the sidecar, which sets none.
async fn tell(State(leader): State<LeaderName>) -> Response<Body> {
    match serde_json::to_string(&LeaderResponse { name: leader() }) {
        Ok(body) => super::answer(StatusCode::OK, super::PLAIN_TEXT, body),
        Err(error) => {
            tracing::error!(%error, "cannot return the leader's name");
            plain_error(StatusCode::INTERNAL_SERVER_ERROR, "cannot return the leader's name")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::Request;
    use http_body_util::BodyExt as _;
    use tower::ServiceExt as _;

    use super::*;

    async fn told(name: &'static str, path: &str) -> (StatusCode, String, String) {
        let routes = routes(Arc::new(move || name.to_owned()));
        let request = Request::get(path).body(Body::empty()).unwrap();
        let answer = routes.oneshot(request).await.unwrap();
        let kind = answer.headers()["content-type"].to_str().unwrap().to_owned();
        let status = answer.status();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, kind, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn the_leader_is_named_as_the_sidecar_does() {
        for path in ["/", "/leader", "/anything"] {
            let (status, kind, body) = told("b1", path).await;
            assert_eq!((status, &*kind), (StatusCode::OK, "text/plain; charset=utf-8"));
            assert_eq!(body, r#"{"name":"b1"}"#);
        }
        assert_eq!(told("", "/").await.2, r#"{"name":""}"#);
        assert_eq!(told("a\"b", "/").await.2, r#"{"name":"a\"b"}"#);
    }
}
