//! Says what is being done and how long it took, one line a step.
//!
//! A step that takes long reports every half minute that it still runs.

use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::time::Instant;

const STILL_RUNNING_INTERVAL: Duration = Duration::from_secs(30);

/// Destination of the lines. Cheap to clone; every clone writes to the same place.
#[derive(Clone)]
pub struct Progress(Arc<dyn Fn(&str) + Send + Sync>);

impl Progress {
    /// Lines on standard error.
    pub fn stderr() -> Self {
        // a closed terminal is no reason to give up the work
        Self::to(|line| drop(writeln!(std::io::stderr(), "{line}")))
    }

    /// Lines given to `sink`.
    pub fn to(sink: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(sink))
    }

    /// One line.
    pub fn say(&self, line: impl Display) {
        (self.0)(&line.to_string());
    }

    /// Begins a step; the line with its duration comes when [`ProgressStep::done`] is called.
    pub fn step(&self, what: impl Display) -> ProgressStep {
        let what = what.to_string();
        let began = Instant::now();
        let (stop, stopped) = sync_channel::<()>(1);
        let (progress, label) = (self.clone(), what.clone());
        let ticker = std::thread::spawn(move || {
            while stopped.recv_timeout(STILL_RUNNING_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                progress.say(format_args!("  … {label}: {} so far", Elapsed(began.elapsed())));
            }
        });
        ProgressStep {
            progress: self.clone(),
            what,
            began,
            ticker: Some((stop, ticker)),
        }
    }

    /// Runs `work` as one step; a failure gets the step's name as context.
    ///
    /// # Errors
    ///
    /// Those of `work`.
    pub fn during<T>(&self, what: impl Display, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let step = self.step(&what);
        let result = work().map_err(|error| error.context(what.to_string()))?;
        step.done();
        Ok(result)
    }

    /// Reports the failure of a program, and returns its exit code. `Ok(false)` is a failure that its output describes.
    pub fn exit_code(&self, name: &str, outcome: anyhow::Result<bool>) -> ExitCode {
        match outcome {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                self.say(format_args!("{name}: {error:#}"));
                ExitCode::FAILURE
            }
        }
    }
}

/// A step under way. Dropped without [`ProgressStep::done`] it ends in silence: the error has the cause.
pub struct ProgressStep {
    progress: Progress,
    what: String,
    began: Instant,
    ticker: Option<(SyncSender<()>, JoinHandle<()>)>,
}

impl ProgressStep {
    /// Ends the step and reports its duration.
    pub fn done(self) {
        self.progress.say(format_args!(
            "  {:>7}  {}",
            Elapsed(self.began.elapsed()).to_string(),
            self.what
        ));
    }
}

impl Drop for ProgressStep {
    fn drop(&mut self) {
        if let Some((stop, ticker)) = self.ticker.take() {
            drop(stop);
            drop(ticker.join()); // it only prints: a panic there has no consequences
        }
    }
}

/// A duration as people say it: `0.4 s`, `12.0 s`, `6 m 40 s`.
pub struct Elapsed(pub Duration);

impl Display for Elapsed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.as_secs() {
            0..60 => write!(f, "{:.1} s", self.0.as_secs_f32()),
            secs => write!(f, "{} m {:02} s", secs / 60, secs % 60),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_people_say_them() {
        for (millis, said) in [
            (400, "0.4 s"),
            (59_900, "59.9 s"),
            (400_000, "6 m 40 s"),
            (61_000, "1 m 01 s"),
        ] {
            assert_eq!(Elapsed(Duration::from_millis(millis)).to_string(), said);
        }
    }

    #[test]
    fn a_failed_step_names_itself() {
        let error = Progress::to(|_| ()).during("boil water", || anyhow::bail!("no fire") as anyhow::Result<()>);
        assert_eq!(format!("{:#}", error.unwrap_err()), "boil water: no fire");
    }
}
