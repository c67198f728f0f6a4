//! Why a cluster should end: a signal, or the end of the leash.

use anyhow::Context as _;
use tokio::io::{AsyncBufReadExt as _, BufReader, Stdin, stdin};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::info;

use super::RELEASE;

pub(super) struct Ends {
    terminate: Signal,
    interrupt: Signal,
    leash: Option<BufReader<Stdin>>,
}

impl Ends {
    pub(super) fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("wait for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("wait for SIGINT")?,
            leash: Some(BufReader::new(stdin())),
        })
    }

    /// Returns when the cluster should end. Loses nothing when it is dropped before.
    pub(super) async fn wait(&mut self) {
        loop {
            let Self {
                terminate,
                interrupt,
                leash,
            } = self;
            let released = tokio::select! {
                _ = terminate.recv() => return info!("SIGTERM"),
                _ = interrupt.recv() => return info!("SIGINT"),
                released = released(leash) => released,
            };
            if !released {
                return info!("the leash ended");
            }
            info!("released");
            *leash = None;
        }
    }
}

/// Whether the leash ended with a word of release; waits for ever when it is gone.
async fn released(leash: &mut Option<BufReader<Stdin>>) -> bool {
    let Some(leash) = leash else {
        return std::future::pending().await;
    };
    let mut word = String::new();
    leash.read_line(&mut word).await.is_ok_and(|_| word.trim() == RELEASE)
}
