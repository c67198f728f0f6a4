mod fates;
mod reads;
mod space;
mod writes;

use bytes::Bytes;

use super::*;
use crate::proto::kvrpcpb::{
    self as kv, Action, KeyError, Mutation, Op, PrewriteRequest, PrewriteResponse, write_conflict::Reason,
};
use crate::regions::Regions;

/// Tables to which decisions are applied at once.
struct Store {
    tables: Tables,
    max_ts: u64,
}

fn mutation(op: Op, key: &'static str, value: &'static str) -> Mutation {
    Mutation {
        op: op.into(),
        key: key.into(),
        value: value.into(),
        ..Default::default()
    }
}

fn put(key: &'static str, value: &'static str) -> Mutation {
    mutation(Op::Put, key, value)
}

/// The first key is the primary.
fn prewrite_at(start_version: u64, mutations: Vec<Mutation>) -> PrewriteRequest {
    let primary_lock = mutations[0].key.clone();
    PrewriteRequest {
        start_version,
        primary_lock,
        mutations,
        lock_ttl: 3000,
        ..Default::default()
    }
}

fn one_phase(start_version: u64, mutations: Vec<Mutation>) -> PrewriteRequest {
    PrewriteRequest {
        try_one_pc: true,
        ..prewrite_at(start_version, mutations)
    }
}

impl Store {
    fn new() -> Self {
        Self {
            tables: Tables::new(Regions::new(vec![1])),
            max_ts: 0,
        }
    }

    fn apply<R>(&mut self, decision: Decision<R>) -> R {
        decision
            .changes
            .into_iter()
            .for_each(|change| self.tables.apply(change));
        decision.reply
    }

    fn prewrite(&mut self, request: &PrewriteRequest) -> PrewriteResponse {
        let decision = prewrite(&self.tables, request, self.max_ts);
        self.apply(decision)
    }

    /// Prewrites and commits; panics on any error.
    fn write(&mut self, start_ts: u64, commit_ts: u64, mutations: Vec<Mutation>) {
        let keys: Vec<_> = mutations.iter().map(|mutation| mutation.key.clone()).collect();
        let reply = self.prewrite(&prewrite_at(start_ts, mutations));
        assert!(reply.errors.is_empty(), "{:?}", reply.errors);
        for key in keys {
            assert_eq!(
                self.commit(start_ts, commit_ts, std::str::from_utf8(&key).unwrap()),
                None
            );
        }
    }

    fn commit(&mut self, start_version: u64, commit_version: u64, key: &str) -> Option<KeyError> {
        let keys = vec![Bytes::copy_from_slice(key.as_bytes())];
        let decision = commit(
            &self.tables,
            &kv::CommitRequest {
                start_version,
                commit_version,
                keys,
                ..Default::default()
            },
        );
        self.apply(decision).error
    }

    fn rollback(&mut self, start_version: u64, key: &'static str) -> Option<KeyError> {
        let keys = vec![key.into()];
        let request = kv::BatchRollbackRequest {
            start_version,
            keys,
            ..Default::default()
        };
        let decision = batch_rollback(&self.tables, &request);
        self.apply(decision).error
    }

    fn status(&mut self, request: &kv::CheckTxnStatusRequest) -> kv::CheckTxnStatusResponse {
        let decision = check_txn_status(&self.tables, request);
        self.apply(decision)
    }

    fn get(&self, key: &'static str, version: u64) -> Result<Option<String>, Box<KeyError>> {
        let reply = get(
            &self.tables,
            &kv::GetRequest {
                key: key.into(),
                version,
                ..Default::default()
            },
        );
        match reply.error {
            Some(error) => Err(error),
            None if reply.not_found => Ok(None),
            None => Ok(Some(String::from_utf8(reply.value.to_vec()).unwrap())),
        }
    }

    fn scan(&self, version: u64, reverse: bool, limit: u32) -> Vec<String> {
        let request = kv::ScanRequest {
            version,
            reverse,
            limit,
            ..Default::default()
        };
        let pairs = scan(&self.tables, &request, b"", b"").pairs.into_iter();
        let show = |pair: kv::KvPair| {
            let what = if pair.error.is_some() {
                "locked".into()
            } else {
                pair.value
            };
            format!(
                "{}={}",
                String::from_utf8_lossy(&pair.key),
                String::from_utf8_lossy(&what)
            )
        };
        pairs.map(show).collect()
    }
}

fn conflict_reason(reply: &PrewriteResponse) -> Option<Reason> {
    reply.errors.first()?.conflict.as_ref().map(kv::WriteConflict::reason)
}

fn check_status(primary: &'static str, lock_ts: u64, current_ts: u64) -> kv::CheckTxnStatusRequest {
    kv::CheckTxnStatusRequest {
        primary_key: primary.into(),
        lock_ts,
        current_ts,
        ..Default::default()
    }
}
