//! A load whose next request waits for an answer.

use std::time::Duration;

use futures::future::try_join_all;
use tokio::time::Instant;

use crate::grpc::{Connection, Connections};

/// Makes `count` calls, `in_flight` of them at a time. Returns how long it took.
pub(crate) async fn run<F: Future<Output = anyhow::Result<()>>>(
    connections: &Connections,
    in_flight: u64,
    count: u64,
    call: impl Fn(Connection, u64) -> F,
) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let workers = (0..in_flight).map(|worker| {
        let (connection, call) = (connections.get(worker), &call);
        async move {
            for n in (worker..count).step_by(in_flight as usize) {
                call(connection.clone(), n).await?;
            }
            anyhow::Ok(())
        }
    });
    try_join_all(workers).await?;
    Ok(began.elapsed())
}
