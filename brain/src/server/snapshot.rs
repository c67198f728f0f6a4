//! `kubebrain snapshot`: prints what is in a snapshot, or makes a new store of one.

use std::io::{self, Write as _};

use anyhow::Context as _;

use crate::flags::{Config, SnapshotCommand};
use crate::server::restore::{RestoreInput, RestoreRequest, interruptible, make_store, open_snapshot};
use crate::server::run::Lifecycle;

/// Runs the subcommand, and ends. A signal interrupts it.
pub(crate) async fn run(config: &Config, command: &SnapshotCommand, mut life: Lifecycle) -> anyhow::Result<()> {
    let line = if command.restores {
        let request = RestoreRequest {
            input: RestoreInput::File {
                path: &command.file,
                skip_hash_check: command.skip_hash_check,
            },
            changes: None,
            bump_revision: command.bump_revision,
        };
        Box::pin(make_store(config, &request, &mut life)).await
    } else {
        print_status(command, &life).await
    };
    life.end().await?;
    writeln!(io::stdout(), "{}", line?).context("print")
}

async fn print_status(command: &SnapshotCommand, life: &Lifecycle) -> anyhow::Result<String> {
    let file = open_snapshot(&command.file, command.skip_hash_check, life).await?;
    let status = interruptible(life, move || Ok(file.status()?)).await;
    let status = status.with_context(|| format!("read {}", command.file.display()))?;
    Ok(status.to_string())
}
