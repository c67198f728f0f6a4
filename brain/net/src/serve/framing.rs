//! gRPC message framing within a body: a byte for the compression flag, four for the length, then the message.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use prometheus::IntCounter;
use tokio::time::{Instant, Sleep, sleep_until};

use etcd_types::errors::Error;
use runtime::budget::Charge;

/// The timeout of the first bytes of a message, and the least rate of the others in bytes per second.
pub(crate) const BODY_TIMEOUT: Duration = Duration::from_secs(20);
pub(crate) const MIN_BODY_RATE: u64 = 32 * 1024;

/// Bytes before each message.
pub(super) const MESSAGE_PREFIX_BYTES: usize = 5;

/// Returns the length of the message that begins here, if its header is complete.
pub(super) fn announced(bytes: &[u8]) -> Option<usize> {
    let (_, rest) = bytes.split_first()?;
    let (len, _) = rest.split_first_chunk::<4>()?;
    usize::try_from(u32::from_be_bytes(*len)).ok()
}

/// A stream of messages, charged for the longest so far, because the decoder keeps its buffer. A message that has begun must be
/// complete in time.
pub(super) struct FramedMessages<B> {
    body: Pin<Box<B>>,
    charge: Charge,
    progress: MessageProgress,
    /// Counts messages.
    received: Option<IntCounter>,
    /// The deadline of the message that has begun.
    due: Option<RateDeadline>,
}

/// The deadline of bytes that a client must send or read at a minimum rate.
pub(crate) struct RateDeadline {
    begun: Instant,
    patience: Duration,
    rate: u64,
    end: Instant,
    /// From the first time that it is waited for.
    sleep: Option<Pin<Box<Sleep>>>,
}

impl RateDeadline {
    /// Creates a deadline after `patience`, which each byte extends by the time that it takes at `rate` bytes per second.
    pub(crate) fn new(patience: Duration, rate: u64) -> Self {
        let begun = Instant::now();
        Self {
            begun,
            patience,
            rate,
            end: begun + patience,
            sleep: None,
        }
    }

    /// Records that `bytes` have moved since it began.
    pub(crate) fn moved(&mut self, bytes: usize) {
        let more = Duration::from_millis(bytes as u64 * 1000 / self.rate);
        self.end = self.begun + self.patience + more;
        if let Some(sleep) = &mut self.sleep {
            sleep.as_mut().reset(self.end);
        }
    }

    /// Ready when the deadline has passed.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(self.end)));
        sleep.as_mut().poll(cx)
    }
}

impl<B> FramedMessages<B> {
    pub(super) fn new(body: B, charge: Charge, received: Option<IntCounter>) -> Self {
        Self {
            body: Box::pin(body),
            charge,
            progress: MessageProgress::default(),
            received,
            due: None,
        }
    }
}

/// The progress of a stream of messages.
#[derive(Debug, Default)]
pub(super) struct MessageProgress {
    header: [u8; MESSAGE_PREFIX_BYTES],
    /// The number of header bytes received.
    headed: usize,
    /// The number of message bytes still missing.
    missing: usize,
    /// The number of bytes of an incomplete message.
    incomplete: usize,
    /// The length of the longest message, complete or not.
    longest: usize,
}

impl MessageProgress {
    /// Takes the next bytes of the stream; returns the number of messages that they complete.
    pub(super) fn take(&mut self, mut bytes: &[u8]) -> u64 {
        let mut complete = 0;
        while !bytes.is_empty() {
            if self.headed < MESSAGE_PREFIX_BYTES {
                let len = bytes.len().min(MESSAGE_PREFIX_BYTES - self.headed);
                let (head, rest) = bytes.split_at(len);
                self.header[self.headed..self.headed + len].copy_from_slice(head);
                self.headed += len;
                self.incomplete += len;
                bytes = rest;
                if self.headed == MESSAGE_PREFIX_BYTES {
                    self.missing = announced(&self.header).unwrap_or(0);
                }
            } else {
                let len = bytes.len().min(self.missing);
                self.missing -= len;
                self.incomplete += len;
                bytes = &bytes[len..];
            }
            self.longest = self.longest.max(self.incomplete);
            if self.headed == MESSAGE_PREFIX_BYTES && self.missing == 0 {
                (self.headed, self.incomplete) = (0, 0);
                complete += 1;
            }
        }
        complete
    }
}

