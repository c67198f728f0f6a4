//! Texts of requests for the log: as etcd's, with the sizes of values in place of the values.

use std::fmt::{self, Display, Formatter};

use bytes::Bytes;
use prost::Message;

use etcd_types::pb::etcdserverpb as pb;
use etcd_types::types::Revision;
use store::sequencer::command::Command;
use telemetry::slow_requests::{BoundedText, RequestStats, UnaryExchange};

/// Returns the text of a range.
pub(super) fn range(request: &pb::RangeRequest) -> String {
    BoundedText::of(LoggedRange(request))
}

/// Returns the text of a put.
pub(super) fn put(request: &pb::PutRequest) -> String {
    BoundedText::of(LoggedPut(request))
}

/// Returns the text of a deletion.
pub(super) fn delete(request: &pb::DeleteRangeRequest) -> String {
    BoundedText::of(LoggedDelete(request))
}

/// Returns the text of a txn.
pub(super) fn txn(request: &pb::TxnRequest) -> String {
    BoundedText::of(LoggedTxn(request))
}

/// Returns the text of a read-only txn's response.
pub(super) fn read_only(answer: &pb::TxnResponse) -> String {
    BoundedText::of(LoggedReadOnlyTxn(answer))
}

/// Returns the sizes and the text of a unary RPC, with counts as etcd has them.
#[must_use]
pub fn describe(rpc: UnaryExchange<'_>) -> RequestStats {
    let described = match rpc.path {
        "/etcdserverpb.KV/Range" => exchanged(rpc, |request: &pb::RangeRequest, answer: Option<&pb::RangeResponse>| {
            let size = request.encoded_len();
            (0, size, answer.map_or(0, |answer| answer.count), range(request))
        }),
        "/etcdserverpb.KV/Put" => exchanged(rpc, |request: &pb::PutRequest, _: Option<&pb::PutResponse>| {
            (1, request.encoded_len(), 0, put(request))
        }),
        "/etcdserverpb.KV/DeleteRange" => exchanged(
            rpc,
            |request: &pb::DeleteRangeRequest, answer: Option<&pb::DeleteRangeResponse>| {
                let size = request.encoded_len();
                (0, size, answer.map_or(0, |answer| answer.deleted), delete(request))
            },
        ),
        "/etcdserverpb.KV/Txn" => exchanged(rpc, |request: &pb::TxnRequest, answer: Option<&pb::TxnResponse>| {
            // Those of the branch that was taken.
            let taken: &[pb::RequestOp] = match answer {
                Some(answer) if answer.succeeded => &request.success,
                Some(_) => &request.failure,
                None => &[],
            };
            let size = taken.iter().map(Message::encoded_len).sum();
            (taken.len(), size, 0, txn(request))
        }),
        _ => None,
    };
    described.unwrap_or_default()
}

/// Describes an RPC by its messages: operations and bytes of the request, keys in the response, text. `None` if the request does not decode.
fn exchanged<Q: Message + Default, A: Message + Default>(
    rpc: UnaryExchange<'_>,
    describe: impl FnOnce(&Q, Option<&A>) -> (usize, usize, i64, String),
) -> Option<RequestStats> {
    let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let request = Q::decode(rpc.request).ok()?;
    let response_size = rpc.answer.as_ref().map_or(0, Bytes::len);
    let answer = rpc.answer.and_then(|answer| A::decode(answer).ok());
    let (request_count, request_size, response_count, content) = describe(&request, answer.as_ref());
    Some(RequestStats {
        request_count: number(request_count),
        request_size: number(request_size),
        response_count,
        response_size: number(response_size),
        content,
    })
}

