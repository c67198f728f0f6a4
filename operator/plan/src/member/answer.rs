//! A brain's answer to `GET /member`, validated and bounded.

use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;

use super::{MAX_TEXT_BYTES, clean};

/// Maximum length of a member's name, in bytes: that of a DNS name.
const MAX_NAME_BYTES: usize = 253;
/// Maximum length of a version, in bytes.
const MAX_VERSION_BYTES: usize = 64;
/// Maximum number of alarms that are read.
const MAX_ALARMS: usize = 64;

/// A validated answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberAnswer {
    /// Its name.
    pub name: String,
    /// Its id.
    pub member: u64,
    /// Id of its cluster, in 16 hexadecimal digits. With an embedded store, this is the id of the store. Old brains do not report it.
    pub cluster: Option<String>,
    /// Its role in the cluster.
    pub role: BrainRole,
    /// The leader that it knows, possibly itself.
    pub leader: Option<KnownLeader>,
    /// The leader's epoch; 0 if it never knew one.
    pub epoch: i64,
    /// True if it serves clients.
    pub ready: bool,
    /// The version that runs.
    pub version: String,
    /// Formats of stored data.
    pub formats: StoredFormats,
    /// Newest revision that it knows.
    pub revision: i64,
    /// Reasons why it does not accept writes, such as `NOSPACE`.
    pub alarms: Vec<String>,
    /// Storage of its data.
    pub storage: MemberStorage,
    /// Space of that storage. Old brains do not report it.
    pub space: Option<MemberSpace>,
    /// Certificates in use; `None` if TLS is disabled.
    pub tls: Option<LoadedCertificates>,
}

/// The role of a brain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum BrainRole {
    Leader,
    Follower,
    /// It knows no leader.
    None,
}

/// The leader, as a member knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownLeader {
    pub name: String,
    /// Id of the member.
    pub member: u64,
}

/// Formats of stored data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct StoredFormats {
    /// The oldest format that it can read.
    pub lowest: u32,
    /// The newest format that it can read.
    pub highest: u32,
    /// The format that it writes now.
    pub written: u32,
}

/// Storage of a brain's data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberStorage {
    /// `TiKV` or `Embedded`.
    pub type_: String,
    /// PD's cluster id, in decimal digits.
    pub cluster_id: Option<String>,
    /// True if the storage can be reached now.
    pub reachable: bool,
    /// Formats of the data directory; `None` on TiKV.
    pub directory: Option<StoredFormats>,
}

/// Space of a brain's storage, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberSpace {
    /// The store, without the log of a data directory.
    pub bytes: u64,
    /// Bytes at which the alarm NOSPACE is raised; `None` if there is no limit.
    pub quota_bytes: Option<u64>,
    /// The file system of the data directory; `None` on TiKV.
    pub disk: Option<DiskSpace>,
}

/// Space of a file system, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiskSpace {
    /// Its size.
    pub bytes: u64,
    /// Bytes that are free.
    pub available_bytes: u64,
    /// Bytes that must be free for space not to be low.
    pub needed_bytes: u64,
}

/// Certificates that a brain has loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedCertificates {
    /// SHA-256 in hex digits over the trusted certificates: their DER, sorted and concatenated. Empty if there are none.
    pub trust_bundle: String,
    /// The certificate that clients get.
    pub server: CertificateInUse,
    /// The certificate that other brains get.
    pub peer: Option<CertificateInUse>,
    /// Like `trust_bundle`, for other brains.
    pub peer_trust_bundle: Option<String>,
}

/// One certificate that a brain has loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateInUse {
    /// SHA-256 of its DER, in hex digits.
    pub fingerprint: String,
    /// Time when it expires.
    pub not_after: Timestamp,
}

impl MemberAnswer {
    /// Returns true if it claims to lead. If two brains do, the one with the higher epoch leads.
    pub fn is_leader(&self) -> bool {
        self.role == BrainRole::Leader
    }

    /// Parses the body of an answer.
    ///
    /// # Errors
    /// A message for the status if the answer is invalid.
    pub fn parse(body: &[u8]) -> Result<Self, String> {
        let wire: WireAnswer = serde_json::from_slice(body).map_err(|error| {
            format!(
                "its answer cannot be decoded: {}",
                clean(&error.to_string(), MAX_TEXT_BYTES)
            )
        })?;
        wire.read()
            .ok_or_else(|| "its answer cannot be decoded: an id, a fingerprint or a time is malformed".to_owned())
            .and_then(Self::consistent)
    }

