//! Reads of rows that are not in memory: fills a directory with `KEYS` keys (1,000,000), an index row and an object row each, opens it
//! anew and gets index rows at random, then lists all keys with their values as a client's list does.
//!
//! `CACHE_MIB` is the cache (64), `READS` the number of gets (100,000). Bytes are those that the process asked the kernel for.
#![allow(clippy::print_stdout, reason = "the report is the output")]

use std::path::Path;

use anyhow::Context as _;
use bytes::Bytes;
use engine::rows::{Order, RowChange, Rows as _, Scan};
use engine_local::rows::{LsmOptions, LsmRows};
use mvcc::keys::{index_key, index_range, object_key};
use rand::{RngExt as _, SeedableRng as _};
use tokio::time::Instant;

const VALUE_BYTES: usize = 256;
const KEYS_PER_BATCH: usize = 500;

fn key(number: u64) -> Vec<u8> {
    format!("/registry/pods/namespace-{:04}/pod-{number:012}", number % 5_000).into_bytes()
}

fn from_env(name: &str, default: u64) -> anyhow::Result<u64> {
    std::env::var(name).map_or(Ok(default), |text| text.parse().with_context(|| format!("read {name}")))
}

/// Bytes that this process has read from files, whether or not they were in the page cache.
fn bytes_read() -> anyhow::Result<u64> {
    let io = std::fs::read_to_string("/proc/self/io")?;
    let line = io.lines().find_map(|line| line.strip_prefix("rchar: "));
    Ok(line.context("/proc/self/io has no rchar")?.parse()?)
}

async fn fill(dir: &Path, options: LsmOptions, keys: u64) -> anyhow::Result<()> {
    let rows = LsmRows::open(dir, options)?;
    let mut rng = rand::rngs::StdRng::seed_from_u64(1);
    let mut fence: Option<Bytes> = None;
    let mut batch = Vec::new();
    for number in 0..keys {
        let mut value = vec![0; VALUE_BYTES];
        rng.fill(value.as_mut_slice());
        // A permutation, so that tables overlap as those of a real store do.
        let key = key(number * 7_919 % keys.max(1));
        batch.push(RowChange::Put(index_key(&key), Bytes::from(vec![1; 32])));
        batch.push(RowChange::Put(object_key(&key, 7), value.into()));
        if batch.len() >= 2 * KEYS_PER_BATCH || number + 1 == keys {
            let next = Bytes::copy_from_slice(&(number + 1).to_be_bytes());
            rows.apply(fence.replace(next.clone()), next, std::mem::take(&mut batch))
                .await?;
        }
    }
    rows.sync().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let (keys, reads) = (from_env("KEYS", 1_000_000)?, from_env("READS", 100_000)?);
    let options = LsmOptions {
        cache_bytes: from_env("CACHE_MIB", 64)? << 20,
        ..LsmOptions::default()
    };
    let root = tempfile::tempdir()?;
    let dir = root.path().join("rows");
    let began = Instant::now();
    fill(&dir, options.clone(), keys).await?;
    println!("{:>10.0} keys/s filled", keys as f64 / began.elapsed().as_secs_f64());

    let rows = LsmRows::open(&dir, options.clone())?;
    let snapshot = rows.snapshot().await?;
    let mut rng = rand::rngs::StdRng::seed_from_u64(2);
    let (began, before) = (Instant::now(), bytes_read()?);
    for _ in 0..reads {
        let row = index_key(&key(rng.random_range(0..keys)));
        snapshot.get(&row).await?.context("a row is missing")?;
    }
    let (took, read) = (began.elapsed().as_secs_f64(), bytes_read()? - before);
    println!(
        "{:>10.0} bytes read for each of {reads} random gets of {keys} keys (goal: 8192), {:.0} gets/s",
        read as f64 / reads as f64,
        reads as f64 / took
    );
    drop((snapshot, rows));

    let rows = LsmRows::open(&dir, options)?;
    let snapshot = rows.snapshot().await?;
    let range = index_range(&[0], &[0]);
    let (mut from, mut listed) = (range.from, 0u64);
    let (began, before) = (Instant::now(), bytes_read()?);
    loop {
        let scan = Scan {
            from: from.clone(),
            to: Some(range.to.clone()),
            order: Order::Ascending,
            keys_only: false,
            max_rows: 512,
            max_bytes: 1 << 20,
        };
        let page = snapshot.scan(scan).await?;
        let Some((last, _)) = page.rows.last() else { break };
        from = [last.as_ref(), &[0]].concat().into();
        let objects: Vec<Bytes> = page
            .rows
            .iter()
            .map(|(row, _)| Ok(object_key(&mvcc::keys::parse_index(row)?, 7)))
            .collect::<anyhow::Result<_>>()?;
        let found = snapshot.multi_get(&objects).await?;
        listed += found.iter().flatten().count() as u64;
        if page.done {
            break;
        }
    }
    anyhow::ensure!(listed == keys, "{listed} keys were listed");
    println!(
        "{:>10.0} keys/s listed with values after a restart, {:.0} bytes read for each",
        keys as f64 / began.elapsed().as_secs_f64(),
        (bytes_read()? - before) as f64 / keys as f64
    );
    Ok(())
}
