//! `GET /member`: describes this member and its leader, as JSON for operators. Etcd has no such path.

use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Query, State};
use http::{Method, Response, StatusCode, Uri};
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::{answer, not_allowed, plain_error};
use crate::refusal::Refusal;
use tls::{InUse, ServerTls};

/// The longest time for which a response is held back while the caller waits for a change.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// The most callers that may wait at a time.
const MAX_WAITERS: usize = 64;

/// The description of a member: the body of `GET /member`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberPage {
    /// Its name.
    pub name: String,
    /// Its id, in 16 hex digits.
    #[serde(rename = "memberID")]
    pub member_id: String,
    /// Id of the cluster, in 16 hex digits.
    #[serde(rename = "clusterID")]
    pub cluster_id: String,
    /// Its own version, not etcd's.
    pub version: &'static str,
    /// Formats of stored data.
    pub formats: StoredFormats,
    /// Its role in the cluster.
    pub role: MemberRole,
    /// True if it serves linearizable reads.
    pub ready: bool,
    /// Epoch of the leader that it knows; 0 if it never knew one.
    pub epoch: u64,
    /// Newest revision that it serves.
    pub revision: i64,
    /// Newest slot of the log that it has applied.
    pub applied_slot: u64,
    /// The leader that it knows.
    pub leader: Option<LeaderRef>,
    /// Raised alarms, by etcd's names.
    pub alarms: Vec<&'static str>,
    /// The storage in use.
    pub storage: StorageInUse,
    /// The space of that storage.
    pub space: SpaceInUse,
    /// Certificates in use; `None` without TLS for clients.
    pub tls: Option<TlsInUse>,
}

/// Formats of stored data, as increasing numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct StoredFormats {
    /// The oldest that is read.
    pub lowest: u32,
    /// The newest that is read.
    pub highest: u32,
    /// The one that is written.
    pub written: u32,
}

/// The role of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum MemberRole {
    /// It leads.
    Leader,
    /// It knows a leader.
    Follower,
    /// It knows no leader.
    None,
}

/// A leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeaderRef {
    /// Its name; empty while that is not known.
    pub name: String,
    /// Its id, in 16 hex digits.
    #[serde(rename = "memberID")]
    pub member_id: String,
}

/// The storage that holds the data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StorageInUse {
    /// `TiKV` or `Embedded`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// PD's cluster id, in decimal digits; none for a directory.
    #[serde(rename = "clusterID")]
    pub cluster_id: Option<String>,
    /// True if a row could be read just now.
    pub reachable: bool,
    /// Formats of the data directory; none on TiKV.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<StoredFormats>,
}

/// The space of the storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SpaceInUse {
    /// Bytes of the store, without the log of a data directory, as `dbSize` of etcd's status.
    pub bytes: u64,
    /// The bytes at which the NOSPACE alarm is raised; none if there is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_bytes: Option<u64>,
    /// The file system of the data directory; none on TiKV.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskInUse>,
}

/// A file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DiskInUse {
    /// Its size.
    pub bytes: u64,
    /// The bytes that are free.
    pub available_bytes: u64,
    /// The bytes that must be free for space not to be low: those that are kept free, and those that the next merge takes.
    pub needed_bytes: u64,
}

/// Certificates in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TlsInUse {
    /// SHA-256 in hex digits over the certificates that client certificates are verified with: their DER, sorted and concatenated.
    /// Empty if there are none.
    pub trust_bundle: String,
    /// The certificate for clients.
    pub server: CertificateInUse,
    /// The certificate for peers; `None` without peers or without TLS for them.
    pub peer: Option<CertificateInUse>,
    /// As `trust_bundle`, for peers.
    pub peer_trust_bundle: Option<String>,
}

/// One certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateInUse {
    /// SHA-256 of its DER, in hex digits.
    pub fingerprint: String,
    /// The time of its expiry, in the format of RFC 3339.
    pub not_after: String,
}

/// The response body while this member has no store to describe.
#[derive(Debug, Serialize)]
struct RefusedMember {
    refusal: Refusal,
}

/// The leader of an epoch; its id is 0 while no leader is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeaderTerm {
    /// The leader's epoch.
    pub epoch: u64,
    /// Its member id.
    pub leader: u64,
}