/// A change other than of keys and values.
pub(super) enum LoggedCommand {
    Compact(Revision),
    Grant(i64, i64),
    Revoke(i64),
    Checkpoint(usize),
    Alarm {
        member: u64,
        kind: i32,
        raised: bool,
    },
    /// Of users and roles: what is changed, but no names and no password.
    Auth(&'static str),
}

impl LoggedCommand {
    pub(super) fn of(request: &Command) -> Option<Self> {
        Some(match request {
            Command::Write(..) => return None,
            Command::Compact(revision) => Self::Compact(*revision),
            Command::Grant(id, ttl) => Self::Grant(id.0, *ttl),
            Command::Revoke { id, .. } => Self::Revoke(id.0),
            Command::Checkpoint(leases) => Self::Checkpoint(leases.len()),
            Command::Alarm(member, kind, raised) => Self::Alarm {
                member: *member,
                kind: *kind,
                raised: *raised,
            },
            Command::Auth(..) | Command::Token { .. } => Self::Auth(request.name()),
        })
    }
}

impl Display for LoggedCommand {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Compact(revision) => write!(f, "compaction:<revision:{revision} > "),
            Self::Grant(id, ttl) => write!(f, "lease_grant:<ttl:{ttl}-second id:{id:016x}>"),
            Self::Revoke(id) => write!(f, "lease_revoke:<id:{id:016x}>"),
            Self::Checkpoint(leases) => write!(f, "lease_checkpoint:<leases:{leases} > "),
            Self::Alarm { member, kind, raised } => {
                let action = if *raised { "ACTIVATE" } else { "DEACTIVATE" };
                let kind = pb::AlarmType::try_from(*kind).unwrap_or_default().as_str_name();
                write!(f, "alarm:<action:{action} memberID:{member} alarm:{kind} > ")
            }
            Self::Auth(what) => write!(f, "{what}:<>"),
        }
    }
}

struct LoggedReadOnlyTxn<'a>(&'a pb::TxnResponse);
struct LoggedRange<'a>(&'a pb::RangeRequest);
struct LoggedPut<'a>(&'a pb::PutRequest);
struct LoggedDelete<'a>(&'a pb::DeleteRangeRequest);
struct LoggedTxn<'a>(&'a pb::TxnRequest);
struct LoggedCompare<'a>(&'a pb::Compare);
struct LoggedOperation<'a>(&'a pb::RequestOp);

impl Display for LoggedReadOnlyTxn<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        use pb::response_op::Response;
        f.write_str("responses:<")?;
        let ranges = self.0.responses.iter().filter_map(|op| match &op.response {
            Some(Response::ResponseRange(range)) => Some(range.kvs.len()),
            _ => None,
        });
        for (at, kvs) in ranges.enumerate() {
            let space = if at > 0 { " " } else { "" };
            write!(f, "{space}range_response_count:{kvs}")?;
        }
        write!(f, "> size:{}", self.0.encoded_len())
    }
}

impl Display for LoggedRange<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(range) = self;
        bytes(f, "key", &range.key)?;
        bytes(f, "range_end", &range.range_end)?;
        number(f, "limit", range.limit)?;
        number(f, "revision", range.revision)?;
        let order = pb::range_request::SortOrder::try_from(range.sort_order).unwrap_or_default();
        name(f, "sort_order", range.sort_order, order.as_str_name())?;
        let target = pb::range_request::SortTarget::try_from(range.sort_target).unwrap_or_default();
        name(f, "sort_target", range.sort_target, target.as_str_name())?;
        flag(f, "serializable", range.serializable)?;
        flag(f, "keys_only", range.keys_only)?;
        flag(f, "count_only", range.count_only)?;
        number(f, "min_mod_revision", range.min_mod_revision)?;
        number(f, "max_mod_revision", range.max_mod_revision)?;
        number(f, "min_create_revision", range.min_create_revision)?;
        number(f, "max_create_revision", range.max_create_revision)
    }
}

impl Display for LoggedPut<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(put) = self;
        bytes(f, "key", &put.key)?;
        size(f, put.value.len())?;
        number(f, "lease", put.lease)?;
        flag(f, "prev_kv", put.prev_kv)?;
        flag(f, "ignore_value", put.ignore_value)?;
        flag(f, "ignore_lease", put.ignore_lease)
    }
}

impl Display for LoggedDelete<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(delete) = self;
        bytes(f, "key", &delete.key)?;
        bytes(f, "range_end", &delete.range_end)?;
        flag(f, "prev_kv", delete.prev_kv)
    }
}

impl Display for LoggedTxn<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(txn) = self;
        f.write_str("compare:<")?;
        spaced(f, &txn.compare, |f, compare| LoggedCompare(compare).fmt(f))?;
        f.write_str("> success:<")?;
        spaced(f, &txn.success, |f, op| LoggedOperation(op).fmt(f))?;
        f.write_str("> failure:<")?;
        spaced(f, &txn.failure, |f, op| LoggedOperation(op).fmt(f))?;
        f.write_str(">")
    }
}

