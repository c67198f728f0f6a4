//! Random commits, compactions, readers and requests; every watcher must receive exactly the events it requested.

use std::collections::BTreeMap;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;

use super::*;
use ::watch::{KeyRange, WatchLimits};
use etcd_types::pb::etcdserverpb::watch_create_request::FilterType;

const KEYS: [&str; 8] = ["a", "a/1", "a/2", "b", "b/1", "b/2", "c", "c/\u{7f}"];
const ENDS: [&str; 5] = ["", "\0", "a0", "b/2", "d"];
const ROUNDS: u64 = 12;

/// Everything that was ever committed, for comparison.
type Truth = Arc<std::sync::Mutex<BTreeMap<Revision, Arc<Committed>>>>;

/// A client's knowledge of one of its watchers.
struct Watcher {
    create: WatchCreateRequest,
    range: KeyRange,
    /// Every event before this revision was received or does not concern it.
    next: Revision,
}

impl Watcher {
    /// Returns the events that must arrive between `next` and revision `through`.
    fn expected(&self, truth: &Truth, through: Revision) -> Vec<mvccpb::Event> {
        let truth = truth.lock().unwrap();
        let revisions = truth
            .range(self.next..)
            .take_while(|(revision, _)| **revision <= through);
        let events = revisions.flat_map(|(_, committed)| &committed.events);
        events
            .filter(|event| self.wants(event))
            .map(|event| wire(event, self.create.prev_kv))
            .collect()
    }

    fn wants(&self, event: &Event) -> bool {
        let filter = match event.kind {
            EventKind::Put => FilterType::Noput,
            EventKind::Delete => FilterType::Nodelete,
        };
        self.range.contains(&event.kv.key) && !self.create.filters.contains(&filter.into())
    }
}

fn wire(event: &Event, prev_kv: bool) -> mvccpb::Event {
    let kv = |kv: &KeyValue| mvccpb::KeyValue {
        key: kv.key.clone(),
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        version: kv.version,
        value: kv.value.clone(),
        lease: kv.lease.0,
    };
    mvccpb::Event {
        r#type: i32::from(event.kind == EventKind::Delete),
        kv: Some(kv(&event.kv)),
        prev_kv: event.prev_kv.as_ref().filter(|_| prev_kv).map(kv),
    }
}

/// A client with some watchers, which reads at its own pace.
struct Reader {
    rng: SmallRng,
    stream: Stream,
    truth: Truth,
    history: ModelHistory,
    watchers: BTreeMap<i64, Watcher>,
    compacted: usize,
    progress: usize,
    events: usize,
}

