//! A script that shows a difference, made shorter and simpler as long as it shows it.

use std::time::Duration;

use anyhow::Context as _;
use programs::progress::Progress;
use programs::server::{Program, Server};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::revisions::Ran;
use super::{FLAGS, Report, run_again, text};

mod reduce;
mod simplify;

use reduce::Reducer;

/// Stores of a short script need not survive anything, and are ready sooner.
const NO_FSYNC_FLAG: &str = "--unsafe-no-fsync";

/// The two programs that are compared.
#[derive(Clone, Debug)]
pub struct Programs {
    /// Etcd.
    pub reference: Program,
    /// The server that is compared with etcd.
    pub subject: Program,
    /// Flags of the subject beside [`FLAGS`].
    pub subject_flags: Vec<String>,
}

impl Programs {
    /// Starts both on new stores.
    ///
    /// # Errors
    ///
    /// One of them does not start.
    pub fn start(&self) -> anyhow::Result<(Server, Server)> {
        self.start_with(&[])
    }

    fn start_with(&self, more: &[&str]) -> anyhow::Result<(Server, Server)> {
        let reference_flags = [FLAGS, more].concat();
        let mut flags = reference_flags.clone();
        flags.extend(self.subject_flags.iter().map(String::as_str));
        std::thread::scope(|scope| {
            let reference = scope.spawn(|| Server::start(&self.reference, &reference_flags));
            let subject = Server::start(&self.subject, &flags)?;
            let reference = reference.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
            Ok((reference, subject))
        })
    }

    /// The shortest script for the first difference of a report that is found in a time, as text; `None` if the difference does not
    /// come again.
    ///
    /// # Errors
    ///
    /// A program does not start.
    pub async fn shorten(
        &self,
        report: &Report,
        within: Duration,
        progress: &Progress,
    ) -> anyhow::Result<Option<String>> {
        let Some((_, signature)) = report.differences.first() else {
            return Ok(None);
        };
        progress.say(format_args!(
            "looking for the shortest script with the difference {signature}"
        ));
        let mut fresh = FreshPairs::of(self);
        let until = Instant::now() + within;
        let test = async |steps: Vec<Ran>| {
            let (reference, subject) = fresh.next().await?;
            // A part of a script may be one that the reference does not answer: that is no difference.
            let rerun = Box::pin(run_again(&reference, &subject, &steps)).await;
            Ok(rerun
                .ok()
                .filter(|rerun| rerun.differences.contains(signature))
                .map(|rerun| rerun.ran))
        };
        let mut reducer = Reducer::new(test, until, progress);
        let Some(shortest) = Box::pin(reducer.run(report.script.clone())).await? else {
            return Ok(None);
        };
        let steps: Vec<_> = shortest.into_iter().map(|ran| ran.step).collect();
        Ok(Some(text::write(&steps)?))
    }
}

/// Pairs of servers on new stores. The next one is started while one is in use.
struct FreshPairs<'a> {
    programs: &'a Programs,
    next: JoinSet<anyhow::Result<(Server, Server)>>,
}

impl<'a> FreshPairs<'a> {
    fn of(programs: &'a Programs) -> Self {
        let mut pairs = Self {
            programs,
            next: JoinSet::new(),
        };
        pairs.start();
        pairs
    }

    fn start(&mut self) {
        let programs = self.programs.clone();
        self.next.spawn_blocking(move || programs.start_with(&[NO_FSYNC_FLAG]));
    }

    async fn next(&mut self) -> anyhow::Result<(Server, Server)> {
        let started = self
            .next
            .join_next()
            .await
            .context("the next pair is always being started")?;
        self.start();
        started.context("a thread panicked")?
    }
}
