// Copyright 2019 TiKV Project Authors. Licensed under Apache-2.0.

//! Commits and rolls back: the two phases, or one.

use std::iter;
use std::sync::Arc;

use derive_new::new;
use futures::prelude::*;
use log::{debug, error, info};
use tokio::time::Instant;

use super::options::TransactionKind;
use super::options::TransactionOptions;
use crate::internal_err;
use crate::kv::HexRepr;
use crate::pd::PdClient;
use crate::pd::PdRpcClient;
use crate::proto::kvrpcpb;
use crate::proto::pdpb::Timestamp;
use crate::request::plan::is_grpc_error;
use crate::request::CollectError;
use crate::request::Plan;
use crate::request::PlanBuilder;
use crate::timestamp::TimestampExt;
use crate::transaction::lowering::*;
use crate::Error;
use crate::Key;
use crate::Result;

/// The default max TTL of a lock in milliseconds. Also called `ManagedLockTTL` in TiDB.
pub(super) const MAX_TTL: u64 = 20000;
/// The default TTL of a lock in milliseconds.
const DEFAULT_LOCK_TTL: u64 = 3000;
/// TiKV recommends each RPC packet should be less than around 1MB. We keep KV size of
/// each request below 16KB.
pub(crate) const TXN_COMMIT_BATCH_SIZE: u64 = 16 * 1024;
const TTL_FACTOR: f64 = 6000.0;

/// A struct wrapping the details of two-phase commit protocol (2PC).
///
/// The two phases are `prewrite` and `commit`.
/// Generally, the `prewrite` phase is to send data to all regions and write them.
/// The `commit` phase is to mark all written data as successfully committed.
///
/// The committer implements `prewrite`, `commit` and `rollback` functions.
#[allow(clippy::too_many_arguments)]
#[derive(new)]
pub(super) struct Committer<PdC: PdClient = PdRpcClient> {
    primary_key: Key,
    mutations: Vec<kvrpcpb::Mutation>,
    start_version: Timestamp,
    rpc: Arc<PdC>,
    options: TransactionOptions,
    write_size: u64,
    start_instant: Instant,
}

impl<PdC: PdClient> Committer<PdC> {
    pub(super) async fn commit(mut self) -> Result<Option<Timestamp>> {
        debug!("committing");

        let commit_ts = match self.prewrite().await? {
            Prewritten::Committed(commit_ts) => return Ok(Some(commit_ts)),
            Prewritten::CommitsAt(commit_ts) => commit_ts,
            Prewritten::Locked => {
                let committed = self.commit_primary_with_retry().await;
                committed.map_err(undetermined_if_lost)?
            }
        };
        // It has no locks.
        self.mutations.retain(|m| m.op != kvrpcpb::Op::CheckNotExists as i32);
        tokio::spawn(self.commit_secondary(commit_ts).map(|res| {
            if let Err(e) = res {
                log::warn!("Failed to commit secondary keys: {}", e);
            }
        }));
        Ok(Some(commit_ts))
    }

