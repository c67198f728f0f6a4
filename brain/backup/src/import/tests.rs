//! Imports from a server of the tests, which compacts, restarts or disappears during the copy.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};

use futures::Stream;
use prost::Message as _;
use tokio::time::{Instant, timeout};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

use super::follow::{CopyRun, OpenWatch, next};
use super::*;
use crate::import::SourceOptions;
use crate::snapshot::{Importer, RestoreOptions, RevisionEvents};
use engine::log::MemLog;
use engine::rows::mem::MemRows;
use etcd_types::errors::Error;
use etcd_types::pb::etcdserverpb as pb;
use etcd_types::pb::mvccpb;
use etcd_types::types::Revision;
use etcd_types::url::Url;
use runtime::tasks::Owned;
use tls::TlsOptions;

/// An etcd that answers what a test says.
#[derive(Clone, Default)]
struct Fake(Arc<Mutex<Answers>>);

#[derive(Default)]
struct Answers {
    cluster_id: u64,
    revision: Revision,
    term: u64,
    compacted: Revision,
    kvs: Vec<mvccpb::KeyValue>,
    leases: Vec<i64>,
    /// The next watches: the events of each, and its end.
    watches: VecDeque<(Vec<bytes::Bytes>, Option<Status>)>,
    /// The first revisions of the watches so far.
    watched: Vec<Revision>,
    calls: Vec<&'static str>,
}

impl Answers {
    fn header(&self) -> Option<pb::ResponseHeader> {
        Some(pb::ResponseHeader {
            cluster_id: self.cluster_id,
            revision: self.revision,
            raft_term: self.term,
            ..Default::default()
        })
    }
}

impl Fake {
    fn at(revision: Revision) -> Self {
        let fake = Self::default();
        (fake.get().cluster_id, fake.get().revision, fake.get().term) = (7, revision, 3);
        fake
    }

    fn get(&self) -> MutexGuard<'_, Answers> {
        self.0.lock().unwrap()
    }

    fn call(&self, name: &'static str) -> MutexGuard<'_, Answers> {
        let mut answers = self.get();
        answers.calls.push(name);
        answers
    }

    /// Serves it; the task ends with what is returned.
    async fn source(&self) -> (Source, Owned<Result<(), tonic::transport::Error>>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serving = Server::builder()
            .add_service(pb::kv_server::KvServer::new(self.clone()))
            .add_service(pb::watch_server::WatchServer::new(self.clone()))
            .add_service(pb::lease_server::LeaseServer::new(self.clone()))
            .add_service(pb::maintenance_server::MaintenanceServer::new(self.clone()))
            .serve_with_incoming(TcpIncoming::from(listener));
        let served = Owned::start(serving);
        let options = SourceOptions {
            endpoints: vec![Url::parse(&url).unwrap()],
            tls: TlsOptions::default(),
            user: None,
            dial_timeout: std::time::Duration::from_secs(2),
        };
        (Source::open(options).await.unwrap(), served)
    }
}

fn unused<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("no import asks for it"))
}

type Answering<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl pb::kv_server::Kv for Fake {
    type RangeStreamStream = Answering<pb::RangeStreamResponse>;

    async fn range(&self, request: Request<pb::RangeRequest>) -> Result<Response<pb::RangeResponse>, Status> {
        let range = request.into_inner();
        let answers = self.call("range");
        if range.revision > 0 && range.revision < answers.compacted {
            return Err(Error::Compacted.into());
        }
        let kvs = answers.kvs.iter().filter(|kv| kv.key >= range.key && !range.count_only);
        let mut kvs: Vec<_> = kvs.cloned().collect();
        let most = usize::try_from(range.limit).unwrap();
        let more = most > 0 && kvs.len() > most;
        if more {
            kvs.truncate(most);
        }
        Ok(Response::new(pb::RangeResponse {
            header: answers.header(),
            kvs,
            more,
            ..Default::default()
        }))
    }

    async fn range_stream(&self, _: Request<pb::RangeRequest>) -> Result<Response<Self::RangeStreamStream>, Status> {
        unused()
    }

    async fn put(&self, _: Request<pb::PutRequest>) -> Result<Response<pb::PutResponse>, Status> {
        unused()
    }

    async fn delete_range(
        &self,
        _: Request<pb::DeleteRangeRequest>,
    ) -> Result<Response<pb::DeleteRangeResponse>, Status> {
        unused()
    }

    async fn txn(&self, _: Request<pb::TxnRequest>) -> Result<Response<pb::TxnResponse>, Status> {
        unused()
    }

    async fn compact(&self, _: Request<pb::CompactionRequest>) -> Result<Response<pb::CompactionResponse>, Status> {
        unused()
    }
}

