use std::io::Read as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http_body_util::BodyExt as _;
use tower::ServiceExt as _;

use super::member::{MemberDescription, PortCertificates};
use super::*;
use crate::http::BrowserPolicy;
use crate::refusal::{Refusal, RefusalCode};

#[derive(Default)]
struct Store {
    alarms: Vec<AlarmKind>,
    lost: AtomicBool,
}

#[tonic::async_trait]
impl HealthChecks for Store {
    async fn linearizable_read(&self) -> Result<(), String> {
        if self.lost.load(Ordering::SeqCst) {
            Err("etcdserver: request timed out".to_owned())
        } else {
            Ok(())
        }
    }

    async fn serializable_read(&self) -> Result<(), String> {
        Ok(())
    }

    fn alarms(&self) -> Vec<AlarmKind> {
        self.alarms.clone()
    }

    fn has_leader(&self) -> bool {
        !self.lost.load(Ordering::SeqCst)
    }
}

fn healthy() -> Store {
    Store::default()
}

fn alarmed(alarm: AlarmKind) -> Store {
    Store {
        alarms: vec![alarm],
        ..Store::default()
    }
}

fn lost() -> Store {
    Store {
        lost: AtomicBool::new(true),
        ..Store::default()
    }
}

fn nobody() -> MemberDescription {
    Err(Arc::new(|| Refusal::new(RefusalCode::NoLeader, "no store yet")))
}