impl<B: Body<Data = Bytes, Error = axum::Error>> Body for FramedMessages<B> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut polled = self.body.as_mut().poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(bytes) = frame.data_ref()
        {
            let (this, len) = (&mut *self, bytes.len());
            let complete = this.progress.take(bytes);
            if let Some(received) = &this.received {
                received.inc_by(complete);
            }
            let MessageProgress {
                incomplete, longest, ..
            } = this.progress;
            if incomplete == 0 {
                this.due = None;
            } else if incomplete <= len {
                this.due = Some(RateDeadline::new(BODY_TIMEOUT, MIN_BODY_RATE));
            }
            if let Some(due) = &mut this.due {
                due.moved(incomplete);
            }
            if this.charge.set(longest).is_err() {
                polled = Poll::Ready(Some(Err(axum::Error::new(Error::TooManyRequests.status()))));
            }
        } else if polled.is_pending()
            && let Some(due) = &mut self.due
            && due.poll(cx).is_ready()
        {
            polled = Poll::Ready(Some(Err(axum::Error::new(Error::DeadlineExceeded.status()))));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;
    use runtime::budget::Budget;
    use telemetry::metrics::Metrics;

    #[test]
    fn incomplete_messages_are_counted_however_they_are_cut() {
        let mut stream = Vec::new();
        for len in [0_u8, 3, 200] {
            stream.extend([0, 0, 0, 0, len]);
            stream.extend(std::iter::repeat_n(7, len.into()));
        }
        for cut in 1..stream.len() {
            let mut progress = MessageProgress::default();
            let chunks = stream[..stream.len() - 1].chunks(cut);
            let complete: u64 = chunks.map(|chunk| progress.take(chunk)).sum();
            assert_eq!((complete, progress.incomplete), (2, 204), "{cut}");
            assert_eq!(progress.take(&stream[stream.len() - 1..]), 1);
            assert_eq!((progress.incomplete, progress.longest), (0, 205), "{cut}");
        }
        assert_eq!(
            (announced(&[0, 0, 0, 1]), announced(&[1, 0, 0, 1, 2])),
            (None, Some(258))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn message_that_has_begun_has_to_end_in_time() {
        let budget = Budget::new(1 << 20, Metrics::new(false).network.held);
        let (sender, body) = tokio::sync::mpsc::channel::<Bytes>(1);
        let frames = futures::stream::unfold(body, |mut body| async {
            Some((Ok(Frame::data(body.recv().await?)), body))
        });
        let charge = budget.account(None).charge(0).unwrap();
        let mut framed = FramedMessages::new(http_body_util::StreamBody::new(frames), charge, None);
        let message = [&[0, 0, 0, 0, 200], &[7; 200][..]].concat();
        sender.send(message.clone().into()).await.unwrap();
        assert!(framed.frame().await.unwrap().is_ok());
        // A stream may be silent between messages.
        let silent = tokio::time::timeout(100 * BODY_TIMEOUT, framed.frame()).await;
        assert!(silent.is_err());
        let begun = Instant::now();
        let mut rest = message.into_iter();
        loop {
            sender.send(vec![rest.next().unwrap()].into()).await.unwrap();
            assert!(framed.frame().await.unwrap().is_ok());
            if let Ok(end) = tokio::time::timeout(BODY_TIMEOUT / 4 * 3, framed.frame()).await {
                assert!(end.unwrap().is_err());
                break;
            }
        }
        assert!(begun.elapsed() < 2 * BODY_TIMEOUT);
        assert_eq!(budget.used(), 205);
    }
}
