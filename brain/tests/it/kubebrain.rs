//! The program against the model.

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
