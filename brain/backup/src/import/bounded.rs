//! Bounds what a message of the source takes in memory before it is decoded: an empty element of a list takes two bytes on the wire and a
//! hundred in memory.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf as _, Bytes};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use tonic::Status;
use tonic::transport::{Channel, Error};
use tower::Service;

use etcd_types::pb::etcdserverpb as pb;
use etcd_types::pb::mvccpb;
use runtime::memory;

/// The longest message that is accepted, if the memory is large: one key with the longest value that any storage takes fits.
const MAX_MESSAGE_BYTES: usize = 288 << 20;

/// The least that the longest message may be, however small the memory is.
const MIN_MESSAGE_BYTES: usize = 16 << 20;

/// The part of the memory that one message may take, as a divisor.
const MESSAGE_MEMORY_DIVISOR: u64 = 4;

/// Bytes that the elements of a message take in memory, at most, apart from what they hold.
const MAX_ELEMENTS_BYTES: usize = 64 << 20;

/// Bytes of an element of the messages that are not known here.
const UNKNOWN_ELEMENT_BYTES: usize = 256;

/// Bytes in front of a message: whether it is compressed, and its length.
const MESSAGE_PREFIX_BYTES: usize = 5;

/// Returns the length of the longest message that is accepted.
pub(super) fn longest_message() -> usize {
    let share = usize::try_from(memory::available() / MESSAGE_MEMORY_DIVISOR).unwrap_or(usize::MAX);
    share.clamp(MIN_MESSAGE_BYTES, MAX_MESSAGE_BYTES)
}

/// Returns the bytes in memory of one element of a list in the answers of a method.
fn element_bytes(path: &str) -> usize {
    match path {
        "/etcdserverpb.KV/Range" => size_of::<mvccpb::KeyValue>(),
        "/etcdserverpb.Watch/Watch" => size_of::<Bytes>(),
        "/etcdserverpb.Lease/LeaseLeases" => size_of::<pb::LeaseStatus>(),
        _ => UNKNOWN_ELEMENT_BYTES,
    }
}

/// A connection whose answers are bounded.
#[derive(Debug, Clone)]
pub(super) struct BoundedChannel(pub(super) Channel);

impl Service<Request<tonic::body::Body>> for BoundedChannel {
    type Response = Response<BoundedBody<tonic::body::Body>>;
    type Error = Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        let most = MAX_ELEMENTS_BYTES / element_bytes(request.uri().path());
        let answer = self.0.call(request);
        async move { Ok(answer.await?.map(|body| BoundedBody::new(body, most))) }.boxed()
    }
}

/// An answer, which fails at a message that has too many elements.
#[derive(Debug)]
pub(super) struct BoundedBody<B> {
    body: B,
    messages: FieldCounter,
}

impl<B> BoundedBody<B> {
    fn new(body: B, most: usize) -> Self {
        Self {
            body,
            messages: FieldCounter::new(most),
        }
    }
}

impl<B> Body for BoundedBody<B>
where
    B: Body<Data = Bytes, Error = Status> + Unpin,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
            && let Err(TooMany(most)) = self.messages.read(data.clone())
        {
            let text = format!("a message of the source has more than {most} elements, which takes too much memory");
            return Poll::Ready(Some(Err(Status::invalid_argument(text))));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A message has more fields than this.
#[derive(Debug, PartialEq, Eq)]
struct TooMany(usize);

/// Counts the fields of each message of a stream, however it is cut into pieces.
#[derive(Debug)]
struct FieldCounter {
    most: usize,
    /// Bytes of the prefix of the next message, as far as they are here.
    prefix: Vec<u8>,
    /// Bytes of the message that are still to come.
    left: usize,
    fields: usize,
    at: MessagePosition,
}

/// The place within a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MessagePosition {
    /// In the tag of a field: its value so far, and the number of bits that were read.
    Key(u64, u32),
    /// In the length of a field, in the same way.
    Length(u64, u32),
    /// In a number.
    Number,
    /// Before the rest of a field, of this number of bytes.
    Bytes(usize),
    /// In a part that does not decode.
    Malformed,
}

const MESSAGE_BEGIN: MessagePosition = MessagePosition::Key(0, 0);

impl FieldCounter {
    fn new(most: usize) -> Self {
        Self {
            most,
            prefix: Vec::with_capacity(MESSAGE_PREFIX_BYTES),
            left: 0,
            fields: 0,
            at: MESSAGE_BEGIN,
        }
    }

