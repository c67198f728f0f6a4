//! The laws of [`CasRegister`], run on every implementation.

#![allow(clippy::unwrap_used, reason = "a law that does not hold is a failed test")]

use bytes::Bytes;

use super::{Cas, CasRegister};

/// Runs every law on registers that `fresh` makes, each on a new one without a value.
pub async fn hold<C: CasRegister + Clone>(mut fresh: impl AsyncFnMut() -> C) {
    a_cell_begins_empty_and_can_be_emptied(fresh().await).await;
    only_the_expected_value_is_replaced(fresh().await).await;
    of_many_that_swap_at_once_one_wins(fresh().await).await;
}

fn text(text: &'static str) -> Option<Bytes> {
    Some(Bytes::from(text))
}

async fn won(register: &dyn CasRegister, expected: Option<Bytes>, new: Option<Bytes>) -> bool {
    match register.compare_and_set(expected, new).await {
        Cas::Swapped => true,
        Cas::Mismatch => false,
        Cas::Unknown(error) => panic!("the outcome of a swap is not known: {error:#}"),
    }
}

async fn a_cell_begins_empty_and_can_be_emptied(register: impl CasRegister + Clone) {
    assert_eq!(register.get().await.unwrap(), None);
    for value in [text("a"), text(""), text("b")] {
        assert!(won(&register, None, value.clone()).await);
        assert_eq!(register.get().await.unwrap(), value);
        assert!(!won(&register, None, text("c")).await);
        assert!(won(&register, value, None).await);
        assert_eq!(register.get().await.unwrap(), None);
    }
    assert!(won(&register, None, None).await);
}

async fn only_the_expected_value_is_replaced(register: impl CasRegister + Clone) {
    assert!(!won(&register, text("a"), text("b")).await);
    assert!(!won(&register, text(""), None).await);
    assert!(won(&register, None, text("a")).await);
    let clone = register.clone();
    for expected in [None, text(""), text("ab"), text("b")] {
        assert!(!won(&register, expected, text("b")).await);
        assert_eq!(clone.get().await.unwrap(), text("a"));
    }
    assert!(won(&clone, text("a"), text("a")).await);
    assert!(won(&clone, text("a"), text("b")).await);
    assert!(!won(&register, text("a"), text("c")).await);
    assert_eq!(register.get().await.unwrap(), text("b"));
}

async fn of_many_that_swap_at_once_one_wins(register: impl CasRegister + Clone) {
    let mut value = None;
    for round in 0..20 {
        let rivals = (0..4).map(|rival| {
            let (register, value, new) = (register.clone(), value.clone(), Bytes::from(format!("{round} {rival}")));
            async move { won(&register, value, Some(new.clone())).await.then_some(new) }
        });
        let winners: Vec<Bytes> = futures::future::join_all(rivals).await.into_iter().flatten().collect();
        assert_eq!(winners.len(), 1, "round {round}: {winners:?}");
        value = Some(winners[0].clone());
        assert_eq!(register.get().await.unwrap(), value);
    }
}
