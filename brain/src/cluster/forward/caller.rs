//! The user of a forwarded request: the member that the client contacted has identified it, and the leader believes its peers.

use prost::Message;
use std::sync::Arc;
use tonic::metadata::{MetadataMap, MetadataValue};

use crate::types::{Caller, Identity};

/// The metadata that names the caller. Clients cannot set it: members look at it on the peer port only, and replace it when they
/// forward.
const CALLER: &str = "kubebrain-caller-bin";

#[derive(Clone, PartialEq, Message)]
struct Forwarded {
    #[prost(bool, tag = "1")]
    is_server: bool,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(uint64, tag = "3")]
    revision: u64,
}

/// Names the caller in the metadata of a request to the leader.
pub(super) fn write(metadata: &mut MetadataMap, caller: Option<&Caller>) {
    let forwarded = match caller {
        None | Some(Caller::Anonymous) => {
            metadata.remove_bin(CALLER);
            return;
        }
        Some(Caller::Server) => Forwarded {
            is_server: true,
            ..Forwarded::default()
        },
        Some(Caller::User(user)) => Forwarded {
            is_server: false,
            name: user.name.clone(),
            revision: user.revision,
        },
    };
    metadata.insert_bin(CALLER, MetadataValue::from_bytes(&forwarded.encode_to_vec()));
}

/// Returns the caller that another member names; `None` if it has identified nobody.
#[must_use]
pub fn read(metadata: &MetadataMap) -> Option<Caller> {
    let bytes = metadata.get_bin(CALLER)?.to_bytes().ok()?;
    let forwarded = Forwarded::decode(bytes).ok()?;
    Some(if forwarded.is_server {
        Caller::Server
    } else {
        Caller::User(Arc::new(Identity {
            name: forwarded.name,
            revision: forwarded.revision,
        }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caller_named_by_a_client_is_not_forwarded() {
        let mut metadata = MetadataMap::new();
        write(&mut metadata, Some(&Caller::Server));
        assert_eq!(read(&metadata), Some(Caller::Server));
        let user = Caller::User(Arc::new(Identity {
            name: "ünser".to_owned(),
            revision: 7,
        }));
        write(&mut metadata, Some(&user));
        assert_eq!(read(&metadata), Some(user));
        write(&mut metadata, Some(&Caller::Anonymous));
        assert_eq!(read(&metadata), None);
    }
}
