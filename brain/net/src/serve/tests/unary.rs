//! Unary RPCs that are answered without tonic's streams.

use bytes::Bytes;
use h2::client::SendRequest;

use super::*;
use etcd_types::pb::healthpb::health_server::Health as _;
use runtime::tasks::Owned;

const MAX_MESSAGE_BYTES: usize = 64;

/// A server whose health is asked, and the number of times that this was done without tonic's streams; `None`: always with them.
fn start(asked: Option<Arc<AtomicUsize>>) -> Running {
    let mut ports = Ports::new(&[(PLAIN, PortPurpose::Both)]);
    ports.options.limits.max_receive_bytes = MAX_MESSAGE_BYTES;
    let unary = asked.map(|asked| {
        UnaryRpcs::default().with("/grpc.health.v1.Health/Check", move |request| {
            asked.fetch_add(1, Ordering::SeqCst);
            let stop = CancellationToken::new();
            async move { HealthService { stop }.check(request).await }
        })
    });
    Running::with(ports, |metrics| PortServices {
        unary: unary.unwrap_or_default(),
        ..services(Store::with(9), probes(), metrics)
    })
}

fn framed(message: &[u8]) -> Vec<u8> {
    let len = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], &len[..], message].concat()
}

/// Returns the headers, the body and the trailers of an answer.
async fn answer(send: &mut SendRequest<Bytes>, body: &[u8], headers: &[(&str, &str)]) -> String {
    let request = ::http::Request::post("http://brain/grpc.health.v1.Health/Check")
        .header("content-type", "application/grpc")
        .body(())
        .unwrap();
    let request = headers.iter().fold(request, |mut request, (name, value)| {
        let name = ::http::HeaderName::from_bytes(name.as_bytes()).unwrap();
        request.headers_mut().insert(name, value.parse().unwrap());
        request
    });
    std::future::poll_fn(|cx| send.poll_ready(cx)).await.unwrap();
    let (response, mut stream) = send.send_request(request, false).unwrap();
    stream.send_data(Bytes::copy_from_slice(body), true).unwrap();
    let response = response.await.unwrap();
    let headers = format!("{:?} {:?}", response.status(), response.headers());
    let (mut recv, mut read) = (response.into_body(), Vec::new());
    while let Some(bytes) = recv.data().await {
        read.extend(bytes.unwrap());
    }
    let trailers = recv.trailers().await.unwrap();
    format!("{headers} {read:?} {trailers:?}")
}

#[tokio::test]
async fn unary_rpcs_are_answered_as_by_tonic() {
    let asked = Arc::new(AtomicUsize::new(0));
    let servers = [start(None), start(Some(asked.clone()))];
    let request = |service: &str| {
        let service = service.to_owned();
        framed(&HealthCheckRequest { service }.encode_to_vec())
    };
    let (whole, longest) = (request(""), request(&"s".repeat(MAX_MESSAGE_BYTES - 2)));
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    io::Write::write_all(&mut gzip, &whole[5..]).unwrap();
    let mut compressed = framed(&gzip.finish().unwrap());
    compressed[0] = 1;
    let is_compressed: &[(&str, &str)] = &[("grpc-encoding", "gzip")];
    // Bodies, and true if they need no stream.
    let cases = [
        (whole.clone(), &[][..], true),
        (request("unknown"), &[], true),
        (longest, &[], true),
        (request(&"s".repeat(MAX_MESSAGE_BYTES)), &[], false),
        (framed(&[0xff]), &[], false),
        (whole.repeat(2), &[], false),
        (Vec::new(), &[], false),
        (vec![0, 0, 0], &[], false),
        (vec![0, 0, 0, 0, 9, 1], &[], false),
        (vec![1, 0, 0, 0, 0], &[], false),
        (vec![2, 0, 0, 0, 0], &[], false),
        (compressed, is_compressed, true),
        (whole, is_compressed, true),
    ];
    let mut answers = Vec::new();
    for server in &servers {
        let io = server.dial().await;
        let (mut send, connection) = h2::client::handshake(io).await.unwrap();
        let _driver = Owned::start(connection);
        let mut all = Vec::new();
        for (body, headers, _) in &cases {
            all.push(answer(&mut send, body, headers).await);
        }
        answers.push(all);
    }
    let begun = asked.load(Ordering::SeqCst);
    assert_eq!(begun, cases.iter().filter(|(.., is_unary)| *is_unary).count());
    for (number, (body, ..)) in cases.iter().enumerate() {
        assert_eq!(answers[1][number], answers[0][number], "{body:?}");
    }
    for server in servers {
        server.end().await;
    }
}