    async fn prewrite(&mut self) -> Result<Prewritten> {
        debug!("prewriting");
        let primary_lock = self.primary_key.clone();
        let elapsed = self.start_instant.elapsed().as_millis() as u64;
        let lock_ttl = self.calc_txn_lock_ttl();
        let mut request = match &self.options.kind {
            TransactionKind::Optimistic => new_prewrite_request(
                self.mutations.clone(),
                primary_lock,
                self.start_version,
                lock_ttl + elapsed,
            ),
            TransactionKind::Pessimistic(for_update_ts) => new_pessimistic_prewrite_request(
                self.mutations.clone(),
                primary_lock,
                self.start_version,
                lock_ttl + elapsed,
                *for_update_ts,
            ),
        };

        self.allow_on_almost_full_disk(&mut request.context);
        request.use_async_commit = self.options.async_commit;
        request.try_one_pc = self.options.try_one_pc;
        request.secondaries = self
            .mutations
            .iter()
            .filter(|m| self.primary_key.0 != m.key)
            .map(|m| m.key.clone())
            .collect();
        // TiKV takes care that it commits after all reads so far: `min_commit_ts` has nothing to add, and no change of a
        // schema asks for a `max_commit_ts`.

        let plan = PlanBuilder::new(self.rpc.clone(), request)
            .resolve_lock(self.start_version, self.options.retry_options.lock_backoff.clone())
            .retry_multi_region(self.options.retry_options.region_backoff.clone())
            .merge(CollectError)
            .extract_error()
            .plan();
        let response = plan.execute().await.map_err(|e| {
            if self.options.try_one_pc || self.options.async_commit {
                undetermined_if_lost(e)
            } else {
                e
            }
        })?;

        if self.options.try_one_pc && response.len() == 1 {
            if response[0].one_pc_commit_ts == 0 {
                return Err(Error::OnePcFailure);
            }

            let commit_ts = Timestamp::from_version(response[0].one_pc_commit_ts);
            return Ok(Prewritten::Committed(commit_ts));
        }
        if response.iter().any(|r| r.one_pc_commit_ts != 0) {
            let e = internal_err!("TiKV committed a part of a transaction");
            return Err(Error::UndeterminedError(Box::new(e)));
        }

        // A response without this timestamp means that TiKV does not commit asynchronously after all.
        let commits = self.options.async_commit && response.iter().all(|r| r.min_commit_ts != 0);
        self.options.async_commit = commits;
        let min_commit_ts = response.iter().map(|r| r.min_commit_ts).max();
        Ok(match min_commit_ts.filter(|_| commits) {
            Some(commit_ts) => Prewritten::CommitsAt(Timestamp::from_version(commit_ts)),
            None => Prewritten::Locked,
        })
    }

    fn allow_on_almost_full_disk(&self, context: &mut Option<kvrpcpb::Context>) {
        if self.options.on_almost_full_disk {
            let context = context.get_or_insert_with(Default::default);
            context.disk_full_opt = kvrpcpb::DiskFullOpt::AllowedOnAlmostFull.into();
        }
    }

    /// Commits the primary key and returns the commit version
    async fn commit_primary(&mut self) -> Result<Timestamp> {
        debug!("committing primary");
        let primary_key = iter::once(self.primary_key.clone());
        let commit_version = self.rpc.clone().get_timestamp().await?;
        let mut req = new_commit_request(primary_key, self.start_version, commit_version);
        self.allow_on_almost_full_disk(&mut req.context);
        let plan = PlanBuilder::new(self.rpc.clone(), req)
            .resolve_lock(self.start_version, self.options.retry_options.lock_backoff.clone())
            .retry_multi_region(self.options.retry_options.region_backoff.clone())
            .extract_error()
            .plan();
        plan.execute()
            .inspect_err(|e| {
                debug!(
                    "commit primary error: {:?}, start_ts: {}",
                    e,
                    self.start_version.version()
                );
            })
            .await?;

        Ok(commit_version)
    }

    async fn commit_primary_with_retry(&mut self) -> Result<Timestamp> {
        loop {
            match self.commit_primary().await {
                Ok(commit_version) => return Ok(commit_version),
                Err(Error::ExtractedErrors(mut errors)) => match errors.pop() {
                    Some(Error::KeyError(key_err)) => {
                        if let Some(expired) = key_err.commit_ts_expired {
                            // Ref: https://github.com/tikv/client-go/blob/tidb-8.5/txnkv/transaction/commit.go
                            info!(
                                "2PC commit_ts rejected by TiKV, retry with a newer commit_ts, start_ts: {}",
                                self.start_version.version()
                            );

                            let primary_key = &self.primary_key;
                            if primary_key.0 != expired.key {
                                error!("2PC commit_ts rejected by TiKV, but the key is not the primary key, start_ts: {}, key: {}, primary: {:?}",
                                    self.start_version.version(), HexRepr(&expired.key), primary_key);
                                return Err(Error::StringError(
                                    "2PC commitTS rejected by TiKV, but the key is not the primary key".to_string(),
                                ));
                            }

                            // Do not retry for a txn which has a too large min_commit_ts.
                            // 3600000 << 18 = 943718400000
                            if expired.min_commit_ts.saturating_sub(expired.attempted_commit_ts) > 943718400000 {
                                let msg = format!("2PC min_commit_ts is too large, we got min_commit_ts: {}, and attempted_commit_ts: {}",
                                                     expired.min_commit_ts, expired.attempted_commit_ts);
                                return Err(Error::StringError(msg));
                            }
                            continue;
                        } else {
                            return Err(Error::KeyError(key_err));
                        }
                    }
                    Some(err) => return Err(err),
                    None => return Err(internal_err!("an error without a reason")),
                },
                Err(err) => return Err(err),
            }
        }
    }

