//! Ways to make a script shorter, the boldest first.
//!
//! The result is minimal: without any one of its steps, or any one of their fields, the difference is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use programs::progress::Progress;
use tokio::time::Instant;

use super::simplify;
use crate::request::Request;
use crate::revisions::Ran;

/// Longer scripts are not made simpler, only shorter.
const MAX_SIMPLIFIED_STEPS: usize = 60;

/// Makes scripts shorter as long as a test finds what it looks for. It returns the steps that were run, up to there.
pub(super) struct Reducer<'a, T> {
    test: T,
    until: Instant,
    progress: &'a Progress,
    steps: Vec<Ran>,
}

impl<'a, T: AsyncFnMut(Vec<Ran>) -> anyhow::Result<Option<Vec<Ran>>>> Reducer<'a, T> {
    pub(super) fn new(test: T, until: Instant, progress: &'a Progress) -> Self {
        Self {
            test,
            until,
            progress,
            steps: Vec::new(),
        }
    }

    /// The shortest script that is found in time; `None` if the test does not find what it looks for in the whole one.
    pub(super) async fn run(&mut self, script: Vec<Ran>) -> anyhow::Result<Option<Vec<Ran>>> {
        self.steps = script;
        // The whole script takes long, and is often not needed.
        if !self.suffixes().await? {
            let Some(ran) = (self.test)(self.steps.clone()).await? else {
                return Ok(None);
            };
            self.steps = ran;
        }
        self.groups().await?;
        self.chunks().await?;
        while self.steps.len() <= MAX_SIMPLIFIED_STEPS && self.simplify().await? {
            self.chunks().await?;
        }
        Ok(Some(std::mem::take(&mut self.steps)))
    }

    fn in_time(&self) -> bool {
        Instant::now() < self.until
    }

    /// Takes a candidate if it shows the difference.
    async fn try_out(&mut self, candidate: Vec<Ran>) -> anyhow::Result<bool> {
        let before = self.steps.len();
        let Some(ran) = (self.test)(candidate).await? else {
            return Ok(false);
        };
        self.steps = ran;
        if self.steps.len() < before {
            self.progress.say(format_args!("  {} steps", self.steps.len()));
        }
        Ok(true)
    }

    /// The last steps alone: many differences need no more. True if they do.
    async fn suffixes(&mut self) -> anyhow::Result<bool> {
        let mut count = 1;
        while count < self.steps.len() / 2 && self.in_time() {
            let suffix = self.steps[self.steps.len() - count..].to_vec();
            if self.try_out(suffix).await? {
                return Ok(true);
            }
            count *= 4;
        }
        Ok(false)
    }

    /// All steps of one kind at once, the largest kinds first.
    async fn groups(&mut self) -> anyhow::Result<()> {
        let mut done = BTreeSet::new();
        while self.in_time() {
            let groups = groups(&self.steps);
            let largest = groups
                .into_iter()
                .filter(|(name, group)| group.len() > 1 && !done.contains(name))
                .max_by_key(|(_, group)| group.len());
            let Some((name, group)) = largest else { break };
            let rest = self.steps.iter().enumerate();
            let rest = rest.filter(|(at, _)| !group.contains(at)).map(|(_, step)| step.clone());
            self.try_out(rest.collect()).await?;
            done.insert(name);
        }
        Ok(())
    }

    /// Parts of all sizes, from a half to a single step, until none can go.
    async fn chunks(&mut self) -> anyhow::Result<()> {
        let mut size = self.steps.len().div_ceil(2).max(1);
        while self.in_time() {
            let before = self.steps.len();
            self.chunks_of(size).await?;
            if self.steps.len() < before {
                size = size.min(self.steps.len().div_ceil(2)).max(1);
            } else if size == 1 {
                break;
            } else {
                size = size.div_ceil(2);
            }
        }
        Ok(())
    }

    /// Leaves out every part without which the difference is still there, but for the last step.
    async fn chunks_of(&mut self, size: usize) -> anyhow::Result<()> {
        let mut end = self.steps.len().saturating_sub(1);
        while end > 0 && self.in_time() {
            let part = end.saturating_sub(size)..end;
            end = part.start;
            let shorter = without(&self.steps, &part);
            self.try_out(shorter).await?;
            // The difference may have come earlier.
            end = end.min(self.steps.len().saturating_sub(1));
        }
        Ok(())
    }

    /// Leaves out fields; true if any could go.
    async fn simplify(&mut self) -> anyhow::Result<bool> {
        let mut any = false;
        let mut at = self.steps.len();
        while let Some(step) = at.checked_sub(1) {
            let tried = simplify::simpler(&self.steps[step].step)?;
            let mut is_simpler = false;
            for simpler in tried {
                if !self.in_time() {
                    return Ok(any);
                }
                let mut candidate = self.steps.clone();
                candidate[step].step = simpler;
                if self.try_out(candidate).await? {
                    (any, is_simpler) = (true, true);
                    break;
                }
            }
            // A step that could be simplified is tried again.
            at = if is_simpler { at.min(self.steps.len()) } else { step };
        }
        Ok(any)
    }
}

