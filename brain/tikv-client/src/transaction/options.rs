// Copyright 2019 TiKV Project Authors. Licensed under Apache-2.0.

//! Options of a transaction.

use crate::proto::pdpb::Timestamp;
use crate::request::RetryOptions;
use crate::timestamp::TimestampExt;

/// Optimistic or pessimistic transaction.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum TransactionKind {
    Optimistic,
    /// Argument is the transaction's for_update_ts
    Pessimistic(Timestamp),
}

/// Options for configuring a transaction.
///
/// `TransactionOptions` has a builder-style API.
#[derive(Clone, PartialEq, Debug)]
pub struct TransactionOptions {
    /// Optimistic or pessimistic transaction.
    pub(super) kind: TransactionKind,
    /// Try using 1pc rather than 2pc (default is to always use 2pc).
    pub(super) try_one_pc: bool,
    /// Try to use async commit (default is not to).
    pub(super) async_commit: bool,
    /// Is the transaction read only? (Default is no).
    pub(super) read_only: bool,
    /// Commit on a disk that is almost full, too? (Default is no).
    pub(super) on_almost_full_disk: bool,
    /// How to retry in the event of certain errors.
    pub(super) retry_options: RetryOptions,
}

impl TransactionOptions {
    /// Default options for an optimistic transaction.
    pub fn new_optimistic() -> TransactionOptions {
        TransactionOptions {
            kind: TransactionKind::Optimistic,
            try_one_pc: false,
            async_commit: false,
            read_only: false,
            on_almost_full_disk: false,
            retry_options: RetryOptions::default(),
        }
    }

    /// Default options for a pessimistic transaction.
    pub fn new_pessimistic() -> TransactionOptions {
        TransactionOptions {
            kind: TransactionKind::Pessimistic(Timestamp::from_version(0)),
            try_one_pc: false,
            async_commit: false,
            read_only: false,
            on_almost_full_disk: false,
            retry_options: RetryOptions::default(),
        }
    }

    /// Try to use async commit.
    #[must_use]
    pub fn use_async_commit(mut self) -> TransactionOptions {
        self.async_commit = true;
        self
    }

    /// Try to use 1pc.
    #[must_use]
    pub fn try_one_pc(mut self) -> TransactionOptions {
        self.try_one_pc = true;
        self
    }

    /// Commit also where TiKV's disk is almost full: for what is tiny, or frees space.
    #[must_use]
    pub fn on_almost_full_disk(mut self) -> TransactionOptions {
        self.on_almost_full_disk = true;
        self
    }

    /// Make the transaction read only.
    #[must_use]
    pub(crate) fn read_only(mut self) -> TransactionOptions {
        self.read_only = true;
        self
    }

    /// Set RetryOptions.
    #[must_use]
    pub fn retry_options(mut self, options: RetryOptions) -> TransactionOptions {
        self.retry_options = options;
        self
    }

    pub(super) fn push_for_update_ts(&mut self, for_update_ts: Timestamp) {
        match &mut self.kind {
            TransactionKind::Optimistic => {}
            TransactionKind::Pessimistic(old_for_update_ts) => {
                self.kind = TransactionKind::Pessimistic(Timestamp::from_version(std::cmp::max(
                    old_for_update_ts.version(),
                    for_update_ts.version(),
                )));
            }
        }
    }

    // Returns true if these options describe a pessimistic transaction.
    pub(super) fn is_pessimistic(&self) -> bool {
        match self.kind {
            TransactionKind::Pessimistic(_) => true,
            TransactionKind::Optimistic => false,
        }
    }
}
