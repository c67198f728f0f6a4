//! Revisions in the requests of a script from which steps were left out: the same moments have other numbers then.

use wire::etcdserverpb as pb;

use super::request::{Request, Step};
use pb::compare::TargetUnion;
use pb::request_op::Request as Op;

/// Numbers so far from the newest revision are meant as they are.
const FAR_REVISIONS: i64 = 1_000;

/// The store's revision before and after a step.
pub type Around = (i64, i64);

/// A step of a script that was run.
#[derive(Clone, Debug, PartialEq)]
pub struct Ran {
    /// The step, as it was sent.
    pub step: Step,
    /// Revisions of the reference; `None` if the step was not run yet.
    pub around: Option<Around>,
}

impl From<Step> for Ran {
    fn from(step: Step) -> Self {
        Self { step, around: None }
    }
}

/// Where the moments of an earlier run are in a later one that leaves steps out.
#[derive(Debug, Default)]
pub struct Rebase(Vec<(Around, Around)>);

impl Rebase {
    /// A step moved the revision so in the earlier run, and so in this one.
    pub fn learn(&mut self, earlier: Around, now: Around) {
        self.0.push((earlier, now));
    }

    /// Changes all revisions in a request that the earlier run sent when its store was at the first revision, and that this run
    /// sends at the second one.
    pub fn apply(&self, request: &mut Request, at: Around) {
        each_revision(request, &mut |revision| *revision = self.map(*revision, at));
    }

    fn map(&self, revision: i64, (earlier, now): Around) -> i64 {
        if revision <= 1 || revision.saturating_sub(earlier) > FAR_REVISIONS {
            return revision;
        }
        if revision >= earlier {
            return now + (revision - earlier);
        }
        let steps = self.0.partition_point(|((_, after), _)| *after < revision);
        match self.0.get(steps) {
            // This step made it.
            Some((was, is)) if was.0 < revision => (is.0 + (revision - was.0)).min(is.1),
            // A step that is left out made it: the state is that before the next one.
            Some((_, is)) => is.0,
            None => now,
        }
    }
}

fn each_revision(request: &mut Request, change: &mut impl FnMut(&mut i64)) {
    match request {
        Request::Range(range) => of_range(range, change),
        Request::Compact(compact) => change(&mut compact.revision),
        Request::HashKv(hash) => change(&mut hash.revision),
        Request::Watch { create, .. } => change(&mut create.start_revision),
        Request::Txn(txn) => of_txn(txn, change),
        _ => {}
    }
}

fn of_range(range: &mut pb::RangeRequest, change: &mut impl FnMut(&mut i64)) {
    for revision in [
        &mut range.revision,
        &mut range.min_mod_revision,
        &mut range.max_mod_revision,
        &mut range.min_create_revision,
        &mut range.max_create_revision,
    ] {
        change(revision);
    }
}

fn of_txn(txn: &mut pb::TxnRequest, change: &mut impl FnMut(&mut i64)) {
    for compare in &mut txn.compare {
        if let Some(TargetUnion::CreateRevision(revision) | TargetUnion::ModRevision(revision)) =
            &mut compare.target_union
        {
            change(revision);
        }
    }
    for op in txn.success.iter_mut().chain(&mut txn.failure) {
        match &mut op.request {
            Some(Op::RequestRange(range)) => of_range(range, change),
            Some(Op::RequestTxn(txn)) => of_txn(txn, change),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions_name_the_same_moments() {
        let mut rebase = Rebase::default();
        // Of steps that made 2, 3 to 5, 6 and 7, those that made 3 to 5 and 7 are left.
        rebase.learn((2, 5), (1, 4));
        rebase.learn((6, 7), (4, 5));
        let at = (7, 5);
        let moments = [
            (0, 0),
            (1, 1),
            (-3, -3),
            (2, 1),
            (3, 2),
            (5, 4),
            (6, 4),
            (7, 5),
            (8, 6),
            (10, 8),
        ];
        for (earlier, now) in moments {
            assert_eq!(rebase.map(earlier, at), now, "{earlier}");
        }
        for far in [i64::MAX, i64::MIN, 1 << 40] {
            assert_eq!(rebase.map(far, at), far);
        }
    }

    #[test]
    fn a_whole_script_keeps_its_revisions() {
        let mut rebase = Rebase::default();
        for revision in 1..10 {
            rebase.learn((revision, revision + 1), (revision, revision + 1));
            rebase.learn((revision + 1, revision + 1), (revision + 1, revision + 1));
        }
        for revision in -2..14 {
            assert_eq!(rebase.map(revision, (10, 10)), revision);
        }
    }

    #[test]
    fn nested_requests_are_found() {
        let range = pb::RangeRequest {
            revision: 5,
            max_mod_revision: 5,
            ..pb::RangeRequest::default()
        };
        let op = |request| pb::RequestOp { request: Some(request) };
        let compare = pb::Compare {
            target_union: Some(TargetUnion::ModRevision(5)),
            ..pb::Compare::default()
        };
        let inner = pb::TxnRequest {
            compare: vec![compare],
            failure: vec![op(Op::RequestRange(range))],
            ..pb::TxnRequest::default()
        };
        let mut request = Request::Txn(pb::TxnRequest {
            success: vec![op(Op::RequestTxn(inner))],
            ..pb::TxnRequest::default()
        });
        let mut found = 0;
        each_revision(&mut request, &mut |revision| found += i32::from(*revision == 5));
        assert_eq!(found, 3);
    }
}
