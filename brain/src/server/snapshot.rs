//! `kubebrain snapshot`: prints what is in a snapshot, or makes a new store of one.

use std::io::{self, Write as _};

use anyhow::Context as _;

use crate::flags::{Config, SnapshotCommand};
use crate::server::restore::{
    self, RestoreInput, RestoreRequest, RestoreResult, interruptible, make_store, open_snapshot, requested_cluster_id,
    write_result,
};
use crate::server::run::Lifecycle;

/// Runs the subcommand, and ends. A signal interrupts it.
pub(crate) async fn run(config: &Config, command: &SnapshotCommand, mut life: Lifecycle) -> anyhow::Result<()> {
    let text = if command.restores {
        Box::pin(restore(config, command, &mut life)).await
    } else {
        print_status(command, &life).await
    };
    life.end().await?;
    io::stdout().write_all(text?.as_bytes()).context("print")
}

/// Makes a store of the snapshot. Returns the text to print.
async fn restore(config: &Config, command: &SnapshotCommand, life: &mut Lifecycle) -> anyhow::Result<String> {
    // Before the file is read: it may be gone by now.
    let attempts = &command.attempts;
    let existing = match attempts.once {
        true => tokio::select! {
            biased;
            () = life.leave.cancelled() => Err(anyhow::anyhow!("interrupted")),
            existing = Box::pin(restore::existing(config)) => existing,
        }?,
        false => None,
    };
    let (result, text) = match existing {
        Some(id) => RestoreResult::existed(id, requested_cluster_id(attempts), "restored"),
        None => {
            let request = RestoreRequest {
                input: RestoreInput::File {
                    path: &command.file,
                    skip_hash_check: command.skip_hash_check,
                },
                changes: None,
                bump_revision: command.bump_revision,
                cluster_id: requested_cluster_id(attempts),
                starts_over: attempts.once,
                is_temporary: false,
            };
            let restored = Box::pin(make_store(config, &request, life)).await?;
            let made = RestoreResult::made(restored.cluster_id, restored.summary.revision, None);
            (made, format!("{restored}\n"))
        }
    };
    if let Some(file) = &attempts.result_file {
        write_result(&result, file)?;
    }
    Ok(text)
}

async fn print_status(command: &SnapshotCommand, life: &Lifecycle) -> anyhow::Result<String> {
    let file = open_snapshot(&command.file, command.skip_hash_check, life).await?;
    let status = interruptible(life, move || Ok(file.status()?)).await;
    let status = status.with_context(|| format!("read {}", command.file.display()))?;
    Ok(format!("{status}\n"))
}
