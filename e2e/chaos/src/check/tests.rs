//! Histories that could be, and each way in which they could not.

use std::time::Duration;

use super::check;
use crate::history::{
    Answer, Compare, Event, History, KeySelector, Kv, LeaseHistory, MemberAbsence, Message, MessageContent, Op,
    OpAnswer, Operation, Outcome, Request, RequestMethod, RoundTime, StreamAttempt, WatcherHistory, WrittenValue,
};

fn at(millis: u64) -> RoundTime {
    Duration::from_millis(millis)
}

fn kv(key: &str, value: u64, revisions: (i64, i64), version: i64) -> Kv {
    Kv {
        key: key.to_owned(),
        value: WrittenValue(value),
        create: revisions.0,
        modified: revisions.1,
        version,
        lease: 0,
    }
}

fn put(key: &str, value: u64) -> Request {
    Request::plain(Op::Put {
        key: key.to_owned(),
        value: WrittenValue(value),
        lease: 0,
        prev: false,
    })
}

fn get(key: &str) -> Request {
    Request::plain(Op::Range {
        keys: KeySelector::One(key.to_owned()),
        revision: 0,
    })
}

fn answered(times: (u64, u64), request: Request, revision: i64, done: Vec<OpAnswer>) -> Operation {
    let answer = Answer {
        revision,
        succeeded: true,
        done,
    };
    operation(times, request, Outcome::Answered(answer))
}

fn operation(times: (u64, u64), request: Request, outcome: Outcome) -> Operation {
    Operation {
        client: 0,
        member: 0,
        called: at(times.0),
        returned: at(times.1),
        request,
        outcome,
    }
}

fn range(kvs: Vec<Kv>) -> Vec<OpAnswer> {
    let count = i64::try_from(kvs.len()).unwrap();
    vec![OpAnswer::Range { kvs, count }]
}

fn message(millis: u64, revision: i64, told: MessageContent) -> Message {
    Message {
        at: at(millis),
        watch: Some(0),
        revision,
        told,
    }
}

fn event(kv: Kv) -> Event {
    Event::Put { kv, prev: None }
}

/// Two puts of one key at 2 and 3, one without an answer at 4, read and watched.
fn good() -> History {
    let kvs = [kv("a", 1, (2, 2), 1), kv("a", 2, (2, 3), 2), kv("b", 3, (4, 4), 1)];
    let messages = vec![
        message(12, 2, MessageContent::Events(vec![event(kvs[0].clone())])),
        message(22, 3, MessageContent::Events(vec![event(kvs[1].clone())])),
        message(45, 4, MessageContent::Events(vec![event(kvs[2].clone())])),
        message(50, 4, MessageContent::Progress),
    ];
    History {
        base: 1,
        end: 4,
        operations: vec![
            answered((10, 13), put("a", 1), 2, vec![OpAnswer::Put { prev: None }]),
            answered((20, 25), put("a", 2), 3, vec![OpAnswer::Put { prev: None }]),
            answered((11, 12), get("a"), 2, range(vec![kvs[0].clone()])),
            answered((30, 31), get("a"), 3, range(vec![kvs[1].clone()])),
            operation((32, 40), put("b", 3), Outcome::Unknown("timed out".to_owned())),
        ],
        watchers: vec![WatcherHistory {
            member: 0,
            watches: vec![KeySelector::Prefix(String::new())],
            prev: false,
            attempts: vec![StreamAttempt {
                opened: at(1),
                from: vec![2],
                messages,
                broke: None,
            }],
        }],
        ..History::default()
    }
}

/// Something is wrong with the good history when changed so, and it is said in these words.
fn refused(change: impl FnOnce(&mut History), words: &str) {
    let mut history = good();
    change(&mut history);
    let wrong = check(&history).expect_err("a violation").join("\n");
    assert!(wrong.contains(words), "{wrong}");
}

fn messages(history: &mut History) -> &mut Vec<Message> {
    &mut history.watchers[0].attempts[0].messages
}

#[test]
fn a_history_that_could_be_is_accepted() {
    let verdict = check(&good()).unwrap();
    assert_eq!((verdict.operations, verdict.unknown, verdict.unknown_done), (5, 1, 1));
    assert_eq!(verdict.revisions, 3);
}

#[test]
fn a_stale_read_is_seen() {
    let stale = answered((26, 27), get("a"), 2, range(vec![kv("a", 1, (2, 2), 1)]));
    refused(
        |history| history.operations.push(stale.clone()),
        "had already returned Read(3)",
    );
    // the same of one member alone is allowed
    let mut history = good();
    let serializable = Request {
        method: RequestMethod::Serializable,
        ..get("a")
    };
    history.operations.push(Operation {
        request: serializable,
        ..stale
    });
    check(&history).unwrap();
}

#[test]
fn a_read_that_is_older_than_what_a_watch_has_told_is_seen() {
    let stale = answered((23, 24), get("a"), 2, range(vec![kv("a", 1, (2, 2), 1)]));
    refused(
        |history| {
            history.operations[1].returned = at(30);
            history.operations.push(stale);
        },
        "a watch at member 0 had already returned Read(3)",
    );
}

#[test]
fn a_lost_write_is_seen() {
    refused(|history| history.end = 5, "revisions 5 to 5 are missing");
    refused(
        |history| drop(messages(history).remove(1)),
        "revisions 3 to 3 are missing",
    );
    let lost = answered((60, 61), put("c", 9), 4, vec![OpAnswer::Put { prev: None }]);
    refused(
        |history| history.operations.push(lost),
        "its revision changed something else",
    );
}

