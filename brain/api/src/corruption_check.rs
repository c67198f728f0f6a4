//! Reads all rows from time to time, so that damage is found before a client needs the data: `--corrupt-check-time`.
//!
//! A check reads the rows in pieces, each from the newest snapshot, so that no snapshot is held for long. Rows that are written during the
//! check may be read or not. The log is checked when it is opened, and when records are read.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::context::ApiContext;
use engine::rows::{Order, RowsError, Scan};
use mvcc::row_check::check_row;
use mvcc::view::successor;

/// Rows and bytes that are read at once.
const PIECE_ROWS: usize = 1_000;
const PIECE_BYTES: usize = 1 << 20;

/// Pauses, as a multiple of the time that the last piece took: clients come first.
const PAUSE_FACTOR: u32 = 3;

/// Delay before a piece that could not be read is read again, and the time after which the check is given up.
const READ_RETRY_DELAY: Duration = Duration::from_secs(5);
const READ_FAILURE_TIMEOUT: Duration = Duration::from_secs(120);

/// Checks in this interval until `stop`, while this member leads: members on TiKV share what is stored. Never fails: damage stops the
/// service as if a client had read it, and a check that fails otherwise is repeated with the next one.
pub async fn run(store: ApiContext, every: Duration, stop: CancellationToken) -> anyhow::Result<()> {
    let mut ticks = tokio::time::interval_at(Instant::now() + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let check = async {
            ticks.tick().await;
            check(&store).await;
        };
        tokio::select! {
        () = stop.cancelled() => return Ok(()),
        () = check => {}
        }
    }
}

/// How far a check has come.
#[derive(Debug, Default)]
struct CheckProgress {
    /// The row at which the check continues.
    from: Bytes,
    rows: u64,
    bytes: u64,
}

/// Reads all rows, unless this member stops leading.
async fn check(store: &ApiContext) {
    let (mut check, began) = (CheckProgress::default(), Instant::now());
    let mut failing_since = None;
    loop {
        // Damage that is known is not looked for.
        if store.state.is_corrupt() {
            return;
        }
        if !store.router.lease_valid() {
            if check.rows > 0 {
                tracing::info!(
                    check.rows,
                    "cancelled the check of the rows: this member no longer leads"
                );
            }
            return;
        }
        let piece = Instant::now();
        let pause = match check.piece(store).await {
            Ok(true) => break,
            Ok(false) => {
                failing_since = None;
                piece.elapsed() * PAUSE_FACTOR
            }
            Err(error @ RowsError::Corrupt(_)) => {
                store.state.set_corrupt();
                let error = &error as &dyn std::error::Error;
                tracing::error!(error, "the check of the rows found damage: this member stops serving");
                return;
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                if failing_since.get_or_insert(piece).elapsed() >= READ_FAILURE_TIMEOUT {
                    tracing::warn!(error, check.rows, "cancelled the check of the rows: cannot read them");
                    return;
                }
                tracing::debug!(error, "cannot read rows; the check will resume");
                READ_RETRY_DELAY
            }
        };
        tokio::time::sleep(pause).await;
    }
    let CheckProgress { rows, bytes, .. } = check;
    tracing::info!(rows, bytes, took = ?began.elapsed(), "checked all rows");
}

impl CheckProgress {
    /// Reads the next rows; returns true at the end.
    async fn piece(&mut self, store: &ApiContext) -> Result<bool, RowsError> {
        let view = store.state.view();
        let scan = Scan {
            from: self.from.clone(),
            to: None,
            order: Order::Ascending,
            keys_only: false,
            max_rows: PIECE_ROWS,
            max_bytes: PIECE_BYTES,
        };
        let page = view.rows.scan(scan).await?;
        let dictionaries = view.dictionaries.clone();
        drop(view);
        for (row, value) in &page.rows {
            check_row(row, value, &dictionaries)?;
            self.rows += 1;
            self.bytes += (row.len() + value.len()) as u64;
        }
        match page.rows.last() {
            Some((last, _)) if !page.done => self.from = successor(last),
            _ => return Ok(true),
        }
        Ok(false)
    }
}