impl Reader {
    /// Reads until every watcher has received everything through `last`, which is committed when `done` announces it.
    async fn run(mut self, mut done: watch::Receiver<Option<Revision>>) -> (usize, usize, usize) {
        for _ in 0..self.rng.random_range(1..6) {
            self.create().await;
        }
        let mut asked = false;
        loop {
            let last = *done.borrow_and_update();
            if let Some(last) = last
                && !asked
            {
                self.give_up_on_the_future(last).await;
                if self.watchers.is_empty() {
                    return (self.events, self.progress, self.compacted);
                }
                self.stream.ask_progress().await;
                asked = true;
            }
            let Some(response) = self.read(&mut done).await else {
                continue;
            };
            let reached = revision(&response);
            let is_progress = is_progress(&response);
            self.check(&response);
            if self.watchers.is_empty() || (is_progress && last.is_some_and(|last| reached >= last)) {
                return (self.events, self.progress, self.compacted);
            }
            if !asked && self.rng.random_bool(0.1) {
                self.stream.ask_progress().await;
            }
            for _ in 0..self.rng.random_range(0..40) {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Cancels watchers that begin after `last`, the last revision there will be.
    async fn give_up_on_the_future(&mut self, last: Revision) {
        let begins_later = |watcher: &Watcher| watcher.create.start_revision > last;
        let later: Vec<i64> = self
            .watchers
            .iter()
            .filter(|(_, watcher)| begins_later(watcher))
            .map(|(id, _)| *id)
            .collect();
        for id in later {
            self.stream.cancel(id).await;
            loop {
                let response = self.stream.response().await;
                if response.watch_id == id && response.canceled {
                    break;
                }
                self.check(&response);
            }
            self.watchers.remove(&id);
        }
    }

    /// Returns a response, or none if the end is announced first.
    async fn read(&mut self, done: &mut watch::Receiver<Option<Revision>>) -> Option<WatchResponse> {
        if done.borrow().is_some() {
            return Some(self.stream.response().await);
        }
        tokio::select! {
            response = self.stream.response() => Some(response),
            changed = done.changed() => {
                changed.unwrap();
                None
            }
        }
    }

    async fn create(&mut self) {
        use ::watch::History;
        let any = |rng: &mut SmallRng, of: &[&'static str]| of[rng.random_range(0..of.len())];
        let mut create = span(any(&mut self.rng, &KEYS), any(&mut self.rng, &ENDS));
        let published = self.history.published();
        create.prev_kv = self.rng.random();
        create.fragment = self.rng.random();
        create.start_revision = match self.rng.random_range(0..3) {
            0 => 0,
            1 => self.rng.random_range(1..published + 10),
            _ => published + 1,
        };
        if self.rng.random_bool(0.2) {
            create.filters.push(self.rng.random_range(0..2));
        }
        self.stream.send(RequestUnion::CreateRequest(create.clone())).await;
        let created = loop {
            let response = self.stream.response().await;
            if response.created {
                break response;
            }
            self.check(&response);
        };
        let Ok(range) = KeyRange::from_request(create.key.clone(), create.range_end.clone()) else {
            assert!(created.canceled);
            return;
        };
        let next = if create.start_revision == 0 {
            revision(&created) + 1
        } else {
            create.start_revision
        };
        self.watchers.insert(created.watch_id, Watcher { create, range, next });
    }

    fn check(&mut self, response: &WatchResponse) {
        use ::watch::History;
        if is_progress(response) {
            self.progress += 1;
            assert_eq!(response.watch_id, -1, "nobody asked for periodic progress");
            for (id, watcher) in &mut self.watchers {
                assert!(
                    watcher.next - 1 <= revision(response),
                    "progress goes back for watcher {id}"
                );
                let missed = watcher.expected(&self.truth, revision(response));
                assert!(missed.is_empty(), "progress overtook {missed:?} of watcher {id}");
                assert!(
                    watcher.create.start_revision <= revision(response),
                    "progress before the start"
                );
                watcher.next = revision(response) + 1;
            }
            return;
        }
        if response.canceled {
            let watcher = self.watchers.remove(&response.watch_id).expect("a watcher of ours");
            assert!(response.compact_revision > watcher.next.min(watcher.create.start_revision));
            assert!(response.compact_revision <= self.history.compacted());
            self.compacted += 1;
            return;
        }
        let watcher = self.watchers.get_mut(&response.watch_id).expect("a watcher of ours");
        let events = events(response);
        self.events += events.len();
        let through = events.last().expect("an event").kv.as_ref().unwrap().mod_revision;
        let mut expected = watcher.expected(&self.truth, through);
        // Compaction may have removed the version that an event replaced, if it has reached that event.
        let compacted = self.history.compacted();
        for (seen, expected) in events.iter().zip(&mut expected) {
            let replaced = expected.kv.as_ref().expect("a key").mod_revision;
            let lost = seen.prev_kv.is_none() && replaced <= compacted;
            expected.prev_kv.take_if(|_| lost);
        }
        assert_eq!(
            events, expected,
            "watcher {} of {:?}",
            response.watch_id, watcher.create
        );
        assert!(revision(response) >= through);
        watcher.next = through + 1;
    }
}

async fn round(seed: u64) -> (usize, usize, usize) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let bounds = WatchLimits {
        ring_bytes: [0, 5_000, 20_000, 1 << 20][rng.random_range(0..4)],
        mailbox_runs: rng.random_range(1..20),
        batch_bytes: rng.random_range(1..2_000),
        batch_events: rng.random_range(1..50),
        chunk_bytes: rng.random_range(1..5_000),
        cache_bytes: rng.random_range(0..20_000),
        ..WatchLimits::default()
    };
    let mut member = Member::start(bounds).await;
    let truth = Truth::default();
    let (done, is_done) = watch::channel(None);
    let mut readers = JoinSet::new();
    let count = rng.random_range(1..8);
    for _ in 0..400 {
        if readers.len() < count && rng.random_bool(0.05) {
            let reader = Reader {
                rng: SmallRng::seed_from_u64(rng.random()),
                stream: member.stream().await,
                truth: Arc::clone(&truth),
                history: member.history.clone(),
                watchers: BTreeMap::new(),
                compacted: 0,
                progress: 0,
                events: 0,
            };
            readers.spawn(reader.run(is_done.clone()));
        }
        commit_some(&mut rng, &mut member, &truth);
        for _ in 0..rng.random_range(0..30) {
            tokio::task::yield_now().await;
        }
    }
    // Watchers with a start in the future would wait for ever.
    for _ in 0..10 {
        commit_some(&mut rng, &mut member, &truth);
    }
    done.send_replace(Some(member.hub.revision()));
    let mut sum = (0, 0, 0);
    while let Some(reader) = readers.join_next().await {
        let (events, progress, compacted) = reader.unwrap();
        sum = (sum.0 + events, sum.1 + progress, sum.2 + compacted);
    }
    sum
}

/// Commits one to three revisions, published together, and sometimes compacts.
fn commit_some(rng: &mut SmallRng, member: &mut Member, truth: &Truth) {
    use ::watch::History;
    let mut batch = Vec::new();
    for _ in 0..rng.random_range(1..4) {
        let value = vec![rng.random(); rng.random_range(0..200)];
        let mut keys: Vec<&str> = KEYS.into_iter().filter(|_| rng.random_bool(0.3)).collect();
        if keys.is_empty() {
            keys.push(KEYS[rng.random_range(0..KEYS.len())]);
        }
        let changes: Vec<Change<'_>> = keys
            .into_iter()
            .map(|key| (key, rng.random_bool(0.8).then_some(&value[..])))
            .collect();
        let committed = member.remember(&changes);
        truth.lock().unwrap().insert(committed.revision, Arc::clone(&committed));
        batch.push(committed);
    }
    member.hub.publish(batch);
    if rng.random_bool(0.02) {
        let published = member.history.published();
        member.history.compact(rng.random_range(published / 2..=published));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_watcher_sees_exactly_its_events_whatever_happens() {
    let first: u64 = std::env::var("WATCH_SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    let mut sum = (0, 0, 0);
    let happened = |(events, progress, compacted)| events > 1000 && progress > 0 && compacted > 0;
    for n in 0..10 * ROUNDS {
        if n >= ROUNDS && happened(sum) {
            return;
        }
        let seed = first.wrapping_add(n);
        eprintln!("WATCH_SEED={seed}");
        let (events, progress, compacted) = round(seed).await;
        sum = (sum.0 + events, sum.1 + progress, sum.2 + compacted);
    }
    panic!("too little happened: {sum:?}");
}
