//! The user of a forwarded request: the member that the client contacted has identified it, and the leader believes its peers.

use std::net::IpAddr;
use std::sync::Arc;

use prost::Message;
use tonic::metadata::{MetadataMap, MetadataValue};

use etcd_types::types::{Caller, Identity};

/// The metadata that names the caller. Clients cannot set it: members look at it on the peer port only, and replace it when they
/// forward.
const CALLER_METADATA_KEY: &str = "kubebrain-caller-bin";

/// The metadata that names the address of a client that is not identified yet. The member that it contacts sets it.
const CLIENT_ADDRESS_METADATA_KEY: &str = "kubebrain-client-address";

#[derive(Clone, PartialEq, Message)]
struct ForwardedCaller {
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
            metadata.remove_bin(CALLER_METADATA_KEY);
            return;
        }
        Some(Caller::Server) => ForwardedCaller {
            is_server: true,
            ..ForwardedCaller::default()
        },
        Some(Caller::User(user)) => ForwardedCaller {
            is_server: false,
            name: user.name.clone(),
            revision: user.revision,
        },
    };
    metadata.insert_bin(
        CALLER_METADATA_KEY,
        MetadataValue::from_bytes(&forwarded.encode_to_vec()),
    );
}

/// Returns the caller that another member names; `None` if that member has not identified the client.
#[must_use]
pub fn read(metadata: &MetadataMap) -> Option<Caller> {
    let bytes = metadata.get_bin(CALLER_METADATA_KEY)?.to_bytes().ok()?;
    let forwarded = ForwardedCaller::decode(bytes).ok()?;
    Some(if forwarded.is_server {
        Caller::Server
    } else {
        Caller::User(Arc::new(Identity {
            name: forwarded.name,
            revision: forwarded.revision,
        }))
    })
}

/// Names the address of a client in the metadata of its request, instead of what the client put there; none for a Unix socket.
pub fn set_address(metadata: &mut MetadataMap, address: Option<IpAddr>) {
    metadata.remove(CLIENT_ADDRESS_METADATA_KEY);
    if let Some(value) = address.and_then(|address| address.to_string().parse().ok()) {
        metadata.insert(CLIENT_ADDRESS_METADATA_KEY, value);
    }
}

/// Returns the address of a client that the contacted member named.
#[must_use]
pub fn address(metadata: &MetadataMap) -> Option<IpAddr> {
    metadata.get(CLIENT_ADDRESS_METADATA_KEY)?.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_that_of_the_connection() {
        let mut metadata = MetadataMap::new();
        metadata.append(CLIENT_ADDRESS_METADATA_KEY, "10.0.0.9".parse().unwrap());
        metadata.append(CLIENT_ADDRESS_METADATA_KEY, "10.0.0.8".parse().unwrap());
        let ip = "2001:db8::1".parse().ok();
        set_address(&mut metadata, ip);
        assert_eq!((address(&metadata), metadata.len()), (ip, 1));
        set_address(&mut metadata, None);
        assert_eq!(address(&metadata), None);
    }

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
