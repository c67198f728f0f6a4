use tonic::{Code, Status};

use super::Error;

#[rustfmt::skip]
const PAIRS: &[(Error, Code, &str)] = &[
    (Error::EmptyKey, Code::InvalidArgument, "etcdserver: key is not provided"),
    (Error::KeyNotFound, Code::InvalidArgument, "etcdserver: key not found"),
    (Error::ValueProvided, Code::InvalidArgument, "etcdserver: value is provided"),
    (Error::LeaseProvided, Code::InvalidArgument, "etcdserver: lease is provided"),
    (Error::TooManyOps, Code::InvalidArgument, "etcdserver: too many operations in txn request"),
    (Error::DuplicateKey, Code::InvalidArgument, "etcdserver: duplicate key given in txn request"),
    (Error::InvalidClientApiVersion, Code::InvalidArgument, "etcdserver: invalid client api version"),
    (Error::InvalidSortOption, Code::InvalidArgument, "etcdserver: invalid sort option"),
    (Error::Compacted, Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted"),
    (Error::FutureRev, Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision"),
    (Error::NoSpace, Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded"),
    (Error::LeaseNotFound, Code::NotFound, "etcdserver: requested lease not found"),
    (Error::LeaseExist, Code::FailedPrecondition, "etcdserver: lease already exists"),
    (Error::LeaseTtlTooLarge, Code::OutOfRange, "etcdserver: too large lease TTL"),
    (Error::WatchCanceled, Code::Cancelled, "etcdserver: watch canceled"),
    (Error::MemberExist, Code::FailedPrecondition, "etcdserver: member ID already exist"),
    (Error::PeerUrlExist, Code::FailedPrecondition, "etcdserver: Peer URLs already exists"),
    (Error::MemberNotEnoughStarted, Code::FailedPrecondition, "etcdserver: re-configuration failed due to not enough started members"),
    (Error::MemberBadUrls, Code::InvalidArgument, "etcdserver: given member URLs are invalid"),
    (Error::MemberNotFound, Code::NotFound, "etcdserver: member not found"),
    (Error::MemberNotLearner, Code::FailedPrecondition, "etcdserver: can only promote a learner member"),
    (Error::LearnerNotReady, Code::FailedPrecondition, "etcdserver: can only promote a learner member which is in sync with leader"),
    (Error::TooManyLearners, Code::FailedPrecondition, "etcdserver: too many learner members in cluster"),
    (Error::ClusterIdMismatch, Code::FailedPrecondition, "etcdserver: cluster ID mismatch"),
    (Error::RequestTooLarge, Code::InvalidArgument, "etcdserver: request is too large"),
    (Error::TooManyRequests, Code::ResourceExhausted, "etcdserver: too many requests"),
    (Error::RootUserNotExist, Code::FailedPrecondition, "etcdserver: root user does not exist"),
    (Error::RootRoleNotExist, Code::FailedPrecondition, "etcdserver: root user does not have root role"),
    (Error::UserAlreadyExist, Code::FailedPrecondition, "etcdserver: user name already exists"),
    (Error::UserEmpty, Code::InvalidArgument, "etcdserver: user name is empty"),
    (Error::UserNotFound, Code::FailedPrecondition, "etcdserver: user name not found"),
    (Error::RoleAlreadyExist, Code::FailedPrecondition, "etcdserver: role name already exists"),
    (Error::RoleNotFound, Code::FailedPrecondition, "etcdserver: role name not found"),
    (Error::RoleEmpty, Code::InvalidArgument, "etcdserver: role name is empty"),
    (Error::AuthFailed, Code::InvalidArgument, "etcdserver: authentication failed, invalid user ID or password"),
    (Error::PermissionNotGiven, Code::InvalidArgument, "etcdserver: permission not given"),
    (Error::PermissionDenied, Code::PermissionDenied, "etcdserver: permission denied"),
    (Error::RoleNotGranted, Code::FailedPrecondition, "etcdserver: role is not granted to the user"),
    (Error::PermissionNotGranted, Code::FailedPrecondition, "etcdserver: permission is not granted to the role"),
    (Error::AuthNotEnabled, Code::FailedPrecondition, "etcdserver: authentication is not enabled"),
    (Error::InvalidAuthToken, Code::Unauthenticated, "etcdserver: invalid auth token"),
    (Error::InvalidAuthMgmt, Code::InvalidArgument, "etcdserver: invalid auth management"),
    (Error::AuthOldRevision, Code::InvalidArgument, "etcdserver: revision of auth store is old"),
    (Error::NoPasswordUser, Code::Unknown, "auth: authentication failed, password was given for no password user"),
    (Error::PasswordTooLong, Code::Unknown, "bcrypt: password length exceeds 72 bytes"),
    (Error::TokenVerifyOnly, Code::Unknown, "auth: token signing attempted with verify-only key"),
    (Error::NoLeader, Code::Unavailable, "etcdserver: no leader"),
    (Error::NotLeader, Code::FailedPrecondition, "etcdserver: not leader"),
    (Error::LeaderChanged, Code::Unavailable, "etcdserver: leader changed"),
    (Error::NotCapable, Code::FailedPrecondition, "etcdserver: not capable"),
    (Error::Stopped, Code::Unavailable, "etcdserver: server stopped"),
    (Error::Timeout, Code::Unavailable, "etcdserver: request timed out"),
    (Error::TimeoutDueToLeaderFail, Code::Unavailable, "etcdserver: request timed out, possibly due to previous leader failure"),
    (Error::TimeoutDueToConnectionLost, Code::Unavailable, "etcdserver: request timed out, possibly due to connection lost"),
    (Error::TimeoutWaitAppliedIndex, Code::Unavailable, "etcdserver: request timed out, waiting for the applied index took too long"),
    (Error::Unhealthy, Code::Unavailable, "etcdserver: unhealthy cluster"),
    (Error::Corrupt, Code::DataLoss, "etcdserver: corrupt cluster"),
    (Error::NotSupportedForLearner, Code::FailedPrecondition, "etcdserver: rpc not supported for learner"),
    (Error::BadLeaderTransferee, Code::FailedPrecondition, "etcdserver: bad leader transferee"),
    (Error::WrongDowngradeVersionFormat, Code::InvalidArgument, "etcdserver: wrong downgrade target version format"),
    (Error::InvalidDowngradeTargetVersion, Code::InvalidArgument, "etcdserver: invalid downgrade target version"),
    (Error::ClusterVersionUnavailable, Code::FailedPrecondition, "etcdserver: cluster version not found during downgrade"),
    (Error::DowngradeInProcess, Code::FailedPrecondition, "etcdserver: cluster has a downgrade job in progress"),
    (Error::NoInflightDowngrade, Code::FailedPrecondition, "etcdserver: no inflight downgrade job"),
    (Error::Canceled, Code::Cancelled, "etcdserver: request canceled"),
    (Error::DeadlineExceeded, Code::DeadlineExceeded, "etcdserver: context deadline exceeded"),
];

#[test]
fn every_error_has_the_code_and_text_that_clients_compare() {
    assert_eq!(PAIRS.len(), Error::ALL.len());
    for (error, code, text) in PAIRS {
        let status = Status::from(*error);
        assert_eq!((status.code(), status.message()), (*code, *text), "{error:?}");
        assert_eq!(error.to_string(), *text);
    }
}

#[test]
fn every_error_is_found_again_by_its_text() {
    for error in Error::ALL {
        assert_eq!(Error::from_text(error.text()), Some(*error));
    }
    assert_eq!(Error::from_text("etcdserver: no such error"), None);
}
