//! The end of a copy that follows its source: by SIGUSR1, or by a file where no signal can be sent.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tracing::{info, warn};

use crate::flags::ImportCommand;
use crate::server::run::Lifecycle;
use runtime::log_once::LogBackoff;

/// The interval at which the cutover file is read.
const FILE_READ_INTERVAL: Duration = Duration::from_millis(500);

/// The interval at which a failure to read it is logged.
const FAILURE_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Returns true from the time on when the copy may be finished. Fails if the cutover file exists and cannot be read.
pub(super) fn may_finish(command: &ImportCommand, life: &mut Lifecycle) -> anyhow::Result<watch::Receiver<bool>> {
    let (finish, may_finish) = watch::channel(!command.follows);
    let mut received = signal(SignalKind::user_defined1()).context("listen to SIGUSR1")?;
    let by_signal = finish.clone();
    let stop = life.stop.clone();
    life.tasks.spawn("SIGUSR1", async move {
        loop {
            tokio::select! {
                _ = received.recv() => {
                    info!("finishing the copy");
                    by_signal.send_replace(true);
                }
                () = stop.cancelled() => return Ok(()),
            }
        }
    });
    if let Some(file) = command.cutover_file.clone() {
        // A path that can never be read is an error now, not in the hour of the cutover.
        if has_content(&file)? {
            info!(file = %file.display(), "the cutover file has content: the copy is finished as soon as it can be");
            finish.send_replace(true);
        }
        let stop = life.stop.clone();
        life.tasks.spawn("cutover file", async move {
            tokio::select! {
                () = written(file) => {
                    info!("the cutover file has content: finishing the copy");
                    finish.send_replace(true);
                    stop.cancelled().await;
                }
                () = stop.cancelled() => {}
            }
            Ok(())
        });
    }
    Ok(may_finish)
}

/// Returns once the file has content. It is read again and again: Kubernetes replaces such files by links to new directories.
async fn written(file: PathBuf) {
    let mut log = LogBackoff::every(FAILURE_LOG_INTERVAL);
    let mut reads = tokio::time::interval(FILE_READ_INTERVAL);
    reads.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        reads.tick().await;
        match has_content(&file) {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) if log.is_due() => warn!(error = format!("{error:#}"), "cannot read the cutover file"),
            Err(_) => {}
        }
    }
}

/// Returns true if the file exists and is not empty.
fn has_content(file: &Path) -> anyhow::Result<bool> {
    match fs::read(file) {
        Ok(content) => Ok(!content.trim_ascii().is_empty()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("read --cutover-file {}", file.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_counts_once_it_has_more_than_blanks() {
        let dir = tempfile::TempDir::new().unwrap();
        let file = dir.path().join("cutover");
        assert!(!has_content(&file).unwrap());
        fs::write(&file, "").unwrap();
        assert!(!has_content(&file).unwrap());
        fs::write(&file, "\n").unwrap();
        assert!(!has_content(&file).unwrap());
        fs::write(&file, "true").unwrap();
        assert!(has_content(&file).unwrap());
        let error = has_content(dir.path()).unwrap_err();
        assert!(format!("{error:#}").starts_with("read --cutover-file "), "{error:#}");
    }
}
