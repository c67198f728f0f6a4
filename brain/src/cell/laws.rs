//! The laws of [`Cell`], run on every implementation.

use bytes::Bytes;

use super::{Cell, Swap};

/// Runs every law on cells that `fresh` makes, each on a new one without a value.
pub(crate) async fn hold<C: Cell>(mut fresh: impl AsyncFnMut() -> C) {
    a_cell_begins_empty_and_can_be_emptied(fresh().await).await;
    only_the_expected_value_is_replaced(fresh().await).await;
    of_many_that_swap_at_once_one_wins(fresh().await).await;
}

fn text(text: &'static str) -> Option<Bytes> {
    Some(Bytes::from(text))
}

async fn won(cell: &impl Cell, expected: Option<Bytes>, new: Option<Bytes>) -> bool {
    match cell.compare_and_set(expected, new).await {
        Swap::Won => true,
        Swap::Lost => false,
        Swap::Unknown(error) => panic!("the outcome of a swap is not known: {error:#}"),
    }
}

async fn a_cell_begins_empty_and_can_be_emptied(cell: impl Cell) {
    assert_eq!(cell.get().await.unwrap(), None);
    for value in [text("a"), text(""), text("b")] {
        assert!(won(&cell, None, value.clone()).await);
        assert_eq!(cell.get().await.unwrap(), value);
        assert!(!won(&cell, None, text("c")).await);
        assert!(won(&cell, value, None).await);
        assert_eq!(cell.get().await.unwrap(), None);
    }
    assert!(won(&cell, None, None).await);
}

async fn only_the_expected_value_is_replaced(cell: impl Cell) {
    assert!(!won(&cell, text("a"), text("b")).await);
    assert!(!won(&cell, text(""), None).await);
    assert!(won(&cell, None, text("a")).await);
    let clone = cell.clone();
    for expected in [None, text(""), text("ab"), text("b")] {
        assert!(!won(&cell, expected, text("b")).await);
        assert_eq!(clone.get().await.unwrap(), text("a"));
    }
    assert!(won(&clone, text("a"), text("a")).await);
    assert!(won(&clone, text("a"), text("b")).await);
    assert!(!won(&cell, text("a"), text("c")).await);
    assert_eq!(cell.get().await.unwrap(), text("b"));
}

async fn of_many_that_swap_at_once_one_wins(cell: impl Cell) {
    let mut value = None;
    for round in 0..20 {
        let rivals = (0..4).map(|rival| {
            let (cell, value, new) = (cell.clone(), value.clone(), Bytes::from(format!("{round} {rival}")));
            async move { won(&cell, value, Some(new.clone())).await.then_some(new) }
        });
        let winners: Vec<Bytes> = futures::future::join_all(rivals).await.into_iter().flatten().collect();
        assert_eq!(winners.len(), 1, "round {round}: {winners:?}");
        value = Some(winners[0].clone());
        assert_eq!(cell.get().await.unwrap(), value);
    }
}
