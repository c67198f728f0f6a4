//! The process around the server: command line, logs, signals, exit codes.
//!
//! Exit codes: 0 after a requested stop, 1 if the server could not start or continue, 2 for a bad command line, 3 if `kubebrain backup` found
//! damage. An error is one line on standard error.

use std::io::{self, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::flags::{self, Asked, Config};
use crate::server::refusal;
use net::refusal::{Refusal, RefusalCode, TERMINATION_LOG};
use runtime::open_files;
use runtime::tasks::Tasks;
use telemetry::logs;

/// Exit code of `kubebrain backup` if objects are not what was written, or are missing. Callers tell damage from other failures by it.
const DAMAGED: u8 = 3;

/// The time for which blocking work may continue after everything else has ended.
const BLOCKING_WORK_TIMEOUT: Duration = Duration::from_secs(1);

/// Reads the command line, sets up logs, and runs the server to its end.
#[must_use]
pub fn run<F>(server: impl FnOnce(Config, Signals) -> F) -> ExitCode
where
    F: Future<Output = anyhow::Result<()>>,
{
    // Only the owner may read stored data, whatever creates it.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    match flags::parse(std::env::args_os().skip(1), std::env::vars_os()) {
        Err(error) if debugs() => fail(2, &error),
        Err(error) => end(2, &Refusal::new(RefusalCode::Failed, error.to_string())),
        Ok(Asked::Print(text)) => match io::stdout().write_all(text.as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(1, &format_args!("cannot print: {error}")),
        },
        Ok(Asked::Serve(config, warnings)) => match serve(*config, warnings, server) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) if debugs() => {
                let refusal = refusal::of(&error);
                let is_damage = refusal.code == RefusalCode::Corrupt && is_subcommand(&["backup"]);
                fail(if is_damage { DAMAGED } else { 1 }, &refusal.message)
            }
            Err(error) => end(1, &refusal::of(&error)),
        },
    }
}

/// Returns true if this is `kubebrain debug`, `snapshot`, `import` or `backup`, which may run beside a member and must not overwrite that
/// member's termination message.
fn debugs() -> bool {
    is_subcommand(&["debug", "snapshot", "import", "backup"])
}

fn is_subcommand(names: &[&str]) -> bool {
    let command = std::env::args_os().nth(1);
    command.is_some_and(|command| names.iter().any(|name| command == *name))
}

/// Ends, and writes the reason to the file that Kubernetes reads.
fn end(code: u8, refusal: &Refusal) -> ExitCode {
    // Outside a container this file does not exist, and no reader needs it.
    drop(refusal.leave_in(Path::new(TERMINATION_LOG)));
    fail(code, &refusal.message)
}

fn fail(code: u8, error: &dyn std::fmt::Display) -> ExitCode {
    let line = error.to_string().trim_end().replace('\n', " ");
    // Without standard error the message is lost; the exit code still reports the failure.
    writeln!(io::stderr(), "kubebrain: {line}").map_or(ExitCode::from(code), |()| ExitCode::from(code))
}

fn serve<F>(config: Config, warnings: Vec<String>, server: impl FnOnce(Config, Signals) -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    logs::init(&config.log)?;
    if let Err(error) = open_files::raise() {
        warn!(%error, "cannot raise the limit of open files");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start threads")?;
    // Signal handlers are installed before the first log line: a reader of that line may rely on an orderly stop.
    let signals = runtime.block_on(async { Signals::listen() })?;
    info!(
        etcd = etcd_types::version::ETCD,
        version = etcd_types::version::KUBEBRAIN,
        name = config.name,
        "starting"
    );
    for warning in warnings {
        warn!("{warning}");
    }
    let outcome = runtime.block_on(server(config, signals));
    runtime.shutdown_timeout(BLOCKING_WORK_TIMEOUT);
    outcome
}

/// SIGTERM and SIGINT, handled from the start of the process on: signals that arrive before [`Signals::follow`] are kept. The first
/// process of a container would otherwise not receive a signal sent before a handler exists.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> anyhow::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate()).context("listen to SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("listen to SIGINT")?,
        })
    }

    /// Starts the task that cancels `leave` on the first signal. It ends with `stop`.
    pub fn follow(mut self, leave: &CancellationToken, stop: &CancellationToken, tasks: &mut Tasks) {
        let (leave, stop) = (leave.clone(), stop.clone());
        tasks.spawn("signals", async move {
            let name = tokio::select! {
                _ = self.terminate.recv() => "SIGTERM",
                _ = self.interrupt.recv() => "SIGINT",
                () = stop.cancelled() => return Ok(()),
            };
            info!(signal = name, "stopping");
            notify("STOPPING=1");
            leave.cancel();
            stop.cancelled().await;
            Ok(())
        });
    }
}

/// Reports to the logs, and to the service manager if there is one, that clients are served.
pub fn ready(urls: &[String]) {
    info!(urls = urls.join(","), "ready to serve client requests");
    notify("READY=1");
}

/// Sends a state to systemd, if it started this process with a notification socket.
fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let sent = send(&path.to_string_lossy(), state);
    if let Err(error) = sent {
        warn!(%error, "cannot notify systemd");
    }
}

fn send(path: &str, state: &str) -> io::Result<()> {
    let address = match path.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    UnixDatagram::unbound()?
        .send_to_addr(state.as_bytes(), &address)
        .map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_manager_hears_of_states() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        send(path.to_str().unwrap(), "READY=1").unwrap();
        let mut heard = [0; 16];
        let len = manager.recv(&mut heard).unwrap();
        assert_eq!(&heard[..len], b"READY=1");

        let name = format!("kubebrain-{}", std::process::id());
        let manager = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        send(&format!("@{name}"), "STOPPING=1").unwrap();
        let len = manager.recv(&mut heard).unwrap();
        assert_eq!(&heard[..len], b"STOPPING=1");
        assert!(send("/no/such/socket", "READY=1").is_err());
    }
}
