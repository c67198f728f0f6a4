//! Bounds, order and limit of a range, beside other requests.

use super::op::{RangeOp, RangeResult};
use etcd_types::types::{Error, KeyValue};

/// Pairs that are sorted at once. More take so long that others would wait for the thread.
const AT_ONCE: usize = 16_384;

/// As [`RangeOp::select`]. Fails with [`Error::Stopped`] when the process ends.
pub(super) async fn select(op: &RangeOp, kvs: Vec<KeyValue>, count: i64) -> Result<RangeResult, Error> {
    if kvs.len() <= AT_ONCE {
        return Ok(op.select(kvs, count));
    }
    let op = op.clone();
    let selected = tokio::task::spawn_blocking(move || op.select(kvs, count)).await;
    selected.map_err(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => Error::Stopped,
    })
}