    /// Reads the next piece of the stream.
    fn read(&mut self, mut data: Bytes) -> Result<(), TooMany> {
        while !data.is_empty() {
            if self.left == 0 {
                let missing = (MESSAGE_PREFIX_BYTES - self.prefix.len()).min(data.len());
                self.prefix.extend_from_slice(&data.split_to(missing));
                if let [_, length @ ..] = &self.prefix[..]
                    && let Ok(length) = <[u8; 4]>::try_from(length)
                {
                    self.left = u32::from_be_bytes(length) as usize;
                    self.prefix.clear();
                    (self.fields, self.at) = (0, MESSAGE_BEGIN);
                }
                continue;
            }
            let part = data.split_to(self.left.min(data.len()));
            self.left -= part.len();
            self.count(part)?;
        }
        Ok(())
    }

    fn count(&mut self, mut part: Bytes) -> Result<(), TooMany> {
        while !part.is_empty() {
            if let MessagePosition::Bytes(len) = self.at {
                let skipped = len.min(part.len());
                part.advance(skipped);
                self.at = if skipped == len {
                    MESSAGE_BEGIN
                } else {
                    MessagePosition::Bytes(len - skipped)
                };
                continue;
            }
            if self.at == MessagePosition::Malformed {
                return Ok(());
            }
            let byte = part.get_u8();
            self.at = self.next(byte)?;
        }
        Ok(())
    }

    /// Returns the place after a byte.
    fn next(&mut self, byte: u8) -> Result<MessagePosition, TooMany> {
        let is_last = byte & 0x80 == 0;
        let longer = |number: u64, bits: u32| (number | u64::from(byte & 0x7f) << bits, bits + 7);
        Ok(match self.at {
            MessagePosition::Key(_, bits) | MessagePosition::Length(_, bits) if bits > 63 => MessagePosition::Malformed,
            MessagePosition::Key(number, bits) => {
                let (key, bits) = longer(number, bits);
                if !is_last {
                    return Ok(MessagePosition::Key(key, bits));
                }
                self.fields += 1;
                if self.fields > self.most {
                    return Err(TooMany(self.most));
                }
                match key & 7 {
                    0 => MessagePosition::Number,
                    1 => MessagePosition::Bytes(8),
                    2 => MessagePosition::Length(0, 0),
                    // The fields of a group count as the message's.
                    3 | 4 => MESSAGE_BEGIN,
                    5 => MessagePosition::Bytes(4),
                    _ => MessagePosition::Malformed,
                }
            }
            MessagePosition::Length(number, bits) => match longer(number, bits) {
                (length, bits) if !is_last => MessagePosition::Length(length, bits),
                (0, _) => MESSAGE_BEGIN,
                (length, _) => MessagePosition::Bytes(usize::try_from(length).unwrap_or(usize::MAX)),
            },
            MessagePosition::Number if is_last => MESSAGE_BEGIN,
            MessagePosition::Number => MessagePosition::Number,
            MessagePosition::Bytes(_) | MessagePosition::Malformed => MessagePosition::Malformed,
        })
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    fn framed(messages: &[Vec<u8>]) -> Vec<u8> {
        let mut stream = Vec::new();
        for message in messages {
            stream.push(0);
            stream.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
            stream.extend_from_slice(message);
        }
        stream
    }

    fn answer(kvs: usize) -> Vec<u8> {
        let kv = mvccpb::KeyValue {
            key: "key".into(),
            value: vec![0x82; 300].into(),
            lease: -1,
            ..mvccpb::KeyValue::default()
        };
        let answer = pb::RangeResponse {
            header: Some(pb::ResponseHeader::default()),
            kvs: vec![kv; kvs],
            more: true,
            count: 1_000_000,
        };
        answer.encode_to_vec()
    }

    /// Reads a stream in pieces of `piece` bytes.
    fn read(stream: &[u8], most: usize, piece: usize) -> Result<(), TooMany> {
        let mut messages = FieldCounter::new(most);
        stream
            .chunks(piece)
            .try_for_each(|piece| messages.read(Bytes::copy_from_slice(piece)))
    }

    #[test]
    fn fields_of_each_message_are_counted_however_they_come() {
        let stream = framed(&[answer(5), Vec::new(), answer(7), answer(0), answer(6)]);
        for piece in [1, 2, 3, 7, 100, usize::MAX] {
            // Header, more and count are fields, too.
            assert_eq!(read(&stream, 10, piece), Ok(()), "{piece}");
            assert_eq!(read(&stream, 9, piece), Err(TooMany(9)), "{piece}");
        }
    }

    #[test]
    fn nothing_in_a_message_confuses_the_next() {
        let malformed = [
            vec![0xff; 30],
            vec![0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f, 1],
            vec![0x0f],
            vec![0x0b, 0x0c],
        ];
        for malformed in malformed {
            let stream = framed(&[malformed, answer(7)]);
            for piece in [1, 4, usize::MAX] {
                assert_eq!(read(&stream, 10, piece), Ok(()));
                assert_eq!(read(&stream, 9, piece), Err(TooMany(9)));
            }
        }
    }
}
