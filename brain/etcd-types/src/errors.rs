//! Etcd's errors, for all crates: the only place where one becomes a gRPC status.
//!
//! Clients compare both code and text, so both are exactly etcd's. The test lists every pair a second time.

use tonic::{Code, Status};

/// One of etcd's errors. It converts into [`Status`], and displays as its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Error {
    /// A put, delete or compare names no key.
    EmptyKey,
    /// A put with `ignore_value` or `ignore_lease` is of a key that does not exist.
    KeyNotFound,
    /// A put with `ignore_value` carries a value.
    ValueProvided,
    /// A put with `ignore_lease` carries a lease.
    LeaseProvided,
    /// More operations in one list of a txn than `--max-txn-ops`.
    TooManyOps,
    /// A txn would put the same key twice.
    DuplicateKey,
    /// The client announced an API version that no server speaks.
    InvalidClientApiVersion,
    /// A range requests an order or a target that does not exist.
    InvalidSortOption,
    /// The revision is below the compacted one.
    Compacted,
    /// The revision does not exist yet.
    FutureRev,
    /// The quota is used up, the disk is full, or the NOSPACE alarm is raised.
    NoSpace,
    /// The lease does not exist, or has expired.
    LeaseNotFound,
    /// A grant with an id that is already used.
    LeaseExist,
    /// A grant for longer than 9,000,000,000 seconds.
    LeaseTtlTooLarge,
    /// The watch was cancelled by the server.
    WatchCanceled,
    MemberExist,
    PeerUrlExist,
    MemberNotEnoughStarted,
    MemberBadUrls,
    MemberNotFound,
    MemberNotLearner,
    LearnerNotReady,
    TooManyLearners,
    ClusterIdMismatch,
    /// The request is longer than `--max-request-bytes`, or larger than one evaluation allows.
    RequestTooLarge,
    /// The queue of the writer is full.
    TooManyRequests,
    /// Permissions are checked only if there is a user root.
    RootUserNotExist,
    /// The user root needs the role root.
    RootRoleNotExist,
    UserAlreadyExist,
    /// A user without a name, or a request without a user.
    UserEmpty,
    UserNotFound,
    RoleAlreadyExist,
    RoleNotFound,
    RoleEmpty,
    /// The user or the password is wrong.
    AuthFailed,
    /// A grant without a permission.
    PermissionNotGiven,
    PermissionDenied,
    RoleNotGranted,
    PermissionNotGranted,
    AuthNotEnabled,
    /// The token is unknown or has expired.
    InvalidAuthToken,
    /// The user and the role root stay while permissions are checked; a permission needs a range.
    InvalidAuthMgmt,
    /// Users or roles changed since the caller was identified.
    AuthOldRevision,
    /// A password was given for a user that has none.
    NoPasswordUser,
    /// bcrypt takes no password of more than 72 bytes.
    PasswordTooLong,
    /// The key of tokens can only verify them.
    TokenVerifyOnly,
    /// The client requires a leader (metadata `hasleader`) and there is none.
    NoLeader,
    /// Only the leader can do this; the request had no effect. Members send it to each other, and ask the next leader.
    NotLeader,
    /// The read was not confirmed before leadership moved: try again.
    LeaderChanged,
    NotCapable,
    /// The server is stopping; the request had no effect.
    Stopped,
    /// The outcome is unknown: the request has been applied completely or not at all.
    Timeout,
    TimeoutDueToLeaderFail,
    TimeoutDueToConnectionLost,
    TimeoutWaitAppliedIndex,
    /// There are not enough members to answer.
    Unhealthy,
    /// Data is damaged: the CORRUPT alarm is raised.
    Corrupt,
    NotSupportedForLearner,
    /// Leadership cannot be transferred to the named member.
    BadLeaderTransferee,
    WrongDowngradeVersionFormat,
    InvalidDowngradeTargetVersion,
    ClusterVersionUnavailable,
    DowngradeInProcess,
    NoInflightDowngrade,
    Canceled,
    DeadlineExceeded,
}

