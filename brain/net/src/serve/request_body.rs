//! The body of a request: received as it arrives, and charged until it is read.
//!
//! The pump is polled by the stream's task, whether or not the body is read; the client's window opens as the reader consumes data.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use http_body::{Body, Frame};
use tower::BoxError;

use etcd_types::errors::Error;
use runtime::budget::{BudgetExceeded, Charge};

/// Pieces shorter than this are copied together, because each keeps its receive buffer in memory.
const MAX_COPIED_PIECE_BYTES: usize = 4096;

/// The charge of a piece in addition to its bytes.
const PIECE_OVERHEAD_BYTES: usize = 64;

/// Returns a body, and the pump that receives it from its stream.
pub(super) fn open(recv: RecvStream, charge: Charge) -> (InboundBody, BodyPump) {
    let shared = Arc::new(BodyInner(Mutex::new(BodyState {
        pieces: VecDeque::new(),
        tail: BytesMut::new(),
        charge,
        taken: 0,
        end: None,
        reader: None,
        pump: None,
        is_pumping: false,
        is_dropped: false,
    })));
    let pump = BodyPump {
        recv: Some(recv),
        owed: 0,
        shared: Arc::clone(&shared),
    };
    (InboundBody(shared), pump)
}

#[derive(Debug)]
struct BodyInner(Mutex<BodyState>);

#[derive(Debug)]
struct BodyState {
    pieces: VecDeque<Bytes>,
    /// The short pieces after all others.
    tail: BytesMut,
    charge: Charge,
    /// The number of bytes that were consumed but not yet returned to the window.
    taken: usize,
    end: Option<Result<(), BoxError>>,
    reader: Option<Waker>,
    pump: Option<Waker>,
    /// True if the pump checks `taken` before it sleeps.
    is_pumping: bool,
    /// True if the reader was dropped.
    is_dropped: bool,
}

impl BodyInner {
    fn state(&self) -> MutexGuard<'_, BodyState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BodyState {
    fn push(&mut self, bytes: Bytes) -> Result<(), BudgetExceeded> {
        self.charge.moved(bytes.len());
        if bytes.len() < MAX_COPIED_PIECE_BYTES {
            self.charge.grow(bytes.len())?;
            self.tail.extend_from_slice(&bytes);
        } else {
            self.charge.grow(bytes.len() + PIECE_OVERHEAD_BYTES)?;
            if !self.tail.is_empty() {
                let tail = self.tail.split().freeze();
                self.pieces.push_back(tail);
            }
            self.pieces.push_back(bytes);
        }
        Ok(())
    }

    fn pop(&mut self) -> Option<Bytes> {
        let bytes = match self.pieces.pop_front() {
            Some(piece) => piece,
            None if self.tail.is_empty() => return None,
            None => std::mem::take(&mut self.tail).freeze(),
        };
        if self.pieces.is_empty() && self.tail.is_empty() {
            self.charge.shrink(usize::MAX);
        } else {
            self.charge.shrink(bytes.len());
        }
        Some(bytes)
    }
}

/// Receives a body from its stream.
pub(super) struct BodyPump {
    recv: Option<RecvStream>,
    /// The number of bytes that were received but not yet returned to the window.
    owed: usize,
    shared: Arc<BodyInner>,
}

impl BodyPump {
    /// Receives the available data, and wakes the task when more arrives. The reader wakes it after consuming data, unless that
    /// happens before [`BodyPump::release`].
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) {
        self.release();
        let mut state = self.shared.state();
        state.is_pumping = true;
        if !state.pump.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            state.pump = Some(cx.waker().clone());
        }
        while let Some(recv) = &mut self.recv {
            let end = match recv.poll_data(cx) {
                Poll::Pending => return,
                Poll::Ready(Some(Ok(bytes))) => {
                    self.owed += bytes.len();
                    let is_end = recv.is_end_stream();
                    match state.push(bytes) {
                        Ok(()) if is_end => Ok(()),
                        Ok(()) => {
                            if let Some(reader) = state.reader.take() {
                                reader.wake();
                            }
                            continue;
                        }
                        Err(_) => Err(Error::TooManyRequests.status().into()),
                    }
                }
                Poll::Ready(Some(Err(error))) => Err(error.into()),
                Poll::Ready(None) => Ok(()),
            };
            state.end = Some(end);
            // Other streams need the window of the connection, however long this request takes.
            release(recv, std::mem::take(&mut self.owed));
            self.recv = None;
            if let Some(reader) = state.reader.take() {
                reader.wake();
            }
        }
    }

    /// Returns the consumed bytes to the window.
    pub(super) fn release(&mut self) {
        let mut state = self.shared.state();
        state.is_pumping = false;
        let taken = std::mem::take(&mut state.taken);
        let is_dropped = std::mem::take(&mut state.is_dropped);
        drop(state);
        let Some(recv) = &mut self.recv else { return };
        let taken = if is_dropped { self.owed } else { taken.min(self.owed) };
        self.owed -= taken;
        release(recv, taken);
        if is_dropped {
            self.recv = None;
        }
    }
}

fn release(recv: &mut RecvStream, bytes: usize) {
    if bytes > 0
        && let Err(error) = recv.flow_control().release_capacity(bytes)
    {
        tracing::debug!(%error, "could not open a flow-control window");
    }
}

/// The body of a request.
#[derive(Debug)]
pub(super) struct InboundBody(Arc<BodyInner>);

impl Body for InboundBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut state = self.0.state();
        if let Some(bytes) = state.pop() {
            state.taken += bytes.len();
            if !state.is_pumping
                && let Some(pump) = &state.pump
            {
                pump.wake_by_ref();
            }
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        match state.end.take() {
            Some(Ok(())) => {
                state.end = Some(Ok(()));
                Poll::Ready(None)
            }
            Some(Err(error)) => {
                state.end = Some(Ok(()));
                Poll::Ready(Some(Err(error)))
            }
            None => {
                state.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let state = self.0.state();
        state.pieces.is_empty() && state.tail.is_empty() && matches!(state.end, Some(Ok(())))
    }
}

impl Drop for InboundBody {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.is_dropped = true;
        state.pieces = VecDeque::new();
        state.tail = BytesMut::new();
        state.charge.shrink(usize::MAX);
        if let Some(pump) = state.pump.take() {
            pump.wake();
        }
    }
}
