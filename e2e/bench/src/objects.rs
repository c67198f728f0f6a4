//! Objects as a kube-apiserver writes them into its store: protobuf after a magic prefix.
//!
//! Messages have only the fields that the generated objects use. Those that Kubernetes writes even when they are empty are
//! required here, so the bytes are Kubernetes' own.

use anyhow::Context as _;
use bytes::Bytes;
use prost::Message;

pub(crate) mod lease;
pub(crate) mod meta;
pub(crate) mod node_lease;
pub(crate) mod pod;
pub(crate) mod pods;
mod replica_set;
mod split_mix;

/// Before each object.
const MAGIC: &[u8] = b"k8s\0";

/// `k8s.io.apimachinery.pkg.runtime.Unknown`: an object with its type.
#[derive(Clone, PartialEq, Message)]
struct Unknown {
    #[prost(message, required, tag = "1")]
    type_meta: TypeMeta,
    #[prost(bytes = "bytes", optional, tag = "2")]
    raw: Option<Bytes>,
    #[prost(string, required, tag = "3")]
    content_encoding: String,
    #[prost(string, required, tag = "4")]
    content_type: String,
}

#[derive(Clone, PartialEq, Message)]
struct TypeMeta {
    #[prost(string, required, tag = "1")]
    api_version: String,
    #[prost(string, required, tag = "2")]
    kind: String,
}

/// The value that is stored for an object.
pub(crate) fn stored(api_version: &str, kind: &str, object: &impl Message) -> Bytes {
    let unknown = Unknown {
        type_meta: TypeMeta {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
        },
        raw: Some(object.encode_to_vec().into()),
        ..Unknown::default()
    };
    let mut value = Vec::with_capacity(MAGIC.len() + unknown.encoded_len());
    value.extend_from_slice(MAGIC);
    unknown.encode_raw(&mut value);
    value.into()
}

/// The object of a stored value, with its kind.
///
/// # Errors
///
/// The value has no magic prefix, or does not decode.
#[cfg_attr(not(test), expect(dead_code, reason = "only tests read objects"))]
fn read<M: Message + Default>(value: &Bytes) -> anyhow::Result<(String, M)> {
    let unknown = value.strip_prefix(MAGIC).context("no magic prefix")?;
    let unknown = Unknown::decode(value.slice_ref(unknown))?;
    let raw = unknown.raw.context("an object without bytes")?;
    Ok((unknown.type_meta.kind, M::decode(raw)?))
}

#[cfg(test)]
mod tests;
