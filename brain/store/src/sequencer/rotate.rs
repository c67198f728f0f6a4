//! Rotates memtables: the active one becomes immutable and goes to the flush, and a new one begins.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::{FlushEnded, Sequencer};
use crate::replica::ImmutableMemtable;

impl Sequencer {
    /// Passes the active memtable to the flush and begins a new one, as soon as the flush has room for it.
    pub(super) fn rotate(&mut self) {
        match self.immutable.clone().try_reserve() {
            Ok(room) => self.rotate_into(room),
            Err(_) => self.is_rotation_due = true,
        }
    }

    pub(super) fn rotate_into(&mut self, room: mpsc::Permit<'_, Arc<ImmutableMemtable>>) {
        self.is_rotation_due = false;
        if let Some(immutables) = self.replica.rotate() {
            room.send(immutables);
        }
    }

    /// Passes the last memtable to the flush.
    pub(super) async fn rotate_last(&mut self) -> anyhow::Result<()> {
        let Some(immutable) = self.replica.rotate() else {
            return Ok(());
        };
        // Waits for room, but keeps receiving flushed memtables: the flush may be waiting for that.
        let sender = self.immutable.clone();
        loop {
            tokio::select! {
            permit = sender.reserve() => {
            permit.map_err(|_| FlushEnded)?.send(immutable);
            return Ok(());
            }
            Some(flushed) = self.flushed.recv() => self.swap_rows(flushed),
            }
        }
    }
}
