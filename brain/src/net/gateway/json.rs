//! Messages between JSON and protobuf, by their descriptors.

use bytes::{BufMut as _, Bytes, BytesMut};
use prost::Message as _;
use prost_reflect::{DeserializeOptions, DynamicMessage, MessageDescriptor, SerializeOptions};
use tonic::Status;

/// Bytes before each message of gRPC.
const HEADER: usize = 5;

/// The message that a JSON value is, as a frame of gRPC. Unknown fields are ignored; fields go by their names in the `.proto` file or in
/// lowerCamelCase; bytes are base64.
pub(super) fn to_frame(value: &[u8], kind: &MessageDescriptor) -> Result<Bytes, Status> {
    let invalid = |error| Status::invalid_argument(format!("proto: {error}"));
    let mut json = serde_json::Deserializer::from_slice(value);
    let options = DeserializeOptions::new().deny_unknown_fields(false);
    let message = DynamicMessage::deserialize_with_options(kind.clone(), &mut json, &options).map_err(invalid)?;
    json.end().map_err(invalid)?;
    Ok(frame(&message))
}

/// A message without fields, as a frame.
pub(super) fn empty_frame() -> Bytes {
    Bytes::from_static(&[0; HEADER])
}

fn frame(message: &DynamicMessage) -> Bytes {
    let len = message.encoded_len();
    let mut frame = BytesMut::with_capacity(HEADER + len);
    frame.put_u8(0);
    // Longer ones are refused before.
    frame.put_u32(u32::try_from(len).unwrap_or(u32::MAX));
    frame.extend_from_slice(&message.encode_to_vec());
    frame.freeze()
}

/// The JSON of an encoded message: fields by their names in the `.proto` file, 64-bit numbers as strings, without fields that have their
/// default.
pub(super) fn from_message(message: &[u8], kind: &MessageDescriptor, json: &mut Vec<u8>) -> Result<(), Status> {
    let failed = |error: &dyn std::fmt::Display| {
        Status::internal(format!("grpc: failed to unmarshal the received message: {error}"))
    };
    let message = DynamicMessage::decode(kind.clone(), message).map_err(|error| failed(&error))?;
    let options = SerializeOptions::new()
        .stringify_64_bit_integers(true)
        .use_proto_field_name(true)
        .skip_default_fields(true);
    message
        .serialize_with_options(&mut serde_json::Serializer::new(json), &options)
        .map_err(|error| failed(&error))
}

/// Takes the first message out of `buffer`, if it is there.
pub(super) fn next_message(buffer: &mut BytesMut) -> Option<Bytes> {
    let header = buffer.get(..HEADER)?;
    let (_, len) = header.split_first()?;
    let len = usize::try_from(u32::from_be_bytes(len.try_into().ok()?)).ok()?;
    if buffer.len() < HEADER + len {
        return None;
    }
    let mut message = buffer.split_to(HEADER + len);
    Some(message.split_off(HEADER).freeze())
}
