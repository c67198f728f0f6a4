//! The body of a request: JSON that becomes messages of gRPC.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use http_body::{Body, Frame};
use prost_reflect::MessageDescriptor;
use tonic::{Code, Status};
use tower::BoxError;
use tracing::debug;

use super::error::GatewayRefusal;
use super::values::ValueSplitter;
use super::{json, translation_limit};
use crate::serve::framing::{BODY_TIMEOUT, MIN_BODY_RATE, RateDeadline};
use etcd_types::errors::Error;
use runtime::budget::{Account, Charge};

/// Bytes of a large request.
const LARGE_REQUEST_BYTES: usize = 64 << 10;

/// The bytes of JSON that one message may have: base64 takes 4 for 3, and names and blanks some more.
pub(crate) fn longest(message: usize) -> usize {
    message.saturating_mul(2).saturating_add(64 << 10)
}

/// Reads the one message of a request: the first value of its body; a body without any is a message without fields, as in grpc-gateway.
pub(super) async fn one<B>(
    body: B,
    kind: &MessageDescriptor,
    (message, account): (usize, &Account),
) -> Result<(Bytes, Charge), GatewayRefusal>
where
    B: Body<Data = Bytes> + Send,
    B::Error: Into<BoxError>,
{
    let mut body = Box::pin(body);
    let mut charge = account.charge(0)?;
    let mut values = ValueSplitter::default();
    let mut due = RateDeadline::new(BODY_TIMEOUT, MIN_BODY_RATE);
    let mut moved = 0;
    let value = loop {
        let frame = poll_fn(|cx| match body.as_mut().poll_frame(cx) {
            Poll::Pending => due.poll(cx).map(|()| Err(Error::DeadlineExceeded.status())),
            Poll::Ready(frame) => Poll::Ready(Ok(frame)),
        });
        let Some(frame) = frame.await? else { break values.rest() };
        let frame = frame.map_err(|error| broken(error.into()))?;
        let Ok(bytes) = frame.into_data() else { continue };
        moved += bytes.len();
        due.moved(moved);
        charge.moved(bytes.len());
        charge.set(2 * (values.held() + bytes.len()))?;
        values.push(&bytes);
        if let Some(value) = values.next() {
            break Some(value);
        }
        too_long(values.held(), message)?;
    };
    let Some(value) = value else {
        return Ok((json::empty_frame(), charge));
    };
    too_long(value.len(), message)?;
    let (is_large, kind) = (value.len() > LARGE_REQUEST_BYTES, kind.clone());
    let translate = move || {
        let frame = json::to_frame(&value, &kind, &mut charge)?;
        drop(value);
        charge.set(frame.len())?;
        Ok((frame, charge))
    };
    match is_large {
        true => translation_limit::on_a_turn(translate).await?,
        false => translate(),
    }
}

/// The error of a body that breaks off, or that is not what HTTP allows: the client's, as in grpc-gateway.
fn broken(error: BoxError) -> Status {
    let text = std::iter::successors(Some(&*error as &dyn std::error::Error), |error| error.source())
        .last()
        .map(ToString::to_string);
    let status = Status::from_error(error);
    match status.code() {
        Code::Unknown => Status::invalid_argument(text.unwrap_or_default()),
        _ => status,
    }
}

fn too_long(held: usize, message: usize) -> Result<(), Status> {
    if held > longest(message) {
        let text = format!("grpc: received message larger than max ({held} vs. {message})");
        return Err(Status::resource_exhausted(text));
    }
    Ok(())
}

/// A stream of messages, each from the next value of a body. It ends at the first value that is no such message.
pub(super) struct RequestMessages<B> {
    /// `None` once the stream is over: it is dropped so that the sender of the rest need not wait for a reader.
    body: Option<Pin<Box<B>>>,
    kind: MessageDescriptor,
    values: ValueSplitter,
    /// Longest message in bytes.
    message: usize,
    charge: Charge,
    /// A large value that is being translated.
    translating: Option<BoxFuture<'static, Result<Bytes, GatewayRefusal>>>,
    /// When the value that has begun is due.
    due: Option<RateDeadline>,
    /// Bytes of it that have come.
    moved: usize,
}

