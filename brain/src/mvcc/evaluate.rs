//! Evaluates requests in order over the newest state, published or not: the same for a plain put, the shapes that Kubernetes
//! sends and any nested txn.
//!
//! Rules are etcd's (`etcdserver/txn`): all compares, nested ones included, see the state before the txn; then the chosen
//! branches are checked against that same state; then nothing can fail any more.

use std::collections::HashMap;
use std::slice::Iter;

use bytes::Bytes;
use futures::future::BoxFuture;

use super::op::{Compare, DeleteOp, Op, OpResult, PutOp, RangeOp, RangeResult, Span, TxnOp, TxnResult};
use super::overlay::{Head, Overlay};
use super::record::KeyChange;
use super::row::size_of;
use super::view::{View, ViewError};
use super::{Error, KeyValue, LeaseId, Revision};
use crate::lease::Leases;
use crate::rows::{RowsError, Snapshot};

/// A change, and the version that it superseded.
pub type Changed = (KeyChange, Option<KeyValue>);

/// The newest state, and what one request does to it.
pub struct Evaluator<'a, S> {
    /// What is published.
    pub view: &'a View<S>,
    /// Leases that are published.
    pub leases: &'a std::sync::Mutex<Leases>,
    /// What is not.
    pub overlay: &'a mut Overlay,
    /// Keys read ahead from the view's rows.
    pub prefetched: &'a HashMap<Bytes, Option<KeyValue>>,
    /// The state before the request.
    pub head: Head,
    /// What the request changed.
    pub changes: Vec<Changed>,
}

/// Why a request could not be evaluated.
pub type EvaluateError = ViewError;