impl Display for LoggedCompare<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        use pb::compare::{CompareResult, CompareTarget, TargetUnion};
        let Self(compare) = self;
        let result = CompareResult::try_from(compare.result).unwrap_or_default();
        name(f, "result", compare.result, result.as_str_name())?;
        let target = CompareTarget::try_from(compare.target).unwrap_or_default();
        name(f, "target", compare.target, target.as_str_name())?;
        bytes(f, "key", &compare.key)?;
        match &compare.target_union {
            Some(TargetUnion::Version(version)) => write!(f, "version:{version} ")?,
            Some(TargetUnion::CreateRevision(revision)) => write!(f, "create_revision:{revision} ")?,
            Some(TargetUnion::ModRevision(revision)) => write!(f, "mod_revision:{revision} ")?,
            Some(TargetUnion::Lease(lease)) => write!(f, "lease:{lease} ")?,
            Some(TargetUnion::Value(value)) => size(f, value.len())?,
            None => {}
        }
        bytes(f, "range_end", &compare.range_end)
    }
}

impl Display for LoggedOperation<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        use pb::request_op::Request;
        match &self.0.request {
            Some(Request::RequestRange(range)) => write!(f, "request_range:<{}> ", LoggedRange(range)),
            Some(Request::RequestPut(put)) => write!(f, "request_put:<{}>", LoggedPut(put)),
            Some(Request::RequestDeleteRange(delete)) => write!(f, "request_delete_range:<{}> ", LoggedDelete(delete)),
            Some(Request::RequestTxn(txn)) => write!(f, "request_txn:<{}>", LoggedTxn(txn)),
            None => Ok(()),
        }
    }
}

fn spaced<T>(f: &mut Formatter<'_>, items: &[T], show: impl Fn(&mut Formatter<'_>, &T) -> fmt::Result) -> fmt::Result {
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            f.write_str(" ")?;
        }
        show(f, item)?;
    }
    Ok(())
}

/// Writes a field of bytes as the text format of protobuf has it, unless it is empty.
fn bytes(f: &mut Formatter<'_>, field: &str, value: &[u8]) -> fmt::Result {
    if value.is_empty() {
        return Ok(());
    }
    write!(f, "{field}:\"")?;
    for byte in value {
        match byte {
            b'\n' => f.write_str("\\n"),
            b'\r' => f.write_str("\\r"),
            b'\t' => f.write_str("\\t"),
            b'"' => f.write_str("\\\""),
            b'\\' => f.write_str("\\\\"),
            b' '..=b'~' => write!(f, "{}", char::from(*byte)),
            _ => write!(f, "\\{byte:03o}"),
        }?;
    }
    f.write_str("\" ")
}

fn number(f: &mut Formatter<'_>, field: &str, value: i64) -> fmt::Result {
    if value == 0 {
        Ok(())
    } else {
        write!(f, "{field}:{value} ")
    }
}

/// Writes the size of a value in its place.
fn size(f: &mut Formatter<'_>, len: usize) -> fmt::Result {
    if len == 0 {
        Ok(())
    } else {
        write!(f, "value_size:{len} ")
    }
}

fn flag(f: &mut Formatter<'_>, field: &str, value: bool) -> fmt::Result {
    if value { write!(f, "{field}:true ") } else { Ok(()) }
}

