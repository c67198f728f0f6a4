// Copyright 2020 TiKV Project Authors. Licensed under Apache-2.0.

use crate::common::Error::PessimisticLockError;
use crate::common::Error::ResolveLockError;
use crate::proto::kvrpcpb;
use crate::request::plan::Merge;
use crate::request::CollectWithShard;
use crate::request::ResponseWithShard;
use crate::KvPair;

#[tokio::test]
async fn test_merge_pessimistic_lock_response() {
    let (key1, key2, key3, key4) = (b"key1", b"key2", b"key3", b"key4");
    let (value1, value4) = (b"value1", b"value4");
    let value_empty = b"";

    let resp1 = ResponseWithShard(
        kvrpcpb::PessimisticLockResponse {
            values: vec![value1.to_vec()],
            ..Default::default()
        },
        vec![kvrpcpb::Mutation {
            op: kvrpcpb::Op::PessimisticLock.into(),
            key: key1.to_vec(),
            ..Default::default()
        }],
    );

    let resp_empty_value = ResponseWithShard(
        kvrpcpb::PessimisticLockResponse {
            values: vec![value_empty.to_vec()],
            ..Default::default()
        },
        vec![kvrpcpb::Mutation {
            op: kvrpcpb::Op::PessimisticLock.into(),
            key: key2.to_vec(),
            ..Default::default()
        }],
    );

    let resp_not_found = ResponseWithShard(
        kvrpcpb::PessimisticLockResponse {
            values: vec![value_empty.to_vec(), value4.to_vec()],
            not_founds: vec![true, false],
            ..Default::default()
        },
        vec![
            kvrpcpb::Mutation {
                op: kvrpcpb::Op::PessimisticLock.into(),
                key: key3.to_vec(),
                ..Default::default()
            },
            kvrpcpb::Mutation {
                op: kvrpcpb::Op::PessimisticLock.into(),
                key: key4.to_vec(),
                ..Default::default()
            },
        ],
    );

    let merger = CollectWithShard {};
    {
        // empty values & not founds are filtered.
        let input = vec![
            Ok(resp1.clone()),
            Ok(resp_empty_value.clone()),
            Ok(resp_not_found.clone()),
        ];
        let result = merger.merge(input);

        assert_eq!(
            result.unwrap(),
            vec![
                KvPair::new(key1.to_vec(), value1.to_vec()),
                KvPair::new(key4.to_vec(), value4.to_vec()),
            ]
        );
    }
    {
        let input = vec![
            Ok(resp1),
            Ok(resp_empty_value),
            Err(ResolveLockError(vec![])),
            Ok(resp_not_found),
        ];
        let result = merger.merge(input);

        if let PessimisticLockError { inner, success_keys } = result.unwrap_err() {
            assert!(matches!(*inner, ResolveLockError(_)));
            assert_eq!(
                success_keys,
                vec![key1.to_vec(), key2.to_vec(), key3.to_vec(), key4.to_vec()]
            );
        } else {
            panic!();
        }
    }
}

#[test]
fn test_merge_pessimistic_lock_response_of_another_length_is_an_error() {
    let mutation = || kvrpcpb::Mutation {
        key: vec![1],
        ..Default::default()
    };
    for (values, not_founds) in [(2, 0), (0, 1), (1, 2)] {
        let resp = kvrpcpb::PessimisticLockResponse {
            values: vec![vec![1]; values],
            not_founds: vec![false; not_founds],
            ..Default::default()
        };
        let merged = CollectWithShard {}.merge(vec![Ok(ResponseWithShard(resp, vec![mutation()]))]);
        merged.unwrap_err();
    }
}
