//! Answers whose messages are compressed.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;

use super::{Deflater, InflateError};
use runtime::budget::Account;

/// A body whose messages are compressed.
pub(in crate::serve) struct DeflatedBody {
    body: Body,
    account: Account,
    deflater: Option<Deflater>,
    is_over: bool,
}

impl DeflatedBody {
    pub(in crate::serve) fn new(body: Body, account: Account) -> Self {
        Self {
            body,
            account,
            deflater: None,
            is_over: false,
        }
    }

    /// Compresses the next part of a frame of messages.
    fn poll_deflated(&mut self, cx: &mut Context<'_>) -> Result<Poll<Option<Bytes>>, InflateError> {
        let Some(deflater) = &mut self.deflater else {
            return Ok(Poll::Ready(None));
        };
        let Some(bytes) = deflater.step()? else {
            cx.waker().wake_by_ref();
            return Ok(Poll::Pending);
        };
        self.deflater = None;
        Ok(Poll::Ready(Some(bytes)))
    }

    fn begin(&mut self, plain: Bytes) -> Result<(), InflateError> {
        self.deflater = Some(Deflater::new(plain, self.account.charge(0)?)?);
        Ok(())
    }

    /// Ends the answer with a status.
    fn fail(&mut self, why: InflateError) -> Option<Result<Frame<Bytes>, axum::Error>> {
        self.is_over = true;
        (self.body, self.deflater) = (Body::empty(), None);
        let (mut trailers, status) = (HeaderMap::new(), why.into_status());
        Some(match status.add_header(&mut trailers) {
            Ok(()) => Ok(Frame::trailers(trailers)),
            Err(_) => Err(axum::Error::new(status)),
        })
    }
}

impl http_body::Body for DeflatedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        if this.is_over {
            return Poll::Ready(None);
        }
        loop {
            match this.poll_deflated(cx) {
                Ok(Poll::Pending) => return Poll::Pending,
                Ok(Poll::Ready(Some(bytes))) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
                Ok(Poll::Ready(None)) => {}
                Err(why) => return Poll::Ready(this.fail(why)),
            }
            match std::task::ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(plain) => {
                        if let Err(why) = this.begin(plain) {
                            return Poll::Ready(this.fail(why));
                        }
                    }
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                other => return Poll::Ready(other),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.is_over || self.deflater.is_none() && self.body.is_end_stream()
    }
}
