//! `RangeStream` of etcd 3.7: a range in chunks of bounded size, all at one revision.
//!
//! All messages merged equal the answer of `Range`: pairs are in every chunk; header, count and `more` in the last. There is an empty
//! chunk only if there are no pairs at all: clients that expect few pairs read one message.
//!
//! A chunk is charged before it is read; the charge is released when the chunk is encoded, so the next one waits for the client.
//! Between two chunks no view is held: a client that reads slowly, or not at all, holds neither memory nor a snapshot. If its
//! revision is compacted in the meantime, the stream ends as etcd's does. So it does if users or roles change: etcd notices it at the end,
//! this before each chunk.

use std::sync::Arc;

use async_stream::try_stream;
use futures::Stream;
use tonic::Status;

use crate::context::{ApiContext, RequestPermit};
use crate::response::key_value;
use engine::rows::RowsError;
use etcd_types::pb::{etcdserverpb as pb, mvccpb};
use etcd_types::types::{KeyValue, LeaseId, Revision};
use mvcc::op::{RangeOp, SortOrder, SortTarget, Span};
use mvcc::view::{RestOfWalk, VALUE_BYTES_PER_READ, View, charge};
use runtime::budget::Meter;

/// The number of pairs in the first chunk, so that the client soon has something to do, and the most in later ones.
const FIRST_CHUNK_PAIRS: usize = 10;
const MAX_CHUNK_PAIRS: usize = 1_000;

/// Refuses what a stream does not support, as etcd's `checkRangeStreamRequest`. etcd accepts an order by a field other than the key if no
/// direction is given, and then skips and repeats pairs, because it continues after the last pair of a sorted chunk: that is refused, too.
pub(super) fn check(op: &RangeOp) -> Result<(), Status> {
    if op.target != SortTarget::Key || op.order == SortOrder::Descend {
        return Err(Status::unimplemented("RangeStream does not support custom sort orders"));
    }
    if op.mod_revision != (0, 0) || op.create_revision != (0, 0) {
        return Err(Status::unimplemented("RangeStream does not support revision filters"));
    }
    Ok(())
}

/// Opens the stream at a view's revision, or at the requested one. Fails if that revision cannot be read.
pub(super) fn open(
    store: ApiContext,
    view: Arc<View>,
    op: RangeOp,
    (meter, permit): (Meter, RequestPermit),
) -> Result<impl Stream<Item = Result<pb::RangeStreamResponse, Status>>, Status> {
    let at = view.resolve(op.revision)?;
    Ok(try_stream! {
    let header = Some(store.header(view.revision));
    let limit = usize::try_from(op.limit).ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX);
    if op.count_only || op.span.is_point() {
    let result = view.range_metered(&op, &meter).await.map_err(|error| store.failed(error))?;
    drop(view);
    store.still_permitted(&permit)?;
    let kvs = result.kvs.into_iter().map(|kv| pair(kv, op.keys_only)).collect();
    yield message(pb::RangeResponse { header, kvs, count: result.count, more: false });
    return;
    }
    drop(view);
    let mut rest = Some(RestOfWalk::all(op.span.clone()));
    let (mut streamed, mut chunk) = (0, FIRST_CHUNK_PAIRS);
    while let Some(walk) = rest.take() {
    let (pairs, left) = next_chunk(&store, &walk, at, (chunk.min(limit - streamed), !op.keys_only), &meter).await?;
    streamed += pairs.len();
    chunk = (chunk * 2).min(MAX_CHUNK_PAIRS);
    store.still_permitted(&permit)?;
    let kvs = pairs.into_iter().map(|kv| pair(kv, op.keys_only)).collect();
    if left.is_some() && streamed < limit {
    yield message(pb::RangeResponse { kvs, ..Default::default() });
    rest = left;
    continue;
    }
    let remaining = match left {
    Some(left) => newest(&store, at)?.count(&left.span, at).await.map_err(|error| store.rows_failed(&error))?,
    None => 0,
    };
    let count = i64::try_from(streamed).unwrap_or(i64::MAX).saturating_add(remaining);
    yield message(pb::RangeResponse { header, kvs, count, more: remaining > 0 });
    }
    })
}

/// Converts a pair. As in etcd 3.7, a pair without its value comes from an index that has no leases.
fn pair(mut kv: KeyValue, keys_only: bool) -> mvccpb::KeyValue {
    if keys_only {
        kv.value.clear();
        kv.lease = LeaseId(0);
    }
    key_value(kv)
}

/// Returns the newest view, if it still has a revision.
fn newest(store: &ApiContext, at: Revision) -> Result<Arc<View>, Status> {
    let view = store.view()?;
    view.resolve(at)?;
    Ok(view)
}

/// Returns the next pairs of a walk, at most `most` and not many more bytes of values than are read at once, with or without values; and
/// the rest of the walk if any pairs are in it.
async fn next_chunk(
    store: &ApiContext,
    walk: &RestOfWalk,
    at: Revision,
    (most, values): (usize, bool),
    meter: &Meter,
) -> Result<(Vec<KeyValue>, Option<RestOfWalk>), Status> {
    let view = newest(store, at)?;
    let mut cursor = view.resume(walk, at, values);
    let failed = |error| store.rows_failed(&error);
    let (mut pairs, mut bytes) = (Vec::new(), 0);
    while pairs.len() < most && bytes < VALUE_BYTES_PER_READ {
        let Some(page) = cursor.page(most - pairs.len()).await.map_err(failed)? else {
            break;
        };
        charge(meter, &page, values)?;
        if values {
            bytes += page.iter().map(|kv| kv.size as usize).sum::<usize>();
        }
        pairs.extend(cursor.load(page).await.map_err(failed)?);
    }
    let rest = match cursor.rest_of_walk() {
        Some(rest) if has_pairs(&view, &rest.span, at).await.map_err(failed)? => Some(rest),
        _ => None,
    };
    Ok((pairs, rest))
}

/// True if any pairs are in a span.
async fn has_pairs(view: &View, span: &Span, at: Revision) -> Result<bool, RowsError> {
    let mut cursor = view.cursor(span, at, false);
    while let Some(page) = cursor.page(1).await? {
        if !page.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn message(range_response: pb::RangeResponse) -> pb::RangeStreamResponse {
    pb::RangeStreamResponse {
        range_response: Some(range_response),
    }
}
