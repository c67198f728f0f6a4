//! Processes that end with this one.

use std::process::{Child, Command};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;

use super::Program;

/// A command that runs the program and dies with us.
pub fn command(program: &Program) -> Command {
    command_by(&[], program)
}

/// The same in a network of its own.
pub(super) fn command_alone(program: &Program) -> Command {
    const SCRIPT: &str = r#"ip link set lo up; exec "$0" "$@""#;
    command_by(&["unshare", "--net", "--", "sh", "-ec", SCRIPT], program)
}

/// Runs the program by others that replace themselves with it.
fn command_by(others: &[&str], program: &Program) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "--"])
        .args(others)
        .arg(&program.path);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ETCD_") {
            command.env_remove(name); // the flags are all there is
        }
    }
    command
}

/// Starts a process of [`command`].
///
/// The kernel sends the death signal when the *thread* ends that started the process, so all are started by one that
/// ends with the process.
///
/// # Errors
///
/// It cannot be started.
pub fn spawn(command: Command) -> anyhow::Result<Child> {
    type SpawnOrder = (Command, SyncSender<std::io::Result<Child>>);
    static STARTER: Mutex<Option<SyncSender<SpawnOrder>>> = Mutex::new(None);
    let (reply, answer) = sync_channel(1);
    let mut starter = STARTER.lock().unwrap_or_else(PoisonError::into_inner);
    let orders = starter.get_or_insert_with(|| {
        let (orders, queue) = sync_channel::<SpawnOrder>(16);
        std::thread::spawn(move || {
            for (mut command, reply) in queue {
                drop(reply.send(command.spawn())); // the receiver may no longer wait
            }
        });
        orders
    });
    orders
        .send((command, reply))
        .ok()
        .context("the thread that starts processes is gone")?;
    Ok(answer.recv().context("the thread that starts processes is gone")??)
}
