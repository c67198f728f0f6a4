//! Syncs that fail: the kernel accepted the writes, but cannot bring them to the device.
//!
//! Their pages count as clean from then on: reads return them as if nothing had failed, another sync succeeds, and they are lost with the
//! power. So nothing may be acknowledged after a failed sync, and the next process must not rely on what it reads.

use rand::RngExt as _;

use super::disk::Disk;
use super::power::lose_power;
use super::written::Written;
use super::{Program, number, seeded, start};
use crate::harness::deadline;

const SYNC_FAILURES: u64 = 3;

#[tokio::test(flavor = "multi_thread")]
async fn sync_that_fails_is_the_last_and_takes_nothing_that_was_acknowledged() {
    let _deadline = deadline();
    let failures = number(super::KILLS_VARIABLE).map_or(SYNC_FAILURES, |kills| kills / 2);
    let (program, mut random, mut written) = (Program::kubebrain().unwrap(), seeded(), Written::default());
    let mut disk = Disk::thin();
    for _ in 0..failures {
        let mut server = start(&program, &disk.data());
        let load = written.write_until(&server, random.random_range(150..600)).await;
        disk.empty_pool();
        let status = written.has_ended(&mut server).await;
        let lines = server.last_lines();
        assert!(status.code().is_some_and(|code| code != 0), "{status}: {lines}");
        assert!(
            lines.contains("No space left on device") && !lines.contains("panicked"),
            "{lines}"
        );
        drop(server);
        written.join(load).await;
        disk.fill_pool();
        // The same kernel, with pages that the device does not have.
        let server = start(&program, &disk.data());
        written.check(&server).await;
        // Rows count as synced, and the log is cut.
        written.compact(&server).await;
        let load = written.write_until(&server, random.random_range(1..500)).await;
        lose_power(&program, &mut disk, (server, load), &mut written).await;
    }
    disk.unmount();
    assert!(disk.is_clean(), "the file system is damaged");
}
