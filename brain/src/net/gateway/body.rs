//! The body of a request: JSON that becomes messages of gRPC.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame};
use prost_reflect::MessageDescriptor;
use tonic::Status;
use tower::BoxError;
use tracing::debug;

use super::json;
use super::values::Values;
use crate::budget::{Account, Charge, Exceeded};
use crate::errors::Error;

/// Why a request was not read.
#[derive(Debug)]
pub(super) enum Refused {
    /// There is no memory for it.
    Exceeded(Exceeded),
    /// It is not what the method takes.
    Status(Status),
}

impl From<Status> for Refused {
    fn from(status: Status) -> Self {
        Refused::Status(status)
    }
}

/// The bytes of JSON that one message may have: base64 takes 4 for 3, and names and blanks some more.
pub(crate) fn longest(message: usize) -> usize {
    message.saturating_mul(2).saturating_add(64 << 10)
}

/// Reads the one message of a request: the first value of its body; a body without any is a message without fields, as in grpc-gateway.
pub(super) async fn one<B>(
    body: B,
    kind: &MessageDescriptor,
    (message, account): (usize, &Account),
) -> Result<(Bytes, Charge), Refused>
where
    B: Body<Data = Bytes> + Send,
    B::Error: Into<BoxError>,
{
    let mut body = Box::pin(body);
    let mut charge = account.charge(0).map_err(Refused::Exceeded)?;
    let mut values = Values::default();
    let value = loop {
        let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await else {
            break values.rest();
        };
        let frame = frame.map_err(|error| Status::from_error(error.into()))?;
        let Ok(bytes) = frame.into_data() else { continue };
        // The message is made while the text is there.
        charge
            .set(2 * (values.held() + bytes.len()))
            .map_err(Refused::Exceeded)?;
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
    Ok((json::to_frame(&value, kind)?, charge))
}

fn too_long(held: usize, message: usize) -> Result<(), Status> {
    if held > longest(message) {
        let text = format!("grpc: received message larger than max ({held} vs. {message})");
        return Err(Status::resource_exhausted(text));
    }
    Ok(())
}

/// A stream of messages, each from the next value of a body. It ends at the first value that is no such message.
pub(super) struct Requests<B> {
    body: Pin<Box<B>>,
    kind: MessageDescriptor,
    values: Values,
    /// Longest message in bytes.
    message: usize,
    charge: Charge,
    is_over: bool,
}

impl<B> Requests<B> {
    pub(super) fn new(body: B, kind: MessageDescriptor, (message, charge): (usize, Charge)) -> Self {
        Self {
            body: Box::pin(body),
            kind,
            values: Values::default(),
            message,
            charge,
            is_over: false,
        }
    }

    fn translate(&mut self, value: Option<Bytes>) -> Option<Bytes> {
        let frame = json::to_frame(&value?, &self.kind);
        if let Err(status) = &frame {
            debug!(
                reason = status.message(),
                "a value of a stream is no message: the stream of requests ends"
            );
            self.is_over = true;
        }
        frame.ok()
    }
}

impl<B> Body for Requests<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        loop {
            let value = this.values.next();
            if let Some(frame) = this.translate(value) {
                return Poll::Ready(Some(Ok(Frame::data(frame))));
            }
            if this.is_over {
                return Poll::Ready(None);
            }
            match std::task::ready!(this.body.as_mut().poll_frame(cx)) {
                Some(Ok(frame)) => {
                    let Ok(bytes) = frame.into_data() else { continue };
                    let held = this.values.held() + bytes.len();
                    if this.charge.set(2 * held).is_err() {
                        return Poll::Ready(Some(Err(Error::TooManyRequests.status().into())));
                    }
                    if let Err(status) = too_long(held, this.message) {
                        return Poll::Ready(Some(Err(status.into())));
                    }
                    this.values.push(&bytes);
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => {
                    this.is_over = true;
                    let rest = this.values.rest();
                    return Poll::Ready(this.translate(rest).map(|frame| Ok(Frame::data(frame))));
                }
            }
        }
    }
}
