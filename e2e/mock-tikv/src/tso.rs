//! The timestamp oracle: strictly ascending, also over restarts.
//!
//! A timestamp is milliseconds since 1970 in the upper bits and a counter in the lower 18. Invariant: nothing above the
//! window is given out before the window's end is durable.

use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::Mutex;
use tonic::Status;

use crate::change::ChangeContent;
use crate::engine::{Engine, Failure};

/// Bits of a timestamp that count within a millisecond.
const LOGICAL_BITS: u32 = 18;
const LOGICAL_MASK: u64 = (1 << LOGICAL_BITS) - 1;
/// Milliseconds that are made durable ahead.
const DURABLE_WINDOW_MS: u64 = 3_000;

/// Timestamps that were given out, and the limit of those that may be.
#[derive(Debug)]
struct TsoState {
    last: u64,
    /// The end of the window, in milliseconds.
    window: u64,
}

#[derive(Debug)]
pub(crate) struct Tso {
    state: Mutex<TsoState>,
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The last of `count` timestamps after `last`, all within one millisecond, which is not before `now`.
fn next(last: u64, now: u64, count: u64) -> u64 {
    let next = last.max(now << LOGICAL_BITS) + count;
    if next & LOGICAL_MASK >= count {
        return next;
    }
    // The counter ran over in the middle: all of them in the next millisecond.
    (next & !LOGICAL_MASK) + count
}

impl Tso {
    /// Goes on after whatever an earlier run can have given out.
    pub(crate) fn new(window: u64) -> Self {
        Self {
            state: Mutex::new(TsoState {
                last: window << LOGICAL_BITS,
                window,
            }),
        }
    }

    /// Takes `count` timestamps; answers the last one.
    pub(crate) async fn allocate(&self, engine: &Engine, count: u32) -> Result<u64, Status> {
        let count = u64::from(count);
        if count == 0 || count > LOGICAL_MASK {
            return Err(Status::invalid_argument(format!(
                "cannot allocate {count} timestamps in one request"
            )));
        }
        let mut state = self.state.lock().await;
        let next = next(state.last, now(), count);
        let physical = next >> LOGICAL_BITS;
        if physical > state.window {
            let window = physical + DURABLE_WINDOW_MS;
            engine
                .change(vec![ChangeContent::TimestampWindow(window)])
                .await
                .map_err(|failure| match failure {
                    Failure::Region(error) => Status::unavailable(error.message),
                    Failure::Call(status) => status,
                })?;
            state.window = window;
        }
        state.last = next;
        Ok(next)
    }
}

/// Milliseconds and counter, as they go over the wire.
pub(crate) fn parts(ts: u64) -> (i64, i64) {
    ((ts >> LOGICAL_BITS).cast_signed(), (ts & LOGICAL_MASK).cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_ascend_while_the_clock_stands_still_or_goes_back() {
        let first = next(0, 7, 3);
        assert_eq!(first, (7 << LOGICAL_BITS) + 3);
        assert_eq!(next(first, 7, 2), first + 2);
        assert_eq!(next(first, 6, 1), first + 1);
    }

    #[test]
    fn a_batch_never_spans_two_milliseconds() {
        let nearly_full = (7 << LOGICAL_BITS) + LOGICAL_MASK - 1;
        assert_eq!(next(nearly_full, 7, 5), (8 << LOGICAL_BITS) + 5);
        assert_eq!(next(nearly_full, 7, 1), nearly_full + 1);
    }
}
