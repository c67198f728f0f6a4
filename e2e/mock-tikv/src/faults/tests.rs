use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;

use super::*;

fn lose() -> Action {
    Action::LoseRequest { silent: false }
}

fn faults(fault: Fault) -> Faults {
    let faults = Faults::new(1);
    faults.add(fault).unwrap();
    faults
}

/// Which of `count` requests it happens to.
fn happens(faults: &Faults, count: usize) -> Vec<bool> {
    (0..count)
        .map(|_| faults.draw(Rpc::Get, 1, |_| false, || 0).is_some())
        .collect()
}

#[test]
fn a_fault_happens_after_those_let_through_and_so_many_times() {
    let faults = faults(Fault::new(Rpc::Get, lose()).after(1).times(2));
    assert_eq!(happens(&faults, 5), [false, true, true, false, false]);
    let state = &faults.list()[0];
    assert_eq!((state.seen, state.happened), (5, 2));
    assert_eq!(faults.remove(state.id).map(|state| state.happened), Some(2));
    assert!(faults.remove(state.id).is_none());
}

#[test]
fn a_fault_is_for_its_kind_its_store_and_its_keys() {
    let faults = faults(Fault::new(Rpc::Get, lose()).at_store(2).on_keys("w/"));
    let touches = |prefix: &[u8]| b"w/17".starts_with(prefix);
    assert!(faults.draw(Rpc::Scan, 2, touches, || 0).is_none());
    assert!(faults.draw(Rpc::Get, 1, touches, || 0).is_none());
    assert!(faults.draw(Rpc::Get, 2, |_| false, || 0).is_none());
    assert_eq!(faults.draw(Rpc::Get, 2, touches, || 0), Some(lose()));
    faults.clear();
    assert!(faults.draw(Rpc::Get, 2, touches, || 0).is_none());
}

#[test]
fn fault_of_large_requests_spares_small_ones() {
    let refused = Action::Refuse {
        code: RefusalCode::ResourceExhausted,
        message: "too large".to_owned(),
    };
    let faults = faults(Fault::new(Rpc::Prewrite, refused.clone()).with_min_bytes(1000));
    let drawn = |len| faults.draw(Rpc::Prewrite, 1, |_| false, move || len);
    assert_eq!((drawn(999), drawn(1000)), (None, Some(refused)));
}

#[test]
fn chance_comes_from_the_seed() {
    let drawn = |seed| {
        let faults = Faults::new(seed);
        faults.add(Fault::new(Rpc::Get, lose()).with_probability(0.5)).unwrap();
        happens(&faults, 64)
    };
    assert_eq!(drawn(7), drawn(7));
    assert_ne!(drawn(7), drawn(8));
    let count = drawn(7).into_iter().filter(|&happened| happened).count();
    assert!((16..48).contains(&count), "{count} of 64");
}

#[test]
fn faults_that_cannot_happen_are_refused() {
    let refused = |fault| Faults::new(0).add(fault).unwrap_err();
    assert_eq!(
        refused(Fault::new(Rpc::Get, lose()).with_probability(1.1)),
        FaultError::Probability
    );
    assert_eq!(
        refused(Fault::new(Rpc::Get, lose()).with_probability(f64::NAN)),
        FaultError::Probability
    );
    let region = Action::Region {
        error: RegionFault::ServerIsBusy,
    };
    assert_eq!(
        refused(Fault::new(Rpc::GetStore, region)),
        FaultError::NoRegion(Rpc::GetStore)
    );
    assert_eq!(
        refused(Fault::new(Rpc::Tso, Action::Late { after: None })),
        FaultError::Stream
    );
}

#[test]
fn held_messages_are_delivered_in_order_and_once() {
    let faults = Faults::new(0);
    let order = Arc::new(AtomicU64::new(0));
    for digit in 1..=3 {
        let order = Arc::clone(&order);
        faults.hold(async move { order.store(order.load(Ordering::Relaxed) * 10 + digit, Ordering::Relaxed) }.boxed());
    }
    assert_eq!((faults.held(), order.load(Ordering::Relaxed)), (3, 0));
    assert_eq!(faults.deliver().now_or_never(), Some(3));
    assert_eq!((faults.held(), order.load(Ordering::Relaxed)), (0, 123));
}

#[test]
fn faults_are_read_from_json() {
    let fault: Fault = serde_json::from_str(
        r#"{"rpc": "unsafe_destroy_range", "action": {"kind": "duplicate", "ms": 20}, "key_prefix": "772f", "count": 1}"#,
    )
    .unwrap();
    let action = Action::Duplicate {
        after: Some(Duration::from_millis(20)),
    };
    assert_eq!(
        fault,
        Fault::new(Rpc::UnsafeDestroyRange, action).on_keys("w/").times(1)
    );
    let again: Fault = serde_json::from_value(serde_json::to_value(&fault).unwrap()).unwrap();
    assert_eq!(again, fault);
    for wrong in [
        r#"{"rpc": "get"}"#,
        r#"{"rpc": "get", "action": {"kind": "late"}, "typo": 1}"#,
        r#"{"rpc": "get", "action": {"kind": "late"}, "key_prefix": "w/"}"#,
        r#"{"rpc": "get", "action": {"kind": "delay_reply"}}"#,
    ] {
        assert!(serde_json::from_str::<Fault>(wrong).is_err(), "{wrong}");
    }
}