#[tonic::async_trait]
impl pb::watch_server::Watch for Fake {
    type WatchStream = Answering<pb::WatchResponse>;

    async fn watch(
        &self,
        request: Request<Streaming<pb::WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let create = request.into_inner().message().await?.unwrap().request_union;
        let Some(pb::watch_request::RequestUnion::CreateRequest(create)) = create else {
            return unused();
        };
        let mut answers = self.call("watch");
        answers.watched.push(create.start_revision);
        let (events, end) = answers.watches.pop_front().unwrap_or_default();
        let created = pb::WatchResponse {
            header: answers.header(),
            created: true,
            ..Default::default()
        };
        let events = pb::WatchResponse {
            events,
            ..created.clone()
        };
        let some = [
            created,
            pb::WatchResponse {
                created: false,
                ..events
            },
        ];
        let stream = async_stream::stream! {
        for response in some {
        yield Ok(response);
        }
        match end {
        Some(status) => yield Err(status),
        None => std::future::pending().await,
        }
        };
        Ok(Response::new(Box::pin(stream)))
    }
}

#[tonic::async_trait]
impl pb::lease_server::Lease for Fake {
    type LeaseKeepAliveStream = Answering<pb::LeaseKeepAliveResponse>;

    async fn lease_grant(&self, _: Request<pb::LeaseGrantRequest>) -> Result<Response<pb::LeaseGrantResponse>, Status> {
        unused()
    }

    async fn lease_revoke(
        &self,
        _: Request<pb::LeaseRevokeRequest>,
    ) -> Result<Response<pb::LeaseRevokeResponse>, Status> {
        unused()
    }

    async fn lease_keep_alive(
        &self,
        _: Request<Streaming<pb::LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        unused()
    }

    async fn lease_time_to_live(
        &self,
        request: Request<pb::LeaseTimeToLiveRequest>,
    ) -> Result<Response<pb::LeaseTimeToLiveResponse>, Status> {
        let id = request.into_inner().id;
        let answers = self.call("time to live");
        let (ttl, granted_ttl) = if answers.leases.contains(&id) {
            (50, 60)
        } else {
            (-1, 0)
        };
        Ok(Response::new(pb::LeaseTimeToLiveResponse {
            header: answers.header(),
            id,
            ttl,
            granted_ttl,
            ..Default::default()
        }))
    }

    async fn lease_leases(
        &self,
        _: Request<pb::LeaseLeasesRequest>,
    ) -> Result<Response<pb::LeaseLeasesResponse>, Status> {
        let answers = self.call("leases");
        Ok(Response::new(pb::LeaseLeasesResponse {
            header: answers.header(),
            leases: answers.leases.iter().map(|id| pb::LeaseStatus { id: *id }).collect(),
        }))
    }
}

#[tonic::async_trait]
impl pb::maintenance_server::Maintenance for Fake {
    type SnapshotStream = Answering<pb::SnapshotResponse>;

    async fn alarm(&self, _: Request<pb::AlarmRequest>) -> Result<Response<pb::AlarmResponse>, Status> {
        unused()
    }

    async fn status(&self, _: Request<pb::StatusRequest>) -> Result<Response<pb::StatusResponse>, Status> {
        let answers = self.call("status");
        Ok(Response::new(pb::StatusResponse {
            header: answers.header(),
            ..Default::default()
        }))
    }

    async fn defragment(&self, _: Request<pb::DefragmentRequest>) -> Result<Response<pb::DefragmentResponse>, Status> {
        unused()
    }

