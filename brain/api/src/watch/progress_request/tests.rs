use super::*;

fn frozen_at(published: Revision) -> ProgressRequest {
    let mut progress = ProgressRequest::default();
    progress.ask(published);
    progress.regulate(false, published);
    assert_eq!(
        (progress.frozen(), progress.awaited()),
        (Some(published), Some(published))
    );
    progress
}

#[test]
fn the_answer_comes_when_the_last_who_owes_has_paid() {
    let mut progress = frozen_at(5);
    assert_eq!(progress.begin(HashSet::from([1, 2])), None);
    assert_eq!(
        (progress.owed_by(1), progress.owed_by(3), progress.awaited()),
        (Some(5), None, None)
    );
    assert_eq!(progress.settle(1), None);
    assert_eq!(progress.owed_by(1), None);
    assert_eq!(progress.settle(2), Some(5));
    assert!(progress.is_idle() && progress.frozen().is_none());
}

#[test]
fn the_answer_comes_at_once_when_nobody_owes() {
    assert_eq!(frozen_at(5).begin(HashSet::new()), Some(5));
}

#[test]
fn a_stream_with_a_watcher_behind_is_not_frozen_but_remembers() {
    let mut progress = ProgressRequest::default();
    progress.ask(5);
    progress.regulate(true, 5);
    assert_eq!((progress.frozen(), progress.is_idle()), (None, false));
    progress.regulate(false, 7);
    assert_eq!(progress.frozen(), Some(7));
    assert_eq!(progress.begin(HashSet::from([1])), None);
    progress.regulate(true, 8);
    assert_eq!((progress.frozen(), progress.settle(1)), (None, None));
    progress.regulate(false, 9);
    assert_eq!(progress.begin(HashSet::new()), Some(9));
}

#[test]
fn a_frozen_stream_stays_where_it_is_and_a_later_request_gets_an_answer_of_its_own() {
    let mut progress = frozen_at(5);
    progress.ask(5);
    progress.ask(6);
    progress.regulate(false, 6);
    assert_eq!(progress.begin(HashSet::new()), Some(5));
    progress.regulate(false, 6);
    assert_eq!(progress.begin(HashSet::new()), Some(6));
    assert!(progress.is_idle());
}

#[test]
fn forgotten_request_is_not_answered() {
    let mut progress = frozen_at(5);
    progress.ask(6);
    progress.forget();
    assert_eq!((progress.begin(HashSet::new()), progress.settle(1)), (None, None));
    progress.regulate(false, 6);
    assert!(progress.is_idle());
}
