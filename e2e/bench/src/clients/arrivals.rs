//! Events on their way from watchers to the measurement. The number of a put is in its value.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use crate::open_loop::RequestSchedule;
use crate::watch_stream::WatchStream;

const VALUE_BYTES: usize = 512;
/// Events that are received and not yet looked at; watchers wait when there are more.
const MAX_QUEUED_EVENTS: usize = 4_096;
/// Time for an event that is due.
const EVENT_TIMEOUT: Duration = Duration::from_secs(60);

/// The event of a put.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// Of the put.
    pub(super) number: u64,
    /// When it was received.
    pub(super) at: Instant,
}

/// The events that all watchers receive.
#[derive(Debug)]
pub(super) struct Arrivals(mpsc::Receiver<Arrival>);

pub(super) fn channel() -> (mpsc::Sender<Arrival>, Arrivals) {
    let (sender, receiver) = mpsc::channel(MAX_QUEUED_EVENTS);
    (sender, Arrivals(receiver))
}

/// The value of put `n`.
pub(super) fn value(n: u64) -> Bytes {
    let mut value = vec![b'v'; VALUE_BYTES];
    value[..8].copy_from_slice(&n.to_le_bytes());
    value.into()
}

impl Arrivals {
    /// The next one, which is to come soon.
    pub(super) async fn next(&mut self) -> anyhow::Result<Arrival> {
        let next = timeout(EVENT_TIMEOUT, self.0.recv()).await;
        next.context("an event did not come")?.context("all watchers ended")
    }

    /// Waits for the events of all puts of a load, each to this many watchers; returns milliseconds from the times of the
    /// schedule.
    pub(super) async fn latencies(&mut self, schedule: RequestSchedule, watchers: u8) -> anyhow::Result<Vec<f64>> {
        let mut seen = vec![0_u8; schedule.count() as usize];
        let all = seen.len() * usize::from(watchers);
        let mut latencies = Vec::with_capacity(all);
        while latencies.len() < all {
            let Arrival { number, at } = self.next().await?;
            let seen = seen
                .get_mut(number as usize)
                .with_context(|| format!("an event of put {number}"))?;
            *seen += 1;
            ensure!(
                *seen <= watchers,
                "{seen} events of put {number} to {watchers} watchers"
            );
            latencies.push(at.saturating_duration_since(schedule.at(number)).as_secs_f64() * 1_000.0);
        }
        Ok(latencies)
    }
}

/// Passes on each event. Fails if one is of a key that its watch did not ask for.
pub(super) async fn follow(
    mut stream: WatchStream,
    events: mpsc::Sender<Arrival>,
    is_watched: impl Fn(i64, &[u8]) -> bool,
) -> anyhow::Result<()> {
    loop {
        let response = stream.next().await?;
        let at = Instant::now();
        for event in response.events {
            let kv = event.kv.context("an event without a key")?;
            ensure!(
                is_watched(response.watch_id, &kv.key),
                "watch {} received an event of {:?}",
                response.watch_id,
                kv.key
            );
            let number = kv.value.first_chunk().context("a value without a number")?;
            let number = u64::from_le_bytes(*number);
            events
                .send(Arrival { number, at })
                .await
                .ok()
                .context("no receiver for events")?;
        }
    }
}