    /// Rejects an answer that contradicts itself.
    fn consistent(self) -> Result<Self, String> {
        let itself = self.leader.as_ref().map(|leader| leader.member == self.member);
        match (self.role, itself) {
            (BrainRole::Leader, Some(false)) => {
                Err("its answer contradicts itself: it leads, and another one does".to_owned())
            }
            (BrainRole::Follower, Some(true)) => Err("its answer contradicts itself: it follows itself".to_owned()),
            _ => Ok(self),
        }
    }
}

/// The answer on the wire. Unknown fields are ignored.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireAnswer {
    name: String,
    #[serde(rename = "memberID")]
    member: String,
    #[serde(rename = "clusterID")]
    cluster: Option<String>,
    role: BrainRole,
    leader: Option<WireLeader>,
    epoch: i64,
    ready: bool,
    version: String,
    formats: StoredFormats,
    revision: i64,
    #[serde(default)]
    alarms: Vec<String>,
    storage: WireStorage,
    space: Option<MemberSpace>,
    tls: Option<WireTls>,
}

#[derive(Deserialize)]
struct WireLeader {
    name: String,
    #[serde(rename = "memberID")]
    member: String,
}

#[derive(Deserialize)]
struct WireStorage {
    #[serde(rename = "type")]
    type_: String,
    #[serde(rename = "clusterID")]
    cluster_id: Option<String>,
    reachable: bool,
    directory: Option<StoredFormats>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireTls {
    trust_bundle: String,
    server: WireCertificate,
    peer: Option<WireCertificate>,
    peer_trust_bundle: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireCertificate {
    fingerprint: String,
    not_after: String,
}

impl WireAnswer {
    /// Returns `None` if a field is malformed.
    fn read(self) -> Option<MemberAnswer> {
        let leader = match self.leader {
            Some(leader) => Some(KnownLeader {
                name: clean(&leader.name, MAX_NAME_BYTES),
                member: id(&leader.member)?,
            }),
            None => None,
        };
        let cluster = match &self.cluster {
            Some(text) => Some(format!("{:016x}", id(text)?)),
            None => None,
        };
        let cluster_id = match self.storage.cluster_id {
            Some(text) => Some(text.parse::<u64>().ok()?.to_string()),
            None => None,
        };
        let tls = match self.tls {
            Some(tls) => Some(tls.read()?),
            None => None,
        };
        let alarms = self.alarms.iter().take(MAX_ALARMS);
        Some(MemberAnswer {
            name: clean(&self.name, MAX_NAME_BYTES),
            member: id(&self.member)?,
            cluster,
            role: self.role,
            leader,
            epoch: self.epoch.max(0),
            ready: self.ready,
            version: clean(&self.version, MAX_VERSION_BYTES),
            formats: self.formats,
            revision: self.revision.max(0),
            alarms: alarms.map(|alarm| clean(alarm, MAX_TEXT_BYTES)).collect(),
            storage: MemberStorage {
                type_: clean(&self.storage.type_, MAX_VERSION_BYTES),
                cluster_id,
                reachable: self.storage.reachable,
                directory: self.storage.directory,
            },
            space: self.space,
            tls,
        })
    }
}

impl WireTls {
    fn read(self) -> Option<LoadedCertificates> {
        let peer_trust_bundle = match &self.peer_trust_bundle {
            Some(digest) => Some(bundle(digest)?),
            None => None,
        };
        let peer = match &self.peer {
            Some(peer) => Some(peer.read()?),
            None => None,
        };
        Some(LoadedCertificates {
            trust_bundle: bundle(&self.trust_bundle)?,
            server: self.server.read()?,
            peer,
            peer_trust_bundle,
        })
    }
}

impl WireCertificate {
    fn read(&self) -> Option<CertificateInUse> {
        Some(CertificateInUse {
            fingerprint: sha256(&self.fingerprint)?,
            not_after: self.not_after.parse().ok()?,
        })
    }
}

/// Parses an id of up to 16 hex digits.
fn id(text: &str) -> Option<u64> {
    let digits = text.len() <= 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    u64::from_str_radix(text, 16).ok().filter(|_| digits)
}

/// Parses the digest of a bundle; empty if there is none.
fn bundle(text: &str) -> Option<String> {
    if text.is_empty() {
        Some(String::new())
    } else {
        sha256(text)
    }
}

/// Parses 64 hex digits.
fn sha256(text: &str) -> Option<String> {
    let digits = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    digits.then(|| text.to_ascii_lowercase())
}
