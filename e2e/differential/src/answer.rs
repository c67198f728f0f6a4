//! The answer of a server, without what may differ.

use std::collections::BTreeMap;

use prost::Message as _;
use wire::{etcdserverpb as pb, mvccpb, v3electionpb as election, v3lockpb as lock};

use super::request::{Request, with_unary_methods};
use pb::response_op::Response;

pub mod snapshot;
mod ties;
pub use ties::order_ties;

use snapshot::Snapshot;

macro_rules! answers {
    ($($name:ident, $method:literal, $path:literal, $request:ty, $response:ty, $client:ident.$call:ident;)*) => {
        /// An answer. Lease ids in it are names where the server chose them.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(
            missing_docs,
            clippy::large_enum_variant,
            reason = "each is the response to the request of that name"
        )]
        pub enum Answer {
            $($name($response),)*
            Grant(pb::LeaseGrantResponse),
            KeepAlive(Option<pb::LeaseKeepAliveResponse>),
            /// The answer to a create or cancel request; none to a cancel of nothing.
            Watch(Option<pb::WatchResponse>),
            /// Events that each watcher received since the last time.
            Watched(BTreeMap<i64, Vec<Received>>),
            Snapshot(Snapshot),
            /// An error of the protocol.
            Error {
                /// The name of the code.
                code: tonic::Code,
                /// Its text.
                message: String,
                /// The status of HTTP, if it came over the gateway.
                http: Option<u16>,
            },
            /// Not an answer that any etcd could give: a broken promise, or silence.
            Broken(String),
        }

        impl Answer {
            /// The response to a request with one response, or the first one.
            ///
            /// # Errors
            ///
            /// It does not decode.
            pub fn decode(request: &Request, bytes: &[u8]) -> anyhow::Result<Self> {
                match request {
                    $(Request::$name(_) => Ok(Self::$name(<$response>::decode(bytes)?)),)*
                    Request::Grant(..) => Ok(Self::Grant(pb::LeaseGrantResponse::decode(bytes)?)),
                    Request::KeepAlive(_) => Ok(Self::KeepAlive(Some(pb::LeaseKeepAliveResponse::decode(bytes)?))),
                    Request::Observe(_) => Ok(Self::Leader(election::LeaderResponse::decode(bytes)?)),
                    other => anyhow::bail!("{} has not one response", other.method()),
                }
            }

            fn header(&mut self) -> Option<&mut pb::ResponseHeader> {
                match self {
                    $(Self::$name(response) => response.header.as_mut(),)*
                    Self::Grant(response) => response.header.as_mut(),
                    Self::KeepAlive(response) => response.as_mut()?.header.as_mut(),
                    Self::Watch(response) => response.as_mut()?.header.as_mut(),
                    Self::Watched(_) | Self::Snapshot(_) | Self::Error { .. } | Self::Broken(_) => None,
                }
            }
        }
    };
}
with_unary_methods!(answers);

/// One thing that a watcher received.
#[derive(Clone, Debug, PartialEq)]
pub enum Received {
    /// An event.
    Event(mvccpb::Event),
    /// Its end, or an unexpected answer.
    Control(pb::WatchResponse),
}

impl Answer {
    /// Returns the number of events in it.
    pub fn events(&self) -> usize {
        let Self::Watched(watchers) = self else { return 0 };
        watchers
            .values()
            .flatten()
            .filter(|received| matches!(received, Received::Event(_)))
            .count()
    }

    /// The store's revision that it names, if it names one.
    pub fn revision(&self) -> Option<i64> {
        let mut found = None;
        let mut copy = self.clone();
        copy.visit_headers(&mut |header| found = found.max(Some(header.revision)));
        found.filter(|revision| *revision > 0)
    }

    /// Leaves out what may differ.
    pub fn normalise(&mut self) {
        self.visit_headers(&mut |header| {
            header.cluster_id = header.cluster_id.min(1);
            header.member_id = header.member_id.min(1);
            header.raft_term = header.raft_term.min(1);
        });
        match self {
            Self::TimeToLive(response) => {
                response.ttl = response.ttl.signum();
                response.keys.sort();
            }
            Self::Leases(response) => response.leases.sort_by_key(|lease| lease.id),
            Self::Status(response) => normalise_status(response),
            Self::MemberList(pb::MemberListResponse { members, .. })
            | Self::MemberUpdate(pb::MemberUpdateResponse { members, .. }) => {
                members.iter_mut().for_each(normalise_member);
                members.sort_by(|one, other| one.name.cmp(&other.name)); // ids are chance
            }
            Self::Hash(response) => response.hash = 0,
            // Etcd may answer with a hash that it recorded at an earlier compaction, and with the revisions of that time.
            Self::HashKv(response) => {
                (response.hash, response.hash_revision, response.compact_revision) = (0, 0, 0);
            }
            // Random letters, and the record that holds them.
            Self::Authenticate(response) if !response.token.is_empty() => "a token".clone_into(&mut response.token),
            _ => {}
        }
    }

