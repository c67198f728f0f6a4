//! Follows a leader: applies what it commits, and reads the log where its stream has a gap or ends.
//!
//! Invariant: a slot is applied only when the leader has reported it as committed, or the log proves it.

use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use election::{Handle as Election, Record as Held};
use prost::Message;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tonic::transport::Channel;

use super::liveness::Liveness;
use super::peer::{MAX_MESSAGE_BYTES, superseded_of};
use super::probe;
use crate::forward::{LeaderClient, ReadIndexBatcher, Role, is_transport};
use crate::members::Members;
use crate::node::Node;
use engine::log::Slot;
use etcd_types::pb::etcdserverpb::Member;
use etcd_types::pb::peerpb::peer_client::PeerClient;
use etcd_types::pb::peerpb::{Batch, FollowRequest, FollowResponse};
use mvcc::record::Record;
use runtime::tasks::Owned;
use store::replica::{RefreshedRows, RowsRefresher, StoreOpenError};
use telemetry::metrics::PeerMetrics;

/// The interval at which a member without a leader reads the log.
const LOG_READ_INTERVAL: Duration = Duration::from_millis(200);

/// The interval at which a follower checks whether to rotate its memtable and to read newer rows.
const ROWS_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// The time limit for a leader to open the stream.
const STREAM_OPEN_TIMEOUT: Duration = Duration::from_secs(2);

/// The number of chunks of the log that are read before other events are handled.
const CHUNKS_PER_CATCH_UP: usize = 4;

/// The most that a follower may hold in memory and not in rows that it can read, as a multiple of the leader's bound: above it, the
/// follower applies nothing more. Its leader holds as much, and the follower can read the rows that the leader writes a moment
/// later.
const MAX_MEMTABLE_FACTOR: usize = 2;

/// The data that this member sends to its leader about itself.
#[derive(Debug, Clone)]
pub struct FollowerIdentity {
    /// This member.
    pub member: Member,
    /// All members.
    pub members: Members,
    /// Its identity in the election.
    pub identity: String,
    /// How long the leader's lock lasts without being renewed.
    pub lease_duration: Duration,
    /// The cluster that it belongs to.
    pub cluster_id: u64,
}

