//! The gateway of one of the two servers: the same requests as JSON over HTTP.
//!
//! An answer is decoded into the message that it is the JSON of, so answers of both ways are compared in the same form. That
//! JSON has no other form than etcd's is checked on the way.

use anyhow::Context as _;
use bytes::Bytes;
use http::{Method, Request as HttpRequest};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

use super::answer::Answer;
use super::client::Credentials;
use super::json::{self, Rpc};
use super::request::Request;

/// Connections for HTTP to one server.
#[derive(Debug)]
pub struct Gateway {
    client: Client<HttpConnector, Full<Bytes>>,
    base: String,
}

impl Gateway {
    /// That of the server at an endpoint.
    pub fn new(endpoint: &str) -> Self {
        Self {
            client: Client::builder(TokioExecutor::new()).build_http(),
            base: format!("{endpoint}/v3/"),
        }
    }

    /// Sends a request, whose message has these bytes, and decodes the answer.
    ///
    /// # Errors
    ///
    /// There is none, or it is not the JSON of an answer.
    pub async fn call(
        &self,
        rpc: Rpc,
        request: &Request,
        message: &[u8],
        credentials: Option<&Credentials>,
    ) -> anyhow::Result<Answer> {
        let body = json::of_bytes(&json::input(rpc.method)?, message)?.to_string();
        let mut post = HttpRequest::builder()
            .method(Method::POST)
            .uri(format!("{}{}", self.base, rpc.path));
        if let Some(credentials) = credentials {
            // The only header of HTTP that becomes metadata.
            post = post.header("authorization", &credentials.token);
        }
        let response = self.client.request(post.body(Full::from(body))?).await?;
        let status = response.status().as_u16();
        let body = response
            .into_body()
            .collect()
            .await
            .context("read the body")?
            .to_bytes();
        let found: Value = serde_json::from_slice(&body)
            .with_context(|| format!("not JSON, with status {status}: {}", String::from_utf8_lossy(&body)))?;
        if status != 200 {
            return refused(status, &found);
        }
        let kind = json::output(rpc.method)?;
        let bytes = json::to_bytes(&kind, &found)?;
        let form = json::of_bytes(&kind, &bytes)?;
        if form != found {
            return Ok(Answer::Broken(format!("the JSON is {found}, its form is {form}")));
        }
        Answer::decode(request, &bytes)
    }
}

fn refused(status: u16, found: &Value) -> anyhow::Result<Answer> {
    let code = found["code"].as_i64().and_then(|code| i32::try_from(code).ok());
    let message = found["message"].as_str();
    let (Some(code), Some(message)) = (code, message) else {
        return Ok(Answer::Broken(format!("status {status} with {found}")));
    };
    Ok(Answer::Error {
        code: code.into(),
        message: message.to_owned(),
        http: Some(status),
    })
}
