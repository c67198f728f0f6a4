//! The pace of compactions: `--compaction-batch-limit` and `--compaction-sleep-interval`.

use std::time::Duration;

use engine::log::MemLog;
use engine::rows::mem::MemRows;
use store::flush::CompactionPace;
use tokio::time::Instant;

use crate::engine::Engine;

/// Returns the time until 40 versions that a compaction made obsolete are deleted. A key is put during that time.
async fn compaction_takes(pace: CompactionPace) -> Duration {
    let mut engine = Engine::start_paced(MemLog::new(), MemRows::new(), pace).await.unwrap();
    for _ in 0..=40 {
        engine.put(b"key", b"value").await.unwrap();
    }
    // The clock is paused: it moves on once everything is flushed, so that the compaction does not wait for a flush.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let began = Instant::now();
    engine.compact().await;
    let took = began.elapsed();
    engine.put(b"key", b"value").await.unwrap();
    assert_eq!(engine.mod_revision(b"key").await, Some(43));
    engine.stop().await.unwrap();
    took
}

#[tokio::test(start_paused = true)]
async fn compaction_deletes_in_steps_of_the_limit_with_pauses_between_them() {
    let pause = Duration::from_secs(10);
    let unpaced = compaction_takes(CompactionPace::default()).await;
    assert!(unpaced < pause, "{unpaced:?}");
    let unlimited = CompactionPace {
        batch_limit: None,
        pause,
    };
    let in_one = compaction_takes(unlimited).await;
    assert!(in_one < pause * 2, "{in_one:?}");
    for (limit, steps) in [(4, 10..=21), (1, 40..=41)] {
        let pace = CompactionPace {
            batch_limit: Some(limit),
            pause,
        };
        let took = compaction_takes(pace).await;
        let pauses = u32::try_from(took.as_secs() / pause.as_secs()).unwrap();
        assert!(steps.contains(&(pauses + 1)), "{limit} at a time took {took:?}");
        // Without pauses small steps take no time.
        let unpaused = compaction_takes(CompactionPace {
            pause: Duration::ZERO,
            ..pace
        });
        assert!(unpaused.await < pause);
    }
}

#[tokio::test(start_paused = true)]
async fn flushes_do_not_wait_for_a_pause_of_a_compaction_nor_does_the_end() {
    let pace = CompactionPace {
        batch_limit: Some(1),
        pause: Duration::from_secs(60),
    };
    let rows = MemRows::new();
    let mut engine = Engine::start_paced(MemLog::new(), rows, pace).await.unwrap();
    let last = engine.puts(100).await;
    engine.compact_soon(last).await;
    let began = Instant::now();
    // More than memory may hold without a flush.
    let value = vec![7; 16 << 10];
    for _ in 0..100 {
        engine.put(b"large", &value).await.unwrap();
    }
    assert!(began.elapsed() < pace.pause, "{:?}", began.elapsed());
    engine.stop().await.unwrap();
    assert!(began.elapsed() < pace.pause, "{:?}", began.elapsed());
}
