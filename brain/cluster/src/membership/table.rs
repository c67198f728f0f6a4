//! The table of members, without I/O: its admission and removal rules.
//!
//! # Admission
//!
//! A key prefix belongs to one cluster. Two clusters that are configured for one prefix by mistake often have the same token (the
//! default), so the token alone does not distinguish them; their members do. A member that starts belongs to this cluster if
//!
//! - the table is empty: the member begins the cluster; or
//! - `--initial-cluster` and the table have a member in common: the same name at one of the same addresses (host and port; the
//!   scheme may change). A member that restarts finds itself in this way. One that is replaced or has moved finds the others, and
//!   so does a new one, whose `--initial-cluster` is longer; or
//! - its members and those of the table are found by DNS, in one domain (`--discovery-srv`); or
//! - the operator confirms it by `--initial-cluster-state=existing`: for a cluster whose addresses all changed at once.
//!
//! Any other member is refused, and the table does not change. Two clusters whose addresses are the same on different machines
//! (`localhost`) pass this check; [`duplicate_member`](super::super::duplicate_member) detects them.
//!
//! # Removal
//!
//! A member is removed by deleting it from `--initial-cluster` everywhere. The last row that does not name it shows that: a row is
//! dropped when all others were written later and none of them names it. A new member, which the others do not name before they are
//! restarted with the longer list, has the latest row and stays. A member that finds the others by DNS removes none.
//!
//! A row may also be removed by request (`removal.rs`). The table keeps its name for a while, so that a member that runs notices.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use prost::Message;

use crate::discovery::SrvDiscovery;
use etcd_types::url::Url;
use etcd_types::version;
use mvcc::row::STORED_FORMAT;

/// The version of the table that this brain reads and writes.
const TABLE_FORMAT: u32 = 1;

/// Names of removed members that are kept.
const MAX_REMOVED_NAMES: usize = 16;

/// The version of the peer protocol.
const PEER_FORMAT: u32 = 2;

/// All rows of members.
#[derive(Clone, PartialEq, Message)]
pub struct MemberTable {
    /// A brain refuses a table newer than its own.
    #[prost(uint32, tag = "1")]
    format: u32,
    /// Increases with every change.
    #[prost(uint64, tag = "2")]
    number: u64,
    /// The rows by name, as they were written: fields that a newer brain put into its row survive the changes of an older one.
    #[prost(btree_map = "string, bytes", tag = "3")]
    rows: BTreeMap<String, Vec<u8>>,
    /// The names whose rows were removed by request, oldest first. An older brain drops them.
    #[prost(string, repeated, tag = "4")]
    removed: Vec<String>,
}

/// The entry of one member in the table.
#[derive(Clone, PartialEq, Message)]
pub(super) struct MemberRow {
    /// The URLs for peers.
    #[prost(string, repeated, tag = "1")]
    pub peer_urls: Vec<String>,
    /// The URLs for clients.
    #[prost(string, repeated, tag = "2")]
    pub client_urls: Vec<String>,
    /// The names in its `--initial-cluster`; none if it finds the others by DNS.
    #[prost(string, repeated, tag = "3")]
    pub names: Vec<String>,
    /// Its version.
    #[prost(string, tag = "4")]
    pub version: String,
    /// The newest stored format that it reads: the format that is written rises only when that of every row does.
    #[prost(uint32, tag = "5")]
    pub stored_format: u32,
    /// The newest version of the peer protocol that it speaks; it rises likewise.
    #[prost(uint32, tag = "6")]
    pub peer_format: u32,
    /// The table's number when the row was written.
    #[prost(uint64, tag = "7")]
    pub written: u64,
    /// The domain in which it finds the others; empty if they are configured.
    #[prost(string, tag = "8")]
    pub domain: String,
}

/// The request of a member that starts.
#[derive(Debug, Clone)]
pub struct JoinRequest {
    name: String,
    row: MemberRow,
    cluster: BTreeMap<String, Vec<Url>>,
    is_vouched_for: bool,
}

/// The reason why the table refuses a member. The table does not change.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// The key prefix belongs to another cluster.
    #[error(
        "the key prefix belongs to a cluster of other members ({members}), and --initial-cluster names none of them at its address: choose another --tikv-key-prefix, or pass --initial-cluster-state=existing if it is this cluster and all addresses changed"
    )]
    OtherCluster {
        /// The names and peer URLs of the existing members.
        members: String,
    },
    /// A newer brain wrote the table.
    #[error(
        "the rows of members are of format {found}, this version reads formats up to {TABLE_FORMAT}: start a newer version"
    )]
    Newer {
        /// The format found.
        found: u32,
    },
    /// The table is damaged.
    #[error("the rows of members are damaged: {0}")]
    Corrupt(String),
}

/// This member, as flags name it.
#[derive(Debug, Clone)]
pub struct ConfiguredMember {
    /// Its name.
    pub name: String,
    /// Peer URLs of all members by name, this one's included.
    pub initial_cluster: BTreeMap<String, Vec<Url>>,
    /// The domain whose SRV records name all members, instead of `initial_cluster`.
    pub discovery: Option<SrvDiscovery>,
    /// The peer URLs in the member list.
    pub initial_advertise_peer_urls: Vec<Url>,
    /// The client URLs in the member list.
    pub advertise_client_urls: Vec<Url>,
    /// True if this member joins the cluster even if none of its members is recognised.
    pub joins_existing: bool,
}