    async fn commit_secondary(self, commit_version: Timestamp) -> Result<()> {
        debug!("committing secondary");
        let start_version = self.start_version;
        let mut context = None;
        self.allow_on_almost_full_disk(&mut context);
        let mutations_len = self.mutations.len();
        let primary_only = mutations_len == 1;
        let mutations = self.mutations.into_iter();

        let mut req = if self.options.async_commit {
            let keys = mutations.map(|m| m.key.into());
            new_commit_request(keys, start_version, commit_version)
        } else if primary_only {
            return Ok(());
        } else {
            let primary_key = self.primary_key;
            let keys = mutations.map(|m| m.key.into()).filter(|key| &primary_key != key);
            new_commit_request(keys, start_version, commit_version)
        };
        req.context = context;
        let plan = PlanBuilder::new(self.rpc, req)
            .resolve_lock(start_version, self.options.retry_options.lock_backoff)
            .retry_multi_region(self.options.retry_options.region_backoff)
            .extract_error()
            .plan();
        plan.execute().await?;
        Ok(())
    }

    pub(super) async fn rollback(mut self) -> Result<()> {
        debug!("rolling back");
        self.mutations.retain(|m| m.op != kvrpcpb::Op::CheckNotExists as i32);
        let keys = self.mutations.into_iter().map(|mutation| mutation.key.into());
        let start_version = self.start_version;
        match self.options.kind {
            TransactionKind::Optimistic => {
                let req = new_batch_rollback_request(keys, start_version);
                let plan = PlanBuilder::new(self.rpc, req)
                    .resolve_lock(start_version, self.options.retry_options.lock_backoff)
                    .retry_multi_region(self.options.retry_options.region_backoff)
                    .extract_error()
                    .plan();
                plan.execute().await?;
            }
            TransactionKind::Pessimistic(for_update_ts) => {
                let req = new_pessimistic_rollback_request(keys, start_version, for_update_ts);
                let plan = PlanBuilder::new(self.rpc, req)
                    .resolve_lock(start_version, self.options.retry_options.lock_backoff)
                    .retry_multi_region(self.options.retry_options.region_backoff)
                    .extract_error()
                    .plan();
                plan.execute().await?;
            }
        }
        Ok(())
    }

    fn calc_txn_lock_ttl(&mut self) -> u64 {
        let mut lock_ttl = DEFAULT_LOCK_TTL;
        if self.write_size > TXN_COMMIT_BATCH_SIZE {
            let size_mb = self.write_size as f64 / 1024.0 / 1024.0;
            lock_ttl = (TTL_FACTOR * size_mb.sqrt()) as u64;
            lock_ttl = lock_ttl.clamp(DEFAULT_LOCK_TTL, MAX_TTL);
        }
        lock_ttl
    }
}

/// The state of a transaction when all of its locks are written.
enum Prewritten {
    /// Committed in one phase.
    Committed(Timestamp),
    /// Commits asynchronously.
    CommitsAt(Timestamp),
    /// Its primary key decides it.
    Locked,
}

/// Nobody knows what became of a request whose reply is lost. (Another error may follow upon a lost reply, too, when the request
/// was repeated: nothing but an error of a key is the answer of TiKV to all of them.)
fn undetermined_if_lost(e: Error) -> Error {
    if is_grpc_error(&e) {
        Error::UndeterminedError(Box::new(e))
    } else {
        e
    }
}
