//! A lock that answers late, with the durations of the storage lock: a lease of 2 s, a renew deadline of 1.5 s.

use super::*;
use crate::{Call, CallKind, Lock, LockError, Record};

/// A lock whose updates need something of the store first, which takes as long as the update.
#[derive(Clone)]
struct Prepared {
    lock: MemoryLock,
    takes: Duration,
}

impl Lock for Prepared {
    type Version = u64;

    async fn get(&self) -> Result<Option<(Record, u64)>, LockError> {
        self.lock.get().await
    }

    async fn create(&self, record: &Record) -> Result<u64, LockError> {
        self.lock.create(record).await
    }

    async fn update(&self, record: &Record, expected: &u64) -> Result<u64, LockError> {
        self.lock.update(record, expected).await
    }

    async fn prepare(&self, _: &u64) {
        sleep(self.takes).await;
    }

    fn describe(&self) -> String {
        self.lock.describe()
    }
}

/// As a brain sets it: a call may take as long as the renew deadline allows.
fn config() -> Config {
    Config {
        call_timeout: RENEW_DEADLINE,
        ..Config::storage("a")
    }
}

/// Every answer is late by this much.
fn late(by: u64) -> MemoryLock {
    let way = Duration::from_millis(by / 2);
    MemoryLock::new(
        1,
        Faults {
            delay: way..way,
            ..Faults::default()
        },
    )
}

/// Starts a candidate for a lock that takes `millis` for each call and as long to prepare an update, and waits until it leads.
async fn leader(millis: u64, running: &mut Running) -> (Handle<TestClock>, Term) {
    let lock = Prepared {
        lock: late(millis),
        takes: Duration::from_millis(millis),
    };
    let (elector, handle) = Elector::with_clock(lock, config(), TestClock::new(1.0), 7).unwrap();
    running.spawn(elector.run(CancellationToken::new()));
    let mut states = handle.watch();
    let leading = |state: &ElectionState| matches!(state, ElectionState::Leading(_));
    let led = timeout(Duration::from_secs(60), states.wait_for(leading)).await;
    let state = led.expect("it leads").unwrap().clone();
    let ElectionState::Leading(term) = state else {
        panic!("{state:?}")
    };
    (handle, term)
}

#[tokio::test(start_paused = true)]
async fn leader_of_a_slow_lock_keeps_its_lead() {
    for millis in [20, 300, 480] {
        let mut running = Running::new();
        let (handle, term) = leader(millis, &mut running).await;
        for _ in 0..1_000 {
            pass(Duration::from_millis(100)).await;
            assert_eq!(
                handle.election_state(),
                ElectionState::Leading(term.clone()),
                "{millis} ms"
            );
            assert!(handle.is_leading(), "{millis} ms");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn calls_are_observed_with_their_durations() {
    let calls = Arc::new(std::sync::Mutex::new(Vec::<Call>::new()));
    let seen = calls.clone();
    let (elector, handle) = Elector::with_clock(late(600), config(), TestClock::new(1.0), 7).unwrap();
    let elector = elector.observed(move |call| seen.lock().unwrap().push(*call));
    let mut running = Running::new();
    running.spawn(elector.run(CancellationToken::new()));
    let mut renewals = handle.renewals();
    for _ in 0..3 {
        renewals.changed().await.unwrap();
    }
    let calls = calls.lock().unwrap();
    assert!(
        calls
            .iter()
            .all(|call| call.is_answered && call.took == Duration::from_millis(600))
    );
    assert_eq!(calls.iter().filter(|call| call.kind == CallKind::Write).count(), 3);
    assert_eq!(calls.iter().filter(|call| call.leads).count(), 2);
}

/// The lead is lost without a renewal that was sent.
#[tokio::test(start_paused = true)]
async fn renewal_whose_preparation_is_not_answered_is_observed() {
    let lock = Prepared {
        lock: late(20),
        takes: 2 * RENEW_DEADLINE,
    };
    let calls = Arc::new(std::sync::Mutex::new(Vec::<Call>::new()));
    let seen = calls.clone();
    let (elector, handle) = Elector::with_clock(lock, config(), TestClock::new(1.0), 7).unwrap();
    let elector = elector.observed(move |call| seen.lock().unwrap().push(*call));
    let mut running = Running::new();
    running.spawn(elector.run(CancellationToken::new()));
    let mut states = handle.watch();
    for leads in [true, false] {
        let changed = |state: &ElectionState| matches!(state, ElectionState::Leading(_)) == leads;
        states.wait_for(changed).await.unwrap();
    }
    let calls = calls.lock().unwrap();
    let lost = calls.iter().filter(|call| call.leads).collect::<Vec<_>>();
    assert_eq!(lost.len(), 1, "{lost:?}");
    assert!(!lost[0].is_answered && lost[0].took > RENEW_DEADLINE / 2, "{lost:?}");
}
