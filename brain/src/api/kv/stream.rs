//! `RangeStream` of etcd 3.7: a range in chunks of bounded size, all at one revision.
//!
//! All messages merged are what `Range` would have answered: pairs in every chunk, header, count and `more` in the last.

use std::sync::Arc;

use async_stream::try_stream;
use futures::Stream;
use tonic::Status;

use crate::api::response::key_value;
use crate::api::store::Store;
use crate::mvcc::op::RangeOp;
use crate::mvcc::view::View;
use crate::pb::etcdserverpb as pb;
use crate::rows::Rows;

/// Pairs in the first chunk, so that the client has something to do soon, and in later ones at most.
const FIRST_CHUNK: usize = 10;
const CHUNK: usize = 1_000;

/// Opens the stream at a view's revision, or the one asked for.
///
/// # Errors
/// When that revision cannot be read.
pub(super) fn open<R: Rows>(
    store: Store<R>,
    view: Arc<View<R::Snapshot>>,
    op: RangeOp,
) -> Result<impl Stream<Item = Result<pb::RangeStreamResponse, Status>>, Status> {
    let at = view.resolve(op.revision).map_err(crate::api::store::refused)?;
    Ok(try_stream! {
        let header = Some(store.header(view.revision));
        let limit = usize::try_from(op.limit).ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX);
        let (mut streamed, mut chunk) = (0, FIRST_CHUNK);
        let failed = |error| store.rows_failed(&error);
        let mut count = 0;
        if op.count_only || op.span.is_point() {
            let result = view.range(&op).await.map_err(|error| store.failed(error))?;
            if !result.kvs.is_empty() {
                yield message(pb::RangeResponse { kvs: result.kvs.into_iter().map(key_value).collect(), ..Default::default() });
            }
            yield message(pb::RangeResponse { header, count: result.count, ..Default::default() });
            return;
        }
        let mut cursor = view.cursor(&op.span, at, !op.keys_only);
        while streamed < limit {
            let Some(page) = cursor.next(chunk.min(limit - streamed)).await.map_err(failed)? else { break };
            streamed += page.len();
            chunk = (chunk * 2).min(CHUNK);
            if !page.is_empty() {
                let kvs = page.into_iter().map(|mut kv| {
                    if op.keys_only {
                        kv.value.clear();
                    }
                    key_value(kv)
                });
                yield message(pb::RangeResponse { kvs: kvs.collect(), ..Default::default() });
            }
        }
        count += i64::try_from(streamed).unwrap_or(i64::MAX);
        let mut more = false;
        if let Some(rest) = cursor.rest() {
            let left = view.count(&rest, at).await.map_err(failed)?;
            more = left > 0;
            count += left;
        }
        yield message(pb::RangeResponse { header, count, more, ..Default::default() });
    })
}

fn message(range_response: pb::RangeResponse) -> pb::RangeStreamResponse {
    pb::RangeStreamResponse {
        range_response: Some(range_response),
    }
}
