use http_body_util::BodyExt as _;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower::ServiceExt as _;

use super::*;
use crate::refusal::RefusalCode;
use telemetry::metrics::Metrics;

/// A member whose term the test sets.
struct Told(watch::Sender<LeaderTerm>);

#[tonic::async_trait]
impl DescribeMember for Told {
    async fn describe(&self) -> MemberPage {
        let term = self.term();
        MemberPage {
            name: "a-0".to_owned(),
            member_id: format!("{:016x}", 10),
            cluster_id: format!("{:016x}", 11),
            version: "0.1.0",
            formats: StoredFormats {
                lowest: 1,
                highest: 2,
                written: 2,
            },
            role: match term.leader {
                0 => MemberRole::None,
                10 => MemberRole::Leader,
                _ => MemberRole::Follower,
            },
            ready: true,
            epoch: term.epoch,
            revision: 5,
            applied_slot: 6,
            leader: (term.leader != 0).then(|| LeaderRef {
                name: "b".to_owned(),
                member_id: format!("{:016x}", term.leader),
            }),
            alarms: vec!["NOSPACE"],
            storage: StorageInUse {
                kind: "TiKV",
                cluster_id: Some("7401".to_owned()),
                reachable: true,
                directory: None,
            },
            space: SpaceInUse {
                bytes: 3,
                quota_bytes: None,
                disk: Some(DiskInUse {
                    bytes: 5,
                    available_bytes: 2,
                    needed_bytes: 1,
                }),
            },
            tls: None,
        }
    }

    fn term(&self) -> LeaderTerm {
        *self.0.borrow()
    }

    async fn changed(&self, seen: LeaderTerm) {
        let mut terms = self.0.subscribe();
        let ended = terms.wait_for(|term| *term != seen).await;
        assert!(ended.is_ok());
    }
}

struct Healthy;

#[tonic::async_trait]
impl crate::http::HealthChecks for Healthy {
    async fn linearizable_read(&self) -> Result<(), String> {
        Ok(())
    }

    async fn serializable_read(&self) -> Result<(), String> {
        Ok(())
    }

    fn alarms(&self) -> Vec<crate::http::AlarmKind> {
        Vec::new()
    }

    fn has_leader(&self) -> bool {
        true
    }
}

fn site(described: MemberDescription) -> axum::Router {
    crate::http::routes(
        Arc::new(Healthy),
        described,
        PortCertificates::default(),
        Arc::new(Metrics::new(false)),
    )
}

async fn ask(site: &axum::Router, method: Method, uri: &str) -> (u16, String) {
    let request = http::Request::builder()
        .method(method)
        .uri(uri)
        .body(Body::empty())
        .unwrap();
    let (parts, body) = site.clone().oneshot(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (parts.status.as_u16(), String::from_utf8(body.to_vec()).unwrap())
}

fn told(epoch: u64, leader: u64) -> (Arc<Told>, axum::Router) {
    let told = Arc::new(Told(watch::Sender::new(LeaderTerm { epoch, leader })));
    (told.clone(), site(Ok(told)))
}

#[tokio::test]
async fn a_member_says_who_it_is_and_who_leads() {
    let (_told, site) = told(7, 12);
    let (status, body) = ask(&site, Method::GET, "/member").await;
    assert_eq!(status, 200);
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    let expected = serde_json::json!({
        "name": "a-0", "memberID": "000000000000000a", "clusterID": "000000000000000b", "version": "0.1.0",
        "formats": {"lowest": 1, "highest": 2, "written": 2},
        "role": "Follower", "ready": true, "epoch": 7, "revision": 5, "appliedSlot": 6,
        "leader": {"name": "b", "memberID": "000000000000000c"}, "alarms": ["NOSPACE"],
        "storage": {"type": "TiKV", "clusterID": "7401", "reachable": true},
        "space": {"bytes": 3, "disk": {"bytes": 5, "availableBytes": 2, "neededBytes": 1}}, "tls": null,
    });
    assert_eq!(body, expected);
}

#[tokio::test(start_paused = true)]
async fn caller_that_knows_the_leader_waits_for_the_next() {
    let (told, site) = told(7, 12);
    let (status, body) = ask(&site, Method::GET, "/member?after=6").await;
    assert!(
        status == 200 && body.contains("\"epoch\":7"),
        "a newer one is told at once: {body}"
    );
    let ((status, body), ()) = tokio::join!(ask(&site, Method::GET, "/member?after=7"), async {
        tokio::task::yield_now().await;
        told.0.send_replace(LeaderTerm { epoch: 8, leader: 10 });
    });
    assert!(status == 200 && body.contains("\"epoch\":8"), "{body}");
    // Without a change the response arrives after the longest wait.
    let began = tokio::time::Instant::now();
    let (status, body) = ask(&site, Method::GET, "/member?after=8").await;
    assert!(status == 200 && body.contains("\"epoch\":8"), "{body}");
    assert_eq!(began.elapsed(), MAX_WAIT);
}

#[tokio::test(start_paused = true)]
async fn caller_that_knows_a_leader_hears_that_it_is_gone() {
    let (told, site) = told(7, 12);
    let ((status, body), ()) = tokio::join!(ask(&site, Method::GET, "/member?after=7"), async {
        tokio::task::yield_now().await;
        told.0.send_replace(LeaderTerm { epoch: 7, leader: 0 });
    });
    assert!(status == 200 && body.contains("\"role\":\"None\""), "{body}");
}

#[tokio::test(start_paused = true)]
async fn no_more_wait_than_there_is_room_for() {
    let (told, site) = told(7, 12);
    let mut waiting = JoinSet::new();
    for _ in 0..MAX_WAITERS {
        let site = site.clone();
        waiting.spawn(async move { ask(&site, Method::GET, "/member?after=7").await.0 });
    }
    while told.0.receiver_count() < MAX_WAITERS {
        tokio::task::yield_now().await;
    }
    assert_eq!(ask(&site, Method::GET, "/member?after=7").await.0, 429);
    assert_eq!(
        ask(&site, Method::GET, "/member").await.0,
        200,
        "who does not wait is answered"
    );
    told.0.send_replace(LeaderTerm { epoch: 8, leader: 10 });
    while let Some(status) = waiting.join_next().await {
        assert_eq!(status.unwrap(), 200);
    }
}

#[tokio::test]
async fn unanswerable_requests_are_refused() {
    let (_told, described) = told(7, 12);
    for uri in [
        "/member?after=",
        "/member?after=-1",
        "/member?after=x",
        "/member?after=99999999999999999999",
    ] {
        assert_eq!(ask(&described, Method::GET, uri).await.0, 400, "{uri}");
    }
    assert_eq!(ask(&described, Method::POST, "/member").await.0, 405);
}

#[tokio::test]
async fn member_without_a_store_says_why_by_a_stable_code() {
    let why = || Refusal::new(RefusalCode::StorageUnreachable, "PD does not answer");
    let closed = site(Err(Arc::new(why)));
    let body = r#"{"refusal":{"code":"StorageUnreachable","message":"PD does not answer"}}"#;
    assert_eq!(ask(&closed, Method::GET, "/member").await, (503, body.to_owned()));
}

#[test]
fn times_are_written_as_rfc_3339_has_them() {
    assert_eq!(rfc3339(1_790_000_000), "2026-09-21T14:13:20Z");
}
