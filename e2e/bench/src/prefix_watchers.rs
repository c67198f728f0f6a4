//! Watchers of a prefix that read along, as the caches of API servers do.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use programs::server::Server;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use wire::mvccpb::Event;

use crate::grpc::{Connections, WindowSizes};
use crate::watch_stream::{self, WatchStream};

/// Time for events of the last writes.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(300);

/// Watchers, each on a connection of its own.
pub(crate) struct PrefixWatchers {
    tasks: JoinSet<anyhow::Result<()>>,
    received: Vec<watch::Receiver<ReceivedEvents>>,
    _connections: Connections,
}

/// Events of a watcher so far.
#[derive(Clone, Copy, Debug, Default)]
struct ReceivedEvents {
    count: u64,
    revision: i64,
}

impl PrefixWatchers {
    /// Returns when all are created. Each event is passed on with the time at which it was received.
    pub(crate) async fn start(
        server: &Server,
        prefix: &str,
        count: usize,
        on_event: impl Fn(&Event, Instant) -> anyhow::Result<()> + Clone + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        let connections = Connections::open(server, count, WindowSizes::Large).await?;
        let (mut tasks, mut received) = (JoinSet::new(), Vec::new());
        for n in 0..count {
            let stream = WatchStream::of_prefix(connections.get(n as u64), prefix).await?;
            let (sender, receiver) = watch::channel(ReceivedEvents::default());
            received.push(receiver);
            tasks.spawn(follow(stream, sender, on_event.clone()));
        }
        Ok(Self {
            tasks,
            received,
            _connections: connections,
        })
    }

    /// Measures while they read. Fails if one ends.
    pub(crate) async fn while_reading<T>(
        &mut self,
        measuring: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        watch_stream::while_watching(measuring, &mut self.tasks).await
    }

    /// Waits until all have received the event of `revision`, the last one. Each must have received this many events.
    pub(crate) async fn finish(mut self, revision: i64, events: u64) -> anyhow::Result<()> {
        let mut received = std::mem::take(&mut self.received);
        let all = async {
            for receiver in &mut received {
                let last = receiver.wait_for(|received| received.revision >= revision);
                let count = last.await.context("a watcher ended")?.count;
                ensure!(count == events, "a watcher received {count} events of {events} writes");
            }
            Ok(())
        };
        let all = timeout(CATCH_UP_TIMEOUT, self.while_reading(all));
        all.await.context("watchers did not receive all events")?
    }
}

async fn follow(
    mut stream: WatchStream,
    received: watch::Sender<ReceivedEvents>,
    on_event: impl Fn(&Event, Instant) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut so_far = ReceivedEvents::default();
    loop {
        let response = stream.next().await?;
        let at = Instant::now();
        for event in &response.events {
            let revision = event.kv.as_ref().context("an event without a key")?.mod_revision;
            ensure!(
                revision > so_far.revision,
                "an event of revision {revision} after {}",
                so_far.revision
            );
            so_far.revision = revision;
            so_far.count += 1;
            on_event(event, at)?;
        }
        received.send_replace(so_far);
    }
}
