//! Requests of watch streams.

use bytes::Bytes;
use tonic::Code;

use ::watch::{EmptyRange, EventFilter, KeyRange, PrevKv};
use etcd_types::errors::Error;
use etcd_types::pb::etcdserverpb::WatchCreateRequest;
use etcd_types::pb::etcdserverpb::watch_create_request::FilterType;
use etcd_types::types::Revision;

/// A request to create a watcher.
#[derive(Debug)]
pub(super) struct CreateRequest {
    /// `None`: the server chooses the id.
    pub(super) id: Option<i64>,
    pub(super) range: KeyRange,
    pub(super) kinds: EventFilter,
    /// `None`: from the next revision on.
    pub(super) start: Option<Revision>,
    pub(super) form: ResponseFormat,
    pub(super) progress_notify: bool,
}

/// The format of responses to a watcher.
#[derive(Debug, Clone, Copy)]
pub(super) struct ResponseFormat {
    pub(super) prev_kv: PrevKv,
    /// True if a long response may be cut into fragments.
    pub(super) fragment: bool,
}

/// Returns a copy: a decoded value is a slice of the receive buffer, and a watcher lives long.
fn own(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

/// The reason why a watcher is refused. The texts are etcd's `cancel_reason`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CancelReason {
    #[error("etcdserver: mvcc: required revision has been compacted")]
    NegativeStart,
    #[error(transparent)]
    EmptyRange(#[from] EmptyRange),
    #[error("mvcc: duplicate watch ID provided on the WatchStream")]
    DuplicateId,
    /// The text is the one of a Go client's error.
    #[error("rpc error: code = {} desc = {}", go_name(*.0), .0)]
    NotPermitted(Error),
    /// There is no memory for another watcher.
    #[error(transparent)]
    TooMany(Error),
}

/// Returns the code of a refusal as Go spells it.
fn go_name(error: Error) -> &'static str {
    match error.code() {
        Code::Unauthenticated => "Unauthenticated",
        Code::InvalidArgument => "InvalidArgument",
        _ => "PermissionDenied",
    }
}

impl TryFrom<WatchCreateRequest> for CreateRequest {
    type Error = CancelReason;

    fn try_from(request: WatchCreateRequest) -> Result<Self, CancelReason> {
        if request.start_revision < 0 {
            return Err(CancelReason::NegativeStart);
        }
        let filtered = |filter: FilterType| request.filters.contains(&filter.into());
        Ok(Self {
            id: Some(request.watch_id).filter(|id| *id != 0),
            kinds: EventFilter {
                puts: !filtered(FilterType::Noput),
                deletes: !filtered(FilterType::Nodelete),
            },
            start: Some(request.start_revision).filter(|start| *start != 0),
            form: ResponseFormat {
                prev_kv: if request.prev_kv {
                    PrevKv::Included
                } else {
                    PrevKv::Omitted
                },
                fragment: request.fragment,
            },
            progress_notify: request.progress_notify,
            range: KeyRange::from_request(own(&request.key), own(&request.range_end))?,
        })
    }
}
