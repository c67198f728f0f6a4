//! The HTTP client of object stores: hyper, with this program's TLS.

use std::error::Error as _;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector as TcpConnector;
use hyper_util::rt::TokioExecutor;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse, HttpResponseBody,
    HttpService,
};
use tls::{TlsOptions, TlsPolicy};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::DestinationError;
use crate::last_failure::LastFailure;

/// The timeout of a connection attempt, to one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The time until an answer begins, since the destination last took a part of the request.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The time for which nothing of an answer may arrive.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of a request that are handed to a connection at a time, and that it holds. A link that takes so few in [`ANSWER_TIMEOUT`] is not slow, but broken.
const SLICE_BYTES: usize = 64 << 10;

type Connections = Client<HttpsConnector<TcpConnector>, SlicedBody>;

/// Makes clients, whose TLS trusts the CAs of a file or of this system.
#[derive(Debug)]
pub(super) struct HyperConnector {
    connections: Connections,
    failure: LastFailure,
}

impl HyperConnector {
    /// Fails if the file has no CA, or if there is none and this system trusts none.
    pub(super) fn new(ca_file: Option<&Path>, failure: &LastFailure) -> Result<Self, DestinationError> {
        let options = TlsOptions {
            trusted_ca: ca_file.map(Path::to_owned),
            system_roots: ca_file.is_none(),
            ..TlsOptions::default()
        };
        let config = tls::client_config(&options, &TlsPolicy::default());
        let config = config.map_err(|error| DestinationError(error.to_string()))?;
        let mut tcp = TcpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let https = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(config)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let connections = Client::builder(TokioExecutor::new())
            .http1_max_buf_size(SLICE_BYTES)
            .build(https);
        Ok(Self {
            connections,
            failure: failure.clone(),
        })
    }
}

impl HttpConnector for HyperConnector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(HyperService {
            connections: self.connections.clone(),
            failure: self.failure.clone(),
        }))
    }
}

#[derive(Debug)]
struct HyperService {
    connections: Connections,
    failure: LastFailure,
}

#[async_trait]
impl HttpService for HyperService {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let waiting = self.failure.waits();
        let taken = LastTaken::new(&self.failure);
        let request = request.map(|body| SlicedBody {
            body,
            rest: Bytes::new(),
            handed: 0,
            taken: taken.clone(),
        });
        let answer = tokio::select! {
            answer = self.connections.request(request) => Some(answer),
            () = taken.stalled() => None,
        };
        match &answer {
            Some(Ok(_)) => waiting.answered(),
            Some(Err(_)) => drop(waiting),
            None => waiting.timed_out(),
        }
        let (head, body) = answer.ok_or_else(stalled)?.map_err(failed)?.into_parts();
        let body = TimedBody {
            body,
            stall: Box::pin(sleep(STALL_TIMEOUT)),
        };
        Ok(HttpResponse::from_parts(head, HttpResponseBody::new(body)))
    }
}

/// The time at which a request last made progress. Clones share it.
#[derive(Clone)]
struct LastTaken {
    at: Arc<Mutex<Instant>>,
    failure: LastFailure,
}

impl LastTaken {
    fn new(failure: &LastFailure) -> Self {
        Self {
            at: Arc::new(Mutex::new(Instant::now())),
            failure: failure.clone(),
        }
    }

    fn get(&self) -> Instant {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Returns once the destination has taken nothing for [`ANSWER_TIMEOUT`].
    async fn stalled(&self) {
        loop {
            let due = self.get() + ANSWER_TIMEOUT;
            if due <= Instant::now() {
                return;
            }
            sleep_until(due).await;
        }
    }
}

/// The body of a request, which tells when a connection asks for more of it. A whole one may be larger than what a slow link takes in time.
struct SlicedBody {
    body: HttpRequestBody,
    /// The rest of the last frame.
    rest: Bytes,
    handed: usize,
    taken: LastTaken,
}

impl Body for SlicedBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)).map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => self.rest = data,
                Some(Ok(Err(other))) => return Poll::Ready(Some(Ok(other))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        self.taken.now();
        // The connection takes the first ones, before it has sent anything.
        if self.handed > SLICE_BYTES {
            self.taken.failure.progressed();
        }
        let length = self.rest.len().min(SLICE_BYTES);
        self.handed += length;
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let of_body = self.body.size_hint();
        let mut hint = SizeHint::new();
        if let Some(upper) = of_body.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(of_body.lower() + rest);
        hint
    }
}

/// The body of an answer, which fails when nothing of it arrives for long.
struct TimedBody {
    body: Incoming,
    stall: Pin<Box<Sleep>>,
}

impl Body for TimedBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(frame) => {
                self.stall.as_mut().reset(Instant::now() + STALL_TIMEOUT);
                let failed = |error| HttpError::new(HttpErrorKind::Interrupted, error);
                Poll::Ready(frame.map(|frame| frame.map_err(failed)))
            }
            Poll::Pending => {
                ready!(self.stall.as_mut().poll(cx));
                let stalled = io::Error::new(io::ErrorKind::TimedOut, "the answer does not continue");
                Poll::Ready(Some(Err(HttpError::new(HttpErrorKind::Timeout, stalled))))
            }
        }
    }
}

fn stalled() -> HttpError {
    let text = format!("no answer within {} s", ANSWER_TIMEOUT.as_secs());
    HttpError::new(HttpErrorKind::Timeout, io::Error::new(io::ErrorKind::TimedOut, text))
}

fn failed(error: hyper_util::client::legacy::Error) -> HttpError {
    let kind = if error.is_connect() {
        HttpErrorKind::Connect
    } else {
        HttpErrorKind::Request
    };
    // Its own text says only which step failed.
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text = format!("{text}: {source}");
        cause = source.source();
    }
    HttpError::new(kind, io::Error::other(text))
}