/// Steps that may be of no use together: all that read, those of a method, of a stream, of a user, of a key. Never the last one.
fn groups(steps: &[Ran]) -> BTreeMap<String, BTreeSet<usize>> {
    let mut groups: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    let all_but_last = &steps[..steps.len().saturating_sub(1)];
    for (at, Ran { step, .. }) in all_but_last.iter().enumerate() {
        let mut names = vec![format!("method {}", step.request.method())];
        if !step.request.writes() {
            names.push("reads".to_owned());
        }
        if let Some(by) = &step.by {
            names.push(format!("user {}", by.user));
        }
        match &step.request {
            Request::Put(put) => names.push(format!("key {:?}", put.key)),
            Request::DeleteRange(delete) => names.push(format!("key {:?}", delete.key)),
            Request::Watch { stream, .. } | Request::Cancel { stream, .. } | Request::Settle { stream, .. } => {
                names.push(format!("stream {stream}"));
                names.push("streams".to_owned());
            }
            _ => {}
        }
        for name in names {
            groups.entry(name).or_default().insert(at);
        }
    }
    groups
}

fn without(steps: &[Ran], part: &Range<usize>) -> Vec<Ran> {
    [&steps[..part.start], &steps[part.end..]].concat()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::request::Step;
    use crate::script::Script;
    use wire::etcdserverpb as pb;

    fn put(key: &str, value: &str) -> Ran {
        let put = pb::PutRequest {
            key: key.as_bytes().to_vec().into(),
            value: value.as_bytes().to_vec().into(),
            prev_kv: true,
            ..pb::PutRequest::default()
        };
        Step::new(Request::Put(put), None).into()
    }

    fn any_steps(seed: u64, count: usize) -> Vec<Ran> {
        let mut script = Script::new(seed);
        (0..count).filter_map(|_| script.next(false)).map(Ran::from).collect()
    }

    /// Shows a difference at a put of "z" after puts of "x" and "y" in this order.
    fn shows(steps: &[Ran]) -> Option<Vec<Ran>> {
        let mut wanted = ["x", "y", "z"].into_iter().peekable();
        for (at, ran) in steps.iter().enumerate() {
            if let Request::Put(put) = &ran.step.request
                && let Some(key) = wanted.next_if(|key| put.key == key.as_bytes())
                && key == "z"
            {
                return Some(steps[..=at].to_vec());
            }
        }
        None
    }

    async fn reduced(script: Vec<Ran>, within: Duration) -> (Option<Vec<Ran>>, usize) {
        let mut runs = 0;
        let test = async |steps: Vec<Ran>| {
            runs += 1;
            Ok(shows(&steps))
        };
        let progress = Progress::stderr();
        let mut reducer = Reducer::new(test, Instant::now() + within, &progress);
        let shortest = reducer.run(script).await.unwrap();
        drop(reducer);
        (shortest, runs)
    }

    fn hidden(seed: u64) -> Vec<Ran> {
        let mut script = any_steps(seed, 300);
        script.push(put("x", "first"));
        script.extend(any_steps(seed + 1, 3_000));
        script.push(put("y", "second"));
        script.extend(any_steps(seed + 2, 1_000));
        script.push(put("z", "third"));
        script.extend(any_steps(seed + 3, 50));
        script
    }

    #[tokio::test]
    async fn steps_and_fields_that_are_needed_remain() {
        for seed in 0..3 {
            let (shortest, runs) = reduced(hidden(10 * seed), Duration::from_secs(3_600)).await;
            let bare = |key| {
                let mut step = put(key, "");
                if let Request::Put(put) = &mut step.step.request {
                    put.prev_kv = false;
                }
                step
            };
            assert_eq!(shortest.unwrap(), ["x", "y", "z"].map(bare));
            assert!(runs < 300, "{runs} runs");
        }
    }

    #[tokio::test]
    async fn last_step_that_is_enough_is_found_at_once() {
        let script: Vec<_> = hidden(1)
            .into_iter()
            .filter(|ran| ran.step.request.method() != "Put")
            .collect();
        let mut alone = any_steps(7, 2_000);
        alone.extend([put("x", ""), put("y", ""), put("z", "")]);
        let (shortest, runs) = reduced(alone, Duration::from_secs(3_600)).await;
        assert_eq!(shortest.unwrap().len(), 3);
        assert!(runs < 60, "{runs} runs");
        assert_eq!(
            reduced(script, Duration::from_secs(3_600)).await.0,
            None,
            "there is nothing to see"
        );
    }

    #[tokio::test]
    async fn time_that_is_over_leaves_what_was_found() {
        let (shortest, runs) = reduced(hidden(5), Duration::ZERO).await;
        assert_eq!((shortest, runs), (shows(&hidden(5)), 1));
    }
}