    async fn hash(&self, _: Request<pb::HashRequest>) -> Result<Response<pb::HashResponse>, Status> {
        unused()
    }

    async fn hash_kv(&self, _: Request<pb::HashKvRequest>) -> Result<Response<pb::HashKvResponse>, Status> {
        unused()
    }

    async fn snapshot(&self, _: Request<pb::SnapshotRequest>) -> Result<Response<Self::SnapshotStream>, Status> {
        unused()
    }

    async fn move_leader(&self, _: Request<pb::MoveLeaderRequest>) -> Result<Response<pb::MoveLeaderResponse>, Status> {
        unused()
    }

    async fn downgrade(&self, _: Request<pb::DowngradeRequest>) -> Result<Response<pb::DowngradeResponse>, Status> {
        unused()
    }
}

fn kv(key: &'static str, revision: Revision, lease: i64) -> mvccpb::KeyValue {
    mvccpb::KeyValue {
        key: key.into(),
        create_revision: revision,
        mod_revision: revision,
        version: 1,
        lease,
        ..Default::default()
    }
}

fn put(revision: Revision) -> bytes::Bytes {
    let event = mvccpb::Event {
        kv: Some(kv("key", revision, 0)),
        ..Default::default()
    };
    event.encode_to_vec().into()
}

fn revisions(revised: &[RevisionEvents]) -> Vec<Revision> {
    revised.iter().map(|revised| revised.revision).collect()
}

/// A copy of nothing.
async fn empty_copy() -> Importer {
    let (log, rows) = (Arc::new(MemLog::new()), Arc::new(MemRows::new()));
    Importer::open(log, rows, &RestoreOptions::default()).await.unwrap()
}

/// The keys of the source, each written by a revision of its own.
fn revised(source: &Fake) -> Vec<RevisionEvents> {
    let kvs = source.get().kvs.clone();
    let revised = kvs.into_iter().map(|kv| RevisionEvents {
        revision: kv.mod_revision,
        kvs: vec![kv],
    });
    revised.collect()
}

fn lost() -> Option<Status> {
    Some(Status::unavailable("lost"))
}

#[tokio::test]
async fn lost_watch_goes_on_behind_the_last_revision() {
    let fake = Fake::at(9);
    fake.get().watches = [(vec![put(5), put(6)], lost()), (vec![put(7)], None)].into();
    let (mut source, _served) = fake.source().await;
    let mut watch: Option<OpenWatch> = None;
    assert_eq!(revisions(&next(&mut source, &mut watch, 4).await.unwrap()), [5, 6]);
    assert_eq!(revisions(&next(&mut source, &mut watch, 6).await.unwrap()), [7]);
    assert_eq!(fake.get().watched, [5, 7]);
}

#[tokio::test]
async fn compacted_revision_is_not_copied_in_part() {
    // Of revision 5 an older etcd sends the puts, or nothing if it had none.
    for first in [5, 6] {
        let fake = Fake::at(9);
        fake.get().compacted = 5;
        fake.get().watches = [(vec![put(first)], None)].into();
        let (mut source, _served) = fake.source().await;
        let refused = next(&mut source, &mut None, 4).await.map(|revised| revisions(&revised));
        let error = refused.unwrap_err();
        assert!(error.is::<SourceCompacted>(), "{first}: {error:#}");
    }
    // The revision is complete if only copied revisions are compacted.
    let fake = Fake::at(9);
    fake.get().compacted = 4;
    fake.get().watches = [(vec![put(5)], None)].into();
    let (mut source, _served) = fake.source().await;
    assert_eq!(revisions(&next(&mut source, &mut None, 4).await.unwrap()), [5]);
    // If a revision is missing for another reason, a new snapshot would not bring it.
    fake.get().watches = [(vec![put(7)], None)].into();
    let error = next(&mut source, &mut None, 5).await.map(drop).unwrap_err();
    assert!(
        !error.is::<SourceCompacted>() && error.to_string().contains("after revision"),
        "{error:#}"
    );
}

