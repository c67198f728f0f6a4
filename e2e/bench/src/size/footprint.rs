//! Memory and disk of a store of many keys.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use programs::server::Server;
use tokio::time::{Instant, sleep};

use super::keys::{VALUE_BYTES, key};

/// Time for an index of keys to be built.
const INDEX_BUILD_TIMEOUT: Duration = Duration::from_secs(600);

/// Bytes of all keys and values, each once.
pub(super) fn live(keys: u64) -> u64 {
    keys * (key(0).len() + VALUE_BYTES) as u64
}

/// Waits until the index of keys of a brain is built; answers with its bytes of memory. `None`: the server has none.
pub(super) async fn index_bytes(address: &str) -> anyhow::Result<Option<f64>> {
    let deadline = Instant::now() + INDEX_BUILD_TIMEOUT;
    loop {
        let text = programs::probe::command(address, "GET", "/metrics", "").await?;
        let gauge = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            value.and_then(|value| value.trim().parse::<f64>().ok())
        };
        match gauge("kubebrain_mvcc_key_index_serves") {
            None => return Ok(None),
            Some(serves) if serves > 0.0 => return Ok(gauge("kubebrain_mvcc_key_index_size_in_bytes")),
            Some(_) => ensure!(
                Instant::now() < deadline,
                "the index of keys is not built in {INDEX_BUILD_TIMEOUT:?}"
            ),
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Resets the kernel's record of a server's peak memory, and returns its current memory.
pub(crate) fn forget_peak(server: &Server) -> anyhow::Result<u64> {
    std::fs::write(format!("/proc/{}/clear_refs", server.pid()), "5").context("forget the peak of memory")?;
    Ok(server.usage()?.rss)
}