    /// Gives every lease id in it to `rename`.
    pub fn visit_leases(&mut self, rename: &mut impl FnMut(&mut i64)) {
        match self {
            Self::Range(response) => response.kvs.iter_mut().for_each(|kv| rename(&mut kv.lease)),
            Self::Put(response) => response.prev_kv.iter_mut().for_each(|kv| rename(&mut kv.lease)),
            Self::DeleteRange(response) => response.prev_kvs.iter_mut().for_each(|kv| rename(&mut kv.lease)),
            Self::Txn(response) => response.responses.iter_mut().for_each(|op| visit_op(op, rename)),
            Self::Grant(response) => rename(&mut response.id),
            Self::KeepAlive(response) => response.iter_mut().for_each(|response| rename(&mut response.id)),
            Self::TimeToLive(response) => rename(&mut response.id),
            Self::Leases(response) => response.leases.iter_mut().for_each(|lease| rename(&mut lease.id)),
            Self::Leader(response) => response.kv.iter_mut().for_each(|kv| rename(&mut kv.lease)),
            Self::Watched(watchers) => {
                for received in watchers.values_mut().flatten() {
                    let Received::Event(event) = received else { continue };
                    event
                        .kv
                        .iter_mut()
                        .chain(&mut event.prev_kv)
                        .for_each(|kv| rename(&mut kv.lease));
                }
            }
            _ => {}
        }
    }

    fn visit_headers(&mut self, visit: &mut impl FnMut(&mut pb::ResponseHeader)) {
        match self {
            Self::Txn(response) => response.responses.iter_mut().for_each(|op| visit_op_headers(op, visit)),
            Self::Watched(watchers) => {
                for received in watchers.values_mut().flatten() {
                    if let Received::Control(response) = received {
                        response.header.iter_mut().for_each(&mut *visit);
                    }
                }
            }
            _ => {}
        }
        if let Some(header) = self.header() {
            visit(header);
        }
    }
}

fn visit_op(op: &mut pb::ResponseOp, rename: &mut impl FnMut(&mut i64)) {
    match &mut op.response {
        Some(Response::ResponseRange(range)) => range.kvs.iter_mut().for_each(|kv| rename(&mut kv.lease)),
        Some(Response::ResponsePut(put)) => put.prev_kv.iter_mut().for_each(|kv| rename(&mut kv.lease)),
        Some(Response::ResponseDeleteRange(delete)) => {
            delete.prev_kvs.iter_mut().for_each(|kv| rename(&mut kv.lease));
        }
        Some(Response::ResponseTxn(txn)) => {
            for op in &mut txn.responses {
                // a trait object ends the recursion of types
                visit_op(op, &mut (rename as &mut dyn FnMut(&mut i64)));
            }
        }
        None => {}
    }
}

fn visit_op_headers(op: &mut pb::ResponseOp, visit: &mut impl FnMut(&mut pb::ResponseHeader)) {
    let header = match &mut op.response {
        Some(Response::ResponseRange(range)) => &mut range.header,
        Some(Response::ResponsePut(put)) => &mut put.header,
        Some(Response::ResponseDeleteRange(delete)) => &mut delete.header,
        Some(Response::ResponseTxn(txn)) => {
            for op in &mut txn.responses {
                visit_op_headers(op, &mut (visit as &mut dyn FnMut(&mut pb::ResponseHeader)));
            }
            &mut txn.header
        }
        None => return,
    };
    header.iter_mut().for_each(visit);
}

fn normalise_status(status: &mut pb::StatusResponse) {
    status.db_size = status.db_size.min(1);
    status.db_size_in_use = status.db_size_in_use.min(1);
    status.leader = status.leader.min(1);
    status.raft_index = status.raft_index.min(1);
    status.raft_applied_index = status.raft_applied_index.min(1);
    status.raft_term = status.raft_term.min(1);
}

/// Addresses differ by their ports.
fn normalise_member(member: &mut pb::Member) {
    member.id = member.id.min(1);
    for url in member.peer_ur_ls.iter_mut().chain(&mut member.client_ur_ls) {
        if let Some((scheme_and_host, _port)) = url.rsplit_once(':') {
            *url = scheme_and_host.to_owned();
        }
    }
}

#[cfg(test)]
mod tests;
