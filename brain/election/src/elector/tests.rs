//! Electors against a lock in memory, on tokio's paused clock.
//!
//! Time passes here only when every task waits, and then jumps to the next timer: `pass` gives the time for which the candidates
//! run undisturbed, and their actions within it do not depend on the machine.

mod heard;
mod sim;
mod slow;

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::*;
use crate::memory::{Faults, MemoryLock};
use crate::{Moment, Term, Timestamp};

const LEASE_DURATION: Duration = Duration::from_secs(2);
const RENEW_DEADLINE: Duration = Duration::from_millis(1500);
const MAX_RETRY_PERIOD: Duration = Duration::from_millis(880);
const CLOCK_TICK: Duration = Duration::from_millis(5);

/// Tokio's clock, which tests pause, from an origin of its own; it can be set forward, as if the machine had been suspended.
#[derive(Clone, Debug)]
struct TestClock {
    base: Instant,
    /// The rate of the clock.
    rate: f64,
    suspended_ms: Arc<AtomicU64>,
}

impl TestClock {
    fn new(rate: f64) -> Self {
        Self {
            base: Instant::now(),
            rate,
            suspended_ms: Arc::default(),
        }
    }

    fn suspend(&self, millis: u64) {
        self.suspended_ms.fetch_add(millis, Ordering::Relaxed);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Moment {
        let suspended = Duration::from_millis(self.suspended_ms.load(Ordering::Relaxed));
        Moment::new(Duration::from_secs(1_000) + self.base.elapsed().mul_f64(self.rate) + suspended)
    }
}

struct Candidate {
    handle: Handle<TestClock>,
    clock: TestClock,
    stop: CancellationToken,
}

fn candidate(lock: &MemoryLock, config: Config) -> (Elector<MemoryLock, TestClock>, Candidate) {
    let clock = TestClock::new(1.0);
    let (elector, handle) = Elector::with_clock(lock.clone(), config, clock.clone(), 7).unwrap();
    (
        elector,
        Candidate {
            handle,
            clock,
            stop: CancellationToken::new(),
        },
    )
}

type Running = JoinSet<Result<(), RunError>>;

fn start(lock: &MemoryLock, name: &str, running: &mut Running) -> Candidate {
    let (elector, candidate) = candidate(lock, Config::storage(name));
    running.spawn(elector.run(candidate.stop.clone()));
    candidate
}

async fn leads(candidate: &Candidate) -> Term {
    let mut election_state = candidate.handle.watch();
    let leading = election_state
        .wait_for(|election_state| matches!(election_state, ElectionState::Leading(_)))
        .await
        .unwrap();
    let ElectionState::Leading(term) = leading.clone() else {
        panic!("{leading:?}")
    };
    term
}

async fn follows(candidate: &Candidate, leader: &str) {
    let expected = ElectionState::Following {
        leader: leader.to_owned(),
    };
    let mut election_state = candidate.handle.watch();
    election_state
        .wait_for(|election_state| *election_state == expected)
        .await
        .unwrap();
}

/// Lets the paused clock run: every timer within that time fires in order, and no real time passes.
async fn pass(time: Duration) {
    sleep(time).await;
}

fn quiet_faults() -> Faults {
    Faults {
        delay: CLOCK_TICK..2 * CLOCK_TICK,
        ..Faults::default()
    }
}

fn quiet() -> MemoryLock {
    MemoryLock::new(1, quiet_faults())
}

fn deaf() -> Faults {
    Faults {
        lose_request: 1.0,
        ..Faults::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_renews_and_a_follower_waits() {
    let (lock, mut running) = (quiet(), Running::new());
    let a = start(&lock, "a", &mut running);
    let term = leads(&a).await;
    assert_eq!(
        (term.number, term.transitions, term.predecessor),
        (1, 0, Predecessor::Unseen)
    );
    let b = start(&lock, "b", &mut running);
    follows(&b, "a").await;
    for _ in 0..6_000 {
        pass(CLOCK_TICK).await;
        assert!(a.handle.is_leading() && !b.handle.is_leading());
        assert!(a.handle.valid_until(1).is_some() && a.handle.valid_until(2).is_none());
        a.handle.check(Duration::ZERO).unwrap();
    }
    assert_eq!(leads(&a).await, term, "one term all along");
}

#[tokio::test(start_paused = true)]
async fn a_dead_leader_is_followed_after_its_lease_and_a_retry() {
    let (lock, mut running) = (quiet(), Running::new());
    let (elector, a) = candidate(&lock, Config::storage("a"));
    let mut first = Running::new();
    first.spawn(elector.run(a.stop.clone()));
    leads(&a).await;
    let b = start(&lock, "b", &mut running);
    follows(&b, "a").await;
    pass(10 * LEASE_DURATION).await;

    first.shutdown().await;
    assert!(!a.handle.is_leading(), "dropping the loop ends the term");
    let died = Instant::now();
    let term = leads(&b).await;
    assert_eq!((term.transitions, term.predecessor), (1, Predecessor::Expired));
    let took = died.elapsed();
    assert!(
        took > LEASE_DURATION - Duration::from_millis(450),
        "{took:?} is sooner than a lease after the last renewal"
    );
    assert!(
        took < LEASE_DURATION + MAX_RETRY_PERIOD + 10 * CLOCK_TICK,
        "{took:?} is too late"
    );
}

#[tokio::test(start_paused = true)]
async fn a_stopped_leader_releases_and_the_next_one_needs_no_lease_to_run_out() {
    let (lock, mut running) = (quiet(), Running::new());
    let a = start(&lock, "a", &mut running);
    leads(&a).await;
    let b = start(&lock, "b", &mut running);
    follows(&b, "a").await;
    pass(LEASE_DURATION).await;

    a.stop.cancel();
    let stopped = Instant::now();
    let term = leads(&b).await;
    assert_eq!((term.transitions, term.predecessor), (1, Predecessor::Released));
    assert!(
        stopped.elapsed() < MAX_RETRY_PERIOD + 10 * CLOCK_TICK,
        "{:?}",
        stopped.elapsed()
    );
    running.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!(a.handle.election_state(), ElectionState::NoLeader);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_saw_no_predecessor_end_is_not_released_before_a_lease_is_over() {
    let (lock, mut running) = (quiet(), Running::new());
    let a = start(&lock, "a", &mut running);
    leads(&a).await;
    assert!(matches!(
        a.handle.transfer_leadership("b").await,
        Err(TransferError::TooEarly)
    ));
    assert!(a.handle.is_leading(), "too early leaves it leading");
    a.stop.cancel();
    running.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!(lock.record().unwrap().holder_identity, "a");
}

#[tokio::test(start_paused = true)]
async fn transfer_names_the_next_leader_who_leads_as_soon_as_it_looks() {
    let (lock, mut running) = (quiet(), Running::new());
    let a = start(&lock, "a", &mut running);
    leads(&a).await;
    let (b, c) = (start(&lock, "b", &mut running), start(&lock, "c", &mut running));
    follows(&b, "a").await;
    follows(&c, "a").await;
    pass(LEASE_DURATION).await;

    assert!(matches!(
        b.handle.transfer_leadership("c").await,
        Err(TransferError::NotLeading)
    ));
    assert!(matches!(
        a.handle.transfer_leadership("").await,
        Err(TransferError::BadTarget(_))
    ));
    assert!(matches!(
        a.handle.transfer_leadership("a").await,
        Err(TransferError::BadTarget(_))
    ));
    let asked = Instant::now();
    a.handle.transfer_leadership("c").await.unwrap();
    assert!(!a.handle.is_leading());
    c.handle.look();
    let term = leads(&c).await;
    assert!(asked.elapsed() < Duration::from_millis(100), "{:?}", asked.elapsed());
    assert_eq!((term.transitions, term.predecessor), (1, Predecessor::Named));
    follows(&a, "c").await;
    follows(&b, "c").await;
}

#[tokio::test(start_paused = true)]
async fn transfer_that_gets_no_answer_is_tried_again() {
    for lost in [
        deaf(),
        Faults {
            lose_answer: 1.0,
            ..Faults::default()
        },
    ] {
        let (lock, mut running) = (quiet(), Running::new());
        let a = start(&lock, "a", &mut running);
        leads(&a).await;
        let b = start(&lock, "b", &mut running);
        follows(&b, "a").await;
        pass(LEASE_DURATION).await;
        let renewed = a.handle.renewed(1);
        while a.handle.renewed(1) == renewed {
            pass(CLOCK_TICK).await;
        }
        lock.set_faults(lost);
        let mend = async {
            pass(Duration::from_millis(300)).await; // the first attempt is sent in this time, and no other
            lock.set_faults(quiet_faults());
        };
        let (transferred, ()) = tokio::join!(a.handle.transfer_leadership("b"), mend);
        transferred.unwrap();
        assert_eq!(lock.record().unwrap().holder_identity, "b");
        assert_eq!(leads(&b).await.predecessor, Predecessor::Named);
    }
}

#[tokio::test(start_paused = true)]
async fn transfer_to_nobody_costs_a_lease() {
    let (lock, mut running) = (quiet(), Running::new());
    let a = start(&lock, "a", &mut running);
    leads(&a).await;
    pass(LEASE_DURATION).await;
    a.handle.transfer_leadership("dead").await.unwrap();
    let asked = Instant::now();
    assert_eq!(leads(&a).await.predecessor, Predecessor::Expired);
    assert!(
        asked.elapsed() > LEASE_DURATION - CLOCK_TICK
            && asked.elapsed() < LEASE_DURATION + MAX_RETRY_PERIOD + 10 * CLOCK_TICK
    );
}

#[tokio::test(start_paused = true)]
async fn a_leader_without_a_lock_stops_in_time_and_campaigns_again() {
    let (lock, mut running) = (quiet(), Running::new());
    let a = start(&lock, "a", &mut running);
    leads(&a).await;
    pass(LEASE_DURATION).await;
    lock.set_faults(deaf());
    let cut = Instant::now();
    let mut election_state = a.handle.watch();
    election_state
        .wait_for(|election_state| *election_state == ElectionState::NoLeader)
        .await
        .unwrap();
    assert!(cut.elapsed() <= RENEW_DEADLINE, "{:?}", cut.elapsed());
    assert!(!a.handle.is_leading());

    lock.set_faults(Faults::default());
    let term = leads(&a).await;
    assert_eq!((term.number, term.transitions), (2, 0), "a new term of the same holder");
}

#[tokio::test(start_paused = true)]
async fn one_lost_request_does_not_cost_the_term() {
    for lost in [
        deaf(),
        Faults {
            lose_answer: 1.0,
            ..Faults::default()
        },
    ] {
        let (lock, mut running) = (quiet(), Running::new());
        let a = start(&lock, "a", &mut running);
        leads(&a).await;
        for _ in 0..20 {
            let renewed = a.handle.renewed(1).unwrap();
            while a.handle.renewed(1) == Some(renewed) {
                pass(CLOCK_TICK).await;
            }
            lock.set_faults(lost.clone());
            pass(Duration::from_millis(450)).await; // exactly the next request is sent in this time
            lock.set_faults(Faults::default());
            pass(Duration::from_millis(700)).await;
            assert!(a.handle.valid_until(1).is_some());
        }
        assert_eq!(a.handle.failed_renewals(), 20);
    }
}

#[tokio::test(start_paused = true)]
async fn run_ends_on_a_lost_lock_if_asked_to() {
    let lock = quiet();
    let (elector, a) = candidate(
        &lock,
        Config {
            after_loss: AfterLoss::Return,
            ..Config::storage("a")
        },
    );
    let mut running = Running::new();
    running.spawn(elector.run(a.stop.clone()));
    leads(&a).await;
    let taken = Record {
        holder_identity: "b".to_owned(),
        lease_duration: LEASE_DURATION,
        ..Record::default()
    };
    lock.force(Some(taken));
    let error = running.join_next().await.unwrap().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "lost the lock memory to b");
}

#[tokio::test(start_paused = true)]
async fn a_suspended_leader_is_none_when_it_wakes_even_before_its_loop_runs() {
    let (lock, mut running) = (quiet(), Running::new());
    let a = start(&lock, "a", &mut running);
    let term = leads(&a).await;
    pass(LEASE_DURATION).await;
    a.clock.suspend(60_000);
    assert!(
        matches!(a.handle.election_state(), ElectionState::Leading(_)),
        "the loop has not run yet"
    );
    assert!(!a.handle.is_leading());
    assert_eq!(a.handle.valid_until(term.number), None);
}

#[tokio::test(start_paused = true)]
async fn the_watchdog_finds_a_loop_that_stands_still() {
    let lock = quiet();
    let (elector, a) = candidate(&lock, Config::storage("a"));
    let mut run = Box::pin(elector.run(a.stop.clone()));
    tokio::select! {
        _ = &mut run => panic!("ended"),
        _ = leads(&a) => {}
    }
    // `run` is not polled from here on.
    let tolerance = Duration::from_secs(1);
    pass(LEASE_DURATION + tolerance - 5 * CLOCK_TICK).await;
    a.handle.check(tolerance).unwrap();
    pass(6 * CLOCK_TICK).await;
    assert!(a.handle.check(tolerance).unwrap_err().since > LEASE_DURATION + tolerance);
}

#[tokio::test(start_paused = true)]
async fn a_stop_while_a_claim_is_under_way_gives_back_what_it_won() {
    let lock = quiet();
    let released = Record {
        acquire_time: Some(Timestamp::UNIX_EPOCH),
        renew_time: Some(Timestamp::UNIX_EPOCH),
        ..Record::default()
    };
    lock.force(Some(released));
    let (elector, a) = candidate(&lock, Config::storage("a"));
    let mut running = Running::new();
    running.spawn(elector.run(a.stop.clone()));
    while lock.record().unwrap().is_free() {
        pass(Duration::from_millis(1)).await;
    }
    assert_eq!(
        a.handle.election_state(),
        ElectionState::NoLeader,
        "the answer is still under way"
    );
    a.stop.cancel();
    running.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!(lock.record().unwrap().holder_identity, "");
}

#[tokio::test(start_paused = true)]
async fn a_release_that_meets_its_own_late_renewal_is_tried_again() {
    let ms = Duration::from_millis;
    let way = Faults {
        delay: ms(10)..ms(10),
        ..Faults::default()
    };
    let (lock, mut running) = (MemoryLock::new(1, way.clone()), Running::new());
    let a = start(&lock, "a", &mut running);
    leads(&a).await;
    pass(LEASE_DURATION).await;
    let renewed = a.handle.renewed(1);
    while a.handle.renewed(1) == renewed {
        pass(ms(1)).await;
    }
    // The next renewal arrives after the release has read the lock, and before it writes.
    lock.set_faults(Faults {
        hold_back: 1.0,
        late: ms(12),
        ..way.clone()
    });
    let before = lock.record();
    pass(ms(381)).await;
    lock.set_faults(way);
    a.stop.cancel();
    assert_eq!(lock.record(), before, "the renewal is still under way");
    running.join_next().await.unwrap().unwrap().unwrap();
    assert_ne!(lock.record(), before);
    assert_eq!(lock.record().unwrap().holder_identity, "");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_steps_down_claims_nothing_until_it_competes_again() {
    let (lock, mut running) = (quiet(), Running::new());
    let a = start(&lock, "a", &mut running);
    leads(&a).await;
    pass(LEASE_DURATION).await;
    a.handle.step_down().await.unwrap();
    assert!(matches!(a.handle.step_down().await, Err(TransferError::NotLeading)));
    pass(10 * LEASE_DURATION).await;
    assert_eq!(
        a.handle.election_state(),
        ElectionState::NoLeader,
        "nobody else is there, and it rests"
    );
    let b = start(&lock, "b", &mut running);
    assert_eq!(leads(&b).await.predecessor, Predecessor::Released);
    // It rests even if another candidate names it.
    b.handle.transfer_leadership("a").await.unwrap();
    pass(LEASE_DURATION / 2).await;
    assert!(!a.handle.is_leading());
    a.handle.compete().await;
    leads(&a).await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_steps_down_although_the_lock_does_not_answer() {
    let (lock, mut running) = (quiet(), Running::new());
    let a = start(&lock, "a", &mut running);
    leads(&a).await;
    pass(LEASE_DURATION).await;
    lock.set_faults(deaf());
    assert!(matches!(a.handle.step_down().await, Err(TransferError::Lock(_))));
    assert!(!a.handle.is_leading());
    lock.set_faults(Faults::default());
    pass(10 * LEASE_DURATION).await;
    assert!(!a.handle.is_leading(), "the record names it, and it rests");
}
