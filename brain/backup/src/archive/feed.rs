//! Follows a store: its changes as they arrive, with the time, and the times up to which nothing is missing.

use std::collections::HashSet;
use std::pin::pin;
use std::time::{Duration, SystemTime};

use futures::StreamExt as _;
use tokio::sync::mpsc;

use super::content;
use crate::import::Source;
use crate::import::follow::next;
use crate::snapshot::{LeaseTime, RevisionEvents};
use etcd_types::types::Revision;

/// The interval at which the source is asked for its revision.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// The number of leases that the feed knows to be stored. It stores others again.
const MAX_KNOWN_LEASES: usize = 100_000;

/// An item of a feed.
#[derive(Debug)]
pub enum FeedItem {
    /// The revisions that come next, all of each.
    Revisions {
        first: Revision,
        last: Revision,
        /// Their stored form, which [`Replay::apply`](super::Replay::apply) takes.
        content: Vec<u8>,
        /// When they had arrived.
        received: SystemTime,
    },
    /// All that was committed before this time has arrived.
    Current(SystemTime),
}

/// Follows a source from a revision on.
pub struct Feed {
    watched: Source,
    prober: Source,
    after: Revision,
}

impl Feed {
    /// Connects to the source twice more. Fails if it does not answer.
    pub async fn open(source: &Source, after: Revision) -> anyhow::Result<Self> {
        Ok(Self {
            watched: source.patient().await?,
            prober: source.patient().await?,
            after,
        })
    }

    /// Sends what the source does, until the receiver is gone. While the receiver is busy nothing is read from the source. A watch that is
    /// lost continues at the same revision, however long the source cannot be reached. Fails with
    /// [`SourceCompacted`](crate::import::SourceCompacted) if the source has deleted the next revision.
    pub async fn run(self, items: mpsc::Sender<FeedItem>) -> anyhow::Result<()> {
        let Self {
            mut watched,
            prober,
            after,
        } = self;
        let mut probes = pin!(futures::stream::unfold(prober, async |mut prober| {
            tokio::time::sleep(PROBE_INTERVAL).await;
            let asked = SystemTime::now();
            let revision = prober.revision().await;
            Some((revision.map(|revision| (asked, revision)), prober))
        }));
        let (mut watch, mut last, mut probed) = (None, after, None);
        let mut leases = KnownLeases::default();
        loop {
            tokio::select! {
                // The answer before is not reached yet, and a later one would be reached later.
                answer = probes.next(), if probed.is_none() => probed = answer.transpose()?,
                revised = next(&mut watched, &mut watch, last) => {
                    let (revised, received) = (revised?, SystemTime::now());
                    let (Some(first), Some(newest)) = (revised.first(), revised.last()) else {
                        continue;
                    };
                    let first = first.revision;
                    last = newest.revision;
                    let named = leases.ask(&mut watched, &revised).await?;
                    let content = content::encode(revised, named);
                    let item = FeedItem::Revisions { first, last, content, received };
                    if items.send(item).await.is_err() {
                        return Ok(());
                    }
                }
            }
            if let Some((asked, _)) = probed.take_if(|(_, revision)| *revision <= last)
                && items.send(FeedItem::Current(asked)).await.is_err()
            {
                return Ok(());
            }
        }
    }
}

/// Leases that are stored already, or that had ended.
#[derive(Default)]
struct KnownLeases(HashSet<i64>);

impl KnownLeases {
    /// Asks for the leases that are named for the first time. One that has ended has no answer.
    async fn ask(&mut self, source: &mut Source, revised: &[RevisionEvents]) -> anyhow::Result<Vec<LeaseTime>> {
        if self.0.len() > MAX_KNOWN_LEASES {
            self.0.clear();
        }
        let named = revised.iter().flat_map(|revised| &revised.kvs).map(|kv| kv.lease);
        let new: Vec<i64> = named.filter(|id| *id != 0 && self.0.insert(*id)).collect();
        source.lease_times(&new).await
    }
}
