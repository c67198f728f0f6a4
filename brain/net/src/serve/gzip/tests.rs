use std::io::Read as _;

use axum::body::Body;
use flate2::read::GzDecoder;
use futures::stream;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tonic::Code;

use super::*;
use runtime::budget::Budget;
use telemetry::metrics::Metrics;

const MAX_MESSAGE_BYTES: usize = 1 << 20;

fn budget(bytes: usize) -> Budget {
    Budget::new(bytes, Metrics::new(false).network.held)
}

fn framed(flag: u8, message: &[u8]) -> Bytes {
    let len = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[flag][..], &len, message].concat().into()
}

fn gzipped(plain: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(plain).unwrap();
    gzip.finish().unwrap()
}

/// Bytes that compress to three quarters.
fn text(len: usize) -> Vec<u8> {
    let mut state: u64 = 7;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        u8::try_from(state >> 58).unwrap()
    };
    std::iter::repeat_with(next).take(len).collect()
}

async fn inflated(whole: Bytes, budget: &Budget) -> Result<Bytes, InflateError> {
    let account = budget.account(None);
    let (message, charge) = inflate(MessageEncoding::Gzip, whole, MAX_MESSAGE_BYTES, &account).await?;
    if let Some(charge) = charge {
        assert!(charge.bytes() >= message.len() - MESSAGE_PREFIX_BYTES, "{charge:?}");
    }
    Ok(message)
}

fn status(unreadable: InflateError) -> (Code, String) {
    let status = unreadable.into_status();
    (status.code(), status.message().to_owned())
}

#[tokio::test]
async fn compressed_message_is_read_as_plain_one() {
    let budget = budget(16 << 20);
    for len in [0, 1, 70_000, MAX_MESSAGE_BYTES] {
        let plain = text(len);
        let message = inflated(framed(1, &gzipped(&plain)), &budget).await.unwrap();
        assert!(message == framed(0, &plain), "{len}");
    }
    assert_eq!(
        inflated(framed(0, b"plain"), &budget).await.unwrap(),
        framed(0, b"plain")
    );
    assert_eq!(budget.used(), 0);
}

#[tokio::test]
async fn message_that_becomes_too_large_is_refused_within_its_memory() {
    let bomb = framed(1, &gzipped(&vec![0; 64 << 20]));
    let budget_of_two = budget(2 * (MAX_MESSAGE_BYTES + MESSAGE_PREFIX_BYTES + DECODER_BYTES + 1));
    let refused = status(inflated(bomb.clone(), &budget_of_two).await.unwrap_err());
    let text = format!("grpc: received message after decompression larger than max {MAX_MESSAGE_BYTES}");
    assert_eq!(refused, (Code::ResourceExhausted, text));
    let small = inflated(bomb, &budget(MAX_MESSAGE_BYTES)).await.unwrap_err();
    assert!(matches!(small, InflateError::Exceeded(_)), "{small:?}");
    let long = framed(1, &vec![0; MAX_MESSAGE_BYTES + 1]);
    let refused = status(inflated(long, &budget_of_two).await.unwrap_err());
    let text = format!(
        "grpc: received message larger than max ({} vs. {MAX_MESSAGE_BYTES})",
        MAX_MESSAGE_BYTES + 1
    );
    assert_eq!(refused, (Code::ResourceExhausted, text));
    assert_eq!(budget_of_two.used(), 0);
}

#[tokio::test]
async fn damaged_message_is_refused() {
    let (budget, whole) = (budget(16 << 20), gzipped(&text(10_000)));
    let mut flipped = whole.clone();
    flipped[5_000] ^= 1;
    let longer = [&whole[..], b"more"].concat();
    for damaged in [&whole[..whole.len() - 1], &flipped, &longer, b"no gzip at all"] {
        let (code, text) = status(inflated(framed(1, damaged), &budget).await.unwrap_err());
        assert_eq!(code, Code::Internal, "{text}");
        assert!(text.starts_with("grpc: failed to decompress the message: "), "{text}");
    }
    let cut = framed(1, &whole).slice(..100);
    let refused = status(inflated(cut, &budget).await.unwrap_err());
    assert_eq!(refused, (Code::Internal, "unexpected EOF".to_owned()));
    let account = budget.account(None);
    let unnamed = inflate(
        MessageEncoding::Identity,
        framed(1, &whole),
        MAX_MESSAGE_BYTES,
        &account,
    )
    .await;
    let text = "grpc: compressed flag set with identity or empty encoding";
    assert_eq!(status(unnamed.unwrap_err()), (Code::Internal, text.to_owned()));
    assert_eq!(budget.used(), 0);
}

