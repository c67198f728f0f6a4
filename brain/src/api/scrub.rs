//! Reads everything that is stored from time to time, so that damage is found before somebody needs the data: `--corrupt-check-time`.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::context::ApiContext;
use super::maintenance::hash;
use crate::rows::Rows;

/// Checks in this interval until `stop`, while this member leads: members on TiKV share what is stored. Never fails: damage stops the
/// service as if a client had read it, and a check that fails otherwise is repeated with the next one.
pub async fn run<R: Rows>(store: ApiContext<R>, every: Duration, stop: CancellationToken) -> anyhow::Result<()> {
    let mut ticks = tokio::time::interval_at(Instant::now() + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let check = async {
            ticks.tick().await;
            if store.router.lease_valid() {
                check(&store).await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = check => {}
        }
    }
}

async fn check<R: Rows>(store: &ApiContext<R>) {
    // Damage that is known is not looked for.
    let Ok(view) = store.view() else { return };
    let began = Instant::now();
    match hash(&view, view.revision).await {
        Ok(hash) => {
            let (revision, took) = (view.revision, began.elapsed());
            tracing::info!(revision, hash, ?took, "checked all versions of keys");
        }
        Err(error) => {
            let status = store.rows_failed(&error);
            tracing::warn!(reason = status.message(), "the check of what is stored did not end");
        }
    }
}
