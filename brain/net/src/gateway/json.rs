//! Messages between JSON and protobuf, by their descriptors.

use bytes::{BufMut as _, Bytes, BytesMut};
use prost::Message as _;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use prost_reflect::{DynamicMessage, Kind, MessageDescriptor, SerializeOptions};
use tonic::Status;

use super::error::GatewayRefusal;
use super::{protojson, syntax};
use runtime::budget::Charge;

/// Bytes before each message of gRPC.
const GRPC_PREFIX_BYTES: usize = 5;

/// Bytes of memory that a decoded message takes besides its content: the map of its fields.
const MESSAGE_OVERHEAD_BYTES: usize = 700;

/// Levels of nested messages, as prost limits them.
const MAX_DEPTH: usize = 100;

/// The message that a JSON value is, as a frame of gRPC. Unknown fields are ignored; fields go by their names in the `.proto` file or in
/// lowerCamelCase; bytes are base64.
///
/// The memory that this takes is charged before it is taken.
pub(super) fn to_frame(value: &[u8], kind: &MessageDescriptor, charge: &mut Charge) -> Result<Bytes, GatewayRefusal> {
    let found = syntax::check(value).map_err(Status::invalid_argument)?;
    charge.set(3 * value.len() + MESSAGE_OVERHEAD_BYTES * found.parts)?;
    let value = value.get(..found.len).unwrap_or(value);
    let message = protojson::decode(value, kind).map_err(Status::invalid_argument)?;
    Ok(frame(&message))
}

/// The memory in bytes that it takes to decode a message and to write its JSON.
pub(super) fn memory(message: &[u8], kind: &MessageDescriptor) -> usize {
    4 * message.len() + MESSAGE_OVERHEAD_BYTES * messages(message, kind, MAX_DEPTH)
}

/// Counts the messages in an encoded message, itself included.
fn messages(mut encoded: &[u8], kind: &MessageDescriptor, depth: usize) -> usize {
    let mut count = 1;
    while let Ok((tag, wire)) = decode_key(&mut encoded) {
        let field = kind.get_field(tag);
        match (wire, field.map(|field| field.kind())) {
            (WireType::LengthDelimited, Some(Kind::Message(kind))) if depth > 0 => {
                let len = decode_varint(&mut encoded)
                    .ok()
                    .and_then(|len| usize::try_from(len).ok());
                let Some((inner, rest)) = len.and_then(|len| encoded.split_at_checked(len)) else {
                    return count;
                };
                count += messages(inner, &kind, depth - 1);
                encoded = rest;
            }
            _ => {
                if skip_field(wire, tag, &mut encoded, DecodeContext::default()).is_err() {
                    return count;
                }
            }
        }
    }
    count
}

/// A message without fields, as a frame.
pub(super) fn empty_frame() -> Bytes {
    Bytes::from_static(&[0; GRPC_PREFIX_BYTES])
}

fn frame(message: &DynamicMessage) -> Bytes {
    let len = message.encoded_len();
    let mut frame = BytesMut::with_capacity(GRPC_PREFIX_BYTES + len);
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

/// Takes the first message out of `buffer`, if all of it has arrived.
pub(super) fn next_message(buffer: &mut BytesMut) -> Option<Bytes> {
    let header = buffer.get(..GRPC_PREFIX_BYTES)?;
    let (_, len) = header.split_first()?;
    let len = usize::try_from(u32::from_be_bytes(len.try_into().ok()?)).ok()?;
    if buffer.len() < GRPC_PREFIX_BYTES + len {
        return None;
    }
    let mut message = buffer.split_to(GRPC_PREFIX_BYTES + len);
    Some(message.split_off(GRPC_PREFIX_BYTES).freeze())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::methods::{MethodLookup, find};

    fn txn() -> MessageDescriptor {
        let MethodLookup::Method(method) = find("/v3/kv/txn") else {
            panic!("no method")
        };
        method.input.clone()
    }

    /// A charge of a connection that may take half a megabyte.
    fn charge() -> Charge {
        let held = prometheus::IntGauge::new("held", "held").unwrap();
        runtime::budget::Budget::new(1 << 20, held)
            .account(None)
            .charge(0)
            .unwrap()
    }

    #[test]
    fn memory_of_many_small_messages_is_charged_before_it_is_taken() {
        let bomb = |count: usize| format!(r#"{{"compare":[{}]}}"#, vec![r#"{"key":""}"#; count].join(","));
        assert!(to_frame(bomb(100).as_bytes(), &txn(), &mut charge()).is_ok());
        let refused = to_frame(bomb(1_000).as_bytes(), &txn(), &mut charge()).unwrap_err();
        assert!(matches!(refused, GatewayRefusal::Exceeded(_)), "{refused:?}");
        let frame = to_frame(bomb(100).as_bytes(), &txn(), &mut charge()).unwrap();
        let message = &frame[GRPC_PREFIX_BYTES..];
        assert_eq!(
            memory(message, &txn()),
            4 * message.len() + MESSAGE_OVERHEAD_BYTES * 101
        );
    }

    #[test]
    fn json_becomes_the_message_that_it_was() {
        let json = r#"{"compare":[{"target":"CREATE","key":"Zm9v","create_revision":"2"}],"success":[{"request_put":{"key":"AP8="}}]}"#;
        for same in [
            json.to_owned(),
            json.replace("create_revision", "createRevision")
                .replace("request_put", "requestPut"),
            json.replace(r#""2""#, "2").replace(r#""CREATE""#, "1"),
            json.replace("\"success\"", "\"unknown\":[{}],\"success\""),
        ] {
            let frame = to_frame(same.as_bytes(), &txn(), &mut charge()).unwrap();
            let mut buffer = BytesMut::from(&frame[..]);
            let message = next_message(&mut buffer).unwrap();
            let mut text = Vec::new();
            from_message(&message, &txn(), &mut text).unwrap();
            assert_eq!(String::from_utf8(text).unwrap(), json, "from {same}");
        }
    }

    #[test]
    fn errors_name_what_is_wrong() {
        for (json, error) in [
            ("{", "unexpected EOF"),
            ("x", "invalid character 'x' looking for beginning of value"),
            ("null", "proto: syntax error (line 1:1): unexpected token null"),
            ("7 ", "proto: syntax error (line 1:1): unexpected token 7"),
            ("[]", "proto: syntax error (line 1:1): unexpected token ["),
            (
                r#"{"compare":[],"compare":[]}"#,
                "proto: (line 1:15): duplicate field \"compare\"",
            ),
        ] {
            let GatewayRefusal::Status(status) = to_frame(json.as_bytes(), &txn(), &mut charge()).unwrap_err() else {
                panic!("no memory for {json}");
            };
            assert_eq!(
                (status.code(), status.message()),
                (tonic::Code::InvalidArgument, error),
                "{json}"
            );
        }
        let deep = format!("{}{}", r#"{"a":"#.repeat(100_000), "}".repeat(100_000));
        assert!(to_frame(deep.as_bytes(), &txn(), &mut charge()).is_err());
    }

    #[test]
    fn frames_come_whole_only() {
        let whole = [&[0, 0, 0, 0, 2, 7, 8][..], &[0, 0, 0, 0, 0], &[0, 0]].concat();
        let mut buffer = BytesMut::new();
        let mut found = Vec::new();
        for byte in whole {
            buffer.extend_from_slice(&[byte]);
            found.extend(next_message(&mut buffer));
        }
        assert_eq!(found, [Bytes::from_static(&[7, 8]), Bytes::new()]);
    }
}