impl Node {
    /// Keeps up by reading the log alone, until `end` or without limit, and records in `liveness` when it was read: at least once.
    /// May be dropped at any time. Fails if log or rows are damaged.
    pub async fn tail(
        &mut self,
        liveness: &Liveness,
        refresher: &mut RowsRefresher,
        end: Option<Instant>,
    ) -> anyhow::Result<()> {
        loop {
            let step = self.step(None).await;
            let next = match &step {
                Ok(false) => Instant::now(),
                _ => Instant::now() + LOG_READ_INTERVAL,
            };
            match step {
                Ok(_) => liveness.note(),
                Err(error) if is_damage(&error) => return Err(error),
                Err(error) => tracing::debug!(error = format!("{error:#}"), "cannot read the log"),
            }
            refresher.want_after(ROWS_CHECK_INTERVAL);
            let is_last = end.is_some_and(|end| end <= next);
            let rest = tokio::time::sleep_until(end.filter(|_| is_last).unwrap_or(next));
            tokio::pin!(rest);
            loop {
                tokio::select! {
                () = &mut rest => break,
                read = refresher.next() => self.refresh(read).await?,
                }
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// Follows the leader that `channel` connects to until its stream ends, and publishes that in `roles`. While the leader's renewals
    /// arrive, `election` need not read the lock. Fails if the leader cannot be followed, or if log or rows are damaged.
    pub async fn follow(
        &mut self,
        channel: Channel,
        follower: &FollowerIdentity,
        (leader, metrics): (u64, &PeerMetrics),
        (roles, election, refresher): (&tokio::sync::watch::Sender<Role>, &Election, &mut RowsRefresher),
    ) -> anyhow::Result<()> {
        let mut client = PeerClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let member = Some(follower.member.clone());
        let asked = client.follow(FollowRequest {
            member,
            identity: follower.identity.clone(),
            cluster_id: follower.cluster_id,
            cannot_lead: self.replica.state().cannot_lead().is_some(),
        });
        let mut stream = tokio::time::timeout(STREAM_OPEN_TIMEOUT, asked).await??.into_inner();
        let (reads, asking) = ReadIndexBatcher::new(channel.clone(), MAX_MESSAGE_BYTES, follower.lease_duration);
        let mut asking = Owned::start(asking);
        let _probes = Owned::start(probe::run(channel.clone(), leader, metrics.clone()));
        let mut active = None;
        let mut seals = interval(ROWS_CHECK_INTERVAL);
        seals.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let response = tokio::select! {
            response = stream.message() => {
            if response.as_ref().is_err_and(is_transport) {
            metrics.receive_failed(leader);
            }
            response?
            }
            ended = asking.end() => {
            metrics.send_failed(leader);
            return ended.map(|()| tracing::info!("the leader does not answer"));
            }
            // A slow read of rows does not delay the leader's messages.
            read = refresher.next() => {
            self.refresh(read).await?;
            self.catch_up_if_behind().await?;
            continue;
            }
            _ = seals.tick() => {
            self.rotate_when_full();
            if self.is_overfull() {
            refresher.want_after(ROWS_CHECK_INTERVAL);
            }
            // A leader that cannot write rows announces none, and a snapshot of the rows is valid only for a while.
            if let Some(age) = self.rows.renew_after() {
            refresher.want_after(age);
            }
            continue;
            }
            };
            let Some(response) = response else { return Ok(()) };
            if !response.renewal.is_empty() {
                election.hear(Held::decode(&response.renewal).context("the leader's record")?);
            }
            if response.rows {
                refresher.want();
            }
            self.hear(response, follower).await?;
            if active.is_none() {
                active = Some(metrics.connect(follower.member.id, leader));
                tracing::debug!(leader, next = %self.replica.next(), "following the leader");
                roles.send_replace(Role::Following(LeaderClient {
                    channel: channel.clone(),
                    member: leader,
                    reads: reads.clone(),
                }));
            }
        }
    }

    async fn hear(&mut self, response: FollowResponse, follower: &FollowerIdentity) -> anyhow::Result<()> {
        let ends = response.batch.as_ref().map_or(0, |batch| batch.next);
        self.replica.state().observe_commit(Slot(response.committed.max(ends)));
        if let Some(members) = response.members {
            follower.members.learn(members.members);
        }
        if self.is_overfull() {
            // Skipped batches are read from the log, or from rows, when there is room again. Reads on this member wait for them.
            return Ok(());
        }
        if response.committed > 0 {
            self.catch_up(Slot(response.committed)).await?;
        }
        if let Some(batch) = response.batch {
            self.take(batch).await?;
        }
        Ok(())
    }

    /// Returns true if memory holds more than it may. In that case the rows cannot be read, or the data would be in them.
    fn is_overfull(&self) -> bool {
        self.replica.memtable_bytes() >= MAX_MEMTABLE_FACTOR * self.options.memtable_bytes
    }

    /// Reads the batches that were skipped while memory was overfull.
    async fn catch_up_if_behind(&mut self) -> anyhow::Result<()> {
        let heard = self.replica.state().known_committed();
        if !self.is_overfull() && heard > self.replica.next() {
            self.catch_up(heard).await?;
        }
        Ok(())
    }

    /// Applies a batch of the stream.
    async fn take(&mut self, mut batch: Batch) -> anyhow::Result<()> {
        let (first, next) = (Slot(batch.first), Slot(batch.next));
        if first > self.replica.next() {
            self.catch_up(first).await?;
        }
        if first < self.replica.next() {
            return Ok(()); // read from the log before
        }
        anyhow::ensure!(
            first == self.replica.next(),
            "the leader's slot {first} is not in the log"
        );
        let superseded = superseded_of(&mut batch);
        // Its keys stay in memory for long: as parts of the message they would keep all of it, previous versions included.
        let record = Record::decode(Bytes::copy_from_slice(&batch.payload))?;
        anyhow::ensure!(
            record.base == self.replica.revision(),
            "a batch after revision {}, but the newest is {}",
            record.base,
            self.replica.revision()
        );
        let events = self.replica.apply(record, superseded, first..next);
        self.hub.publish(events.into_iter().map(std::sync::Arc::new));
        self.rotate_when_full();
        Ok(())
    }

    /// Reads the log up to `committed`.
    async fn catch_up(&mut self, committed: Slot) -> anyhow::Result<()> {
        while !self.step(Some(committed)).await? {}
        Ok(())
    }

    /// Reads part of the log: the slots below `committed`, or else those that are proved to be committed. Returns true if there are
    /// no more.
    async fn step(&mut self, committed: Option<Slot>) -> anyhow::Result<bool> {
        self.trim_memory().await?;
        let mut tail = store::replica::LogTail::new(self.log.clone(), &self.replica);
        let is_all = match tail.catch_up(&mut self.replica, committed, CHUNKS_PER_CATCH_UP).await {
            Err(StoreOpenError::Destroyed) => {
                self.reset_from_snapshot().await?;
                false
            }
            outcome => outcome?,
        };
        self.rotate_when_full();
        self.show_missed().await;
        Ok(is_all)
    }

    /// Drops versions that the leader has written into rows, if memory is too full to read on.
    async fn trim_memory(&mut self) -> anyhow::Result<()> {
        if self.replica.memtable_bytes() < self.options.memtable_bytes {
            return Ok(());
        }
        let newer = RefreshedRows::read(self.rows.clone()).await?;
        if newer.is_ahead_of(&self.replica) {
            self.reset_from_snapshot().await?;
        } else {
            self.replica.refresh(newer);
        }
        Ok(())
    }

    /// Continues from a snapshot of the rows.
    async fn reset_from_snapshot(&mut self) -> anyhow::Result<()> {
        let (log, rows) = (&self.log, &self.rows);
        let before = self.replica.revision();
        self.replica.reset_from_snapshot(log, rows).await?;
        self.hub.skip_to(self.replica.revision());
        let revision = self.replica.revision();
        tracing::info!(
            before,
            revision,
            "reset from a rows snapshot: the log gap is too large or truncated"
        );
        Ok(())
    }

    /// Switches to newer rows, if they could be read. Fails only if log or rows are damaged.
    async fn refresh(&mut self, read: Result<RefreshedRows, StoreOpenError>) -> anyhow::Result<()> {
        let refreshed = match read {
            // They contain what was skipped: nothing else frees memory.
            Ok(newer) if newer.is_ahead_of(&self.replica) && self.is_overfull() => {
                let reset = self.reset_from_snapshot().await;
                if let Err(error) = &reset {
                    tracing::warn!(
                        error = format!("{error:#}"),
                        "cannot reset from a rows snapshot; will retry"
                    );
                }
                reset
            }
            Ok(newer) => {
                self.replica.refresh(newer);
                if self.replica.is_dirty() {
                    self.replica.rotate();
                }
                Ok(())
            }
            Err(error) => Err(error.into()),
        };
        match refreshed {
            Err(error) if !is_damage(&error) => {
                tracing::debug!(error = format!("{error:#}"), "cannot read the rows");
                Ok(())
            }
            refreshed => refreshed,
        }
    }

    fn rotate_when_full(&mut self) {
        let is_old = self.replica.last_rotation().elapsed() >= self.options.flush_interval;
        if self.replica.active_bytes() >= self.options.flush_bytes || (is_old && self.replica.is_dirty()) {
            self.replica.rotate();
        }
    }
}

/// Returns true if data is damaged, which a retry does not cure.
pub(super) fn is_damage(error: &anyhow::Error) -> bool {
    use engine::log::LogError;
    use engine::log::writer::WriterOpenError;
    use engine::rows::RowsError;
    matches!(
        error.downcast_ref::<StoreOpenError>(),
        Some(
            StoreOpenError::Newer { .. }
                | StoreOpenError::Older { .. }
                | StoreOpenError::RowsBehind { .. }
                | StoreOpenError::Record { .. }
                | StoreOpenError::Rows(RowsError::Corrupt(_))
                | StoreOpenError::Log(WriterOpenError::Log(LogError::Corrupt(_)))
        )
    )
}
