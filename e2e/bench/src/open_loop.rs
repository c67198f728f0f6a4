//! A load at a fixed rate: each request has its time, whatever came of those before it.
//!
//! Latencies count from that time, so a server that falls behind pays for each request that waits.

use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
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

    /// The same, later.
    pub(crate) fn delayed(self, delay: Duration) -> Self {
        Self {
            began: self.began + delay,
            ..self
        }
    }

    /// When the time of all requests is over.
    pub(crate) fn end(&self) -> Instant {
        self.at(self.count)
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

    /// The numbers of requests, each at its time, from a thread: timers of a runtime fire only at whole milliseconds.
    fn pace(self) -> (mpsc::Receiver<u64>, JoinHandle<()>) {
        let (sender, due) = mpsc::channel(MAX_DUE_REQUESTS);
        let pacer = std::thread::spawn(move || {
            for n in 0..self.count {
                std::thread::sleep(self.at(n).saturating_duration_since(Instant::now()));
                if sender.blocking_send(n).is_err() {
                    return; // the load has failed
                }
            }
        });
        (due, pacer)
    }
}

/// Makes all calls; returns their latencies in milliseconds.
pub(crate) async fn run<F: Future<Output = anyhow::Result<()>> + Send + 'static>(
    schedule: RequestSchedule,
    call: impl Fn(u64) -> F,
) -> anyhow::Result<Vec<f64>> {
    let (mut due, pacer) = schedule.pace();
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

/// As [`run`], where request `n` belongs to lane `n % lanes`, and those of a lane are made one after another, in turn. A late one is
/// made when the one before it is done. Returns the numbers of those that were never made, because the time was over.
pub(crate) async fn run_in_lanes<F: Future<Output = anyhow::Result<()>>>(
    schedule: RequestSchedule,
    lanes: u64,
    call: impl Fn(u64) -> F,
) -> anyhow::Result<Vec<u64>> {
    let (mut due, pacer) = schedule.pace();
    let mut lanes = RequestLanes::new(lanes);
    let (mut calls, mut unsent) = (FuturesUnordered::new(), Vec::new());
    loop {
        let next = tokio::select! {
            n = due.recv() => match n {
                Some(n) => lanes.due(n),
                None => break,
            },
            Some(done) = calls.next() => lanes.done(done?),
        };
        match next {
            Some(n) if Instant::now() < schedule.end() => {
                let call = call(n);
                calls.push(async move { call.await.map(|()| n) });
                // connections and watchers run even if very many calls are due
                tokio::task::yield_now().await;
            }
            // its lane remains busy
            Some(n) => unsent.push(n),
            None => {}
        }
    }
    while let Some(done) = calls.next().await {
        done?;
    }
    unsent.extend(lanes.waiting());
    pacer.join().ok().context("the pacing thread panicked")?;
    Ok(unsent)
}

/// The requests of each lane that may be made.
struct RequestLanes(Vec<RequestLane>);

#[derive(Clone, Default)]
struct RequestLane {
    is_busy: bool,
    /// The next one, if some wait.
    next: u64,
    waiting: u64,
}

impl RequestLanes {
    fn new(count: u64) -> Self {
        Self(vec![RequestLane::default(); count as usize])
    }

    /// Request `n` is due. Returns it if it may be made now.
    fn due(&mut self, n: u64) -> Option<u64> {
        let count = self.0.len() as u64;
        let lane = &mut self.0[(n % count) as usize];
        if std::mem::replace(&mut lane.is_busy, true) {
            lane.waiting += 1;
            return None;
        }
        lane.next = n + count;
        Some(n)
    }

    /// Request `n` is done. Returns the one that may be made now.
    fn done(&mut self, n: u64) -> Option<u64> {
        let count = self.0.len() as u64;
        let lane = &mut self.0[(n % count) as usize];
        if lane.waiting == 0 {
            lane.is_busy = false;
            return None;
        }
        let next = lane.next;
        lane.waiting -= 1;
        lane.next += count;
        Some(next)
    }

    /// Requests that were due and may not be made.
    fn waiting(&self) -> impl Iterator<Item = u64> {
        let count = self.0.len() as u64;
        let of = move |lane: &RequestLane| {
            let next = lane.next;
            (0..lane.waiting).map(move |n| next + n * count)
        };
        self.0.iter().flat_map(of)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

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

    #[test]
    fn schedules_spread_requests_evenly() {
        let schedule = RequestSchedule::new(4.0, Duration::from_secs(5)).delayed(Duration::from_secs(1));
        assert_eq!(schedule.count(), 20);
        let from_first = |n| schedule.at(n) - schedule.at(0);
        assert_eq!([1, 2, 19].map(from_first), [250, 500, 4_750].map(Duration::from_millis));
        assert_eq!(schedule.end() - schedule.at(0), Duration::from_secs(5));
    }

    #[test]
    fn requests_of_a_lane_are_made_in_turn() {
        let mut lanes = RequestLanes::new(3);
        assert_eq!([0, 1, 3, 6].map(|n| lanes.due(n)), [Some(0), Some(1), None, None]);
        assert_eq!(lanes.waiting().collect::<Vec<_>>(), [3, 6]);
        assert_eq!((lanes.done(0), lanes.done(1)), (Some(3), None));
        assert_eq!(lanes.waiting().collect::<Vec<_>>(), [6]);
        assert_eq!((lanes.done(3), lanes.done(6), lanes.due(9)), (Some(6), None, Some(9)));
    }

    #[tokio::test]
    async fn requests_that_wait_when_time_is_over_are_not_made() {
        let schedule = RequestSchedule::new(1_000.0, Duration::from_millis(20));
        let made = RefCell::new(Vec::new());
        let call = |n| {
            made.borrow_mut().push(n);
            // holds its lane until the time is over
            async move {
                tokio::time::sleep_until(schedule.end()).await;
                Ok(())
            }
        };
        let mut all = run_in_lanes(schedule, 2, call).await.unwrap();
        // a busy machine may be too late even for these
        assert!(made.borrow().iter().all(|n| *n < 2), "{made:?}");
        all.append(&mut made.borrow_mut());
        all.sort_unstable();
        assert!(all.into_iter().eq(0..20));
    }
}
