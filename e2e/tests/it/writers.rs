//! Writers of objects that count up, and what was acknowledged to them.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, ListParams, ObjectMeta, PostParams};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

pub(crate) const WRITERS: usize = 8;
/// After this a request's outcome counts as unknown.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Most errors that are reported.
const MAX_REPORTED_ERRORS: usize = 5;
/// For the cluster to come back.
pub(crate) const RECOVERY_TIMEOUT: Duration = Duration::from_secs(120);

/// Writers that run until they are ended.
pub(crate) struct Load {
    api: Api<ConfigMap>,
    acknowledged: Arc<Acknowledged>,
    stop: watch::Sender<bool>,
    writers: JoinSet<Writer>,
}

impl Load {
    /// Makes a namespace and begins to write in it.
    pub(crate) async fn start(client: &kube::Client, namespace: &str) -> Self {
        let metadata = ObjectMeta {
            name: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        };
        let object = Namespace {
            metadata,
            ..Namespace::default()
        };
        Api::<Namespace>::all(client.clone())
            .create(&PostParams::default(), &object)
            .await
            .unwrap();
        let api = Api::<ConfigMap>::namespaced(client.clone(), namespace);
        let acknowledged = Arc::new(Acknowledged::new());
        let (stop, stopped) = watch::channel(false);
        let mut writers = JoinSet::new();
        for number in 0..WRITERS {
            let writer = Writer::start(number, api.clone()).await;
            writers.spawn(writer.run(acknowledged.clone(), stopped.clone()));
        }
        Self {
            api,
            acknowledged,
            stop,
            writers,
        }
    }

    /// Waits for this many more acknowledged writes.
    pub(crate) async fn acknowledge(&self, more: usize) {
        let mut writes = self.acknowledged.writes.subscribe();
        let enough = *writes.borrow() + more;
        timeout(RECOVERY_TIMEOUT, writes.wait_for(|writes| *writes >= enough))
            .await
            .expect("writes in time")
            .unwrap();
    }

    /// The newest revision that was acknowledged.
    pub(crate) fn newest(&self) -> i64 {
        self.acknowledged.newest.load(Ordering::SeqCst)
    }

    /// Number of writes that have failed until now, or had no answer in time; where API servers are restarted, closing connections add
    /// writes that they did not take.
    pub(crate) fn failed(&self) -> usize {
        self.unknown() + self.acknowledged.untaken.load(Ordering::SeqCst)
    }

    /// Number of writes that have failed until now, or had no answer in time, though an API server may have taken them.
    pub(crate) fn unknown(&self) -> usize {
        self.acknowledged.unknown.load(Ordering::SeqCst)
    }

    /// The longest time until now without an acknowledged write.
    pub(crate) fn longest_gap(&self) -> Duration {
        let gaps = self.acknowledged.gaps.lock().unwrap();
        gaps.longest.max(gaps.last.elapsed())
    }

    /// A list, as soon as the API server returns one.
    pub(crate) async fn list(&self) -> kube::core::ObjectList<ConfigMap> {
        let listed = async {
            loop {
                if let Ok(Ok(list)) = timeout(ANSWER_TIMEOUT, self.api.list(&ListParams::default())).await {
                    return list;
                }
            }
        };
        timeout(RECOVERY_TIMEOUT, listed).await.expect("a list in time")
    }

    /// Ends the writers, and checks that everything acknowledged to them is stored. Returns a summary of them.
    pub(crate) async fn end(mut self) -> String {
        self.stop.send(true).unwrap();
        let writers = std::mem::take(&mut self.writers).join_all().await;
        let list = self.list().await.items;
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
        let (writes, unknown, untaken) = (
            *self.acknowledged.writes.borrow(),
            self.acknowledged.unknown.load(Ordering::SeqCst),
            self.acknowledged.untaken.load(Ordering::SeqCst),
        );
        let errors = self.acknowledged.errors.lock().unwrap().join("; ");
        format!("{writes} writes acknowledged, {untaken} not taken by a closing connection, {unknown} of unknown outcome {errors}")
            .trim_end()
            .to_owned()
    }
}

/// Acknowledged writes of all writers.
struct Acknowledged {
    writes: watch::Sender<usize>,
    newest: AtomicI64,
    unknown: AtomicUsize,
    /// Writes whose connection an API server closed before it took them: HTTP/1.1 has no way to say so in time.
    untaken: AtomicUsize,
    /// Errors of the first of them.
    errors: Mutex<Vec<String>>,
    gaps: Mutex<Gaps>,
}

