//! Hot keys are read from memory, also when what changed them has become rows.

use engine::log::MemLog;
use engine::rows::mem::MemRows;

use crate::counted::{Counted, Reads};
use crate::engine::Engine;

#[tokio::test]
async fn a_hot_key_is_read_from_rows_once_and_never_stale() {
    let rows = Counted::new(MemRows::new(), Reads::default());
    let reads = rows.hooks.clone();
    let mut engine = Engine::start(MemLog::new(), rows).await.unwrap();
    let mut last = 0;
    for _ in 0..3 {
        last = engine.put(b"hot", format!("after {last}").as_bytes()).await.unwrap();
        assert_eq!(engine.mod_revision(b"hot").await, Some(last));
        engine.compact().await;
        reads.take();
        for _ in 0..10 {
            assert_eq!(engine.mod_revision(b"hot").await, Some(last));
            assert_eq!(engine.mod_revision(b"absent").await, None);
        }
        let (calls, _) = reads.take();
        assert!(
            calls <= 3,
            "{calls} reads of rows: index and object of one key, index of the other"
        );
    }
    engine.stop().await.unwrap();
}
