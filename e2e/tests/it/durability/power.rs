//! Power that is cut: a file system on a loop device takes nothing more, from one instant to the next, and what the kernel had not
//! written back by then is lost.
//!
//! This is ext4's own shutdown without a flush of its journal: afterwards the device holds what was written to it, no more. Its image is
//! copied, and mounted elsewhere, which replays the journal as after a loss of power. A device that loses what it acknowledged is not
//! played.

use rand::RngExt as _;

use super::disk::Disk;
use super::written::{Load, Written};
use super::{Program, Server, number, seeded, start};
use crate::harness::deadline;

/// Cuts the power under a load, and compares what the next server has.
pub(super) async fn lose_power(
    program: &Program,
    disk: &mut Disk,
    (server, load): (Server, Load),
    written: &mut Written,
) {
    // The kernel itself continues, and answers a sync in progress as if its blocks were on the device.
    load.is_late();
    disk.cut_power();
    // The brain may have noticed, and ended by itself; writers get no answer either way.
    drop(server);
    written.join(load).await;
    if disk.is_thin() {
        disk.unmount();
        disk.mount();
    } else {
        // Nothing that the kernel still does with the old one can reach it.
        *disk = disk.copy();
    }
    let server = start(program, &disk.data());
    written.check(&server).await;
    server.stop().unwrap();
}

const POWER_CUTS: u64 = 3;

#[tokio::test(flavor = "multi_thread")]
async fn power_that_is_cut_takes_nothing_that_was_acknowledged() {
    let _deadline = deadline();
    let cuts = number(super::KILLS_VARIABLE).map_or(POWER_CUTS, |kills| kills / 2);
    let (program, mut random, mut written) = (Program::kubebrain().unwrap(), seeded(), Written::default());
    let mut disk = Disk::new();
    for _ in 0..cuts {
        let server = start(&program, &disk.data());
        let load = written.write_until(&server, random.random_range(20..500)).await;
        lose_power(&program, &mut disk, (server, load), &mut written).await;
    }
    disk.unmount();
    assert!(disk.is_clean(), "the file system is damaged");
}
