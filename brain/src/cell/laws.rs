//! The laws of [`Cell`], run on every implementation.

use bytes::Bytes;

use super::{Cell, Swap};

/// Runs every law on cells that `fresh` makes, each on a new one without a value.
pub(crate) async fn hold<C: Cell>(mut fresh: impl FnMut() -> C) {
    what_was_set_is_read_by_all(fresh()).await;
    a_value_that_is_not_as_expected_stays(fresh()).await;
    of_many_at_once_one_wins(fresh()).await;
}

fn value(text: &'static str) -> Option<Bytes> {
    Some(Bytes::from_static(text.as_bytes()))
}

async fn won(cell: &impl Cell, expected: Option<Bytes>, new: Option<Bytes>) -> bool {
    match cell.compare_and_set(expected, new).await {
        Swap::Won => true,
        Swap::Lost => false,
        Swap::Unknown(error) => panic!("an unknown outcome: {error:#}"),
    }
}

async fn what_was_set_is_read_by_all(cell: impl Cell) {
    let other = cell.clone();
    assert_eq!(cell.get().await.unwrap(), None);
    assert!(won(&cell, None, value("a")).await);
    assert_eq!(other.get().await.unwrap(), value("a"));
    assert!(won(&other, value("a"), None).await);
    assert_eq!(cell.get().await.unwrap(), None);
}

async fn a_value_that_is_not_as_expected_stays(cell: impl Cell) {
    assert!(!won(&cell, value("a"), value("b")).await);
    assert!(won(&cell, None, value("a")).await);
    for expected in [None, value(""), value("b"), value("aa")] {
        assert!(!won(&cell, expected, value("c")).await);
    }
    assert_eq!(cell.get().await.unwrap(), value("a"));
}

async fn of_many_at_once_one_wins<C: Cell>(cell: C) {
    let attempts = (0..8u8).map(|n| {
        let cell = cell.clone();
        async move { (n, won(&cell, None, Some(Bytes::from(vec![n]))).await) }
    });
    let winners: Vec<u8> = futures::future::join_all(attempts)
        .await
        .into_iter()
        .filter_map(|(n, won)| won.then_some(n))
        .collect();
    assert_eq!(winners.len(), 1, "{winners:?} won");
    assert_eq!(cell.get().await.unwrap(), Some(Bytes::from(winners)));
}
