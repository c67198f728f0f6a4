//! The file `IDENTITY`: five readable lines and a checksum line.
//!
//! The format of its first two lines never changes, so that every program can read the version of a directory.

use std::path::Path;

use super::{DIR_FORMAT, DataDirError, OLDEST_DIR_FORMAT};
use engine::log::LogId;

const IDENTITY_MAGIC: &str = "kubebrain data directory";
const NO_LOG: &str = "none";

/// The cluster and member that the data belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Layout of the directory; at most [`DIR_FORMAT`].
    pub format: u32,
    /// Id of the cluster, sent in every response.
    pub cluster_id: u64,
    /// Id of this member, sent in every response.
    pub member_id: u64,
    /// The log in the directory; `None` before there is one. If set, both log and rows must exist.
    pub log: Option<LogId>,
}

/// The reason why the bytes are not a usable identity.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum IdentityError {
    Newer(u32),
    Older(u32),
    Damaged(&'static str),
}

impl IdentityError {
    pub(super) fn at(self, dir: &Path, file: &Path) -> DataDirError {
        match self {
            IdentityError::Newer(found) => DataDirError::Newer {
                path: dir.to_owned(),
                found,
            },
            IdentityError::Older(found) => DataDirError::Older {
                path: dir.to_owned(),
                found,
            },
            IdentityError::Damaged(what) => DataDirError::Damaged {
                path: file.to_owned(),
                what: what.to_owned(),
            },
        }
    }
}

pub(super) fn encode(identity: &Identity) -> Vec<u8> {
    let Identity {
        format,
        cluster_id,
        member_id,
        log,
    } = identity;
    let log = log.map_or_else(
        || NO_LOG.to_owned(),
        |LogId(id)| format!("{:032x}", u128::from_be_bytes(id)),
    );
    let body =
        format!("{IDENTITY_MAGIC}\nformat {format}\ncluster {cluster_id:016x}\nmember {member_id:016x}\nlog {log}\n");
    let sum = crc32c::crc32c(body.as_bytes());
    format!("{body}crc32c {sum:08x}\n").into_bytes()
}

pub(super) fn decode(bytes: &[u8]) -> Result<Identity, IdentityError> {
    let text = std::str::from_utf8(bytes).map_err(|_| IdentityError::Damaged("it is not text"))?;
    let mut lines = text.lines();
    if lines.next() != Some(IDENTITY_MAGIC) {
        return Err(IdentityError::Damaged("its first line is not that of kubebrain"));
    }
    let format = lines
        .next()
        .and_then(|line| line.strip_prefix("format "))
        .and_then(|number| number.parse().ok());
    let format: u32 = format.ok_or(IdentityError::Damaged("it names no format"))?;
    if format > DIR_FORMAT {
        return Err(IdentityError::Newer(format));
    }
    if format < OLDEST_DIR_FORMAT {
        return Err(IdentityError::Older(format));
    }
    let (Some(cluster), Some(member), Some(log)) = (lines.next(), lines.next(), lines.next()) else {
        return Err(IdentityError::Damaged("it is truncated"));
    };
    let hex = |line: &str, name| {
        line.strip_prefix(name)
            .and_then(|digits| u64::from_str_radix(digits, 16).ok())
    };
    let (Some(cluster_id), Some(member_id)) = (hex(cluster, "cluster "), hex(member, "member ")) else {
        return Err(IdentityError::Damaged("its ids cannot be parsed"));
    };
    let log = match log.strip_prefix("log ") {
        Some(NO_LOG) => None,
        Some(digits) => Some(
            u128::from_str_radix(digits, 16)
                .map(|id| LogId(id.to_be_bytes()))
                .map_err(|_| IdentityError::Damaged("its ids cannot be parsed"))?,
        ),
        None => return Err(IdentityError::Damaged("it names no log")),
    };
    let identity = Identity {
        format,
        cluster_id,
        member_id,
        log,
    };
    if encode(&identity) != bytes {
        return Err(IdentityError::Damaged("its checksum does not match"));
    }
    Ok(identity)
}