#[test]
fn a_write_that_was_done_twice_or_by_nobody_is_seen() {
    refused(|history| drop(history.operations.pop()), "no client put 0.3");
    let again = answered((14, 15), put("a", 1), 3, vec![OpAnswer::Put { prev: None }]);
    refused(|history| history.operations.push(again), "both made revision 3");
}

#[test]
fn a_write_that_was_done_before_it_was_called_is_seen() {
    let later = answered((41, 42), get("a"), 4, range(vec![kv("a", 2, (2, 3), 2)]));
    refused(
        |history| {
            history.operations.push(later);
            history.operations[4].called = at(46);
            history.operations[4].returned = at(48);
        },
        "operation 4 (unanswered)",
    );
}

#[test]
fn a_wrong_answer_is_seen() {
    refused(
        |history| {
            let Outcome::Answered(answer) = &mut history.operations[3].outcome else {
                panic!("it is answered")
            };
            answer.done = range(vec![kv("a", 2, (2, 3), 1)]);
        },
        "the answer should be",
    );
    let txn = Request {
        method: RequestMethod::Txn,
        compares: vec![Compare::Modified("a".to_owned(), 2)],
        then: Vec::new(),
        otherwise: Vec::new(),
    };
    let wrong = answered((33, 34), txn, 3, Vec::new());
    refused(|history| history.operations.push(wrong), "the answer should be");
}

#[test]
fn a_refusal_of_a_revision_that_nobody_compacted_is_seen() {
    let past = Request::plain(Op::Range {
        keys: KeySelector::One("a".to_owned()),
        revision: 2,
    });
    let refusal = operation((40, 41), past, Outcome::Compacted);
    refused(
        |history| history.operations.push(refusal.clone()),
        "no client compacted",
    );
    let mut history = good();
    history.operations.push(refusal);
    history.compactions.push((at(35), 3));
    check(&history).unwrap();
}

#[test]
fn watches_that_repeat_or_skip_or_run_ahead_are_seen() {
    refused(
        |history| {
            let again = messages(history)[1].clone();
            messages(history).insert(2, again);
        },
        "revision 3 after 3",
    );
    let mut ahead = message(21, 3, MessageContent::Progress);
    refused(
        |history| messages(history).insert(1, ahead.clone()),
        "progress 3 ahead of the event at 3",
    );
    ahead.watch = None;
    refused(
        |history| messages(history).insert(1, ahead),
        "progress 3 ahead of the event at 3",
    );
    let other = |history: &mut History| {
        let mut other = history.watchers[0].clone();
        other.watches = vec![KeySelector::One("a".to_owned())];
        other.attempts[0].messages.truncate(2);
        other.attempts[0].messages.remove(0);
        history.watchers.push(other);
    };
    refused(other, "revision 3 without 2");
    let short = |history: &mut History| {
        let mut other = history.watchers[0].clone();
        other.attempts[0].messages.truncate(2);
        history.watchers.push(other);
    };
    refused(short, "ended at revision 3 of 4");
}

#[test]
fn what_came_before_an_event_has_to_be_right() {
    let with_prev = |prev: Option<Kv>| {
        let mut history = good();
        history.watchers[0].prev = true;
        let MessageContent::Events(events) = &mut messages(&mut history)[1].told else {
            panic!("these are events")
        };
        events[0] = Event::Put {
            kv: kv("a", 2, (2, 3), 2),
            prev,
        };
        check(&history)
    };
    with_prev(Some(kv("a", 1, (2, 2), 1))).unwrap();
    assert!(with_prev(None).is_err());
    assert!(with_prev(Some(kv("a", 2, (2, 2), 1))).is_err());
}

#[test]
fn a_stream_may_break_only_with_its_member() {
    let broken = |history: &mut History| {
        history.watchers[0].attempts[0].broke = Some((at(60), "Unavailable".to_owned()));
    };
    refused(broken, "though the member stayed");
    let mut history = good();
    broken(&mut history);
    history.absences.push(MemberAbsence {
        member: 0,
        from: at(59),
        until: at(100),
    });
    check(&history).unwrap();
}

/// The good history, and a key whose lease expires at 70 ms, at a revision that no operation made.
fn leased(renewed: u64) -> History {
    let mut history = good();
    let put = Op::Put {
        key: "l".to_owned(),
        value: WrittenValue(8),
        lease: 77,
        prev: false,
    };
    let done = vec![OpAnswer::Put { prev: None }];
    history
        .operations
        .push(answered((51, 52), Request::plain(put), 5, done));
    let kv = Kv {
        lease: 77,
        ..kv("l", 8, (5, 5), 1)
    };
    let end = Event::Delete {
        key: "l".to_owned(),
        revision: 6,
        prev: None,
    };
    messages(&mut history).push(message(53, 5, MessageContent::Events(vec![event(kv)])));
    messages(&mut history).push(message(70, 6, MessageContent::Events(vec![end])));
    history.end = 6;
    history.leases.push(LeaseHistory {
        id: 77,
        ttl: at(10),
        key: "l".to_owned(),
        renewed: vec![(at(50), at(51)), (at(renewed), at(renewed))],
        revoked: None,
    });
    history
}

#[test]
fn a_lease_ends_neither_early_nor_never() {
    check(&leased(60)).unwrap();
    let early = check(&leased(61)).unwrap_err().join("\n");
    assert!(early.contains("before its lease was due"), "{early}");
    let mut revoked = leased(61);
    revoked.leases[0].revoked = Some(at(65));
    check(&revoked).unwrap();
    let mut never = leased(60);
    never.end = 5;
    messages(&mut never).pop();
    let never = check(&never).unwrap_err().join("\n");
    assert!(never.contains("outlived its lease"), "{never}");
    let mut nobodys = leased(60);
    nobodys.leases.clear();
    assert!(check(&nobodys).unwrap_err().join("\n").contains("no client requested"));
}