#[tokio::test]
async fn first_revisions_are_not_lost_when_the_wait_for_them_is_given_up() {
    let fake = Fake::at(9);
    // One watch for each attempt: some attempts are given up before their events arrive.
    fake.get().watches = std::iter::repeat_n((vec![put(5), put(6)], None), 1_000).collect();
    let (mut source, _served) = fake.source().await;
    let mut watch: Option<OpenWatch> = None;
    let mut found = Vec::new();
    for polls in 1..1_000 {
        // Given up after ever more polls.
        let mut left = polls;
        let mut waiting = std::pin::pin!(next(&mut source, &mut watch, 4));
        let polled = std::future::poll_fn(|cx| match waiting.as_mut().poll(cx) {
            std::task::Poll::Ready(done) => std::task::Poll::Ready(Some(done)),
            std::task::Poll::Pending if left == 0 => std::task::Poll::Ready(None),
            std::task::Poll::Pending => {
                left -= 1;
                std::task::Poll::Pending
            }
        });
        if let Some(done) = polled.await {
            found = revisions(&done.unwrap());
            break;
        }
    }
    assert_eq!(found, [5, 6]);
}

#[tokio::test]
async fn source_that_was_restored_from_a_backup_ends_the_copy() {
    type Restore = fn(&mut Answers);
    let restores: [(Restore, &str); 3] = [
        (|answers| answers.revision = 5, "is at revision 5, and was at 6 before"),
        (|answers| answers.term = 2, "is in raft term 2, and was in 3 before"),
        (|answers| answers.cluster_id = 8, "of several clusters, 7 and 8"),
    ];
    for (restore, text) in restores {
        let fake = Fake::at(9);
        fake.get().watches = [(vec![put(5), put(6)], lost())].into();
        let (mut source, _served) = fake.source().await;
        let mut watch: Option<OpenWatch> = None;
        next(&mut source, &mut watch, 4).await.unwrap();
        restore(&mut fake.get());
        let error = next(&mut source, &mut watch, 6).await.map(drop).unwrap_err();
        let error = format!("{error:#}");
        assert!(
            error.contains(text) && error.contains("was restored from a backup") && error.contains("--restart"),
            "{error}"
        );
        assert_eq!(fake.get().watched, [5]);
    }
}

#[tokio::test]
async fn source_is_waited_for_without_an_end_while_its_snapshot_is_restored() {
    let fake = Fake::at(9);
    let (source, served) = fake.source().await;
    let mut patient = source.patient().await.unwrap();
    let mut other = source;
    served.abort().await;
    tokio::time::pause();
    let began = Instant::now();
    let lost = || anyhow::anyhow!("lost");
    let error = other.reconnect(lost()).await.unwrap_err();
    assert!(format!("{error:#}").contains("has not answered for 60s"), "{error:#}");
    assert!(began.elapsed().as_secs() >= 60);
    let hour = std::time::Duration::from_secs(3_600);
    assert!(timeout(hour, patient.reconnect(lost())).await.is_err());
}

#[tokio::test]
async fn leases_are_listed_behind_a_linearizable_read() {
    let fake = Fake::at(9);
    fake.get().leases = vec![4, 5];
    let (mut source, _served) = fake.source().await;
    fake.get().calls.clear();
    let listed = source.lease_ids().await.unwrap();
    assert_eq!((listed.ids, listed.revision), (vec![4, 5], 9));
    assert_eq!(fake.get().calls, ["range", "leases"]);
}

#[tokio::test]
async fn key_whose_lease_the_source_has_lost_is_equal_and_one_that_it_has_is_not() {
    let fake = Fake::at(3);
    fake.get().kvs = vec![kv("a", 2, 7), kv("b", 3, 7)];
    let (mut source, _served) = fake.source().await;
    let mut importer = empty_copy().await;
    let revised = [("a", 2), ("b", 3)].map(|(key, revision)| RevisionEvents {
        revision,
        kvs: vec![kv(key, revision, 7)],
    });
    let revised = Vec::from(revised);
    // It is gone when it is asked for; the copy cannot know yet whether its keys are deleted.
    leases::grant_named(&mut source, &mut importer, &revised).await.unwrap();
    importer.append(revised).await.unwrap();
    assert!(importer.leases().contains_key(&7));
    importer.revoke_others(&std::collections::HashSet::new()).await.unwrap();
    assert!(importer.leases().contains_key(&7));
    importer
        .revoke_all_but(&std::collections::HashSet::new())
        .await
        .unwrap();
    assert!(importer.leases().is_empty());

    let checksum = verify::compare(&mut source, &mut importer).await.unwrap();
    assert_eq!(checksum.versions, 2);
    fake.get().leases = vec![7];
    let error = verify::compare(&mut source, &mut importer).await.map(drop).unwrap_err();
    assert!(error.to_string().contains("the copy has no lease 7 for"), "{error:#}");
    importer.finish().await.unwrap();
}

