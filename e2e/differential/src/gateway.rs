//! The gateway of one of the two servers: the same requests as JSON over HTTP.
//!
//! An answer is decoded into the message that it is the JSON of, so answers of both ways are compared in the same form. That
//! JSON has no other form than etcd's is checked on the way.

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::{Method, Request as HttpRequest, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use prost::Message as _;
use serde_json::Value;
use wire::etcdserverpb::SnapshotResponse;

use super::answer::{Answer, snapshot};
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
        if json::answers_stream(rpc.method)? {
            return streamed(rpc, request, response).await;
        }
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
        match message_of(rpc, &found)? {
            Ok(bytes) => Answer::decode(request, &bytes),
            Err(broken) => Ok(broken),
        }
    }
}

/// The answer of a stream, in which each line is a message or the error that ends it. Reads a snapshot to its end, of other streams only
/// the first line.
async fn streamed(rpc: Rpc, request: &Request, response: Response<Incoming>) -> anyhow::Result<Answer> {
    let status = response.status().as_u16();
    let mut lines = Lines {
        body: response.into_body(),
        buffer: Vec::new(),
    };
    let mut reader = snapshot::Reader::default();
    loop {
        let line = lines.next().await?;
        if let Some(error) = line.as_ref().and_then(|line| line.get("error")) {
            return refused(status, error);
        }
        let bytes = match &line {
            None => None,
            Some(line) => match line.get("result") {
                Some(result) if status == 200 => match message_of(rpc, result)? {
                    Ok(bytes) => Some(bytes),
                    Err(broken) => return Ok(broken),
                },
                _ => return Ok(Answer::Broken(format!("status {status} with {line}"))),
            },
        };
        match (request, bytes) {
            (Request::Snapshot, Some(bytes)) => {
                if let Err(broken) = reader.push(SnapshotResponse::decode(bytes.as_slice())?) {
                    return Ok(Answer::Broken(broken));
                }
            }
            (Request::Snapshot, None) => return Ok(reader.end().map_or_else(Answer::Broken, Answer::Snapshot)),
            (_, Some(bytes)) => return Answer::decode(request, &bytes),
            (_, None) => return Ok(Answer::Broken(format!("status {status} without a line"))),
        }
    }
}

/// The lines of a stream.
struct Lines {
    body: Incoming,
    buffer: Vec<u8>,
}

impl Lines {
    /// The next line, or none after the last one.
    async fn next(&mut self) -> anyhow::Result<Option<Value>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                let line = serde_json::from_slice(&line);
                return Ok(Some(line.context("a line that is not JSON")?));
            }
            match self.body.frame().await {
                Some(frame) => {
                    if let Ok(data) = frame.context("read a stream")?.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                None if self.buffer.is_empty() => return Ok(None),
                // Not etcd's form: those of messages and errors of streams end with their line.
                None => bail!("half a line: {}", String::from_utf8_lossy(&self.buffer)),
            }
        }
    }
}

/// The bytes of the message that a JSON value is, if it has the form of etcd's.
fn message_of(rpc: Rpc, found: &Value) -> anyhow::Result<Result<Vec<u8>, Answer>> {
    let kind = json::output(rpc.method)?;
    let bytes = json::to_bytes(&kind, found)?;
    let form = json::of_bytes(&kind, &bytes)?;
    if form != *found {
        return Ok(Err(Answer::Broken(format!("the JSON is {found}, its form is {form}"))));
    }
    Ok(Ok(bytes))
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
