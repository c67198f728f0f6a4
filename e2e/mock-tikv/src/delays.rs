//! Slow answers: how late PD and the stores answer, until the delays are changed.
//!
//! A request is executed at once; only its answer is late, as after a wait for a busy disk or in a long queue. Requests do not wait for
//! each other.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// How late a process answers. In JSON all times are in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delay {
    /// Which process, by its number; PD and all stores when absent.
    #[serde(default)]
    pub process: Option<u64>,
    /// Each answer is late by this much.
    #[serde(default, rename = "ms", with = "crate::faults::millis")]
    pub by: Duration,
    /// By up to this much more or less, at random.
    #[serde(default, rename = "jitter_ms", with = "crate::faults::millis")]
    pub jitter: Duration,
    /// The time from the beginning of one stall to that of the next one; there are none when it is zero.
    #[serde(default, rename = "stall_every_ms", with = "crate::faults::millis")]
    pub stall_every: Duration,
    /// The time for which nothing is answered in each stall.
    #[serde(default, rename = "stall_ms", with = "crate::faults::millis")]
    pub stall: Duration,
}

impl Delay {
    /// Every process answers late by this much.
    #[must_use]
    pub fn of(by: Duration) -> Self {
        Self { by, ..Self::default() }
    }

    /// Nothing is answered for `stall` in each period of `every`.
    #[must_use]
    pub fn stalls(every: Duration, stall: Duration) -> Self {
        Self {
            stall_every: every,
            stall,
            ..Self::default()
        }
    }

    /// The same, more or less at random.
    #[must_use]
    pub fn with_jitter(mut self, jitter: Duration) -> Self {
        self.jitter = jitter;
        self
    }

    /// The same, of one process only.
    #[must_use]
    pub fn at(mut self, process: u64) -> Self {
        self.process = Some(process);
        self
    }

    /// The time until an answer is sent that is ready `age` after the delay was set; `chance` is a number from 0 to 1.
    fn until_answer(&self, age: Duration, chance: f64) -> Duration {
        let swing = 2.0 * self.jitter.as_secs_f64() * chance;
        let by = (self.by + Duration::from_secs_f64(swing)).saturating_sub(self.jitter);
        let (due, every) = ((age + by).as_nanos(), self.stall_every.as_nanos());
        let within = due
            .checked_rem(every)
            .map(|into| u64::try_from(into).unwrap_or(u64::MAX));
        let left = within.map_or(Duration::ZERO, |into| {
            self.stall.saturating_sub(Duration::from_nanos(into))
        });
        by + left
    }
}

/// The delays that are set.
#[derive(Debug)]
pub struct Delays(Mutex<DelaysState>);

#[derive(Debug)]
struct DelaysState {
    set: Vec<Delay>,
    since: Instant,
    chance: StdRng,
}

impl Delays {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Mutex::new(DelaysState {
            set: Vec::new(),
            since: Instant::now(),
            chance: StdRng::seed_from_u64(seed),
        }))
    }

    /// Replaces all delays; none: everything is answered at once. Answers that wait already come when they would have come.
    pub fn set(&self, delays: impl IntoIterator<Item = Delay>) {
        let mut state = self.state();
        state.set = delays.into_iter().collect();
        state.since = Instant::now();
    }

    /// All delays that are set.
    #[must_use]
    pub fn list(&self) -> Vec<Delay> {
        self.state().set.clone()
    }

    /// The delay of an answer that is ready now: the longest of all that apply to this process.
    pub(crate) fn draw(&self, process: u64) -> Duration {
        let mut state = self.state();
        let DelaysState { set, since, chance } = &mut *state;
        let age = since.elapsed();
        let fits = |delay: &&Delay| delay.process.is_none_or(|meant| meant == process);
        let delays = set
            .iter()
            .filter(fits)
            .map(|delay| delay.until_answer(age, chance.random()));
        delays.max().unwrap_or_default()
    }

    fn state(&self) -> MutexGuard<'_, DelaysState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn answers_are_late_as_long_as_the_delay_says() {
        let constant = Delay::of(MS(300));
        assert_eq!(constant.until_answer(MS(77), 0.3), MS(300));
        let jitter = Delay::of(MS(50)).with_jitter(MS(300));
        let drawn = [0.0, 0.5, 1.0].map(|chance| jitter.until_answer(MS(0), chance));
        assert_eq!(drawn, [MS(0), MS(50), MS(350)]);
        let stalls = Delay::stalls(MS(5_000), MS(1_000));
        let drawn = [0, 999, 1_000, 4_999, 5_400].map(|age| stalls.until_answer(MS(age), 0.0));
        assert_eq!(drawn, [MS(1_000), MS(1), MS(0), MS(0), MS(600)]);
    }

    #[test]
    fn one_process_can_be_late_alone() {
        let delays = Delays::new(1);
        delays.set([Delay::of(MS(300)).at(2)]);
        assert_eq!([0, 1, 2].map(|process| delays.draw(process)), [MS(0), MS(0), MS(300)]);
        delays.set([]);
        assert_eq!(delays.draw(2), MS(0));
    }
}
