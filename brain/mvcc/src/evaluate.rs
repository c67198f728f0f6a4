//! Evaluates requests in order over the newest state, published or not: the same for a plain put, the shapes that Kubernetes
//! sends and any nested txn.
//!
//! Rules are etcd's (`etcdserver/txn`): all compares, nested ones included, see the state before the txn; then the chosen
//! branches are checked against that same state; after that, only a timeout can make the request fail.
//!
//! Evaluation never reads storage: rows that are not in memory were [fetched](super::fetch) before. Long evaluations yield
//! regularly.

use std::collections::BTreeMap;
use std::slice::Iter;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures::future::BoxFuture;

use super::fetch::{FetchBudget, FetchNeeds, Fetched, FetchedRow, ValueRead};
use super::op::{Compare, CompareTarget, DeleteOp, Op, OpResult, PutOp, RangeOp, RangeResult, Span, TxnOp, TxnResult};
use super::overlay::{Head, Overlay};
use super::record::KeyChange;
use super::row::size_of;
use super::select::select;
use super::view::{View, ViewError, answer_bytes, from_version, successor};
use crate::key_filter::KeyHash;
use crate::lease::Leases;
use crate::memtable;
use crate::memtable::MemtableSet;
use engine::rows::{Order, RowsError};
use etcd_types::errors::Error;
use etcd_types::types::{KeyValue, LeaseId, Prev, Revision};
use runtime::budget::Meter;

/// Rows that are examined before other tasks have their turn.
const ROWS_PER_YIELD: usize = 256;

/// Rows that a request may examine in addition to those that were read for it: unpublished ones, and the same rows
/// again.
const MAX_UNREAD_ROWS: usize = 500_000;

/// Bytes of an answer at most, as grpc-go sends them.
pub const MAX_ANSWER_BYTES: usize = i32::MAX as usize;

/// The keys of a lease that are deleted at once at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeasePart {
    /// Their number.
    pub keys: usize,
    /// Their bytes; the last key may go beyond.
    pub bytes: usize,
}

impl LeasePart {
    /// All keys.
    pub const ALL: Self = Self {
        keys: usize::MAX,
        bytes: usize::MAX,
    };
}

/// The newest state, and the changes of one request.
pub struct Evaluator<'a> {
    /// Versions in memory that are published.
    pub memtables: &'a MemtableSet,
    /// Up to which revision they count.
    pub at: Revision,
    /// The rows that were read for this request; `None` where it needs nothing of them.
    pub fetched: Option<&'a Fetched>,
    /// Leases that are published.
    pub leases: &'a Mutex<Leases>,
    /// Changes that are not published.
    pub overlay: &'a mut Overlay,
    /// The state before the request.
    pub head: Head,
    /// Changes of the request.
    pub changes: Vec<KeyChange>,
    /// The version that each superseded.
    pub superseded: Vec<Prev>,
    /// Rows that were looked at since others had their turn.
    pub looked: usize,
    /// Rows that were looked at at all.
    pub work: usize,
    /// Single keys that were looked up. The writer counts them, too.
    pub points: usize,
    /// The account of the answer, before it is complete.
    pub answer: Answering,
}

/// The bytes of an answer, as it grows. Pairs are shared with other answers in memory, but each is encoded once more.
#[derive(Debug, Default)]
pub struct Answering {
    meter: Meter,
    bytes: usize,
}

impl Answering {
    /// Nothing yet.
    #[must_use]
    pub fn new(meter: Meter) -> Self {
        Self { meter, bytes: 0 }
    }

    /// Takes pairs.
    fn take(&mut self, kvs: &[KeyValue]) -> Result<(), Error> {
        let bytes: usize = kvs.iter().map(answer_bytes).sum();
        self.bytes += bytes;
        if self.bytes > MAX_ANSWER_BYTES {
            return Err(Error::TooManyRequests);
        }
        self.meter.charge(bytes).map_err(|_| Error::TooManyRequests)
    }
}

