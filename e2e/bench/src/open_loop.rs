//! A load at a fixed rate: each request has its time, whatever came of those before it.
//!
//! Latencies count from that time, so a server that falls behind pays for each request that waits.

use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Requests that are due and not yet taken; the pacing thread waits when there are more.
const MAX_DUE_REQUESTS: usize = 1_024;

/// The time at which each request is due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestSchedule {
    began: Instant,
    /// Requests a second.
    rate: f64,
    count: u64,
}

impl RequestSchedule {
    /// From now on.
    pub(crate) fn new(rate: f64, time: Duration) -> Self {
        Self {
            began: Instant::now(),
            rate,
            count: (rate * time.as_secs_f64()).ceil() as u64,
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The time of request `n`.
    pub(crate) fn at(&self, n: u64) -> Instant {
        self.began + Duration::from_secs_f64(n as f64 / self.rate)
    }

    /// Milliseconds from the time of request `n` until now; 0 before it.
    pub(crate) fn since(&self, n: u64) -> f64 {
        self.at(n).elapsed().as_secs_f64() * 1_000.0
    }
}

/// Makes all calls; returns their latencies in milliseconds.
pub(crate) async fn run<F: Future<Output = anyhow::Result<()>> + Send + 'static>(
    schedule: RequestSchedule,
    call: impl Fn(u64) -> F,
) -> anyhow::Result<Vec<f64>> {
    let (sender, mut due) = mpsc::channel(MAX_DUE_REQUESTS);
    // timers of a runtime are too coarse: they fire at whole milliseconds
    let pacer = std::thread::spawn(move || {
        for n in 0..schedule.count {
            std::thread::sleep(schedule.at(n).saturating_duration_since(Instant::now()));
            if sender.blocking_send(n).is_err() {
                return; // the load has failed
            }
        }
    });
    let mut calls = JoinSet::new();
    let mut latencies = Vec::new();
    loop {
        tokio::select! {
            Some(n) = due.recv() => {
                let call = call(n);
                calls.spawn(async move {
                    call.await?;
                    anyhow::Ok(schedule.since(n))
                });
            }
            Some(done) = calls.join_next() => latencies.push(done??),
            else => break,
        }
    }
    pacer.join().ok().context("the pacing thread panicked")?;
    Ok(latencies)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_that_waits_delays_no_other_and_counts_from_its_time() {
        let schedule = RequestSchedule::new(1_000.0, Duration::from_millis(20));
        let (open, gate) = tokio::sync::watch::channel(false);
        let latencies = run(schedule, |n| {
            if n == 19 {
                open.send(true).unwrap(); // the last one lets all go
            }
            let mut gate = gate.clone();
            async move {
                gate.wait_for(|open| *open).await?;
                Ok(())
            }
        });
        let latencies = latencies.await.unwrap();
        assert_eq!(latencies.len(), 20);
        // the first waited for the last one, which was due 19 ms later
        assert!(latencies.iter().any(|latency| *latency >= 19.0), "{latencies:?}");
    }
}
