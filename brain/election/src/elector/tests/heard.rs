//! Followers that receive the renewals of their leader.

use super::*;

/// Forwards the renewals of `leader` to `follower` until it is stopped.
fn tell(leader: &Candidate, follower: &Candidate, telling: &mut JoinSet<()>) {
    let (mut renewals, handle) = (leader.handle.renewals(), follower.handle.clone());
    telling.spawn(async move {
        while renewals.changed().await.is_ok() {
            let record = renewals.borrow_and_update().clone();
            record.into_iter().for_each(|record| handle.hear(record));
        }
    });
}

/// Starts a leader and a follower that receives its renewals, each with its running task.
async fn heard(lock: &MemoryLock, telling: &mut JoinSet<()>) -> [(Candidate, Running); 2] {
    let [mut running_a, mut running_b] = [Running::new(), Running::new()];
    let a = start(lock, "a", &mut running_a);
    leads(&a).await;
    let b = start(lock, "b", &mut running_b);
    follows(&b, "a").await;
    tell(&a, &b, telling);
    pass(LEASE_DURATION).await;
    [(a, running_a), (b, running_b)]
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_heard_is_not_looked_for() {
    let (lock, mut telling) = (quiet(), JoinSet::new());
    let [(a, _running_a), (b, _running_b)] = heard(&lock, &mut telling).await;
    let before = lock.requests();
    let mut renewals = a.handle.renewals();
    for _ in 0..20 {
        renewals.changed().await.unwrap();
    }
    let asked = lock.requests() - before;
    assert!(asked <= 20, "{asked} requests for 20 renewals: the follower asked, too");
    assert_eq!(
        b.handle.election_state(),
        ElectionState::Following { leader: "a".into() }
    );
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_went_silent_is_followed_a_lease_after_its_last_word() {
    let (lock, mut telling) = (quiet(), JoinSet::new());
    let [(a, running_a), (b, _running_b)] = heard(&lock, &mut telling).await;
    a.handle.renewals().changed().await.unwrap();
    pass(CLOCK_TICK).await;
    let last = Instant::now();
    drop(running_a);
    leads(&b).await;
    let passed = last.elapsed();
    assert!(
        (LEASE_DURATION - CLOCK_TICK..LEASE_DURATION + 12 * CLOCK_TICK).contains(&passed),
        "{passed:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn candidate_that_lost_its_leader_reads_at_once() {
    let (lock, mut telling) = (quiet(), JoinSet::new());
    let [(a, _running_a), (b, _running_b)] = heard(&lock, &mut telling).await;
    telling.shutdown().await;
    a.handle.transfer_leadership("b").await.unwrap();
    let given = Instant::now();
    b.handle.look();
    leads(&b).await;
    assert!(given.elapsed() < 10 * CLOCK_TICK, "{:?}", given.elapsed());
}
