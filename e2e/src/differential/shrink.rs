//! A script that shows a difference, made shorter as long as it shows it.

use std::time::Duration;

use tokio::time::Instant;

use super::request::Step;
use super::{FLAGS, Report, replay, text};
use crate::progress::Progress;
use crate::server::{Program, Server};

/// The two programs that are compared.
#[derive(Clone, Debug)]
pub struct Programs {
    /// Etcd.
    pub reference: Program,
    /// What is compared with it.
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
        let mut flags = FLAGS.to_vec();
        flags.extend(self.subject_flags.iter().map(String::as_str));
        std::thread::scope(|scope| {
            let reference = scope.spawn(|| Server::start(&self.reference, FLAGS));
            let subject = Server::start(&self.subject, &flags)?;
            let reference = reference.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
            Ok((reference, subject))
        })
    }

    /// Returns true if a script leads to a difference of this kind between new stores.
    async fn differ(&self, steps: &[Step], signature: &str) -> anyhow::Result<bool> {
        let (reference, subject) = self.start()?;
        // A part of a script may be one that the reference does not answer: that is no difference.
        let found = Box::pin(replay(&reference, &subject, steps)).await;
        Ok(found.is_ok_and(|differences| differences.contains(signature)))
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
        let until = Instant::now() + within;
        if !self.differ(&report.script, signature).await? {
            return Ok(None);
        }
        let mut steps = report.script.clone();
        let mut size = steps.len().div_ceil(2);
        while Instant::now() < until {
            let Some(part) = Parts::new(steps.len(), size)
                .find_shorter(self, &steps, signature, until)
                .await?
            else {
                if size == 1 {
                    break;
                }
                size = size.div_ceil(2);
                continue;
            };
            steps = part;
            progress.say(format_args!("  {} steps", steps.len()));
            size = size.min(steps.len().div_ceil(2));
        }
        Ok(Some(text::write(&steps)?))
    }
}

/// Ranges of a script, the last one first: what comes late is needed least.
struct Parts {
    end: usize,
    size: usize,
}

impl Parts {
    fn new(end: usize, size: usize) -> Self {
        Self { end, size }
    }

    /// Leaves out every part without which the difference is still there; `None` if there is none.
    async fn find_shorter(
        self,
        programs: &Programs,
        steps: &[Step],
        signature: &str,
        until: Instant,
    ) -> anyhow::Result<Option<Vec<Step>>> {
        let mut left = steps.to_vec();
        for part in self {
            if Instant::now() >= until {
                break;
            }
            let shorter = without(&left, &part);
            if !shorter.is_empty() && programs.differ(&shorter, signature).await? {
                left = shorter;
            }
        }
        Ok((left.len() < steps.len()).then_some(left))
    }
}

impl Iterator for Parts {
    type Item = std::ops::Range<usize>;

    fn next(&mut self) -> Option<Self::Item> {
        let start = self.end.saturating_sub(self.size);
        let part = (self.end > 0).then_some(start..self.end);
        self.end = start;
        part
    }
}

fn without(steps: &[Step], part: &std::ops::Range<usize>) -> Vec<Step> {
    [&steps[..part.start], &steps[part.end..]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_a_script_from_its_end() {
        let parts: Vec<_> = Parts::new(5, 2).collect();
        assert_eq!(parts, [3..5, 1..3, 0..1]);
        assert_eq!(Parts::new(0, 2).count(), 0);
    }
}
