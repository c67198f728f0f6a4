//! Messages of gRPC within a body: a byte that tells of compression, four of length, then the message.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame};

use crate::api::status::Error;
use crate::budget::Charge;

/// Bytes before each message.
pub(super) const HEADER: usize = 5;

/// The length of the message that begins here, if its header is there.
pub(super) fn announced(bytes: &[u8]) -> Option<usize> {
    let (_, rest) = bytes.split_first()?;
    let (len, _) = rest.split_first_chunk::<4>()?;
    usize::try_from(u32::from_be_bytes(*len)).ok()
}

/// A stream of messages that is charged for the one which is not complete: whoever decodes it keeps its beginning.
pub(super) struct Framed<B> {
    body: Pin<Box<B>>,
    charge: Charge,
    progress: Progress,
}

impl<B> Framed<B> {
    pub(super) fn new(body: B, charge: Charge) -> Self {
        Self {
            body: Box::pin(body),
            charge,
            progress: Progress::default(),
        }
    }
}

/// How far a stream of messages has come.
#[derive(Debug, Default)]
struct Progress {
    header: [u8; HEADER],
    /// Bytes of the header that have come.
    headed: usize,
    /// Bytes of the message that have not.
    missing: usize,
    /// Bytes of a message that is not complete.
    incomplete: usize,
}

impl Progress {
    fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.headed < HEADER {
                let len = bytes.len().min(HEADER - self.headed);
                let (head, rest) = bytes.split_at(len);
                self.header[self.headed..self.headed + len].copy_from_slice(head);
                self.headed += len;
                self.incomplete += len;
                bytes = rest;
                if self.headed == HEADER {
                    self.missing = announced(&self.header).unwrap_or(0);
                }
            } else {
                let len = bytes.len().min(self.missing);
                self.missing -= len;
                self.incomplete += len;
                bytes = &bytes[len..];
            }
            if self.headed == HEADER && self.missing == 0 {
                (self.headed, self.incomplete) = (0, 0);
            }
        }
    }
}

impl<B: Body<Data = Bytes, Error = axum::Error>> Body for Framed<B> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut polled = self.body.as_mut().poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(bytes) = frame.data_ref()
        {
            self.progress.take(bytes);
            let incomplete = self.progress.incomplete;
            if self.charge.set(incomplete).is_err() {
                polled = Poll::Ready(Some(Err(axum::Error::new(Error::TooManyRequests.status()))));
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_messages_are_counted_however_they_are_cut() {
        let mut stream = Vec::new();
        for len in [0_u8, 3, 200] {
            stream.extend([0, 0, 0, 0, len]);
            stream.extend(std::iter::repeat_n(7, len.into()));
        }
        for cut in 1..stream.len() {
            let mut progress = Progress::default();
            stream[..stream.len() - 1]
                .chunks(cut)
                .for_each(|chunk| progress.take(chunk));
            assert_eq!(progress.incomplete, 204, "{cut}");
            progress.take(&stream[stream.len() - 1..]);
            assert_eq!(progress.incomplete, 0, "{cut}");
        }
        assert_eq!(
            (announced(&[0, 0, 0, 1]), announced(&[1, 0, 0, 1, 2])),
            (None, Some(258))
        );
    }
}
