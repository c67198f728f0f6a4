use super::*;

const fn run(start: u64, end: u64, revision: Revision) -> Run {
    Run { start, end, revision }
}

fn mailbox() -> (Mailbox, Arc<Inbox>) {
    let inbox = Arc::new(Inbox::default());
    (Mailbox::open(7, Arc::clone(&inbox), Arc::default()), inbox)
}

fn named(inbox: &Inbox) -> usize {
    let mut count = 0;
    inbox.drain(|name| {
        assert_eq!(name, 7);
        count += 1;
    });
    count
}

#[test]
fn a_mailbox_is_named_once_until_it_is_emptied() {
    let (mailbox, inbox) = mailbox();
    mailbox.deliver(&[run(0, 1, 2)], 9);
    mailbox.deliver(&[run(1, 2, 3), run(5, 6, 4)], 9);
    assert_eq!((named(&inbox), mailbox.oldest()), (1, Some(2)));
    mailbox.deliver(&[run(6, 7, 5)], 9);
    assert_eq!(named(&inbox), 0);
    assert_eq!(mailbox.take(), Mail::Runs([run(0, 2, 2), run(5, 7, 4)].into()));
    assert_eq!((mailbox.take(), mailbox.oldest()), (Mail::Runs(VecDeque::new()), None));
    mailbox.deliver(&[run(9, 10, 6)], 9);
    assert_eq!(named(&inbox), 1);
}

#[test]
fn one_run_too_many_and_the_mailbox_takes_nothing_until_its_watcher_joins_again() {
    let (mailbox, inbox) = mailbox();
    mailbox.deliver(&[run(0, 1, 2), run(2, 3, 4)], 2);
    mailbox.deliver(&[run(4, 5, 6)], 2);
    mailbox.deliver(&[run(6, 7, 8)], 2);
    assert_eq!((named(&inbox), mailbox.oldest()), (1, Some(2)));
    assert_eq!(mailbox.take(), Mail::Lost(2));
    mailbox.deliver(&[run(8, 9, 10)], 2);
    assert_eq!((named(&inbox), mailbox.take()), (0, Mail::Runs(VecDeque::new())));
    mailbox.join();
    mailbox.deliver(&[run(10, 11, 12)], 2);
    assert_eq!(mailbox.take(), Mail::Runs([run(10, 11, 12)].into()));
}

#[test]
fn an_overrun_begins_with_what_was_not_taken() {
    let (mailbox, inbox) = mailbox();
    mailbox.deliver(&[run(0, 1, 2)], 9);
    mailbox.overrun(5);
    assert_eq!((named(&inbox), mailbox.take()), (1, Mail::Lost(2)));
    mailbox.join();
    mailbox.overrun(9);
    mailbox.overrun(11);
    assert_eq!(
        (named(&inbox), mailbox.oldest(), mailbox.take()),
        (1, Some(9), Mail::Lost(9))
    );
}

#[test]
fn a_closed_mailbox_takes_nothing() {
    let inbox = Arc::new(Inbox::default());
    let mailbox = Mailbox::closed(7, Arc::clone(&inbox), Arc::default());
    mailbox.deliver(&[run(0, 1, 2)], 9);
    mailbox.overrun(5);
    assert_eq!((named(&inbox), mailbox.take()), (0, Mail::Runs(VecDeque::new())));
    mailbox.join();
    mailbox.deliver(&[run(0, 1, 2)], 9);
    mailbox.leave();
    assert_eq!(mailbox.take(), Mail::Runs(VecDeque::new()));
}

#[tokio::test]
async fn a_name_wakes_who_waits_for_the_inbox() {
    let (mailbox, inbox) = mailbox();
    mailbox.deliver(&[run(0, 1, 2)], 9);
    inbox.filled().await; // also when it was named before the wait
    assert_eq!(named(&inbox), 1);
    let waiting = inbox.filled();
    mailbox.take();
    mailbox.overrun(3);
    waiting.await;
}

#[test]
fn mailboxes_hold_few_runs_each_while_there_are_many() {
    let (count, inbox) = (Arc::new(RunCount::default()), Arc::new(Inbox::default()));
    let mailbox = |name| Mailbox::open(name, Arc::clone(&inbox), Arc::clone(&count));
    let runs: Vec<Run> = (0..100).map(|at| run(2 * at, 2 * at + 1, 1)).collect();
    let mut kept = Vec::new();
    for name in 0..100_000 {
        let mailbox = mailbox(name);
        mailbox.deliver(&runs, 128);
        if matches!(mailbox.take(), Mail::Lost(1)) {
            break;
        }
        mailbox.deliver(&runs, 128);
        kept.push(mailbox);
    }
    assert_eq!(kept.len(), MANY_RUNS / 100);
    for name in 0..100 {
        kept.push(mailbox(name));
        kept.last().unwrap().deliver(&runs[..FEW_RUNS], 128);
    }
    let last = kept.last().unwrap();
    assert_eq!(last.take(), Mail::Runs(runs[..FEW_RUNS].to_vec().into()));
    last.deliver(&runs[..=FEW_RUNS], 128);
    assert_eq!(last.take(), Mail::Lost(1));
    drop(kept);
    assert_eq!(count.0.load(Ordering::Relaxed), 0);
    let mailbox = mailbox(0);
    mailbox.deliver(&runs, 128);
    assert_eq!(mailbox.take(), Mail::Runs(runs.into()));
}
