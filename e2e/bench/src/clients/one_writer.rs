//! One writer on a server that has nothing else to do.

use anyhow::ensure;
use programs::server::Server;
use tokio::time::Instant;
use wire::etcdserverpb as pb;

use super::say_percentiles;
use crate::grpc::{Connections, PUT, WindowSizes};
use crate::report::{Report, Unit};
use crate::requests;

const PUTS: i64 = 3_000;

/// Puts of 512 bytes, one after the other.
pub(super) async fn measure(server: &Server, report: &mut Report) -> anyhow::Result<()> {
    let connections = Connections::open(server, 1, WindowSizes::Large).await?;
    let body = requests::body(&requests::put())?;
    let before = connections.get(0).revision().await?;
    let mut times = Vec::new();
    for _ in 0..PUTS {
        let began = Instant::now();
        connections.get(0).call::<pb::PutResponse>(PUT, body.clone()).await?;
        times.push(began.elapsed().as_secs_f64() * 1_000.0);
    }
    let made = connections.get(0).revision().await? - before;
    ensure!(made == PUTS, "{PUTS} puts made {made} revisions");
    say_percentiles("one writer: put", &times, server.name(), report);
    let longest = times.iter().copied().fold(0.0, f64::max);
    report.say("one writer: put, the longest", Unit::Millis, server.name(), longest);
    Ok(())
}