impl<B> RequestMessages<B> {
    pub(super) fn new(body: B, kind: MessageDescriptor, (message, charge): (usize, Charge)) -> Self {
        Self {
            body: Some(Box::pin(body)),
            kind,
            values: ValueSplitter::default(),
            message,
            charge,
            translating: None,
            due: None,
            moved: 0,
        }
    }

    /// Ends the stream, and lets go of what has come of it.
    fn end(&mut self) {
        self.body = None;
        self.values = ValueSplitter::default();
        self.charge.shrink(usize::MAX);
    }

    /// Begins to translate a value. Returns the frame of one that is not large.
    fn translate(&mut self, value: Bytes) -> Option<Result<Bytes, GatewayRefusal>> {
        (self.due, self.moved) = (None, 0);
        if value.len() <= LARGE_REQUEST_BYTES {
            return Some(json::to_frame(&value, &self.kind, &mut self.charge));
        }
        let (kind, mut charge) = (self.kind.clone(), self.charge.split(2 * value.len()));
        let translate = move || json::to_frame(&value, &kind, &mut charge);
        self.translating = Some(Box::pin(async { translation_limit::on_a_turn(translate).await? }));
        None
    }

    /// The frame of a value that is translated; none if it is no such message, which ends the stream.
    fn translated(&mut self, frame: Result<Bytes, GatewayRefusal>) -> Result<Option<Bytes>, Status> {
        let fits = self.charge.set(2 * self.values.held()).is_ok();
        match frame {
            Ok(frame) if fits => Ok(Some(frame)),
            Ok(_) | Err(GatewayRefusal::Exceeded(_)) => Err(Error::TooManyRequests.status()),
            Err(GatewayRefusal::Status(status)) => {
                debug!(reason = status.message(), "closed a stream: a value is not a message");
                Ok(None)
            }
        }
    }
}

impl<B> Body for RequestMessages<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        loop {
            let value = match &mut this.translating {
                Some(translating) => {
                    let frame = std::task::ready!(translating.as_mut().poll(cx));
                    this.translating = None;
                    Some(frame)
                }
                None => match this.values.next() {
                    Some(value) => match this.translate(value) {
                        Some(frame) => Some(frame),
                        None => continue,
                    },
                    None => None,
                },
            };
            if let Some(frame) = value {
                let frame = this.translated(frame);
                if !matches!(frame, Ok(Some(_))) {
                    this.end();
                }
                return Poll::Ready(frame.transpose().map(|frame| Ok(Frame::data(frame?))));
            }
            let Some(body) = &mut this.body else {
                return Poll::Ready(None);
            };
            let Poll::Ready(frame) = body.as_mut().poll_frame(cx) else {
                let is_due = this.due.as_mut().is_some_and(|due| due.poll(cx).is_ready());
                if !is_due {
                    return Poll::Pending;
                }
                this.end();
                return Poll::Ready(Some(Err(Error::DeadlineExceeded.status().into())));
            };
            match frame {
                Some(Ok(frame)) => {
                    let Ok(bytes) = frame.into_data() else { continue };
                    let held = this.values.held() + bytes.len();
                    this.charge.moved(bytes.len());
                    if this.charge.set(2 * held).is_err() {
                        this.end();
                        return Poll::Ready(Some(Err(Error::TooManyRequests.status().into())));
                    }
                    if let Err(status) = too_long(held, this.message) {
                        this.end();
                        return Poll::Ready(Some(Err(status.into())));
                    }
                    this.moved += bytes.len();
                    this.due
                        .get_or_insert_with(|| RateDeadline::new(BODY_TIMEOUT, MIN_BODY_RATE))
                        .moved(this.moved);
                    this.values.push(&bytes);
                    if this.values.is_blank() {
                        (this.due, this.moved) = (None, 0);
                    }
                }
                Some(Err(error)) => {
                    this.end();
                    return Poll::Ready(Some(Err(error.into())));
                }
                None => {
                    let rest = this.values.rest();
                    this.body = None;
                    let Some(rest) = rest else {
                        return Poll::Ready(None);
                    };
                    if let Some(frame) = this.translate(rest) {
                        let frame = this.translated(frame);
                        return Poll::Ready(frame.transpose().map(|frame| Ok(Frame::data(frame?))));
                    }
                }
            }
        }
    }
}