#[test]
fn encodings_are_those_of_grpc_go() {
    let take = |name: &'static str| {
        let mut headers = HeaderMap::new();
        headers.insert(ENCODING_HEADER, HeaderValue::from_static(name));
        let encoding =
            MessageEncoding::take(&mut headers).map_err(|status| (status.code(), status.message().to_owned()));
        assert!(headers.is_empty());
        encoding
    };
    assert_eq!(
        (take("gzip"), take("identity"), take("")),
        (
            Ok(MessageEncoding::Gzip),
            Ok(MessageEncoding::Identity),
            Ok(MessageEncoding::Identity)
        )
    );
    let text = "grpc: Decompressor is not installed for grpc-encoding \"odd\"";
    assert_eq!(take("odd"), Err((Code::Unimplemented, text.to_owned())));
    assert_eq!(
        MessageEncoding::take(&mut HeaderMap::new()).unwrap(),
        MessageEncoding::Identity
    );
}

fn parts(bytes: &[u8], len: usize) -> Vec<Result<Frame<Bytes>, axum::Error>> {
    bytes
        .chunks(len)
        .map(|part| Ok(Frame::data(Bytes::copy_from_slice(part))))
        .collect()
}

#[tokio::test]
async fn stream_of_messages_is_decompressed_however_it_is_cut() {
    let (first, second) = (text(5_000), text(60_000));
    let sent = [
        framed(1, &gzipped(&first)),
        framed(0, b"plain"),
        framed(1, &gzipped(&second)),
    ]
    .concat();
    let expected = [framed(0, &first), framed(0, b"plain"), framed(0, &second)].concat();
    let budget = budget(16 << 20);
    for len in [1, 7, 999, sent.len()] {
        let body = StreamBody::new(stream::iter(parts(&sent, len)));
        let inflated = InflatedMessages::new(body, MAX_MESSAGE_BYTES, budget.account(None).charge(0).unwrap());
        assert!(inflated.collect().await.unwrap().to_bytes() == expected, "{len}");
    }
    assert_eq!(budget.used(), 0);
    let cut = StreamBody::new(stream::iter(parts(&sent[..sent.len() - 1], 999)));
    let mut inflated = InflatedMessages::new(cut, MAX_MESSAGE_BYTES, budget.account(None).charge(0).unwrap());
    let mut outcomes = Vec::new();
    while let Some(frame) = inflated.frame().await {
        outcomes.push(frame.is_ok());
    }
    assert_eq!(outcomes, [true, true, false]);
}

#[tokio::test]
async fn answers_are_compressed_unless_they_are_short() {
    let (long, short) = (text(300_000), text(MIN_DEFLATED_BYTES - 1));
    let frames = [framed(0, &short), framed(0, &long), framed(0, b""), framed(0, &long)].concat();
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let sent = vec![
        Ok(Frame::data(Bytes::from(frames))),
        Ok(Frame::trailers(trailers.clone())),
    ];
    let body = Body::new(StreamBody::new(stream::iter::<Vec<Result<_, axum::Error>>>(sent)));
    let budget = budget(16 << 20);
    let mut deflated = DeflatedBody::new(body, budget.account(None));
    let mut received = deflated.frame().await.unwrap().unwrap().into_data().unwrap();
    let flags: Vec<_> = std::iter::from_fn(|| {
        let len = announced(&received)?;
        let message = received.split_to(MESSAGE_PREFIX_BYTES + len);
        Some((message[0], message.slice(MESSAGE_PREFIX_BYTES..)))
    })
    .collect();
    assert_eq!(flags.iter().map(|(flag, _)| *flag).collect::<Vec<_>>(), [0, 1, 0, 1]);
    assert!(flags[0].1 == short && flags[2].1.is_empty());
    for at in [1, 3] {
        let mut plain = Vec::new();
        GzDecoder::new(&flags[at].1[..]).read_to_end(&mut plain).unwrap();
        assert!(plain == long && flags[at].1.len() < long.len());
    }
    assert_eq!(
        deflated.frame().await.unwrap().unwrap().into_trailers().unwrap(),
        trailers
    );
    assert!(deflated.frame().await.is_none());
    assert_eq!(budget.used(), 0);
}

#[tokio::test]
async fn answer_without_memory_to_compress_it_is_sent_as_it_is() {
    let budget = budget(ENCODER_BYTES);
    let message = framed(0, &text(10_000));
    let mut deflated = DeflatedBody::new(Body::from(message.clone()), budget.account(None));
    let received = deflated.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(received == message);
    assert!(deflated.frame().await.is_none());
    assert_eq!(budget.used(), 0);
}
