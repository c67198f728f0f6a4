//! The one store that serves all store addresses: decides commands over the tables and has their changes replicated.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tonic::Status;

use crate::change::{Batch, ChangeContent, Span};
use crate::journal::JournalError;
use crate::latches::Latches;
use crate::mvcc::{Decision, Tables};
use crate::options::Options;
use crate::proto::errorpb;
use crate::regions::{Regions, RegionsError, refusal};
use crate::replication::{Proposal, ProposeError, Replication, Tail};

/// Keys from which versions are collected at a time.
const COLLECT_BATCH: usize = 4096;

/// Reason that a command did not come to an answer of its own.
#[derive(Debug)]
pub(crate) enum Failure {
    /// TiKV's way of saying no.
    Region(Box<errorpb::Error>),
    /// The call itself fails.
    Call(Status),
}

impl From<ProposeError> for Failure {
    fn from(error: ProposeError) -> Self {
        match error {
            ProposeError::Full => Self::Region(server_is_busy(&error.to_string())),
            ProposeError::Stopped => Self::Call(Status::unavailable(error.to_string())),
        }
    }
}

pub(crate) fn server_is_busy(reason: &str) -> Box<errorpb::Error> {
    refusal("server is busy", |error| {
        error.server_is_busy = Some(errorpb::ServerIsBusy {
            reason: reason.to_owned(),
            ..Default::default()
        });
    })
}

#[derive(Debug)]
pub(crate) struct Engine {
    tables: Arc<RwLock<Tables>>,
    /// The highest timestamp of all reads.
    max_ts: AtomicU64,
    latches: Arc<Latches>,
    replication: Replication,
    /// Lifetime of locks, in milliseconds, if not as long as their transaction asks for.
    pub(crate) lock_ttl: Option<u64>,
}

impl Engine {
    /// An engine over the data file, or over none; `regions` are those of an empty one.
    pub(crate) fn open(regions: Regions, options: &Options) -> Result<Self, JournalError> {
        let tables = Arc::new(RwLock::new(Tables::new(regions)));
        let replication = Replication::start(&tables, options.data_file.as_deref(), options.commit_latency)?;
        let millis = |ttl: Duration| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        Ok(Self {
            tables,
            max_ts: AtomicU64::new(0),
            latches: Arc::default(),
            replication,
            lock_ttl: options.lock_ttl.map(millis),
        })
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Tables> {
        self.tables.read().expect("nothing panics while it holds the tables")
    }

    fn tables_mut(&self) -> RwLockWriteGuard<'_, Tables> {
        self.tables.write().expect("nothing panics while it holds the tables")
    }

    /// The tables, for a read at `ts`: no commit timestamp chosen from now on is at or below it.
    pub(crate) fn read_at(&self, ts: u64) -> RwLockReadGuard<'_, Tables> {
        // The latest timestamp of all, as clients use it for "whatever there is", is no reading time.
        if ts != u64::MAX {
            self.max_ts.fetch_max(ts, Ordering::SeqCst);
        }
        self.read()
    }

    /// Decides a command over `keys`, which no other command changes until this one is applied, and returns once the changes are applied.
    /// They are applied even if the caller leaves.
    pub(crate) async fn write<R>(
        &self,
        keys: Vec<Bytes>,
        decide: impl FnOnce(&Tables, u64) -> Decision<R>,
    ) -> Result<R, Failure> {
        let latches = self.latches.acquire(keys).await;
        let (decision, pending, generation) = {
            let mut tables = self.tables_mut();
            let mut decision = decide(&tables, self.max_ts.load(Ordering::SeqCst));
            let infos = std::mem::take(&mut decision.pending);
            let pending: Vec<Bytes> = infos.iter().map(|info| info.key.clone()).collect();
            tables
                .pending
                .extend(infos.into_iter().map(|info| (info.key.clone(), info)));
            (decision, pending, tables.generation)
        };
        if decision.changes.is_empty() {
            // There is no need to wait for changes in flight on other keys: the decision did not see them.
            return Ok(decision.reply);
        }
        let (applied, done) = oneshot::channel();
        let batch = Batch::new(decision.changes);
        let proposal = Proposal {
            batch,
            generation,
            pending,
            latches: Some(latches),
            applied,
            proposed: Instant::now(),
        };
        self.propose(proposal)?;
        done.await.map_err(|_| ProposeError::Stopped)?;
        Ok(decision.reply)
    }

    fn propose(&self, proposal: Proposal) -> Result<(), Failure> {
        self.replication.propose(proposal).map_err(|(error, proposal)| {
            let mut tables = self.tables_mut();
            proposal.pending.iter().for_each(|key| drop(tables.pending.remove(key)));
            error.into()
        })
    }

    /// Has changes applied that no latch guards, and waits for that.
    pub(crate) async fn change(&self, changes: Vec<ChangeContent>) -> Result<(), Failure> {
        let (applied, done) = oneshot::channel();
        let batch = Batch::new(changes);
        let generation = self.read().generation;
        self.propose(Proposal {
            batch,
            generation,
            pending: Vec::new(),
            latches: None,
            applied,
            proposed: Instant::now(),
        })?;
        Ok(done.await.map_err(|_| ProposeError::Stopped)?)
    }

    /// Replaces the regions by what `next` makes of them. Callers take care to do one such change at a time.
    pub(crate) async fn change_regions(
        &self,
        next: impl FnOnce(&Regions) -> Result<Regions, RegionsError>,
    ) -> Result<Result<(), RegionsError>, Failure> {
        let changed = next(&self.read().regions);
        match changed {
            Ok(regions) => self.change(vec![ChangeContent::Regions(regions)]).await.map(Ok),
            Err(error) => Ok(Err(error)),
        }
    }

    /// Raises the safe point and collects the versions that are no longer needed at or below it, one batch of keys at a time, so that
    /// other commands can run in between.
    pub(crate) async fn collect(&self, safe_point: u64) -> Result<(), Failure> {
        self.change(vec![ChangeContent::SafePoint(safe_point)]).await?;
        let mut start = Bytes::new();
        loop {
            let end = self.read().nth_key_after(&start, COLLECT_BATCH).unwrap_or_default();
            self.change(vec![ChangeContent::Collect(Span {
                start,
                end: end.clone(),
            })])
            .await?;
            if end.is_empty() {
                return Ok(());
            }
            start = end;
        }
    }

    /// Ends; what was proposed before is still applied. The data file is free afterwards.
    pub(crate) async fn stop(&self) -> Result<(), Failure> {
        Ok(self.replication.stop().await?)
    }

    pub(crate) async fn hold_sync(&self, hold: bool) -> Result<(), Failure> {
        Ok(self.replication.hold_sync(hold).await?)
    }

    /// Reloads the tables. A restarted store does not know at which timestamps clients have read: `now` is an upper bound.
    pub(crate) async fn restart(&self, tail: Tail, now: u64) -> Result<(), Failure> {
        self.replication.restart(tail).await?;
        self.max_ts.fetch_max(now, Ordering::SeqCst);
        Ok(())
    }
}