/// Writes an enumeration by its name, unless it has its default.
fn name(f: &mut Formatter<'_>, field: &str, value: i32, name: &str) -> fmt::Result {
    if value == 0 {
        Ok(())
    } else {
        write!(f, "{field}:{name} ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mvcc::auth::AuthRequest;

    #[test]
    fn texts_are_etcds_and_have_no_values() {
        let put_request = pb::PutRequest {
            key: b"a\"\n\xff".as_slice().into(),
            value: b"secret".as_slice().into(),
            lease: 7,
            prev_kv: true,
            ..Default::default()
        };
        let expected = r#"key:"a\"\n\377" value_size:6 lease:7 prev_kv:true "#;
        assert_eq!(put(&put_request), expected);
        let range_request = pb::RangeRequest {
            key: b"a".as_slice().into(),
            range_end: b"b".as_slice().into(),
            limit: 5,
            sort_order: 2,
            sort_target: 3,
            ..Default::default()
        };
        let shown = r#"key:"a" range_end:"b" limit:5 sort_order:DESCEND sort_target:MOD "#;
        assert_eq!(range(&range_request), shown);
        let compare = pb::Compare {
            result: 1,
            target: 3,
            key: b"a".as_slice().into(),
            target_union: Some(pb::compare::TargetUnion::Value(b"secret".as_slice().into())),
            ..Default::default()
        };
        let op = |request| pb::RequestOp { request: Some(request) };
        let txn_request = pb::TxnRequest {
            compare: vec![compare],
            success: vec![op(pb::request_op::Request::RequestPut(put_request))],
            failure: vec![op(pb::request_op::Request::RequestRange(range_request))],
        };
        assert_eq!(
            txn(&txn_request),
            format!(
                "compare:<result:GREATER target:VALUE key:\"a\" value_size:6 > success:<request_put:<{expected}>> \
                 failure:<request_range:<{shown}> >"
            )
        );
        let deletion = pb::DeleteRangeRequest {
            key: b"a".as_slice().into(),
            ..Default::default()
        };
        assert_eq!(delete(&deletion), "key:\"a\" ");
    }

    #[test]
    fn rpcs_have_the_counts_of_etcd() {
        let rpc = |path, request: &dyn Fn() -> Vec<u8>, answer: Option<Vec<u8>>| {
            let (request, answer) = (Bytes::from(request()), answer.map(Bytes::from));
            let stats = describe(UnaryExchange { path, request, answer });
            let counts = (
                stats.request_count,
                stats.request_size,
                stats.response_count,
                stats.response_size,
            );
            (counts, stats.content)
        };
        let key = || b"a".as_slice().into();
        let range_request = || {
            pb::RangeRequest {
                key: key(),
                ..Default::default()
            }
            .encode_to_vec()
        };
        let found = pb::RangeResponse {
            count: 3,
            ..Default::default()
        }
        .encode_to_vec();
        let expected = ((0, 3, 3, 2), "key:\"a\" ".to_owned());
        assert_eq!(rpc("/etcdserverpb.KV/Range", &range_request, Some(found)), expected);
        let put_request = pb::PutRequest {
            key: key(),
            value: b"secret".as_slice().into(),
            ..Default::default()
        };
        let put_bytes = || put_request.encode_to_vec();
        let shown = "key:\"a\" value_size:6 ".to_owned();
        assert_eq!(rpc("/etcdserverpb.KV/Put", &put_bytes, None), ((1, 11, 0, 0), shown));
        let op = pb::request_op::Request::RequestPut(put_request.clone());
        let op = pb::RequestOp { request: Some(op) };
        let size = i64::try_from(op.encoded_len()).unwrap();
        let txn_request = pb::TxnRequest {
            success: vec![op.clone(), op],
            ..Default::default()
        };
        let txn_bytes = || txn_request.encode_to_vec();
        let succeeded = pb::TxnResponse {
            succeeded: true,
            ..Default::default()
        }
        .encode_to_vec();
        assert_eq!(
            rpc("/etcdserverpb.KV/Txn", &txn_bytes, Some(succeeded)).0,
            (2, 2 * size, 0, 2)
        );
        assert_eq!(rpc("/etcdserverpb.KV/Txn", &txn_bytes, None).0, (0, 0, 0, 0));
        let other = ((-1, -1, -1, -1), String::new());
        for path in ["/etcdserverpb.Auth/Authenticate", "/etcdserverpb.KV/Compact"] {
            assert_eq!(rpc(path, &put_bytes, Some(Vec::new())), other);
        }
        assert_eq!(rpc("/etcdserverpb.KV/Put", &|| vec![0xff], None), other);
    }

    #[test]
    fn changes_of_users_show_no_name_and_no_password() {
        let text = |request| LoggedCommand::of(&request).unwrap().to_string();
        let user = AuthRequest::AddUser("someone".to_owned(), Some(b"hash".as_slice().into()));
        assert_eq!(text(Command::Auth(user, 0)), "auth_user_add:<>");
        let lease = etcd_types::types::LeaseId(0x123);
        assert_eq!(
            text(Command::Grant(lease, 100)),
            "lease_grant:<ttl:100-second id:0000000000000123>"
        );
        let alarm = "alarm:<action:ACTIVATE memberID:7 alarm:NOSPACE > ";
        assert_eq!(text(Command::Alarm(7, store::alarm::NOSPACE, true)), alarm);
    }

    #[test]
    fn text_of_a_large_request_is_bounded() {
        let request = pb::PutRequest {
            key: vec![0; 1 << 20].into(),
            ..Default::default()
        };
        assert!(put(&request).len() < 5_000);
    }
}