impl<S: Snapshot> Evaluator<'_, S> {
    /// Does what `op` says. If it fails, nothing was changed.
    ///
    /// # Errors
    /// [`ViewError::Refused`] with the client's error, or when the rows fail.
    pub async fn run(&mut self, op: &Op) -> Result<OpResult, EvaluateError> {
        match op {
            Op::Put(put) => {
                // Etcd looks at the lease first here, and last within a txn.
                self.check_lease(put.lease)?;
                self.check_existing(put).await?;
                self.put(put).await
            }
            Op::Delete(delete) => self.delete(delete).await,
            Op::Range(range) => Ok(OpResult::Range(self.range(range).await?)),
            Op::Txn(txn) => {
                let mut path = Vec::with_capacity(1);
                self.choose(txn, &mut path).await?;
                self.check(txn, &mut path.iter()).await?;
                Ok(OpResult::Txn(self.execute(txn, &mut path.iter()).await?))
            }
        }
    }

    /// The revision that a header carries now.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.head.revision + Revision::from(!self.changes.is_empty())
    }

    /// Deletes the keys of a lease that ends.
    ///
    /// # Errors
    /// When the rows fail.
    pub async fn delete_attached(&mut self, id: LeaseId) -> Result<(), EvaluateError> {
        let keys = self.overlay.attached(id, &self.locked_leases());
        for key in keys {
            if let Some(kv) = self.current(&key).await? {
                self.remove(kv);
            }
        }
        Ok(())
    }

    /// Evaluates the compares of a txn and of the nested ones on its path, outermost first.
    async fn choose(&self, txn: &TxnOp, path: &mut Vec<bool>) -> Result<(), EvaluateError> {
        let mut holds = true;
        for compare in &txn.compares {
            if !self.compare(compare).await? {
                holds = false;
                break;
            }
        }
        path.push(holds);
        for op in branch(txn, holds) {
            if let Op::Txn(nested) = op {
                self.choose_nested(nested, path).await?;
            }
        }
        Ok(())
    }

    fn choose_nested<'b>(
        &'b self,
        txn: &'b TxnOp,
        path: &'b mut Vec<bool>,
    ) -> BoxFuture<'b, Result<(), EvaluateError>> {
        Box::pin(self.choose(txn, path))
    }

    async fn compare(&self, compare: &Compare) -> Result<bool, EvaluateError> {
        if compare.span.is_point() {
            let kv = self.current(&compare.span.key).await?;
            return Ok(compare.holds(kv.as_slice()));
        }
        Ok(compare.holds(&self.current_range(&compare.span).await?))
    }

    /// Checks the chosen branches against the state before the txn.
    async fn check(&self, txn: &TxnOp, path: &mut Iter<'_, bool>) -> Result<(), EvaluateError> {
        let holds = path.next().copied().unwrap_or(false);
        for op in branch(txn, holds) {
            match op {
                Op::Range(range) => match range.revision {
                    0 => {}
                    revision if revision > self.head.revision => return Err(Error::FutureRevision.into()),
                    revision if revision < self.head.compacted => return Err(Error::Compacted.into()),
                    _ => {}
                },
                Op::Put(put) => {
                    self.check_existing(put).await?;
                    self.check_lease(put.lease)?;
                }
                Op::Delete(_) => {}
                Op::Txn(nested) => self.check_nested(nested, path).await?,
            }
        }
        Ok(())
    }

    fn check_nested<'b>(
        &'b self,
        txn: &'b TxnOp,
        path: &'b mut Iter<'_, bool>,
    ) -> BoxFuture<'b, Result<(), EvaluateError>> {
        Box::pin(self.check(txn, path))
    }

    fn check_lease(&self, id: LeaseId) -> Result<(), Error> {
        if id == LeaseId::NONE || self.overlay.has_lease(id, &self.locked_leases()) {
            Ok(())
        } else {
            Err(Error::LeaseNotFound)
        }
    }

    async fn check_existing(&self, put: &PutOp) -> Result<(), EvaluateError> {
        if (put.ignore_value || put.ignore_lease) && self.current(&put.key).await?.is_none() {
            return Err(Error::KeyNotFound.into());
        }
        Ok(())
    }

    async fn execute(&mut self, txn: &TxnOp, path: &mut Iter<'_, bool>) -> Result<TxnResult, EvaluateError> {
        let succeeded = path.next().copied().unwrap_or(false);
        let ops = branch(txn, succeeded);
        let mut results = Vec::with_capacity(ops.len());
        for op in ops {
            let result = match op {
                Op::Range(range) => OpResult::Range(self.range(range).await?),
                Op::Put(put) => self.put(put).await?,
                Op::Delete(delete) => self.delete(delete).await?,
                Op::Txn(nested) => OpResult::Txn(self.execute_nested(nested, path).await?),
            };
            results.push((self.revision(), result));
        }
        Ok(TxnResult { succeeded, results })
    }

    fn execute_nested<'b>(
        &'b mut self,
        txn: &'b TxnOp,
        path: &'b mut Iter<'_, bool>,
    ) -> BoxFuture<'b, Result<TxnResult, EvaluateError>> {
        Box::pin(self.execute(txn, path))
    }

    async fn range(&self, op: &RangeOp) -> Result<RangeResult, EvaluateError> {
        if op.revision > 0 {
            return self.view.range(op).await;
        }
        if op.span.is_point() {
            let kvs: Vec<KeyValue> = self.current(&op.span.key).await?.into_iter().collect();
            let count = i64::try_from(kvs.len()).unwrap_or(i64::MAX);
            return Ok(op.select(if op.count_only { Vec::new() } else { kvs }, count));
        }
        if self.overlay.range(&op.span).is_empty() {
            // The view may be older, but nothing of this span changed since.
            return self.view.range(op).await;
        }
        let kvs = self.current_range(&op.span).await?;
        let count = i64::try_from(kvs.len()).unwrap_or(i64::MAX);
        Ok(op.select(if op.count_only { Vec::new() } else { kvs }, count))
    }

    async fn put(&mut self, put: &PutOp) -> Result<OpResult, EvaluateError> {
        let prev = self.current(&put.key).await?;
        let revision = self.head.revision + 1;
        let kept = prev.as_ref();
        let value = kept
            .filter(|_| put.ignore_value)
            .map_or_else(|| put.value.clone(), |kv| kv.value.clone());
        let kv = KeyValue {
            key: put.key.clone(),
            size: size_of(&value),
            value,
            create_revision: kept.map_or(revision, |kv| kv.create_revision),
            mod_revision: revision,
            version: kept.map_or(1, |kv| kv.version + 1),
            lease: kept.filter(|_| put.ignore_lease).map_or(put.lease, |kv| kv.lease),
        };
        let change = KeyChange {
            key: kv.key.clone(),
            value: kv.value.clone(),
            create_revision: kv.create_revision,
            version: kv.version,
            lease: kv.lease.0,
            prev_mod: kept.map_or(0, |kv| kv.mod_revision),
            prev_lease: kept.map_or(0, |kv| kv.lease.0),
            prev_size: kept.map_or(0, |kv| kv.size),
        };
        self.overlay.set(kv.key.clone(), Some(kv), change.prev_lease());
        let answer = OpResult::Put(prev.clone().filter(|_| put.prev_kv));
        self.changes.push((change, prev));
        Ok(answer)
    }

    async fn delete(&mut self, delete: &DeleteOp) -> Result<OpResult, EvaluateError> {
        let kvs = if delete.span.is_point() {
            self.current(&delete.span.key).await?.into_iter().collect()
        } else {
            self.current_range(&delete.span).await?
        };
        let deleted = i64::try_from(kvs.len()).unwrap_or(i64::MAX);
        kvs.iter().for_each(|kv| self.remove(kv.clone()));
        Ok(OpResult::Delete(deleted, if delete.prev_kv { kvs } else { Vec::new() }))
    }

    fn remove(&mut self, kv: KeyValue) {
        let change = KeyChange {
            key: kv.key.clone(),
            prev_mod: kv.mod_revision,
            prev_lease: kv.lease.0,
            prev_size: kv.size,
            ..KeyChange::default()
        };
        self.overlay.set(kv.key.clone(), None, kv.lease);
        self.changes.push((change, Some(kv)));
    }

    /// A key's newest state.
    async fn current(&self, key: &Bytes) -> Result<Option<KeyValue>, RowsError> {
        if let Some(state) = self.overlay.get(key) {
            return Ok(state.cloned());
        }
        match self.prefetched.get(key) {
            Some(kv) => Ok(kv.clone()),
            None => self.view.get(key, self.view.revision).await,
        }
    }

    /// The newest state of a span, in key order.
    async fn current_range(&self, span: &Span) -> Result<Vec<KeyValue>, EvaluateError> {
        let published = self.view.range(&RangeOp::all(span.clone())).await?.kvs;
        let over = self.overlay.range(span);
        if over.is_empty() {
            return Ok(published);
        }
        let mut merged: std::collections::BTreeMap<Bytes, Option<KeyValue>> =
            published.into_iter().map(|kv| (kv.key.clone(), Some(kv))).collect();
        merged.extend(over);
        Ok(merged.into_values().flatten().collect())
    }

    fn locked_leases(&self) -> std::sync::MutexGuard<'_, Leases> {
        self.leases.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn branch(txn: &TxnOp, holds: bool) -> &[Op] {
    if holds { &txn.success } else { &txn.failure }
}
