//! Writes through slots of the log on TiKV, beside one two-phase transaction for each write, and rows under the fence.
//!
//! On a mock whose commits take 3 ms, or on the cluster that `TIKV_PD` names. Ratios count.
#![allow(clippy::print_stdout, reason = "the report is the output")]

use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use engine::log::frame::is_barrier;
use engine::log::{Log as _, Slot};
use engine::rows::{RowChange, Rows as _};
use engine_tikv::{ConnectOptions, Tikv, TikvLog, TikvRows};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use mock_tikv::MockTikv;
use rand::RngExt as _;
use tikv_client::{TransactionClient, TransactionOptions};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Duration of each measurement.
const MEASURED_TIME: Duration = Duration::from_secs(5);
/// Latency of a commit in the mock.
const COMMIT_LATENCY: Duration = Duration::from_millis(3);
/// Writes in a record, and bytes of each.
const WRITES_PER_RECORD: usize = 100;
const WRITE_BYTES: usize = 512;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let (mock_tikv, pd) = match std::env::var("TIKV_PD") {
        Ok(pd) => (None, pd),
        Err(_) => {
            let options = mock_tikv::Options {
                commit_latency: COMMIT_LATENCY,
                ..mock_tikv::Options::default().with_stores(3)
            };
            let mock_tikv = MockTikv::start(options).await.context("start the mock")?;
            let pd = mock_tikv.pd();
            (Some(mock_tikv), pd)
        }
    };
    let endpoints: Vec<String> = pd.split(',').map(str::to_owned).collect();
    let prefix = format!("bench-{:032x}-", rand::rng().random::<u128>());
    let (tikv, keeper) = Tikv::connect(ConnectOptions::new(endpoints.clone(), prefix.clone())).await?;
    let stop = CancellationToken::new();
    let keeper = keeper.run(stop.clone());
    let measure = async {
        let two_phase = two_phase(endpoints, &prefix).await?;
        println!("{two_phase:>10.0} writes/s, each in a two-phase transaction of its own, one at a time");
        let log = TikvLog::keeping(tikv.clone(), is_barrier);
        let one = slots(&log, Slot(1), 1).await?;
        let eight = slots(&log, Slot(1_000_000), 8).await?;
        for (open, rate) in [(1, one), (8, eight)] {
            let (records, ratio) = (rate / WRITES_PER_RECORD as f64, rate / two_phase);
            println!(
                "{rate:>10.0} writes/s through {open} open slots ({records:.0} records/s of {WRITES_PER_RECORD}): {ratio:.0} x (goal: 40)"
            );
        }
        println!(
            "{:>10.1} x as many through 8 open slots as through 1 (goal: 3)",
            eight / one
        );
        let rows = rows(&TikvRows::new(tikv.clone())).await?;
        println!("{rows:>10.0} rows/s of {WRITE_BYTES} bytes in transactions with a fence");
        stop.cancel();
        anyhow::Ok(())
    };
    let (measured, kept) = tokio::join!(measure, keeper);
    measured.and(kept)?;
    match mock_tikv {
        Some(mock_tikv) => mock_tikv.stop().await.context("stop the mock"),
        None => Ok(()),
    }
}

/// As a store without a log writes: the object and the revision, in two phases.
async fn two_phase(endpoints: Vec<String>, prefix: &str) -> anyhow::Result<f64> {
    let client = TransactionClient::new(endpoints).await?;
    let value = vec![b'v'; WRITE_BYTES];
    let (began, mut writes) = (Instant::now(), 0u64);
    while began.elapsed() < MEASURED_TIME {
        let options = TransactionOptions::new_optimistic();
        let mut txn = client.begin_with_options(options).await?;
        txn.put(format!("{prefix}object/{:04}", writes % 1_000), value.clone())
            .await?;
        txn.insert(format!("{prefix}revision/{writes:012}"), b"1".to_vec())
            .await?;
        txn.commit().await?;
        writes += 1;
    }
    Ok(writes as f64 / began.elapsed().as_secs_f64())
}

/// Records into consecutive slots, a number of them at a time.
async fn slots(log: &TikvLog, first: Slot, open: usize) -> anyhow::Result<f64> {
    let record = Bytes::from(vec![b'r'; WRITES_PER_RECORD * WRITE_BYTES]);
    let began = Instant::now();
    let slots = stream::iter(first.0..).map(Slot).take_while(|_| {
        let goes_on = began.elapsed() < MEASURED_TIME;
        async move { goes_on }
    });
    let appended: usize = slots
        .map(|slot| log.append(slot, record.clone()))
        .buffered(open)
        .try_fold(0, |count, ()| async move { Ok(count + 1) })
        .await?;
    Ok((appended * WRITES_PER_RECORD) as f64 / began.elapsed().as_secs_f64())
}

/// Rows in steps of the size that the flush takes, one after the other.
async fn rows(rows: &TikvRows) -> anyhow::Result<f64> {
    let step = rows.step();
    let value = Bytes::from(vec![b'v'; WRITE_BYTES]);
    let (began, mut written, mut fence) = (Instant::now(), 0u64, None);
    while began.elapsed() < MEASURED_TIME {
        let count = step.rows.min(step.bytes / WRITE_BYTES) as u64;
        let change = |at: u64| RowChange::Put(format!("o/registry/bench/{at:012}").into(), value.clone());
        let changes = (written..written + count).map(change).collect();
        let next = Bytes::from(written.to_be_bytes().to_vec());
        rows.apply(fence.clone(), next.clone(), changes).await?;
        (fence, written) = (Some(next), written + count);
    }
    Ok(written as f64 / began.elapsed().as_secs_f64())
}