impl JoinRequest {
    /// Creates the request of this member from its configuration.
    #[must_use]
    pub fn new(member: &ConfiguredMember) -> Self {
        let texts = |urls: &[Url]| urls.iter().map(ToString::to_string).collect();
        let domain = member
            .discovery
            .as_ref()
            .map(|found| format!("{} {}", found.domain, found.name));
        let mut cluster = member.initial_cluster.clone();
        let mut names = cluster.keys().cloned().collect();
        if domain.is_some() {
            cluster = BTreeMap::from([(member.name.clone(), member.initial_advertise_peer_urls.clone())]);
            names = Vec::new();
        }
        Self {
            name: member.name.clone(),
            row: MemberRow {
                peer_urls: texts(&member.initial_advertise_peer_urls),
                client_urls: texts(&member.advertise_client_urls),
                names,
                version: version::KUBEBRAIN.to_owned(),
                stored_format: STORED_FORMAT,
                peer_format: PEER_FORMAT,
                written: 0,
                domain: domain.unwrap_or_default(),
            },
            cluster,
            is_vouched_for: member.joins_existing,
        }
    }

    /// Returns its name and row.
    pub(super) fn row(&self) -> (&str, MemberRow) {
        (&self.name, self.row.clone())
    }
}

impl MemberTable {
    /// Decodes the value of the register; an empty register is an empty table. Fails with [`JoinError::Newer`] or
    /// [`JoinError::Corrupt`].
    pub fn decode(stored: Option<&Bytes>) -> Result<MemberTable, JoinError> {
        let Some(bytes) = stored else {
            return Ok(MemberTable::default());
        };
        let corrupt = |error: prost::DecodeError| JoinError::Corrupt(error.to_string());
        let table = MemberTable::decode_from(bytes.clone()).map_err(corrupt)?;
        if table.format > TABLE_FORMAT {
            return Err(JoinError::Newer { found: table.format });
        }
        for row in table.rows.values() {
            MemberRow::decode(row.as_slice()).map_err(corrupt)?;
        }
        Ok(table)
    }

    fn decode_from(bytes: Bytes) -> Result<MemberTable, prost::DecodeError> {
        <MemberTable as Message>::decode(bytes)
    }

    /// Encodes the table as the value of the register.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        self.encode_to_vec().into()
    }

    /// Returns the table with this member in it; `None` if it needs no change. Fails with [`JoinError::OtherCluster`].
    pub fn join(&self, request: &JoinRequest) -> Result<Option<MemberTable>, JoinError> {
        if !self.rows.is_empty() && !request.is_vouched_for && !self.knows(request) {
            let members = self
                .rows()
                .map(|(name, row)| format!("{name} at {}", row.peer_urls.join(" ")));
            let members = members.collect::<Vec<_>>().join(", ");
            return Err(JoinError::OtherCluster { members });
        }
        let number = self.number + 1;
        let stored = self.rows().find(|(name, _)| *name == request.name);
        let is_new = stored.is_none_or(|(_, row)| MemberRow { written: 0, ..row } != request.row);
        let mut next = self.clone();
        if is_new {
            let row = MemberRow {
                written: number,
                ..request.row.clone()
            };
            next.rows.insert(request.name.clone(), row.encode_to_vec());
            next.removed.retain(|name| *name != request.name);
        }
        let departed = next.departed();
        if !is_new && departed.is_empty() {
            return Ok(None);
        }
        next.rows.retain(|name, _| !departed.contains(name));
        (next.format, next.number) = (TABLE_FORMAT, number);
        Ok(Some(next))
    }

    /// Returns the table without a member, and with the note that it was removed; `None` if it has no row.
    pub(super) fn without(&self, name: &str) -> Option<MemberTable> {
        let mut next = self.clone();
        next.rows.remove(name)?;
        next.removed.retain(|removed| removed != name);
        next.removed.push(name.to_owned());
        let over = next.removed.len().saturating_sub(MAX_REMOVED_NAMES);
        next.removed.drain(..over);
        (next.format, next.number) = (TABLE_FORMAT, self.number + 1);
        Some(next)
    }

    /// Returns true if the row of a member was removed by request, and it has not entered again.
    pub(super) fn is_removed(&self, name: &str) -> bool {
        self.removed.iter().any(|removed| removed == name)
    }

    /// Returns names and rows.
    pub(super) fn rows(&self) -> impl Iterator<Item = (&str, MemberRow)> {
        // The rows were checked when the table was decoded.
        let decoded = |row: &Vec<u8>| MemberRow::decode(row.as_slice()).unwrap_or_default();
        self.rows.iter().map(move |(name, row)| (name.as_str(), decoded(row)))
    }

    /// Returns true if the table and the request have a member in common.
    fn knows(&self, request: &JoinRequest) -> bool {
        self.rows().any(|(name, row)| {
            let there: Vec<Url> = row.peer_urls.iter().filter_map(|url| Url::parse(url).ok()).collect();
            if !row.domain.is_empty() && row.domain == request.row.domain {
                return true;
            }
            let here = request.cluster.get(name);
            here.is_some_and(|urls| {
                urls.iter()
                    .any(|url| there.iter().any(|other| other.address() == url.address()))
            })
        })
    }

    /// Returns the members that every other member has left out of a row that it wrote later.
    fn departed(&self) -> BTreeSet<String> {
        let rows: Vec<(&str, MemberRow)> = self.rows().collect();
        let leaves_out =
            |row: &MemberRow, name: &str| !row.names.is_empty() && row.names.iter().all(|named| named != name);
        let has_left = |name: &str, row: &MemberRow| {
            let mut others = rows.iter().filter(|(other, _)| *other != name).peekable();
            others.peek().is_some() && others.all(|(_, other)| other.written > row.written && leaves_out(other, name))
        };
        rows.iter()
            .filter(|(name, row)| has_left(name, row))
            .map(|(name, _)| (*name).to_owned())
            .collect()
    }
}
