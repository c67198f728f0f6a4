//! Laws of the fence, which decides which writer may write.

use bytes::Bytes;

use super::{content, delete, put, row};
use crate::rows::{RowChange, Rows, RowsError};

pub(super) async fn a_foreign_fence_keeps_a_writer_out<R: Rows + Clone>(rows: R) {
    let mine = Bytes::from("mine");
    rows.apply(None, mine.clone(), vec![put("k", "1")]).await.unwrap();
    for expected in [None, Some(Bytes::new()), Some(Bytes::from("other"))] {
        match rows
            .apply(expected, Bytes::from("theirs"), vec![put("k", "2"), put("l", "2")])
            .await
        {
            Err(RowsError::Fenced(Some(found))) => assert_eq!(found, mine),
            other => panic!("expected a fence, got {other:?}"),
        }
    }
    assert_eq!(rows.fence().await.unwrap(), Some(mine.clone()));
    assert_eq!(content(&rows).await, [row("k", "1")]);
    rows.apply(Some(mine), Bytes::new(), vec![]).await.unwrap();
    assert_eq!(rows.fence().await.unwrap(), Some(Bytes::new()));
    match rows.apply(None, Bytes::from("theirs"), vec![]).await {
        Err(RowsError::Fenced(Some(found))) => assert_eq!(found, Bytes::new()),
        other => panic!("no fence and an empty fence are two things, got {other:?}"),
    }
}

pub(super) async fn a_change_that_is_repeated_is_made_once<R: Rows + Clone>(rows: R) {
    let fence = |n: u8| Bytes::copy_from_slice(&[n]);
    rows.apply(None, fence(1), vec![put("k", "1")]).await.unwrap();
    rows.apply(Some(fence(1)), fence(2), vec![put("k", "2")]).await.unwrap();
    for expected in [Some(fence(1)), None, Some(fence(7))] {
        rows.apply(expected, fence(2), vec![put("k", "3"), put("l", "3")])
            .await
            .unwrap();
        assert_eq!(content(&rows).await, [row("k", "2")]);
    }
    match rows.apply(None, fence(1), vec![put("k", "1")]).await {
        Err(RowsError::Fenced(Some(found))) => assert_eq!(found, fence(2)),
        other => panic!("expected a fence, got {other:?}"),
    }
    rows.apply(Some(fence(2)), fence(2), vec![put("k", "4")]).await.unwrap();
    assert_eq!(content(&rows).await, [row("k", "4")]);
}

pub(super) async fn take_over_fences_older_writers<R: Rows + Clone>(rows: R) {
    let (old, new) = (Bytes::from("old"), Bytes::from("new"));
    rows.take_over().await.unwrap();
    rows.apply(None, old.clone(), vec![put("k", "1")]).await.unwrap();
    let late = async {
        let mut outcomes = Vec::new();
        for n in 0..50u8 {
            let fence = Bytes::copy_from_slice(&[n]);
            outcomes.push(rows.apply(Some(old.clone()), fence, vec![put([n], "late")]).await);
        }
        outcomes
    };
    let take_over = async {
        rows.take_over().await.unwrap();
        rows.apply(Some(old.clone()), new.clone(), vec![]).await
    };
    let (late, taken) = tokio::join!(late, take_over);
    let landed = late.iter().filter(|outcome| outcome.is_ok()).count();
    assert_eq!(landed + usize::from(taken.is_ok()), 1, "one of them moved the fence");
    assert_eq!(content(&rows).await.len(), 1 + landed);
    let stored = rows.fence().await.unwrap();
    match rows.apply(Some(old), Bytes::from("later"), vec![put("l", "1")]).await {
        Err(RowsError::Fenced(found)) => assert_eq!(found, stored),
        other => panic!("expected a fence, got {other:?}"),
    }
    assert_eq!(content(&rows).await.len(), 1 + landed);
}

pub(super) async fn parallel_writes_need_their_fence<R: Rows + Clone>(rows: R) {
    let (one, two) = (Bytes::from("one"), Bytes::from("two"));
    rows.take_over().await.unwrap();
    rows.apply(None, one.clone(), vec![put("gone", "1")]).await.unwrap();
    let mut steps: Vec<Vec<RowChange>> = (0..20u8).map(|n| vec![put([n], "1"), put([n, 0], "2")]).collect();
    steps.push(vec![delete("gone")]);
    for _ in 0..2 {
        rows.apply_parallel(one.clone(), steps.clone()).await.unwrap();
        assert_eq!(content(&rows).await.len(), 40);
        assert_eq!(rows.fence().await.unwrap(), Some(one.clone()));
    }
    rows.apply_parallel(one.clone(), vec![]).await.unwrap();
    rows.take_over().await.unwrap();
    rows.apply(Some(one.clone()), two.clone(), vec![delete([0])])
        .await
        .unwrap();
    match rows.apply_parallel(one, steps).await {
        Err(RowsError::Fenced(found)) => assert_eq!(found, Some(two)),
        other => panic!("expected a fence, got {other:?}"),
    }
    assert_eq!(content(&rows).await.len(), 39);
}
