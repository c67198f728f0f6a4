use wire::mvccpb::KeyValue;

use super::*;

fn kv(key: &'static str, version: i64) -> KeyValue {
    KeyValue {
        key: key.into(),
        version,
        ..KeyValue::default()
    }
}

fn sorted(order: i32, more: bool, kvs: &[KeyValue]) -> Vec<KeyValue> {
    let request = pb::RangeRequest {
        sort_order: order,
        sort_target: 1,
        ..pb::RangeRequest::default()
    };
    let response = pb::RangeResponse {
        kvs: kvs.to_vec(),
        more,
        ..pb::RangeResponse::default()
    };
    let mut answer = Answer::Range(response);
    order_ties(&Request::Range(request), &mut answer);
    let Answer::Range(response) = answer else {
        panic!("{answer:?}")
    };
    response.kvs
}

#[test]
fn only_ties_are_put_in_order() {
    let kvs = [kv("z", 1), kv("b", 2), kv("a", 2)];
    assert_eq!(sorted(1, false, &kvs), [kv("z", 1), kv("a", 2), kv("b", 2)]);
    let wrong = [kv("b", 2), kv("z", 1), kv("a", 2)];
    assert_eq!(sorted(1, false, &wrong), wrong);
}

#[test]
fn a_tie_that_a_limit_cut_keeps_only_what_it_was_sorted_by() {
    assert_eq!(sorted(1, true, &[kv("z", 1), kv("b", 2)]), [kv("z", 1), kv("", 2)]);
    assert_eq!(sorted(0, true, &[kv("z", 1), kv("b", 2)]), [kv("z", 1), kv("b", 2)]);
}

#[test]
fn ids_are_left_out_and_their_absence_is_not() {
    let header = |cluster_id, revision| {
        Some(pb::ResponseHeader {
            cluster_id,
            member_id: cluster_id,
            revision,
            raft_term: 2,
        })
    };
    let seen = |header| {
        let mut answer = Answer::Compact(pb::CompactionResponse { header });
        answer.normalise();
        answer
    };
    assert_eq!(seen(header(5, 7)), seen(header(9, 7)));
    assert_ne!(seen(header(5, 7)), seen(header(5, 8)));
    assert_ne!(seen(header(5, 7)), seen(header(0, 7)));
    assert_ne!(seen(header(5, 7)), seen(None));
}
