//! The cost of health checks, and what they depend on.

use api::health::StoreHealth;
use engine::log::MemLog;
use engine::rows::mem::MemRows;
use net::http::HealthChecks as _;

use crate::counted::{Counted, Reads};
use crate::engine::Engine;

#[tokio::test]
async fn health_checks_read_one_row_at_most_however_many_there_are() {
    let rows = Counted::new(MemRows::new(), Reads::default());
    let reads = rows.hooks.clone();
    let mut engine = Engine::start(MemLog::new(), rows).await.unwrap();
    for key in 0..300 {
        engine.put(format!("key-{key}").as_bytes(), b"value").await.unwrap();
    }
    engine.compact().await;
    let health = StoreHealth(engine.kv.store.clone());
    reads.take();
    health.alive().await.unwrap();
    assert_eq!(reads.take(), (0, 0), "liveness does not depend on storage");
    health.serializable_read().await.unwrap();
    assert_eq!(reads.take(), (1, 1));
    health.linearizable_read().await.unwrap();
    assert_eq!(reads.take(), (1, 1));
    engine.stop().await.unwrap();
}
