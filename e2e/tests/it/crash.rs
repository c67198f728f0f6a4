//! The cluster's store is killed under load, and everything goes on.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use e2e::deadline::Deadline;
use e2e::{kubelet, store};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, ListParams, ObjectMeta, PostParams};
use kube::runtime::wait::await_condition;
use rustix::process::Signal;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::harness::exclusive;

const KILLS: usize = 10;
/// Set to another number of kills for a longer run.
const KILLS_VARIABLE: &str = "KUBEBRAIN_KILLS";
const WRITERS: usize = 8;
/// Acknowledged writes between two kills.
const LOAD: usize = 100;
/// After this a request's outcome counts as unknown.
const ANSWER: Duration = Duration::from_secs(10);
/// For the cluster to come back.
const PATIENCE: Duration = Duration::from_secs(120);
const NAMESPACE: &str = "crash";

/// What all writers have had acknowledged.
#[derive(Default)]
struct Acknowledged {
    writes: watch::Sender<usize>,
    newest: AtomicI64,
    unknown: AtomicUsize,
}

impl Acknowledged {
    fn add(&self, revision: i64) {
        self.newest.fetch_max(revision, Ordering::SeqCst);
        self.writes.send_modify(|writes| *writes += 1);
    }
}

fn revision(metadata: &ObjectMeta) -> i64 {
    metadata.resource_version.as_deref().unwrap().parse().unwrap()
}

fn config_map(name: String, value: u64, at: Option<i64>) -> ConfigMap {
    let metadata = ObjectMeta {
        name: Some(name),
        resource_version: at.map(|at| at.to_string()),
        ..ObjectMeta::default()
    };
    ConfigMap {
        metadata,
        data: Some([("value".to_owned(), value.to_string())].into()),
        ..ConfigMap::default()
    }
}

fn value(config_map: &ConfigMap) -> u64 {
    config_map.data.as_ref().unwrap()["value"].parse().unwrap()
}

/// One object, counted up by updates of which each names the resourceVersion it builds on, and beside it a new object
/// for each tenth value.
struct Writer {
    name: String,
    api: Api<ConfigMap>,
    /// Acknowledged, or read.
    value: u64,
    revision: i64,
    /// Beside the one that is counted.
    created: Vec<String>,
}

impl Writer {
    async fn start(number: usize, client: kube::Client) -> Self {
        let (name, api) = (format!("w-{number}"), Api::<ConfigMap>::namespaced(client, NAMESPACE));
        let first = api
            .create(&PostParams::default(), &config_map(name.clone(), 0, None))
            .await
            .unwrap();
        Self {
            name,
            api,
            value: 0,
            revision: revision(&first.metadata),
            created: Vec::new(),
        }
    }

    async fn run(mut self, acknowledged: &Acknowledged, mut stop: watch::Receiver<bool>) -> Self {
        while !*stop.borrow_and_update() {
            let next = config_map(self.name.clone(), self.value + 1, Some(self.revision));
            match timeout(ANSWER, self.api.replace(&self.name, &PostParams::default(), &next)).await {
                Ok(Ok(written)) => {
                    let at = revision(&written.metadata);
                    assert!(
                        at > self.revision,
                        "{}: {at} was acknowledged after {}",
                        self.name,
                        self.revision
                    );
                    (self.value, self.revision) = (self.value + 1, at);
                    acknowledged.add(at);
                }
                _ => self.read_back(acknowledged).await,
            }
            if self.value.is_multiple_of(10) {
                self.create(acknowledged).await;
            }
        }
        self
    }

    /// After a write of unknown outcome: it is wholly there or wholly not.
    async fn read_back(&mut self, acknowledged: &Acknowledged) {
        acknowledged.unknown.fetch_add(1, Ordering::SeqCst);
        let deadline = Instant::now() + PATIENCE;
        let read = loop {
            match timeout(ANSWER, self.api.get(&self.name)).await {
                Ok(Ok(read)) => break read,
                Ok(Err(kube::Error::Api(status))) if status.code == 404 => panic!("{} is gone", self.name),
                _ => assert!(
                    Instant::now() < deadline,
                    "{} cannot be read for {PATIENCE:?}",
                    self.name
                ),
            }
            tokio::time::sleep(Duration::from_millis(50)).await; // between attempts
        };
        let (found, at) = (value(&read), revision(&read.metadata));
        let fits = (found == self.value && at == self.revision) || (found == self.value + 1 && at > self.revision);
        assert!(
            fits,
            "{}: value {} at {} was acknowledged, {found} at {at} is there",
            self.name, self.value, self.revision
        );
        (self.value, self.revision) = (found, at);
    }