fn deleted(key: &'static str, revision: Revision) -> bytes::Bytes {
    let event = mvccpb::Event {
        r#type: mvccpb::event::EventType::Delete.into(),
        kv: Some(mvccpb::KeyValue {
            key: key.into(),
            mod_revision: revision,
            ..Default::default()
        }),
        ..Default::default()
    };
    event.encode_to_vec().into()
}

#[tokio::test]
async fn compared_copy_follows_ends_of_leases_and_refuses_writes() {
    let fake = Fake::at(4);
    fake.get().kvs = vec![kv("a", 2, 7), kv("b", 3, 7), kv("key", 4, 0)];
    fake.get().leases = vec![7];
    let (mut source, _served) = fake.source().await;
    let mut importer = empty_copy().await;
    let revised = revised(&fake);
    leases::grant_named(&mut source, &mut importer, &revised).await.unwrap();
    importer.append(revised).await.unwrap();
    let (_finish, may_finish) = tokio::sync::watch::channel(true);
    let options = CopyOptions {
        follows: true,
        may_finish,
        until: None,
        waits_for_writers: false,
        progress: Arc::default(),
    };
    let mut copy = CopyRun::new(&mut source, importer, &options);
    copy.look_for_writes();
    assert_eq!(copy.compare().await.unwrap().versions, 3);
    {
        let mut answers = fake.get();
        (answers.revision, answers.leases) = (6, Vec::new());
        answers.watches = [(vec![deleted("a", 5), deleted("b", 6)], lost()), (vec![put(7)], None)].into();
    }
    assert_eq!(copy.close(true).await.unwrap(), None);
    fake.get().revision = 7;
    let error = copy.close(true).await.unwrap_err().to_string();
    assert!(
        error.starts_with("the source is still written to: revision 7 was written"),
        "{error}"
    );
    // Without --follow a copy may lack writes.
    fake.get().revision = 8;
    assert_eq!(copy.close(false).await.unwrap(), Some(8));
}

#[tokio::test]
async fn message_of_very_many_empty_elements_is_refused_before_it_is_decoded() {
    let fake = Fake::at(3);
    fake.get().kvs = vec![mvccpb::KeyValue::default(); 800_000];
    let (mut source, _served) = fake.source().await;
    let refused = source
        .range("read", pb::RangeRequest::default())
        .await
        .map(drop)
        .unwrap_err();
    assert!(format!("{refused:#}").contains("elements"), "{refused:#}");
    fake.get().kvs.clear();
    assert_eq!(source.revision().await.unwrap(), 3);
}

/// However many keys were short before.
#[tokio::test]
async fn page_that_is_too_long_is_read_in_smaller_ones() {
    const KEYS: [&str; 9] = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
    let fake = Fake::at(10);
    let long = KEYS.into_iter().zip(2..).map(|(key, revision)| mvccpb::KeyValue {
        value: vec![7; 100_000].into(),
        ..kv(key, revision, 0)
    });
    fake.get().kvs = long.collect();
    let (mut source, _served) = fake.source().await;
    let mut importer = empty_copy().await;
    importer.append(revised(&fake)).await.unwrap();
    source.accept_at_most(250_000);
    let compared = verify::compare(&mut source, &mut importer).await.unwrap();
    assert_eq!(compared.versions, 9);
    source.accept_at_most(50_000);
    let refused = verify::compare(&mut source, &mut importer).await.map(drop).unwrap_err();
    assert!(refused.to_string().contains("too long"), "{refused:#}");
}