impl Error {
    /// All errors.
    pub const ALL: &[Error] = &[
        Error::EmptyKey,
        Error::KeyNotFound,
        Error::ValueProvided,
        Error::LeaseProvided,
        Error::TooManyOps,
        Error::DuplicateKey,
        Error::InvalidClientApiVersion,
        Error::InvalidSortOption,
        Error::Compacted,
        Error::FutureRev,
        Error::NoSpace,
        Error::LeaseNotFound,
        Error::LeaseExist,
        Error::LeaseTtlTooLarge,
        Error::WatchCanceled,
        Error::MemberExist,
        Error::PeerUrlExist,
        Error::MemberNotEnoughStarted,
        Error::MemberBadUrls,
        Error::MemberNotFound,
        Error::MemberNotLearner,
        Error::LearnerNotReady,
        Error::TooManyLearners,
        Error::ClusterIdMismatch,
        Error::RequestTooLarge,
        Error::TooManyRequests,
        Error::RootUserNotExist,
        Error::RootRoleNotExist,
        Error::UserAlreadyExist,
        Error::UserEmpty,
        Error::UserNotFound,
        Error::RoleAlreadyExist,
        Error::RoleNotFound,
        Error::RoleEmpty,
        Error::AuthFailed,
        Error::PermissionNotGiven,
        Error::PermissionDenied,
        Error::RoleNotGranted,
        Error::PermissionNotGranted,
        Error::AuthNotEnabled,
        Error::InvalidAuthToken,
        Error::InvalidAuthMgmt,
        Error::AuthOldRevision,
        Error::NoPasswordUser,
        Error::PasswordTooLong,
        Error::TokenVerifyOnly,
        Error::NoLeader,
        Error::NotLeader,
        Error::LeaderChanged,
        Error::NotCapable,
        Error::Stopped,
        Error::Timeout,
        Error::TimeoutDueToLeaderFail,
        Error::TimeoutDueToConnectionLost,
        Error::TimeoutWaitAppliedIndex,
        Error::Unhealthy,
        Error::Corrupt,
        Error::NotSupportedForLearner,
        Error::BadLeaderTransferee,
        Error::WrongDowngradeVersionFormat,
        Error::InvalidDowngradeTargetVersion,
        Error::ClusterVersionUnavailable,
        Error::DowngradeInProcess,
        Error::NoInflightDowngrade,
        Error::Canceled,
        Error::DeadlineExceeded,
    ];

    /// Returns the gRPC code of the error.
    #[must_use]
    pub fn code(self) -> Code {
        self.pair().0
    }