/// The reason why a request could not be evaluated.
#[derive(Debug, thiserror::Error)]
pub enum EvaluateError {
    /// The client's error.
    #[error(transparent)]
    Refused(#[from] Error),
    /// The key was not fetched: a defect, unless only what was [expected](super::fetch::Extent::Expected) was.
    #[error("{:?} is needed and was not read", .0.escape_ascii().to_string())]
    NotFetched(Bytes),
}

impl From<EvaluateError> for ViewError {
    fn from(error: EvaluateError) -> Self {
        match error {
            EvaluateError::Refused(error) => ViewError::Refused(error),
            error @ EvaluateError::NotFetched(_) => ViewError::Rows(RowsError::Failed(error.into())),
        }
    }
}

/// Evaluates a txn that changes nothing, as of a view. [`ViewError::Refused`] holds the client's error.
pub async fn read_only(
    view: &Arc<View>,
    leases: &Mutex<Leases>,
    txn: &TxnOp,
    budget: FetchBudget,
    meter: &Meter,
) -> Result<TxnResult, ViewError> {
    let needs = FetchNeeds::of_compares(txn, view);
    let mut fetched = needs.fetch(view, || view.clone(), budget).await?;
    let mut overlay = Overlay::default();
    let mut path = Vec::with_capacity(1);
    let mut evaluator = Evaluator::of_view(view, &fetched, leases, &mut overlay);
    evaluator.choose(txn, &mut path).await?;
    evaluator.check(txn, &mut path.iter()).await?;
    let mut ranges = Vec::new();
    chosen_ranges(txn, &mut path.iter(), &mut ranges);
    fetched.read_ranges(ranges.into_iter(), view).await?;
    let mut evaluator = Evaluator::of_view(view, &fetched, leases, &mut overlay);
    evaluator.answer = Answering::new(meter.clone());
    Ok(evaluator.execute(txn, &mut path.iter()).await?)
}

/// The branches that a txn takes as of a view: true where its compares hold, then the same of each nested txn of that branch.
/// [`ViewError::Refused`] holds the client's error.
pub async fn chosen(
    view: &Arc<View>,
    leases: &Mutex<Leases>,
    txn: &TxnOp,
    budget: FetchBudget,
) -> Result<Vec<bool>, ViewError> {
    let needs = FetchNeeds::of_compares(txn, view);
    let fetched = needs.fetch(view, || view.clone(), budget).await?;
    let (mut overlay, mut path) = (Overlay::default(), Vec::with_capacity(1));
    let mut evaluator = Evaluator::of_view(view, &fetched, leases, &mut overlay);
    evaluator.choose(txn, &mut path).await?;
    Ok(path)
}

/// The ranges of the branches that are taken.
fn chosen_ranges<'b>(txn: &'b TxnOp, path: &mut Iter<'_, bool>, ranges: &mut Vec<&'b RangeOp>) {
    let holds = path.next().copied().unwrap_or(false);
    for op in txn.branch(holds) {
        match op {
            Op::Range(range) => ranges.push(range),
            Op::Txn(nested) => chosen_ranges(nested, path, ranges),
            Op::Put(_) | Op::Delete(_) => {}
        }
    }
}

impl<'a> Evaluator<'a> {
    /// The state that a view shows.
    fn of_view(view: &'a View, fetched: &'a Fetched, leases: &'a Mutex<Leases>, overlay: &'a mut Overlay) -> Self {
        Self {
            memtables: &view.memtables,
            at: view.revision,
            fetched: Some(fetched),
            leases,
            overlay,
            head: Head {
                revision: view.revision,
                compacted: view.compacted,
            },
            changes: Vec::new(),
            superseded: Vec::new(),
            looked: 0,
            work: 0,
            points: 0,
            answer: Answering::default(),
        }
    }

    /// Executes `op`. If it is refused, nothing is changed, and [`EvaluateError::Refused`] holds the client's error.
    pub async fn run(&mut self, op: &Op) -> Result<OpResult, EvaluateError> {
        let may_be_undone = match op {
            Op::Txn(_) => true,
            Op::Delete(delete) => delete.prev_kv || !delete.span.is_point(),
            Op::Put(_) | Op::Range(_) => false,
        };
        if !may_be_undone {
            return self.evaluate(op).await;
        }
        // It is only known at the end whether there is memory for the answer, and whether it takes too long.
        self.overlay.save();
        let result = self.evaluate(op).await;
        match result {
            Ok(_) => self.overlay.keep(),
            Err(_) => self.overlay.undo(),
        }
        result
    }