    async fn create(&mut self, acknowledged: &Acknowledged) {
        let name = format!("{}-{}", self.name, self.value);
        let object = config_map(name.clone(), self.value, None);
        if let Ok(Ok(created)) = timeout(ANSWER, self.api.create(&PostParams::default(), &object)).await {
            acknowledged.add(revision(&created.metadata));
            self.created.push(name);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_killed_loses_nothing_that_was_acknowledged() {
    let kills = std::env::var(KILLS_VARIABLE).map_or(KILLS, |kills| kills.parse().unwrap());
    let it = exclusive().await;
    let _deadline = Deadline::within(PATIENCE * u32::try_from(kills + 5).unwrap());
    // what stood in a batch that nobody was told of, and the operator, if there is one, without its API server
    for text in [
        "cut a torn batch",
        "a watch was interrupted",
        "no answer from the lock",
        "could not renew the lease",
    ] {
        it.cluster.provoke(text).unwrap();
    }
    let client = it.cluster.client().await.unwrap();
    let namespace = Namespace {
        metadata: ObjectMeta {
            name: Some(NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    };
    Api::<Namespace>::all(client.clone())
        .create(&PostParams::default(), &namespace)
        .await
        .unwrap();
    let api = Api::<ConfigMap>::namespaced(client.clone(), NAMESPACE);

    let acknowledged: &'static Acknowledged = Box::leak(Box::default());
    let (stop, stopped) = watch::channel(false);
    let mut writers = JoinSet::new();
    for number in 0..WRITERS {
        writers.spawn(
            Writer::start(number, client.clone())
                .await
                .run(acknowledged, stopped.clone()),
        );
    }
    let step = it.progress.step(format_args!("store killed {kills} times under load"));
    let mut slowest = Duration::ZERO;
    for _ in 0..kills {
        acknowledge(acknowledged, LOAD).await;
        let killed = it.cluster.state().unwrap().programs[store::NAME];
        let before = acknowledged.newest.load(Ordering::SeqCst);
        assert!(killed.signal(Signal::KILL), "the store had ended by itself");
        let at = Instant::now();
        until(
            || it.cluster.state().unwrap().programs[store::NAME] != killed,
            "the store was started again",
        )
        .await;
        acknowledge(acknowledged, WRITERS + 1).await; // at least one was begun after the kill
        slowest = slowest.max(at.elapsed());
        let list = timeout(PATIENCE, listed(&api)).await.expect("a list in time");
        let listed: i64 = list.metadata.resource_version.unwrap().parse().unwrap();
        assert!(
            listed >= before,
            "the list is of {listed}, {before} was acknowledged before the kill"
        );
    }
    step.done();
    stop.send(true).unwrap();
    let writers = writers.join_all().await;

    let list = listed(&api).await.items;
    let find = |name: &str| list.iter().find(|item| item.metadata.name.as_deref() == Some(name));
    for writer in &writers {
        let last = find(&writer.name).expect("the object that is counted");
        assert_eq!(
            (value(last), revision(&last.metadata)),
            (writer.value, writer.revision),
            "{}",
            writer.name
        );
        for name in &writer.created {
            assert!(find(name).is_some(), "{name} was acknowledged and is not there");
        }
    }
    let (writes, unknown) = (
        *acknowledged.writes.borrow(),
        acknowledged.unknown.load(Ordering::SeqCst),
    );
    it.progress.say(format_args!(
        "  {writes} writes acknowledged, {unknown} of unknown outcome; back after {slowest:?} at most"
    ));
    the_cluster_works(&client).await;
    tokio::task::block_in_place(|| it.watch_agrees_with_list());
}

/// Waits for so many more acknowledged writes.
async fn acknowledge(acknowledged: &Acknowledged, more: usize) {
    let mut writes = acknowledged.writes.subscribe();
    let enough = *writes.borrow() + more;
    timeout(PATIENCE, writes.wait_for(|writes| *writes >= enough))
        .await
        .expect("writes in time")
        .unwrap();
}

async fn until(reached: impl Fn() -> bool, what: &str) {
    let deadline = Instant::now() + PATIENCE;
    while !reached() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A list, as soon as there is one to be had.
async fn listed(api: &Api<ConfigMap>) -> kube::core::ObjectList<ConfigMap> {
    loop {
        if let Ok(Ok(list)) = timeout(ANSWER, api.list(&ListParams::default())).await {
            return list;
        }
    }
}

/// Controllers, scheduler and kubelet have found back too.
async fn the_cluster_works(client: &kube::Client) {
    kubelet::ready(client).await.unwrap();
    let deployments = Api::<Deployment>::namespaced(client.clone(), NAMESPACE);
    let deployment = serde_json::from_value(json!({
        "metadata": {"name": "after"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "after"}},
            "template": {
                "metadata": {"labels": {"app": "after"}},
                "spec": {"containers": [{"name": "serve", "image": "kubebrain.io/pod:e2e", "args": ["serve"]}]},
            },
        },
    }));
    deployments
        .create(&PostParams::default(), &deployment.unwrap())
        .await
        .unwrap();
    let available = await_condition(deployments, "after", |deployment: Option<&Deployment>| {
        deployment.and_then(|it| it.status.as_ref()?.available_replicas) == Some(2)
    });
    timeout(PATIENCE, available).await.expect("two pods in time").unwrap();
}
