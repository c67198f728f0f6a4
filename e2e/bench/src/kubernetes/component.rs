//! A program of the control plane. It writes to a log of its own, and ends with its [`Component`].

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use programs::server::{self, ProcessUsage, Program};
use tokio::time::{Instant, sleep, timeout_at};

const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Number of lines of a log that an error shows.
const SHOWN_LOG_LINES: usize = 20;

/// Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Component {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Component {
    /// Starts `program`, which writes to `log`.
    ///
    /// # Errors
    ///
    /// The log cannot be created, or the program not started.
    pub(crate) fn start(program: &Program, args: &[String], log: PathBuf) -> anyhow::Result<Self> {
        let output = std::fs::File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let mut command = server::command(program);
        // a group of its own: a terminal's Ctrl-C is for us, and we end it
        command.args(args).process_group(0);
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        Ok(Self {
            name: program.name,
            child: server::spawn(command).with_context(|| format!("start {}", program.path.display()))?,
            log,
        })
    }

    /// Checks that it is still running.
    ///
    /// # Errors
    ///
    /// It has ended: then with the end of its log.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("{} ended: {status}\n{}", self.name, last_lines(&self.log)),
        }
    }

    /// Waits until `check` succeeds.
    ///
    /// # Errors
    ///
    /// The program has ended, or `check` still fails when the time is up: then with its last error.
    pub(crate) async fn until(
        &mut self,
        within: Duration,
        check: impl AsyncFn() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + within;
        loop {
            self.check()?;
            let error = match timeout_at(deadline, check()).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => error,
                Err(_) => anyhow::anyhow!("no answer"),
            };
            if Instant::now() > deadline {
                let text = last_lines(&self.log);
                return Err(error.context(format!("{} is not ready after {within:?}\n{text}", self.name)));
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Processor time and memory so far.
    ///
    /// # Errors
    ///
    /// It has ended.
    pub(crate) fn usage(&self) -> anyhow::Result<ProcessUsage> {
        ProcessUsage::of(self.child.id()).with_context(|| format!("inspect {}", self.name))
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Component {
    fn drop(&mut self) {
        // both fail only if it has ended already
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn last_lines(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    let last = lines[lines.len().saturating_sub(SHOWN_LOG_LINES)..].join("\n");
    format!("its last lines:\n{last}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_that_ends_is_reported_with_its_last_lines() {
        let dir = tempfile::tempdir().unwrap();
        let shell = Program {
            name: "a shell",
            path: "/bin/sh".into(),
        };
        let args = ["-c", "echo no such luck >&2; exit 3"].map(str::to_owned);
        let mut component = Component::start(&shell, &args, dir.path().join("log")).unwrap();
        let ready = async || anyhow::bail!("not yet");
        let error = component.until(Duration::from_secs(60), ready).await.unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("a shell ended: exit status: 3") && text.ends_with("no such luck"),
            "{text}"
        );
    }
}
