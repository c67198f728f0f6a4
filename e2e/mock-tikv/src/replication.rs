//! Takes the place of Raft: one order of all changes, durable before they are applied, applied before they are answered.
//!
//! One thread owns the data file and is the only one to change the tables. Its queue is bounded; when it is full, writers get the error
//! that the server is busy.

use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::error;

use crate::change::{Batch, Change};
use crate::journal::{Journal, JournalError};
use crate::latches::Latched;
use crate::mvcc::Tables;

/// Proposals that may wait.
const PROPOSAL_QUEUE_CAPACITY: usize = 4096;
/// Proposals that are written and synced together, at most.
const MAX_GROUP_PROPOSALS: usize = 1024;
/// Proposals that are due so soon are applied with those that are due now.
const APPLY_SLACK: Duration = Duration::from_micros(100);

/// Fate of the writes that were answered after the last sync when the mock restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tail {
    /// The processes died, the machines did not.
    Keep,
    /// All machines lost power at once.
    Drop,
}

/// Changes to replicate, with the latches and pending locks that are released once they are applied.
#[derive(Debug)]
pub(crate) struct Proposal {
    pub(crate) batch: Batch,
    /// Generation of the tables over which it was decided. The proposal is dropped if the tables were reloaded since.
    pub(crate) generation: u64,
    /// Keys whose pending locks are removed when it is applied.
    pub(crate) pending: Vec<Bytes>,
    pub(crate) latches: Option<Latched>,
    pub(crate) applied: oneshot::Sender<()>,
    pub(crate) proposed: Instant,
}

#[derive(Debug)]
enum ReplicationMessage {
    Proposal(Proposal),
    HoldSync(bool, oneshot::Sender<()>),
    Restart(Tail, oneshot::Sender<()>),
    Stop(oneshot::Sender<()>),
}

/// Reason that a proposal was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProposeError {
    #[error("too many writes are waiting")]
    Full,
    #[error("the mock has stopped")]
    Stopped,
}

/// The thread's address. Dropped, the thread ends once its queue is empty.
#[derive(Debug)]
pub(crate) struct Replication {
    queue: Option<SyncSender<ReplicationMessage>>,
    thread: Option<JoinHandle<()>>,
}

impl Replication {
    /// Reads the data file, if there is one, into `tables` and starts.
    pub(crate) fn start(
        tables: &Arc<RwLock<Tables>>,
        file: Option<&Path>,
        latency: Duration,
    ) -> Result<Self, JournalError> {
        let blank = read(tables).clone();
        let mut filled = blank.clone();
        let journal = file
            .map(|path| Journal::open(path, |batch| apply(&mut filled, batch)))
            .transpose()?;
        *write(tables) = filled;
        let (queue, inbox) = sync_channel(PROPOSAL_QUEUE_CAPACITY);
        let replica = Replica {
            inbox,
            tables: Arc::clone(tables),
            blank,
            journal,
            latency,
            generation: 0,
            holding: false,
            image: None,
        };
        let thread = std::thread::spawn(move || replica.run());
        Ok(Self {
            queue: Some(queue),
            thread: Some(thread),
        })
    }

    /// Queues the changes; answers at once.
    pub(crate) fn propose(&self, proposal: Proposal) -> Result<(), (ProposeError, Proposal)> {
        let Some(queue) = &self.queue else {
            return Err((ProposeError::Stopped, proposal));
        };
        queue
            .try_send(ReplicationMessage::Proposal(proposal))
            .map_err(|error| match error {
                TrySendError::Full(ReplicationMessage::Proposal(proposal)) => (ProposeError::Full, proposal),
                TrySendError::Disconnected(ReplicationMessage::Proposal(proposal)) => (ProposeError::Stopped, proposal),
                TrySendError::Full(_) | TrySendError::Disconnected(_) => unreachable!("a sent message is a proposal"),
            })
    }

    /// From now on answers go out before they are synced, or no longer.
    pub(crate) async fn hold_sync(&self, hold: bool) -> Result<(), ProposeError> {
        self.command(|done| ReplicationMessage::HoldSync(hold, done)).await
    }

    /// Reloads the tables after everything that was proposed before.
    pub(crate) async fn restart(&self, tail: Tail) -> Result<(), ProposeError> {
        self.command(|done| ReplicationMessage::Restart(tail, done)).await
    }

    /// Ends the thread after all that was proposed before, and lets go of the data file.
    pub(crate) async fn stop(&self) -> Result<(), ProposeError> {
        self.command(ReplicationMessage::Stop).await
    }

    async fn command(
        &self,
        message: impl FnOnce(oneshot::Sender<()>) -> ReplicationMessage,
    ) -> Result<(), ProposeError> {
        let (done, finished) = oneshot::channel();
        let queue = self.queue.clone().ok_or(ProposeError::Stopped)?;
        let message = message(done);
        // A full queue is waited for, off the runtime's threads.
        let sent = tokio::task::spawn_blocking(move || queue.send(message).is_ok()).await;
        if !sent.unwrap_or(false) {
            return Err(ProposeError::Stopped);
        }
        finished.await.map_err(|_| ProposeError::Stopped)
    }
}

