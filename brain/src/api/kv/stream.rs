//! `RangeStream` of etcd 3.7: a range in chunks of bounded size, all at one revision.
//!
//! All messages merged equal the answer of `Range`: pairs are in every chunk; header, count and `more` in the last.
//!
//! A chunk is charged before it is read; the charge is released when the chunk is encoded, so the next one waits for the client.
//! Between two chunks no view is held: a client that reads slowly, or not at all, holds neither memory nor a snapshot. If its
//! revision is compacted in the meantime, the stream ends as etcd's does.

use std::sync::Arc;

use async_stream::try_stream;
use futures::Stream;
use tonic::Status;

use crate::api::context::{ApiContext, to_status};
use crate::api::response::key_value;
use crate::budget::Meter;
use crate::mvcc::op::{RangeOp, Span};
use crate::mvcc::view::{View, charge};
use crate::pb::etcdserverpb as pb;
use crate::rows::Rows;
use crate::types::{KeyValue, Revision};

/// The number of pairs in the first chunk, so that the client soon has something to do, and the most in later ones.
const FIRST_CHUNK: usize = 10;
const CHUNK: usize = 1_000;

/// Opens the stream at a view's revision, or at the requested one. Fails if that revision cannot be read.
pub(super) fn open<R: Rows>(
    store: ApiContext<R>,
    view: Arc<View<R::Snapshot>>,
    op: RangeOp,
    meter: Meter,
) -> Result<impl Stream<Item = Result<pb::RangeStreamResponse, Status>>, Status> {
    let at = view.resolve(op.revision).map_err(to_status)?;
    Ok(try_stream! {
        let header = Some(store.header(view.revision));
        let limit = usize::try_from(op.limit).ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX);
        let (mut streamed, mut chunk) = (0, FIRST_CHUNK);
        if op.count_only || op.span.is_point() {
            let result = view.range_metered(&op, &meter).await.map_err(|error| store.failed(error))?;
            drop(view);
            if !result.kvs.is_empty() {
                yield message(pb::RangeResponse { kvs: result.kvs.into_iter().map(key_value).collect(), ..Default::default() });
            }
            yield message(pb::RangeResponse { header, count: result.count, ..Default::default() });
            return;
        }
        drop(view);
        let mut rest = Some(op.span.clone());
        while let Some(span) = rest.as_ref().filter(|_| streamed < limit) {
            let (page, left) = page(&store, span, at, (chunk.min(limit - streamed), !op.keys_only), &meter).await?;
            rest = left;
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
        let mut count = i64::try_from(streamed).unwrap_or(i64::MAX);
        let mut more = false;
        if let Some(rest) = rest {
            let view = newest(&store, at)?;
            let left = view.count(&rest, at).await.map_err(|error| store.rows_failed(&error))?;
            more = left > 0;
            count += left;
        }
        yield message(pb::RangeResponse { header, count, more, ..Default::default() });
    })
}

/// Returns the newest view, if it still has a revision.
fn newest<R: Rows>(store: &ApiContext<R>, at: Revision) -> Result<Arc<View<R::Snapshot>>, Status> {
    let view = store.view()?;
    view.resolve(at).map_err(to_status)?;
    Ok(view)
}

/// Returns the first pairs of a span, at most `most`, with or without values, and the rest of the span.
async fn page<R: Rows>(
    store: &ApiContext<R>,
    span: &Span,
    at: Revision,
    (most, values): (usize, bool),
    meter: &Meter,
) -> Result<(Vec<KeyValue>, Option<Span>), Status> {
    let view = newest(store, at)?;
    let mut cursor = view.cursor(span, at, values);
    loop {
        // A cursor may stand between the versions of a key while its pages are empty.
        let failed = |error| store.rows_failed(&error);
        let page = match cursor.page(most).await.map_err(failed)? {
            Some(page) if page.is_empty() => continue,
            page => page.unwrap_or_default(),
        };
        charge(meter, &page, values).map_err(to_status)?;
        return Ok((cursor.load(page).await.map_err(failed)?, cursor.rest()));
    }
}

fn message(range_response: pb::RangeResponse) -> pb::RangeStreamResponse {
    pb::RangeStreamResponse {
        range_response: Some(range_response),
    }
}
