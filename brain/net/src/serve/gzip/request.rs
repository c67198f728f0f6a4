//! Requests whose messages are compressed.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf as _, Bytes, BytesMut};
use http_body::{Body, Frame};
use tonic::Status;

use super::{InflateError, Inflater, MessageEncoding};
use crate::serve::framing::{MESSAGE_PREFIX_BYTES, announced};
use runtime::budget::{Account, Charge};

/// Decompresses the message of a request, if it is compressed. `limit` is the longest message in bytes. Returns the message with its
/// header, and what is charged for it if it was decompressed.
pub(in crate::serve) async fn inflate(
    encoding: MessageEncoding,
    whole: Bytes,
    limit: usize,
    account: &Account,
) -> Result<(Bytes, Option<Charge>), InflateError> {
    if whole.first() != Some(&1) {
        return Ok((whole, None));
    }
    // Boxed, for few requests are compressed, and each would have room for it.
    Box::pin(inflate_all(encoding, whole, limit, account)).await
}

async fn inflate_all(
    encoding: MessageEncoding,
    whole: Bytes,
    limit: usize,
    account: &Account,
) -> Result<(Bytes, Option<Charge>), InflateError> {
    encoding.check()?;
    let len = announced(&whole).ok_or_else(cut)?;
    check_len(len, limit)?;
    let end = MESSAGE_PREFIX_BYTES + len;
    if whole.len() < end {
        return Err(cut().into());
    }
    let mut inflater = Inflater::new(whole.slice(MESSAGE_PREFIX_BYTES..end), limit, account.charge(0)?)?;
    loop {
        if let Some((message, charge)) = inflater.step()? {
            return Ok((message, Some(charge)));
        }
        tokio::task::yield_now().await;
    }
}

fn check_len(len: usize, limit: usize) -> Result<(), Status> {
    if len <= limit {
        return Ok(());
    }
    let text = format!("grpc: received message larger than max ({len} vs. {limit})");
    Err(Status::resource_exhausted(text))
}

/// The status for a message that ends too early.
fn cut() -> Status {
    Status::internal("unexpected EOF")
}

/// A stream of messages that may be compressed. Charged for those bytes of a message that have arrived, and for the longest plain
/// message, because the decoder of messages keeps its buffer.
pub(in crate::serve) struct InflatedMessages<B> {
    body: Pin<Box<B>>,
    limit: usize,
    /// The bytes of the next messages.
    buffer: BytesMut,
    inflater: Option<Inflater>,
    charge: Charge,
    longest: usize,
    is_over: bool,
}

impl<B> InflatedMessages<B> {
    pub(in crate::serve) fn new(body: B, limit: usize, charge: Charge) -> Self {
        Self {
            body: Box::pin(body),
            limit,
            buffer: BytesMut::new(),
            inflater: None,
            charge,
            longest: 0,
            is_over: false,
        }
    }

    /// Returns the next plain message, if it has arrived. If it is compressed, begins to decompress it.
    fn next(&mut self) -> Result<Option<Bytes>, InflateError> {
        let Some(len) = announced(&self.buffer) else {
            return Ok(None);
        };
        check_len(len, self.limit)?;
        if self.buffer.len() < MESSAGE_PREFIX_BYTES + len {
            return Ok(None);
        }
        let mut message = self.buffer.split_to(MESSAGE_PREFIX_BYTES + len).freeze();
        if message[0] != 1 {
            return Ok(Some(message));
        }
        message.advance(MESSAGE_PREFIX_BYTES);
        self.inflater = Some(Inflater::new(message, self.limit, self.charge.split(0))?);
        Ok(None)
    }

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Result<Poll<Option<Bytes>>, InflateError> {
        if let Some(inflater) = &mut self.inflater {
            let Some((message, charge)) = inflater.step()? else {
                cx.waker().wake_by_ref();
                return Ok(Poll::Pending);
            };
            self.inflater = None;
            self.longest = self.longest.max(charge.bytes());
            drop(charge);
            self.charge.set(self.buffer.len() + self.longest)?;
            return Ok(Poll::Ready(Some(message)));
        }
        match self.next()? {
            Some(message) => Ok(Poll::Ready(Some(message))),
            None if self.inflater.is_some() => self.poll_message(cx),
            None => Ok(Poll::Ready(None)),
        }
    }
}

impl<B: Body<Data = Bytes, Error = axum::Error>> Body for InflatedMessages<B> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        let failed = |why: InflateError| Poll::Ready(Some(Err(axum::Error::new(why.into_status()))));
        while !this.is_over {
            match this.poll_message(cx) {
                Ok(Poll::Pending) => return Poll::Pending,
                Ok(Poll::Ready(Some(message))) => return Poll::Ready(Some(Ok(Frame::data(message)))),
                Ok(Poll::Ready(None)) => {}
                Err(why) => {
                    this.is_over = true;
                    return failed(why);
                }
            }
            match std::task::ready!(this.body.as_mut().poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        if let Err(exceeded) = this.charge.set(this.buffer.len() + data.len() + this.longest) {
                            this.is_over = true;
                            return failed(exceeded.into());
                        }
                        this.buffer.extend_from_slice(&data);
                    }
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                Some(Err(error)) => {
                    this.is_over = true;
                    return Poll::Ready(Some(Err(error)));
                }
                None => {
                    this.is_over = true;
                    if !this.buffer.is_empty() {
                        return failed(cut().into());
                    }
                }
            }
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.is_over || self.inflater.is_none() && self.buffer.is_empty() && self.body.is_end_stream()
    }
}
