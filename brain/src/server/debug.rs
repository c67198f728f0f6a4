//! `kubebrain debug`: opens a store read-only, and prints a part of it.

use std::io::{self, BufWriter, Write};
use std::sync::Arc;

use crate::data_dir::{LOG_DIR, LockedDataDir, ROWS_DIR};
use crate::flags::{Config, Dump, Dumped, Storage, TikvOptions};
use crate::server::dump::{self, DumpLines};
use anyhow::Context as _;
use engine::log::frame::is_barrier;
use engine::rows::{Rows as _, Snapshot};
use engine_local::log::StoredLog;
use engine_local::rows::StoredRows;
use engine_tikv::{Tikv, TikvLog, TikvRows};

use crate::server::run::Lifecycle;
use crate::server::tikv::{ONE_ATTEMPT_DOUBLINGS, connection};

/// Prints the dump, and ends. A signal interrupts it.
pub(crate) async fn run(config: &Config, dump: &Dump, mut life: Lifecycle) -> anyhow::Result<()> {
    let leave = life.leave.clone();
    let mut lines = DumpLines::new(BufWriter::new(io::stdout()), dump.limit);
    let print = async {
        match &config.storage {
            Storage::Embedded => embedded(config, dump, &mut lines).await,
            Storage::Tikv(options) => tikv(options, dump, &mut life, &mut lines).await,
        }
    };
    let printed = tokio::select! {
    biased;
    () = leave.cancelled() => Err(anyhow::anyhow!("interrupted")),
    printed = Box::pin(print) => printed,
    };
    life.end().await?;
    // The lines printed before an error are flushed, too.
    let printed = printed.and(lines.flush().context("print"));
    match printed {
        // The reader closed the pipe: it has read enough.
        Err(error) if is_closed_pipe(&error) => Ok(()),
        printed => printed,
    }
}

async fn embedded<W: Write>(config: &Config, dump: &Dump, lines: &mut DumpLines<W>) -> anyhow::Result<()> {
    let dir = LockedDataDir::at(&config.data_dir)?;
    if dump.what == Dumped::Log {
        let log = StoredLog::open(&dir.path().join(LOG_DIR)).context("open the log")?;
        return dump::log(Arc::new(log), lines).await;
    }
    let rows = StoredRows::open(&dir.path().join(ROWS_DIR)).context("open the rows")?;
    if let Some(cut) = rows.cut() {
        tracing::warn!(
            cut,
            "the newest journal of the rows is not whole; its rest is not printed"
        );
    }
    print_rows(rows.snapshot(), dump, lines).await
}

async fn tikv<W: Write>(
    options: &TikvOptions,
    dump: &Dump,
    life: &mut Lifecycle,
    lines: &mut DumpLines<W>,
) -> anyhow::Result<()> {
    let (tikv, supervisor) = Tikv::attach(connection(options, ONE_ATTEMPT_DOUBLINGS)).await?;
    life.tasks.spawn("TiKV", supervisor.run(life.stop.clone()));
    let is_begun = tikv.check_pin().await?;
    anyhow::ensure!(
        is_begun,
        "there is no store below the key prefix {:?}",
        options.key_prefix
    );
    if dump.what == Dumped::Log {
        return dump::log(Arc::new(TikvLog::keeping(tikv, is_barrier)), lines).await;
    }
    let rows = TikvRows::new(tikv).snapshot().await?;
    print_rows(&*rows, dump, lines).await
}

async fn print_rows<W: Write>(rows: &dyn Snapshot, dump: &Dump, lines: &mut DumpLines<W>) -> anyhow::Result<()> {
    match dump.what {
        Dumped::Manifest => dump::manifest(rows.fence().await?, lines),
        Dumped::Rows | Dumped::Log => dump::rows(rows, dump, lines).await,
    }
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let io: Option<&io::Error> = error.downcast_ref();
    io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