    async fn evaluate(&mut self, op: &Op) -> Result<OpResult, EvaluateError> {
        match op {
            Op::Put(put) => {
                // Etcd looks at the lease first here, and last within a txn.
                self.check_lease(put.lease)?;
                self.check_existing(put)?;
                self.put(put)
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

    /// Deletes the keys of a lease that ends, or a part of them. Returns true if no keys remain. An error is a defect, or means
    /// that the keys that were read have been deleted since, so that the lease's first keys are not known.
    pub async fn delete_attached(&mut self, id: LeaseId, part: LeasePart) -> Result<bool, EvaluateError> {
        let keys = self
            .overlay
            .attached(id, &self.locked_leases(), part.keys.saturating_add(1));
        let are_all = keys.len() <= part.keys;
        let mut bytes = 0_usize;
        self.overlay.save();
        for key in keys.into_iter().take(part.keys) {
            if bytes >= part.bytes && !self.changes.is_empty() {
                self.overlay.keep();
                return Ok(false);
            }
            bytes += key.len();
            match self.current(&key) {
                Ok(Some(row)) => self.remove(row),
                Ok(None) => {}
                // Other keys were deleted since they were read, so this one was not read: it is left for the next part.
                Err(_) if part != LeasePart::ALL && !self.changes.is_empty() => {
                    self.overlay.keep();
                    return Ok(false);
                }
                Err(error) => {
                    self.overlay.undo();
                    return Err(error);
                }
            }
            self.yield_after(1).await;
        }
        self.overlay.keep();
        Ok(are_all)
    }

    /// Adds `rows` to the work done, and yields to other tasks once enough rows were examined.
    async fn yield_after(&mut self, rows: usize) {
        self.work += rows;
        self.looked += rows;
        if self.looked >= ROWS_PER_YIELD {
            self.looked = 0;
            tokio::task::yield_now().await;
        }
    }

    /// Like [`Self::yield_after`], for operations that may read the same rows repeatedly: fails if the request examines too many rows.
    async fn pause(&mut self, rows: usize) -> Result<(), Error> {
        self.yield_after(rows.max(1)).await;
        if self.work > MAX_UNREAD_ROWS + self.fetched.map_or(0, Fetched::rows) {
            return Err(Error::RequestTooLarge);
        }
        Ok(())
    }

    /// Evaluates the compares of a txn and of the nested ones on its path, outermost first.
    async fn choose(&mut self, txn: &TxnOp, path: &mut Vec<bool>) -> Result<(), EvaluateError> {
        let mut holds = true;
        for compare in &txn.compares {
            if !self.compare(compare).await? {
                holds = false;
                break;
            }
        }
        path.push(holds);
        for op in txn.branch(holds) {
            if let Op::Txn(nested) = op {
                self.choose_nested(nested, path).await?;
            }
        }
        Ok(())
    }

    fn choose_nested<'b>(
        &'b mut self,
        txn: &'b TxnOp,
        path: &'b mut Vec<bool>,
    ) -> BoxFuture<'b, Result<(), EvaluateError>> {
        Box::pin(self.choose(txn, path))
    }

    async fn compare(&mut self, compare: &Compare) -> Result<bool, EvaluateError> {
        let reads_value = matches!(compare.target, CompareTarget::Value(_));
        if compare.span.is_point() {
            let row = self.current(&compare.span.key)?;
            if reads_value {
                row.as_ref().map_or(Ok(()), expect_value)?;
            }
            return Ok(compare.holds(row.map(|row| row.kv).as_slice()));
        }
        let mut walk = self.walk(&compare.span)?;
        let mut is_empty = true;
        while let Some(rows) = walk.next() {
            for row in &rows {
                if reads_value {
                    expect_value(row)?;
                }
                if !compare.holds(std::slice::from_ref(&row.kv)) {
                    return Ok(false);
                }
            }
            is_empty &= rows.is_empty();
            self.pause(rows.len()).await?;
        }
        Ok(!is_empty || compare.holds(&[]))
    }

    /// Checks the chosen branches against the state before the txn.
    async fn check(&mut self, txn: &TxnOp, path: &mut Iter<'_, bool>) -> Result<(), EvaluateError> {
        let holds = path.next().copied().unwrap_or(false);
        for op in txn.branch(holds) {
            match op {
                Op::Range(range) => match range.revision {
                    0 => {}
                    revision if revision > self.head.revision => return Err(Error::FutureRev.into()),
                    revision if revision < self.head.compacted => return Err(Error::Compacted.into()),
                    _ => {}
                },
                Op::Put(put) => {
                    self.check_existing(put)?;
                    self.check_lease(put.lease)?;
                }
                Op::Delete(_) => {}
                Op::Txn(nested) => self.check_nested(nested, path).await?,
            }
        }
        Ok(())
    }

    fn check_nested<'b>(
        &'b mut self,
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

    fn check_existing(&mut self, put: &PutOp) -> Result<(), EvaluateError> {
        if (put.ignore_value || put.ignore_lease) && self.current(&put.key)?.is_none() {
            return Err(Error::KeyNotFound.into());
        }
        Ok(())
    }

    async fn execute(&mut self, txn: &TxnOp, path: &mut Iter<'_, bool>) -> Result<TxnResult, EvaluateError> {
        let succeeded = path.next().copied().unwrap_or(false);
        let ops = txn.branch(succeeded);
        let mut results = Vec::with_capacity(ops.len());
        for op in ops {
            let result = match op {
                Op::Range(range) => OpResult::Range(self.range(range).await?),
                Op::Put(put) => self.put(put)?,
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

    async fn range(&mut self, op: &RangeOp) -> Result<RangeResult, EvaluateError> {
        if let Some(result) = self.fetched.and_then(|fetched| fetched.range(op)) {
            self.answer.take(&result.kvs)?;
            self.yield_after(result.kvs.len()).await;
            return Ok(result.clone());
        }
        if op.revision > 0 {
            return Err(EvaluateError::NotFetched(op.span.key.clone()));
        }
        if op.span.is_point() {
            let row = self.current(&op.span.key)?;
            if op.reads_values() {
                row.as_ref().map_or(Ok(()), expect_value)?;
            }
            let kvs: Vec<KeyValue> = row.map(|row| row.kv).into_iter().collect();
            let count = i64::try_from(kvs.len()).unwrap_or(i64::MAX);
            let result = op.select(if op.count_only { Vec::new() } else { kvs }, count);
            self.answer.take(&result.kvs)?;
            return Ok(result);
        }
        let enough = if op.count_only { 0 } else { op.enough() };
        let (mut kvs, mut count) = (Vec::new(), 0);
        let mut walk = self.walk(&op.span)?;
        while let Some(rows) = walk.next() {
            let looked = rows.len();
            count += i64::try_from(looked).unwrap_or(i64::MAX);
            for row in rows.into_iter().take(enough - kvs.len().min(enough)) {
                if op.reads_values() {
                    expect_value(&row)?;
                }
                kvs.push(row.kv);
            }
            self.pause(looked).await?;
        }
        let result = select(op, kvs, count).await?;
        self.answer.take(&result.kvs)?;
        Ok(result)
    }

    fn put(&mut self, put: &PutOp) -> Result<OpResult, EvaluateError> {
        let prev = self.current(&put.key)?;
        if put.prev_kv || put.ignore_value {
            prev.as_ref().map_or(Ok(()), expect_value)?;
        }
        let revision = self.head.revision + 1;
        let kept = prev.as_ref().map(|row| &row.kv);
        if put.prev_kv {
            self.answer.take(kept.map_or(&[], std::slice::from_ref))?;
        }
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
        let answer = OpResult::Put(kept.filter(|_| put.prev_kv).cloned());
        self.changes.push(change);
        self.superseded.push(prev.map_or(Prev::Nothing, Prev::from));
        Ok(answer)
    }

    async fn delete(&mut self, delete: &DeleteOp) -> Result<OpResult, EvaluateError> {
        let mut deleted = 0;
        let mut kvs = Vec::new();
        if delete.span.is_point() {
            if let Some(row) = self.current(&delete.span.key)? {
                deleted = 1;
                if delete.prev_kv {
                    expect_value(&row)?;
                    kvs.push(row.kv.clone());
                }
                self.answer.take(&kvs)?;
                self.remove(row);
            }
            return Ok(OpResult::Delete(deleted, kvs));
        }
        // Removed keys sort before those that the walk has yet to visit.
        let mut walk = self.walk(&delete.span)?;
        while let Some(rows) = walk.next() {
            let looked = rows.len();
            deleted += i64::try_from(looked).unwrap_or(i64::MAX);
            for row in rows {
                if delete.prev_kv {
                    expect_value(&row)?;
                    self.answer.take(std::slice::from_ref(&row.kv))?;
                    kvs.push(row.kv.clone());
                }
                self.remove(row);
            }
            self.pause(looked).await?;
        }
        Ok(OpResult::Delete(deleted, kvs))
    }

    fn remove(&mut self, row: FetchedRow) {
        let change = KeyChange {
            key: row.kv.key.clone(),
            prev_mod: row.kv.mod_revision,
            prev_lease: row.kv.lease.0,
            prev_size: row.kv.size,
            ..KeyChange::default()
        };
        self.overlay.set(row.kv.key.clone(), None, row.kv.lease);
        self.changes.push(change);
        self.superseded.push(Prev::from(row));
    }

    /// A key's newest state.
    fn current(&mut self, key: &Bytes) -> Result<Option<FetchedRow>, EvaluateError> {
        self.points += 1;
        let hash = KeyHash::of(key);
        if let Some(state) = self.overlay.get(key, hash) {
            return Ok(state.cloned().map(FetchedRow::read));
        }
        if let Some((revision, version)) = self.memtables.get_hashed(key, hash, self.at) {
            return Ok(from_version(key.clone(), revision, version).map(FetchedRow::read));
        }
        let fetched = self.fetched.and_then(|fetched| fetched.get(key, hash, self.at));
        fetched.ok_or_else(|| EvaluateError::NotFetched(key.clone()))
    }

    /// Walks over the newest state of a span.
    fn walk(&mut self, span: &Span) -> Result<Walk<'a>, EvaluateError> {
        let not_fetched = || EvaluateError::NotFetched(span.key.clone());
        let fetched = self.fetched.ok_or_else(not_fetched)?;
        let overlay = self.overlay.range(span);
        self.work += overlay.len();
        Ok(Walk {
            rows: fetched.span(span).ok_or_else(not_fetched)?,
            memtables: fetched.under(self.memtables),
            at: self.at,
            overlay,
            rest: (!span.is_empty()).then(|| memtable::MemtableSpan {
                from: span.key.clone(),
                to: span.limit(),
            }),
        })
    }

    fn locked_leases(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A walk over the newest state of a span, a page at a time. It does not see changes of keys that it has passed.
struct Walk<'a> {
    /// Pairs that were read, and are not walked over yet.
    rows: &'a [FetchedRow],
    memtables: MemtableSet,
    at: Revision,
    /// Changes that are not published, and not walked over yet.
    overlay: BTreeMap<Bytes, Option<KeyValue>>,
    rest: Option<memtable::MemtableSpan>,
}

impl Walk<'_> {
    /// The next keys that exist, in order; `None` at the end. A page may be empty.
    fn next(&mut self) -> Option<Vec<FetchedRow>> {
        let rest = self.rest.take()?;
        let newer: Vec<_> = self
            .memtables
            .range(&rest, self.at, Order::Ascending)
            .take(ROWS_PER_YIELD)
            .collect();
        // As far as everything is at hand.
        let last_row = self.rows.get(ROWS_PER_YIELD - 1).map(|row| &row.kv.key);
        let last_newer = newer.get(ROWS_PER_YIELD - 1).map(|found| &found.key);
        let last = last_row.into_iter().chain(last_newer).min().cloned();
        let is_within = |key: &Bytes| last.as_ref().is_none_or(|last| key <= last);
        let (rows, rows_left) = self
            .rows
            .split_at(self.rows.partition_point(|row| is_within(&row.kv.key)));
        self.rows = rows_left;
        let mut page: BTreeMap<Bytes, Option<FetchedRow>> =
            rows.iter().map(|row| (row.kv.key.clone(), Some(row.clone()))).collect();
        for found in newer.into_iter().take_while(|found| is_within(&found.key)) {
            let row = from_version(found.key.clone(), found.revision, found.version).map(FetchedRow::read);
            page.insert(found.key, row);
        }
        let mut newest = std::mem::take(&mut self.overlay);
        if let Some(last) = last {
            let from = successor(&last);
            self.overlay = newest.split_off(&from);
            self.rest = Some(memtable::MemtableSpan { from, to: rest.to });
        }
        page.extend(newest.into_iter().map(|(key, kv)| (key, kv.map(FetchedRow::read))));
        Some(page.into_values().flatten().collect())
    }
}

/// A value that was read.
fn expect_value(row: &FetchedRow) -> Result<(), EvaluateError> {
    match row.value {
        ValueRead::Read => Ok(()),
        ValueRead::Skipped => Err(EvaluateError::NotFetched(row.kv.key.clone())),
    }
}