impl Drop for Replication {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            error!("the replication thread panicked");
        }
    }
}

fn read(tables: &RwLock<Tables>) -> std::sync::RwLockReadGuard<'_, Tables> {
    tables.read().unwrap_or_else(PoisonError::into_inner)
}

fn write(tables: &RwLock<Tables>) -> std::sync::RwLockWriteGuard<'_, Tables> {
    tables.write().unwrap_or_else(PoisonError::into_inner)
}

fn apply(tables: &mut Tables, batch: Batch) {
    for change in batch.changes.into_iter().filter_map(|Change { what }| what) {
        tables.apply(change);
    }
}

/// The thread's state.
struct Replica {
    inbox: Receiver<ReplicationMessage>,
    tables: Arc<RwLock<Tables>>,
    /// The tables before the first change.
    blank: Tables,
    journal: Option<Journal>,
    latency: Duration,
    generation: u64,
    /// Answers do not wait for a sync.
    holding: bool,
    /// Without a file: the tables at the last sync.
    image: Option<Tables>,
}

impl Replica {
    fn run(mut self) {
        while let Ok(first) = self.inbox.recv() {
            let mut messages = vec![first];
            messages.extend(self.inbox.try_iter().take(MAX_GROUP_PROPOSALS - 1));
            // When this ends, waiting callers get the error that the mock has stopped.
            match self.handle(messages) {
                Ok(None) => {}
                Ok(Some(stopped)) => {
                    drop(self);
                    answer(stopped);
                    return;
                }
                Err(error) => {
                    error!(error = &error as &dyn std::error::Error, "the data file cannot be used");
                    return;
                }
            }
        }
    }

    /// Returns the sender for the caller that waits for the thread to end, if one of the messages is [`ReplicationMessage::Stop`].
    fn handle(&mut self, messages: Vec<ReplicationMessage>) -> Result<Option<oneshot::Sender<()>>, JournalError> {
        let mut proposals = Vec::with_capacity(messages.len());
        for message in messages {
            match message {
                ReplicationMessage::Proposal(proposal) => proposals.push(proposal),
                ReplicationMessage::HoldSync(hold, done) => {
                    self.commit(std::mem::take(&mut proposals))?;
                    self.set_holding(hold)?;
                    answer(done);
                }
                ReplicationMessage::Restart(tail, done) => {
                    self.commit(std::mem::take(&mut proposals))?;
                    self.reload(tail)?;
                    answer(done);
                }
                ReplicationMessage::Stop(done) => {
                    self.commit(proposals)?;
                    return Ok(Some(done));
                }
            }
        }
        self.commit(proposals)?;
        Ok(None)
    }

    /// Makes the proposals durable, then applies each when its latency is over.
    fn commit(&mut self, mut proposals: Vec<Proposal>) -> Result<(), JournalError> {
        proposals.retain(|proposal| proposal.generation == self.generation);
        if let Some(journal) = self.journal.as_mut().filter(|_| !proposals.is_empty()) {
            journal.write(proposals.iter().map(|proposal| &proposal.batch))?;
            if !self.holding {
                journal.sync()?;
            }
        }
        let mut waiting = proposals.into_iter().peekable();
        while let Some(first) = waiting.peek() {
            let now = Instant::now();
            let due = first.proposed + self.latency;
            if due > now + APPLY_SLACK {
                std::thread::sleep(due - now);
                continue;
            }
            let mut applied = Vec::new();
            let mut tables = write(&self.tables);
            while let Some(proposal) = waiting.next_if(|next| next.proposed + self.latency <= now + APPLY_SLACK) {
                apply(&mut tables, proposal.batch);
                proposal.pending.iter().for_each(|key| drop(tables.pending.remove(key)));
                applied.push((proposal.latches, proposal.applied));
            }
            drop(tables);
            for (latches, done) in applied {
                drop(latches);
                answer(done);
            }
        }
        Ok(())
    }

    fn set_holding(&mut self, hold: bool) -> Result<(), JournalError> {
        self.holding = hold;
        match &mut self.journal {
            Some(journal) => journal.sync()?,
            None => self.image = hold.then(|| read(&self.tables).clone()),
        }
        Ok(())
    }

    fn reload(&mut self, tail: Tail) -> Result<(), JournalError> {
        let mut tables = match (&mut self.journal, tail) {
            (Some(journal), tail) => {
                let mut tables = self.blank.clone();
                let replay = |batch| apply(&mut tables, batch);
                match tail {
                    Tail::Keep => journal.replay(replay)?,
                    Tail::Drop => journal.drop_tail(replay)?,
                }
                tables
            }
            (None, Tail::Keep) => read(&self.tables).clone(),
            (None, Tail::Drop) => self.image.clone().unwrap_or_else(|| read(&self.tables).clone()),
        };
        self.generation += 1;
        tables.generation = self.generation;
        tables.pending.clear();
        *write(&self.tables) = tables;
        Ok(())
    }
}

/// Answers a waiting caller. A missing caller is normal: callers leave.
fn answer(done: oneshot::Sender<()>) {
    done.send(()).unwrap_or_default();
}
