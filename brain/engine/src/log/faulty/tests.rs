use super::*;
use crate::log::MemLog;
use crate::log::laws::{read_all, record};

fn twin() -> Faulty<MemLog> {
    Faulty::new(MemLog::new())
}

async fn slots(log: &Faulty<MemLog>) -> Vec<u64> {
    read_all(log.inner(), 0)
        .await
        .into_iter()
        .map(|(slot, _)| slot)
        .collect()
}

#[tokio::test]
async fn each_fault_does_what_its_name_says() {
    let table: [(Fault, &str, bool); 6] = [
        (Fault::Lost, "Unknown", false),
        (Fault::Unanswered, "Unknown", true),
        (Fault::Late, "Unknown", false),
        (Fault::Twice, "Ok", true),
        (Fault::Unavailable, "Unavailable", false),
        (Fault::Full, "Full", false),
    ];
    for (fault, expected, is_there) in table {
        let log = twin();
        log.fail_next(fault);
        let answer = log.append(Slot(1), record(1, 0, 20)).await;
        assert!(
            format!("{answer:?}").starts_with(expected) || format!("{answer:?}").contains(expected),
            "{answer:?}"
        );
        assert_eq!(slots(&log).await.len(), usize::from(is_there), "{fault:?}");
        assert_eq!(
            log.held() == 1,
            matches!(fault, Fault::Late | Fault::Twice),
            "{fault:?}"
        );
        log.append(Slot(2), record(2, 0, 20)).await.unwrap();
        assert!(slots(&log).await.contains(&2), "only one append fails");
    }
}

#[tokio::test]
async fn the_nth_append_fails_and_no_other() {
    let log = twin();
    log.fail_nth(3, Fault::Lost);
    for slot in 1..=4 {
        let answer = log.append(Slot(slot), record(slot, 0, 20)).await;
        assert_eq!(answer.is_err(), slot == 3, "{answer:?}");
    }
    assert_eq!(slots(&log).await, [1, 2, 4]);
    assert_eq!(log.appends(), 4);
}

#[tokio::test]
async fn late_appends_land_again_also_in_destroyed_slots() {
    let log = twin();
    log.fail_next(Fault::Late);
    log.append(Slot(1), record(1, 0, 20)).await.unwrap_err();
    assert_eq!(log.held(), 1);
    assert!(log.land_late(true).await[0].1.is_ok());
    assert_eq!(slots(&log).await, [1]);
    log.raise_watermark(Slot(2)).await.unwrap();
    log.destroy_below_watermark().await.unwrap();
    assert!(slots(&log).await.is_empty());
    assert!(log.land_late(false).await[0].1.is_ok());
    assert_eq!(slots(&log).await, [1], "garbage in a destroyed slot");
    assert_eq!(log.held(), 0);
}

#[tokio::test]
async fn a_late_append_loses_against_one_that_came_first() {
    let log = twin();
    log.fail_next(Fault::Late);
    log.append(Slot(1), record(1, 1, 20)).await.unwrap_err();
    log.append(Slot(1), record(1, 2, 20)).await.unwrap();
    let landed = log.land_late(false).await;
    assert!(matches!(&landed[0].1, Err(AppendError::Taken(_, there)) if *there == record(1, 2, 20)));
}

#[tokio::test]
async fn a_seed_always_draws_the_same_faults() {
    let run = async |seed| {
        let log = Faulty::seeded(MemLog::new(), seed, 2);
        let mut answers = Vec::new();
        for slot in 1..=200 {
            answers.push(log.append(Slot(slot), record(slot, 0, 20)).await.is_ok());
        }
        (answers, slots(&log).await)
    };
    let (one, again, other) = (run(1).await, run(1).await, run(2).await);
    assert_eq!(one, again);
    assert_ne!(one, other);
    assert!(one.0.contains(&false) && one.0.contains(&true));
}

#[tokio::test]
async fn reads_fail_on_command() {
    let log = twin();
    log.fail_reads(2);
    assert!(log.read(Slot(0), 1).await.is_err());
    assert!(log.watermark().await.is_err());
    assert!(log.read(Slot(0), 1).await.is_ok());
}