/// The view of the store that `/member` describes.
#[tonic::async_trait]
pub trait DescribeMember: Send + Sync + 'static {
    /// Returns everything but certificates.
    async fn describe(&self) -> MemberPage;

    /// Returns the leader and its epoch.
    fn term(&self) -> LeaderTerm;

    /// Returns as soon as the term differs from `seen`.
    async fn changed(&self, seen: LeaderTerm);
}

/// The certificates of the ports; weak, because they live as long as the ports.
#[derive(Debug, Clone, Default)]
pub struct PortCertificates {
    /// The certificate for clients.
    pub client: Weak<ServerTls>,
    /// The certificate for peers.
    pub peer: Weak<ServerTls>,
}

impl PortCertificates {
    fn in_use(&self) -> Option<TlsInUse> {
        let shown = |used: &InUse| CertificateInUse {
            fingerprint: used.fingerprint.clone(),
            not_after: rfc3339(used.not_after),
        };
        let client = self.client.upgrade()?.in_use();
        let peer = self.peer.upgrade().map(|tls| tls.in_use());
        Some(TlsInUse {
            server: shown(&client),
            trust_bundle: client.trust_bundle,
            peer: peer.as_ref().map(shown),
            peer_trust_bundle: peer.map(|peer| peer.trust_bundle),
        })
    }
}

/// Formats seconds since 1970 as RFC 3339.
fn rfc3339(seconds: i64) -> String {
    jiff::Timestamp::from_second(seconds).map_or_else(|_| String::new(), |at| at.to_string())
}

/// State of the handler.
#[derive(Clone)]
pub(super) struct MemberState {
    describe: MemberDescription,
    certificates: PortCertificates,
    room: Arc<Semaphore>,
}

/// The store to describe, or the reason why there is none.
pub type MemberDescription = Result<Arc<dyn DescribeMember>, Arc<dyn Fn() -> Refusal + Send + Sync>>;

impl MemberState {
    pub(super) fn new(describe: MemberDescription, certificates: PortCertificates) -> Self {
        Self {
            describe,
            certificates,
            room: Arc::new(Semaphore::new(MAX_WAITERS)),
        }
    }
}

pub(super) async fn member(State(site): State<MemberState>, method: Method, uri: Uri) -> Response<Body> {
    if method != Method::GET {
        return not_allowed();
    }
    let after = match after(&uri) {
        Ok(after) => after,
        Err(text) => return plain_error(StatusCode::BAD_REQUEST, text),
    };
    let describe = match &site.describe {
        Ok(describe) => describe,
        Err(why) => return written(StatusCode::SERVICE_UNAVAILABLE, &RefusedMember { refusal: why() }),
    };
    if let Some(after) = after {
        let Ok(_turn) = site.room.clone().try_acquire_owned() else {
            return plain_error(
                StatusCode::TOO_MANY_REQUESTS,
                "too many requests wait for a change of leader",
            );
        };
        let seen = describe.term();
        if seen.leader == 0 || seen.epoch <= after {
            // Changed or timed out: the response describes the current state.
            let _ended = timeout(MAX_WAIT, describe.changed(seen)).await;
        }
    }
    let about = MemberPage {
        tls: site.certificates.in_use(),
        ..describe.describe().await
    };
    written(StatusCode::OK, &about)
}

fn written(status: StatusCode, body: &impl Serialize) -> Response<Body> {
    match serde_json::to_string(body) {
        Ok(body) => answer(status, "application/json", body),
        Err(error) => {
            tracing::error!(%error, "cannot write the answer to /member");
            plain_error(StatusCode::INTERNAL_SERVER_ERROR, "the answer cannot be written")
        }
    }
}

/// Parses the query parameter `after`: the epoch that the caller already knows.
fn after(uri: &Uri) -> Result<Option<u64>, &'static str> {
    const BAD: &str = "after must be the epoch that the client knows, a number";
    let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(uri).map_err(|_| BAD)?;
    let after = pairs.into_iter().find(|(key, _)| key == "after");
    after.map(|(_, value)| value.parse().map_err(|_| BAD)).transpose()
}

#[cfg(test)]
mod tests;
