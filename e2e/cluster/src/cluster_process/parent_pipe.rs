//! Reasons to end a cluster: a signal, or the end of the parent pipe.

use anyhow::Context as _;
use tokio::io::{AsyncBufReadExt as _, BufReader, Stdin, stdin};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::info;

use super::RELEASE_WORD;

pub(super) struct ParentPipe {
    terminate: Signal,
    interrupt: Signal,
    pipe: Option<BufReader<Stdin>>,
}

impl ParentPipe {
    pub(super) fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("wait for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("wait for SIGINT")?,
            pipe: Some(BufReader::new(stdin())),
        })
    }

    /// Returns when the cluster should end. Loses nothing when it is dropped before.
    pub(super) async fn wait(&mut self) {
        loop {
            let Self {
                terminate,
                interrupt,
                pipe,
            } = self;
            let released = tokio::select! {
                _ = terminate.recv() => return info!("SIGTERM"),
                _ = interrupt.recv() => return info!("SIGINT"),
                released = released(pipe) => released,
            };
            if !released {
                return info!("the pipe ended");
            }
            info!("released");
            *pipe = None;
        }
    }
}

/// Returns true if the parent pipe ended with a word of release; waits for ever when it is gone.
async fn released(pipe: &mut Option<BufReader<Stdin>>) -> bool {
    let Some(pipe) = pipe else {
        return std::future::pending().await;
    };
    let mut word = String::new();
    pipe.read_line(&mut word)
        .await
        .is_ok_and(|_| word.trim() == RELEASE_WORD)
}