    /// The text that clients compare.
    #[must_use]
    pub fn text(self) -> &'static str {
        self.pair().1
    }

    /// The error whose text this is, as clients find it.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Error> {
        Self::ALL.iter().copied().find(|error| error.text() == text)
    }

    /// The status, ready to be returned from a handler.
    #[must_use]
    pub fn status(self) -> Status {
        Status::new(self.code(), self.text())
    }

    #[rustfmt::skip]
    #[allow(clippy::too_many_lines, reason = "a table: one line for each error")]
    const fn pair(self) -> (Code, &'static str) {
        match self {
            Error::EmptyKey => (Code::InvalidArgument, "etcdserver: key is not provided"),
            Error::KeyNotFound => (Code::InvalidArgument, "etcdserver: key not found"),
            Error::ValueProvided => (Code::InvalidArgument, "etcdserver: value is provided"),
            Error::LeaseProvided => (Code::InvalidArgument, "etcdserver: lease is provided"),
            Error::TooManyOps => (Code::InvalidArgument, "etcdserver: too many operations in txn request"),
            Error::DuplicateKey => (Code::InvalidArgument, "etcdserver: duplicate key given in txn request"),
            Error::InvalidClientApiVersion => (Code::InvalidArgument, "etcdserver: invalid client api version"),
            Error::InvalidSortOption => (Code::InvalidArgument, "etcdserver: invalid sort option"),
            Error::Compacted => (Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted"),
            Error::FutureRev => (Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision"),
            Error::NoSpace => (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded"),
            Error::LeaseNotFound => (Code::NotFound, "etcdserver: requested lease not found"),
            Error::LeaseExist => (Code::FailedPrecondition, "etcdserver: lease already exists"),
            Error::LeaseTtlTooLarge => (Code::OutOfRange, "etcdserver: too large lease TTL"),
            Error::WatchCanceled => (Code::Cancelled, "etcdserver: watch canceled"),
            Error::MemberExist => (Code::FailedPrecondition, "etcdserver: member ID already exist"),
            Error::PeerUrlExist => (Code::FailedPrecondition, "etcdserver: Peer URLs already exists"),
            Error::MemberNotEnoughStarted => (Code::FailedPrecondition, "etcdserver: re-configuration failed due to not enough started members"),
            Error::MemberBadUrls => (Code::InvalidArgument, "etcdserver: given member URLs are invalid"),
            Error::MemberNotFound => (Code::NotFound, "etcdserver: member not found"),
            Error::MemberNotLearner => (Code::FailedPrecondition, "etcdserver: can only promote a learner member"),
            Error::LearnerNotReady => (Code::FailedPrecondition, "etcdserver: can only promote a learner member which is in sync with leader"),
            Error::TooManyLearners => (Code::FailedPrecondition, "etcdserver: too many learner members in cluster"),
            Error::ClusterIdMismatch => (Code::FailedPrecondition, "etcdserver: cluster ID mismatch"),
            Error::RequestTooLarge => (Code::InvalidArgument, "etcdserver: request is too large"),
            Error::TooManyRequests => (Code::ResourceExhausted, "etcdserver: too many requests"),
            Error::RootUserNotExist => (Code::FailedPrecondition, "etcdserver: root user does not exist"),
            Error::RootRoleNotExist => (Code::FailedPrecondition, "etcdserver: root user does not have root role"),
            Error::UserAlreadyExist => (Code::FailedPrecondition, "etcdserver: user name already exists"),
            Error::UserEmpty => (Code::InvalidArgument, "etcdserver: user name is empty"),
            Error::UserNotFound => (Code::FailedPrecondition, "etcdserver: user name not found"),
            Error::RoleAlreadyExist => (Code::FailedPrecondition, "etcdserver: role name already exists"),
            Error::RoleNotFound => (Code::FailedPrecondition, "etcdserver: role name not found"),
            Error::RoleEmpty => (Code::InvalidArgument, "etcdserver: role name is empty"),
            Error::AuthFailed => (Code::InvalidArgument, "etcdserver: authentication failed, invalid user ID or password"),
            Error::PermissionNotGiven => (Code::InvalidArgument, "etcdserver: permission not given"),
            Error::PermissionDenied => (Code::PermissionDenied, "etcdserver: permission denied"),
            Error::RoleNotGranted => (Code::FailedPrecondition, "etcdserver: role is not granted to the user"),
            Error::PermissionNotGranted => (Code::FailedPrecondition, "etcdserver: permission is not granted to the role"),
            Error::AuthNotEnabled => (Code::FailedPrecondition, "etcdserver: authentication is not enabled"),
            Error::InvalidAuthToken => (Code::Unauthenticated, "etcdserver: invalid auth token"),
            Error::InvalidAuthMgmt => (Code::InvalidArgument, "etcdserver: invalid auth management"),
            Error::AuthOldRevision => (Code::InvalidArgument, "etcdserver: revision of auth store is old"),
            // The next three are no errors of gRPC in etcd: it sends them as they are.
            Error::NoPasswordUser => (Code::Unknown, "auth: authentication failed, password was given for no password user"),
            Error::PasswordTooLong => (Code::Unknown, "bcrypt: password length exceeds 72 bytes"),
            Error::TokenVerifyOnly => (Code::Unknown, "auth: token signing attempted with verify-only key"),
            Error::NoLeader => (Code::Unavailable, "etcdserver: no leader"),
            Error::NotLeader => (Code::FailedPrecondition, "etcdserver: not leader"),
            Error::LeaderChanged => (Code::Unavailable, "etcdserver: leader changed"),
            Error::NotCapable => (Code::FailedPrecondition, "etcdserver: not capable"),
            Error::Stopped => (Code::Unavailable, "etcdserver: server stopped"),
            Error::Timeout => (Code::Unavailable, "etcdserver: request timed out"),
            Error::TimeoutDueToLeaderFail => (Code::Unavailable, "etcdserver: request timed out, possibly due to previous leader failure"),
            Error::TimeoutDueToConnectionLost => (Code::Unavailable, "etcdserver: request timed out, possibly due to connection lost"),
            Error::TimeoutWaitAppliedIndex => (Code::Unavailable, "etcdserver: request timed out, waiting for the applied index took too long"),
            Error::Unhealthy => (Code::Unavailable, "etcdserver: unhealthy cluster"),
            Error::Corrupt => (Code::DataLoss, "etcdserver: corrupt cluster"),
            Error::NotSupportedForLearner => (Code::FailedPrecondition, "etcdserver: rpc not supported for learner"),
            Error::BadLeaderTransferee => (Code::FailedPrecondition, "etcdserver: bad leader transferee"),
            Error::WrongDowngradeVersionFormat => (Code::InvalidArgument, "etcdserver: wrong downgrade target version format"),
            Error::InvalidDowngradeTargetVersion => (Code::InvalidArgument, "etcdserver: invalid downgrade target version"),
            Error::ClusterVersionUnavailable => (Code::FailedPrecondition, "etcdserver: cluster version not found during downgrade"),
            Error::DowngradeInProcess => (Code::FailedPrecondition, "etcdserver: cluster has a downgrade job in progress"),
            Error::NoInflightDowngrade => (Code::FailedPrecondition, "etcdserver: no inflight downgrade job"),
            Error::Canceled => (Code::Cancelled, "etcdserver: request canceled"),
            Error::DeadlineExceeded => (Code::DeadlineExceeded, "etcdserver: context deadline exceeded"),
        }
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for Error {}

impl From<Error> for Status {
    fn from(error: Error) -> Status {
        error.status()
    }
}

#[cfg(test)]
mod tests;
