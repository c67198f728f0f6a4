//! Watchers on a few streams.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use rand::RngExt as _;
use rand::seq::IteratorRandom as _;
use wire::etcdserverpb as pb;

use super::Script;
use crate::request::Request;

const MAX_STREAMS: usize = 4;
const MAX_WATCHERS: usize = 12;
const MAX_REVISION_DISTANCE: i64 = 20;

/// Known state of the streams.
#[derive(Debug, Default)]
pub(super) struct Streams(BTreeMap<usize, KnownStream>);

#[derive(Debug, Default)]
struct KnownStream {
    watchers: BTreeSet<i64>,
    /// No progress is reported before this revision.
    silent_until: i64,
}

impl Streams {
    pub(super) fn created(
        &mut self,
        at: usize,
        fresh: bool,
        create: &pb::WatchCreateRequest,
        created: &pb::WatchResponse,
    ) {
        if fresh {
            self.0.insert(at, KnownStream::default());
        }
        let stream = self.0.entry(at).or_default();
        if !created.canceled {
            stream.watchers.insert(created.watch_id);
            stream.silent_until = stream.silent_until.max(create.start_revision);
        }
    }

    pub(super) fn ended(&mut self, at: usize, id: i64) {
        if let Some(stream) = self.0.get_mut(&at) {
            stream.watchers.remove(&id);
        }
    }
}

impl Script {
    pub(super) fn watch(&mut self) -> Request {
        let stream = self.random.rng.random_range(0..MAX_STREAMS);
        let full = self
            .streams
            .0
            .get(&stream)
            .is_some_and(|stream| stream.watchers.len() >= MAX_WATCHERS);
        let fresh = full || !self.streams.0.contains_key(&stream) || self.random.chance(5);
        if fresh {
            self.settle_one(stream);
        }
        let (key, range_end) = self.random.span();
        let start_revision = match self.random.rng.random_range(0..20) {
            0..=6 => 0,
            7..=14 => self
                .random
                .rng
                .random_range((self.random.known.compacted - 2).max(1)..=self.random.known.revision),
            15..=16 => self.random.known.revision + self.random.rng.random_range(1..=MAX_REVISION_DISTANCE),
            17..=18 => self.random.known.compacted + self.random.rng.random_range(-2..=1),
            _ => self.random.pick(&[-1, -5, i64::MIN]),
        };
        let create = pb::WatchCreateRequest {
            key,
            range_end,
            start_revision,
            progress_notify: self.random.chance(30),
            filters: self
                .random
                .pick::<&[i32]>(&[&[], &[], &[], &[], &[0], &[1], &[0, 1], &[5]])
                .to_vec(),
            prev_kv: self.random.chance(50),
            watch_id: self.random.pick(&[0, 0, 0, 0, 1, 2, 3, 7, 100, -7, i64::MAX]),
            fragment: self.random.chance(30),
        };
        if start_revision > 0 && start_revision < self.random.known.compacted {
            // when the server ends it is not determined: nothing may happen on this stream before
            self.reach(stream);
            let watch = Request::Watch { stream, fresh, create };
            self.push(watch);
            return self.settle_of(stream);
        }
        Request::Watch { stream, fresh, create }
    }

    pub(super) fn cancel(&mut self) -> Request {
        let Some((stream, known)) = self.any_stream() else {
            return self.watch();
        };
        match known {
            Some(id) if self.random.chance(85) => {
                self.settle_one(stream);
                Request::Cancel {
                    stream,
                    id,
                    known: true,
                }
            }
            _ => Request::Cancel {
                stream,
                id: 4_711,
                known: false,
            },
        }
    }

    pub(super) fn settle(&mut self) -> Request {
        let Some((stream, _)) = self.any_stream() else {
            return self.watch();
        };
        self.reach(stream);
        self.settle_of(stream)
    }

    pub(super) fn settle_all(&mut self) {
        let streams: Vec<usize> = self.streams.0.keys().copied().collect();
        for stream in &streams {
            self.reach(*stream);
        }
        for stream in streams {
            let settle = self.settle_of(stream);
            self.push(settle);
        }
    }

    fn settle_one(&mut self, stream: usize) {
        if self.streams.0.contains_key(&stream) {
            self.reach(stream);
            let settle = self.settle_of(stream);
            self.push(settle);
        }
    }

    fn any_stream(&mut self) -> Option<(usize, Option<i64>)> {
        let (at, stream) = self.streams.0.iter().choose(&mut self.random.rng)?;
        Some((*at, stream.watchers.iter().copied().choose(&mut self.random.rng)))
    }

    /// Puts until the store is where every watcher of the stream has begun.
    fn reach(&mut self, stream: usize) {
        let until = self.streams.0.get(&stream).map_or(0, |stream| stream.silent_until);
        let queued = self
            .queue
            .iter()
            .filter(|step| matches!(step.request, Request::Put(_)))
            .count();
        let reached = self.random.known.revision + i64::try_from(queued).unwrap_or(i64::MAX);
        for n in reached..until {
            let put = pb::PutRequest {
                key: Bytes::from_static(b"ab"),
                value: n.to_string().into(),
                ..pb::PutRequest::default()
            };
            self.push(Request::Put(put));
        }
    }

    /// The revision is the one that the queued puts lead to.
    fn settle_of(&self, stream: usize) -> Request {
        let queued = self
            .queue
            .iter()
            .filter(|step| matches!(step.request, Request::Put(_)))
            .count();
        Request::Settle {
            stream,
            revision: self.random.known.revision + i64::try_from(queued).unwrap_or(0),
        }
    }
}
