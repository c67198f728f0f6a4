//! Messages as JSON, in the form that etcd's gateway gives them.

use std::sync::LazyLock;

use anyhow::Context as _;
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, MethodDescriptor, SerializeOptions};
use serde_json::Value;

static POOL: LazyLock<Option<DescriptorPool>> = LazyLock::new(|| DescriptorPool::decode(wire::DESCRIPTORS).ok());

/// A method of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rpc {
    /// `<package>.<service>/<name>`.
    pub method: &'static str,
    /// Its path in the gateway, below `/v3/`.
    pub path: &'static str,
}

/// The type of a method's requests.
///
/// # Errors
///
/// There is no such method.
pub fn input(method: &str) -> anyhow::Result<MessageDescriptor> {
    Ok(find(method)?.input())
}

/// The type of a method's responses.
///
/// # Errors
///
/// There is no such method.
pub fn output(method: &str) -> anyhow::Result<MessageDescriptor> {
    Ok(find(method)?.output())
}

/// Returns true if a method answers with any number of responses.
///
/// # Errors
///
/// There is no such method.
pub fn answers_stream(method: &str) -> anyhow::Result<bool> {
    Ok(find(method)?.is_server_streaming())
}

/// A type of messages by its full name.
///
/// # Errors
///
/// There is none.
pub fn message(name: &str) -> anyhow::Result<MessageDescriptor> {
    let pool = POOL.as_ref().context("the descriptors of the wire do not decode")?;
    pool.get_message_by_name(name)
        .with_context(|| format!("no message {name}"))
}

fn find(method: &str) -> anyhow::Result<MethodDescriptor> {
    let pool = POOL.as_ref().context("the descriptors of the wire do not decode")?;
    let (service, name) = method.split_once('/').with_context(|| format!("no method {method}"))?;
    let service = pool.get_service_by_name(service);
    let found = service.and_then(|service| service.methods().find(|method| method.name() == name));
    found.with_context(|| format!("no method {method}"))
}

/// The JSON form of an encoded message.
///
/// # Errors
///
/// It is not of this type.
pub fn of_bytes(kind: &MessageDescriptor, bytes: &[u8]) -> anyhow::Result<Value> {
    let message = DynamicMessage::decode(kind.clone(), bytes).context("decode a message")?;
    let options = SerializeOptions::new()
        .use_proto_field_name(true)
        .stringify_64_bit_integers(true);
    Ok(message.serialize_with_options(serde_json::value::Serializer, &options)?)
}

/// The encoded message of a JSON form.
///
/// # Errors
///
/// It is not of this type.
pub fn to_bytes(kind: &MessageDescriptor, value: &Value) -> anyhow::Result<Vec<u8>> {
    let message =
        DynamicMessage::deserialize(kind.clone(), value).with_context(|| format!("read a {}", kind.full_name()))?;
    Ok(message.encode_to_vec())
}
