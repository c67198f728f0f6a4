//! The program against the model.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::program::Kubebrain;
use crate::script::Run;
use crate::{number, watch};

/// Random requests, killed without a word every so often: every answer, and every event that a watch replays, is the model's.
#[tokio::test]
async fn answers_and_events_are_the_models_also_after_kills() {
    let (seed, rounds) = (number("SEED", 11), number("ROUNDS", 6));
    let dir = tempfile::tempdir().unwrap();
    let mut run = Run::new(seed);
    for _ in 0..rounds {
        let mut server = Kubebrain::start(dir.path()).await;
        watch::sees_what_happened(&mut server.client, &run.model).await;
        run.go(&mut server.client, 500).await;
        watch::sees_what_happened(&mut server.client, &run.model).await;
        server.kill().await;
    }
    run.was_worth_it();
}

/// Killed while a request is on its way: it is there as a whole or not at all, and there if it was acknowledged.
#[tokio::test]
async fn a_write_that_is_killed_happened_or_did_not() {
    let (seed, rounds) = (number("SEED", 12), number("ROUNDS", 12));
    let dir = tempfile::tempdir().unwrap();
    let (mut run, mut rng) = (Run::new(seed), StdRng::seed_from_u64(seed));
    let (mut acknowledged, mut done, mut undone) = (0, 0, 0);
    let mut server = Kubebrain::start(dir.path()).await;
    for round in 0..rounds {
        run.go(&mut server.client, 20).await;
        let request = run.next_write();
        // Every third before it can have arrived.
        let after = (round % 3 > 0).then(|| Duration::from_micros(rng.random_range(0..2_500)));
        let answer = server.kill_during(request.clone(), after).await;
        server = Kubebrain::start(dir.path()).await;
        acknowledged += usize::from(answer.is_some());
        let there = run.settle(&mut server.client, request, answer).await;
        (done, undone) = (done + usize::from(there), undone + usize::from(!there));
        watch::sees_what_happened(&mut server.client, &run.model).await;
    }
    eprintln!("{acknowledged} acknowledged, {done} done, {undone} undone");
    assert!(acknowledged <= done);
    assert!(undone > 0, "no request was killed early enough");
    server.kill().await;
}