async fn ask(store: Store, method: Method, uri: &str) -> (u16, http::HeaderMap, String) {
    let routes = routes(
        Arc::new(store),
        nobody(),
        PortCertificates::default(),
        Arc::new(Metrics::new(false)),
    );
    let request = Request::builder().method(method).uri(uri).body(Body::empty()).unwrap();
    let (parts, body) = routes.oneshot(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (
        parts.status.as_u16(),
        parts.headers,
        String::from_utf8(body.to_vec()).unwrap(),
    )
}

#[tokio::test]
async fn variables_are_those_of_the_process() {
    let (status, headers, body) = ask(healthy(), Method::GET, "/debug/vars").await;
    assert_eq!(
        (status, headers["content-type"].to_str().unwrap()),
        (200, "application/json; charset=utf-8")
    );
    let vars: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert!(
        vars["cmdline"][0].is_string() && vars["file_descriptor_limit"].as_u64() > Some(2),
        "{body}"
    );
    assert_eq!(ask(healthy(), Method::POST, "/debug/vars").await.0, 405);
}

#[tokio::test]
async fn requests_for_metrics_are_counted() {
    let metrics = Arc::new(Metrics::new(false));
    let routes = routes(
        Arc::new(healthy()),
        nobody(),
        PortCertificates::default(),
        metrics.clone(),
    );
    for answered in 0..2 {
        let request = Request::builder().uri("/metrics").body(Body::empty()).unwrap();
        let body = routes.clone().oneshot(request).await.unwrap().into_body();
        let text = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
        for line in [
            format!("promhttp_metric_handler_requests_total{{code=\"200\"}} {answered}"),
            "promhttp_metric_handler_requests_in_flight 1".to_owned(),
        ] {
            assert!(text.lines().any(|found| found == line), "no {line}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn metrics_page_counts_all_that_was_before_and_is_rendered_once_for_many() {
    let (metrics, renderings) = (Arc::new(Metrics::new(false)), Arc::new(AtomicUsize::new(0)));
    let counted = renderings.clone();
    metrics.before_render(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let routes = routes(
        Arc::new(healthy()),
        nobody(),
        PortCertificates::default(),
        metrics.clone(),
    );
    let ranges = async || {
        let request = Request::get("/metrics").body(Body::empty()).unwrap();
        let body = routes.clone().oneshot(request).await.unwrap().into_body();
        let page = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix("etcd_mvcc_range_total "));
        line.unwrap().to_owned()
    };
    assert_eq!(ranges().await, "0");
    metrics.mvcc.ranges.inc();
    assert_eq!(ranges().await, "1");
    metrics.mvcc.ranges.inc();
    let before = renderings.load(Ordering::Relaxed);
    let pages = futures::future::join_all((0..50).map(|_| ranges())).await;
    assert!(pages.iter().all(|page| page == "2"), "{pages:?}");
    assert_eq!(renderings.load(Ordering::Relaxed) - before, 1);
}

#[tokio::test(start_paused = true)]
async fn metrics_page_is_compressed_for_who_takes_gzip() {
    let routes = routes(
        Arc::new(healthy()),
        nobody(),
        PortCertificates::default(),
        Arc::new(Metrics::new(false)),
    );
    for (accepted, compressed) in [
        (None, false),
        (Some("gzip"), true),
        (Some("deflate, GZIP;q=0.5"), true),
        (Some("gzip;q=0"), false),
        (Some("identity"), false),
    ] {
        let mut request = Request::get("/metrics").body(Body::empty()).unwrap();
        if let Some(accepted) = accepted {
            request
                .headers_mut()
                .insert("accept-encoding", accepted.parse().unwrap());
        }
        let response = routes.clone().oneshot(request).await.unwrap();
        let encoding = response.headers().get("content-encoding").cloned();
        assert_eq!(
            encoding.is_some_and(|encoding| encoding == "gzip"),
            compressed,
            "{accepted:?}"
        );
        let page = response.into_body().collect().await.unwrap().to_bytes();
        let mut text = String::new();
        if compressed {
            flate2::read::GzDecoder::new(&page[..])
                .read_to_string(&mut text)
                .unwrap();
        } else {
            text = String::from_utf8(page.to_vec()).unwrap();
        }
        assert!(text.contains("\netcd_mvcc_range_total 0\n"), "{accepted:?}");
    }
}

async fn get(store: Store, uri: &str) -> (u16, String) {
    let (status, _, body) = ask(store, Method::GET, uri).await;
    (status, body)
}

/// The expected answers are those of a live etcd 3.6.16 to the same requests.
#[tokio::test]
async fn a_healthy_member_answers_what_etcd_answers() {
    for (uri, status, body) in [
        ("/health", 200, r#"{"health":"true","reason":""}"#),
        ("/health?serializable=true", 200, r#"{"health":"true","reason":""}"#),
        ("/livez", 200, "ok\n"),
        ("/livez?verbose", 200, "[+]serializable_read ok\nok\n"),
        ("/readyz", 200, "ok\n"),
        (
            "/readyz?verbose=",
            200,
            "[+]data_corruption ok\n[+]serializable_read ok\n[+]linearizable_read ok\n[+]non_learner ok\nok\n",
        ),
        (
            "/readyz?exclude=non_learner&verbose",
            200,
            "[+]data_corruption ok\n[+]serializable_read ok\n[+]linearizable_read ok\nok\n",
        ),
        ("/readyz?exclude=nope", 200, "ok\n"),
        ("/livez/serializable_read", 200, "ok\n"),
        ("/readyz/non_learner?verbose", 200, "[+]non_learner ok\nok\n"),
        ("/readyz/nope", 404, "404 page not found\n"),
        ("/livez/linearizable_read", 404, "404 page not found\n"),
        (
            "/version",
            200,
            r#"{"etcdserver":"3.6.16","etcdcluster":"3.6.0","storage":"3.6.0"}"#,
        ),
        ("/", 404, "404 page not found\n"),
        ("/health/", 404, "404 page not found\n"),
        ("/metrics/", 404, "404 page not found\n"),
    ] {
        assert_eq!(get(healthy(), uri).await, (status, body.to_owned()), "{uri}");
    }
}

#[tokio::test]
async fn a_member_in_trouble_says_which() {
    let no_space = || alarmed(AlarmKind::NoSpace);
    let corrupt = || alarmed(AlarmKind::Corrupt);
    let timed_out = "[+]data_corruption ok\n[+]serializable_read ok\n[-]linearizable_read failed: etcdserver: request timed out\n[+]non_learner ok\n\n";
    for (store, uri, status, body) in [
        (
            no_space(),
            "/health",
            503,
            "{\"health\":\"false\",\"reason\":\"ALARM NOSPACE\"}\n",
        ),
        (
            no_space(),
            "/health?exclude=NOSPACE",
            200,
            "{\"health\":\"true\",\"reason\":\"\"}",
        ),
        (no_space(), "/readyz", 200, "ok\n"),
        (
            corrupt(),
            "/health?exclude=NOSPACE",
            503,
            "{\"health\":\"false\",\"reason\":\"ALARM CORRUPT\"}\n",
        ),
        (
            corrupt(),
            "/readyz/data_corruption",
            503,
            "[-]data_corruption failed: alarm activated: CORRUPT\n\n",
        ),
        (corrupt(), "/readyz?exclude=data_corruption", 200, "ok\n"),
        (
            lost(),
            "/health",
            503,
            "{\"health\":\"false\",\"reason\":\"RAFT NO LEADER\"}\n",
        ),
        (
            lost(),
            "/health?serializable=true",
            200,
            "{\"health\":\"true\",\"reason\":\"\"}",
        ),
        (lost(), "/livez", 200, "ok\n"),
        (lost(), "/readyz", 503, timed_out),
        (lost(), "/readyz?exclude=linearizable_read", 200, "ok\n"),
    ] {
        assert_eq!(get(store, uri).await, (status, body.to_owned()), "{uri}");
    }
}

#[tokio::test]
async fn headers_are_etcds() {
    let header =
        |headers: &http::HeaderMap, name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    for (uri, content_type, nosniff) in [
        ("/health", PLAIN_TEXT, false),
        ("/livez", PLAIN_TEXT, true),
        ("/nope", PLAIN_TEXT, true),
        ("/version", "application/json", false),
        ("/metrics", "text/plain; version=0.0.4; charset=utf-8", false),
    ] {
        let (_, headers, _) = ask(healthy(), Method::GET, uri).await;
        assert_eq!(header(&headers, "content-type").as_deref(), Some(content_type), "{uri}");
        assert_eq!(header(&headers, "x-content-type-options").is_some(), nosniff, "{uri}");
    }
}

#[tokio::test]
async fn only_get_is_allowed_but_for_metrics() {
    for uri in ["/health", "/livez", "/readyz/non_learner", "/version"] {
        for method in [Method::POST, Method::HEAD, Method::PUT] {
            let (status, headers, _) = ask(healthy(), method.clone(), uri).await;
            assert_eq!(
                (status, headers.get("allow").unwrap().to_str().unwrap()),
                (405, "GET"),
                "{method} {uri}"
            );
        }
    }
    assert_eq!(ask(healthy(), Method::POST, "/metrics").await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn a_read_that_hangs_ends() {
    struct Hung;
    #[tonic::async_trait]
    impl HealthChecks for Hung {
        async fn linearizable_read(&self) -> Result<(), String> {
            std::future::pending().await
        }
        async fn serializable_read(&self) -> Result<(), String> {
            std::future::pending().await
        }
        fn timeout(&self) -> Duration {
            Duration::from_secs(20)
        }
        fn alarms(&self) -> Vec<AlarmKind> {
            Vec::new()
        }
        fn has_leader(&self) -> bool {
            true
        }
    }
    let begun = tokio::time::Instant::now();
    let routes = routes(
        Arc::new(Hung),
        nobody(),
        PortCertificates::default(),
        Arc::new(Metrics::new(false)),
    );
    let request = Request::builder().uri("/livez").body(Body::empty()).unwrap();
    let response = routes.oneshot(request).await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(&body[..], b"[-]serializable_read failed: context deadline exceeded\n\n");
    assert_eq!(
        begun.elapsed(),
        Duration::from_secs(20),
        "it waits as long as requests do"
    );
}

#[test]
fn the_gate_lets_through_what_its_lists_name() {
    let list = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    let request = |method: Method, host: &str, origin: Option<&str>| {
        let request = Request::builder().method(method).uri("/health").header("host", host);
        let request = origin
            .into_iter()
            .fold(request, |request, origin| request.header("origin", origin));
        request.body(()).unwrap()
    };
    let open = Cors::new(BrowserPolicy::default());
    assert!(open.refuse(&request(Method::GET, "evil.example", None)).is_none());
    assert_eq!(open.origin(&request(Method::GET, "h", Some("https://o"))).unwrap(), "*");
    let preflight = open.refuse(&request(Method::OPTIONS, "h", None)).unwrap();
    assert_eq!(
        (
            preflight.status().as_u16(),
            preflight.headers()["access-control-allow-origin"].to_str().unwrap()
        ),
        (200, "*")
    );

    let strict = Cors::new(BrowserPolicy {
        cors: list(&["https://o"]),
        host_whitelist: list(&["a.example", "::1"]),
    });
    for (host, refused) in [
        ("a.example", false),
        ("a.example:2379", false),
        ("[::1]:2379", false),
        ("evil.example:2379", true),
    ] {
        let answer = strict.refuse(&request(Method::GET, host, None));
        assert_eq!(
            answer.is_some_and(|answer| answer.status().as_u16() == 421),
            refused,
            "{host}"
        );
    }
    let mut secure = request(Method::GET, "evil.example", None);
    secure.extensions_mut().insert(OverTls);
    assert!(strict.refuse(&secure).is_none());
    assert_eq!(
        strict.origin(&request(Method::GET, "h", Some("https://o"))).unwrap(),
        "https://o"
    );
    assert_eq!(strict.origin(&request(Method::GET, "h", Some("https://p"))), None);
    assert_eq!(strict.origin(&request(Method::GET, "h", None)), None);
}