struct Gaps {
    last: Instant,
    longest: Duration,
}

impl Acknowledged {
    fn new() -> Self {
        Self {
            writes: watch::Sender::default(),
            newest: AtomicI64::default(),
            unknown: AtomicUsize::default(),
            untaken: AtomicUsize::default(),
            errors: Mutex::default(),
            gaps: Mutex::new(Gaps {
                last: Instant::now(),
                longest: Duration::ZERO,
            }),
        }
    }

    /// A write did not take place, and its connection ended instead of an answer.
    fn repeat(&self) {
        self.untaken.fetch_add(1, Ordering::SeqCst);
    }

    /// A write failed, or had no answer.
    fn fail(&self, why: &str) {
        self.unknown.fetch_add(1, Ordering::SeqCst);
        let mut errors = self.errors.lock().unwrap();
        if errors.len() < MAX_REPORTED_ERRORS {
            errors.push(why.to_owned());
        }
    }

    fn add(&self, revision: i64) {
        self.newest.fetch_max(revision, Ordering::SeqCst);
        self.writes.send_modify(|writes| *writes += 1);
        let mut gaps = self.gaps.lock().unwrap();
        gaps.longest = gaps.longest.max(gaps.last.elapsed());
        gaps.last = Instant::now();
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

/// Increments one object by updates, each with the resourceVersion that it builds on, and creates a new object for each tenth value.
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
    async fn start(number: usize, api: Api<ConfigMap>) -> Self {
        let name = format!("w-{number}");
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

    async fn run(mut self, acknowledged: Arc<Acknowledged>, mut stop: watch::Receiver<bool>) -> Self {
        while !*stop.borrow_and_update() {
            let before = self.value;
            let next = config_map(self.name.clone(), self.value + 1, Some(self.revision));
            match timeout(
                ANSWER_TIMEOUT,
                self.api.replace(&self.name, &PostParams::default(), &next),
            )
            .await
            {
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
                Ok(Err(error)) => self.read_back(&acknowledged, Some(&error)).await,
                Err(_) => self.read_back(&acknowledged, None).await,
            }
            // A write that was not taken leaves the value as it was: the object of that value has been created already.
            if self.value != before && self.value.is_multiple_of(10) {
                self.create(&acknowledged).await;
            }
        }
        self
    }

    /// After a write of unknown outcome, with its error if it had one in time: it is wholly there or wholly not.
    async fn read_back(&mut self, acknowledged: &Acknowledged, error: Option<&kube::Error>) {
        let deadline = Instant::now() + RECOVERY_TIMEOUT;
        let read = loop {
            match timeout(ANSWER_TIMEOUT, self.api.get(&self.name)).await {
                Ok(Ok(read)) => break read,
                Ok(Err(kube::Error::Api(status))) if status.code == 404 => panic!("{} is gone", self.name),
                _ => assert!(
                    Instant::now() < deadline,
                    "{} cannot be read for {RECOVERY_TIMEOUT:?}",
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
        match error {
            Some(error) if is_closed(error) && found == self.value => acknowledged.repeat(),
            error => acknowledged.fail(&error.map_or("no answer in time".to_owned(), in_words)),
        }
        (self.value, self.revision) = (found, at);
    }

    async fn create(&mut self, acknowledged: &Acknowledged) {
        let name = format!("{}-{}", self.name, self.value);
        let object = config_map(name.clone(), self.value, None);
        match timeout(ANSWER_TIMEOUT, self.api.create(&PostParams::default(), &object)).await {
            Ok(Ok(created)) => {
                acknowledged.add(revision(&created.metadata));
                self.created.push(name);
            }
            Ok(Err(error)) if is_closed(&error) && self.is_absent(&name).await => acknowledged.repeat(),
            Ok(Err(error)) => acknowledged.fail(&in_words(&error)),
            Err(_) => acknowledged.fail("no answer in time"),
        }
    }

    async fn is_absent(&self, name: &str) -> bool {
        matches!(timeout(ANSWER_TIMEOUT, self.api.get_opt(name)).await, Ok(Ok(None)))
    }
}

/// Returns true if the connection to the API server ended instead of an answer.
fn is_closed(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Service(_) | kube::Error::HyperError(_))
}

/// An error with its causes.
fn in_words(error: &kube::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}
