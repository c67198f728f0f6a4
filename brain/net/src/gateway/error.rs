//! The reason why an exchange failed.

use tonic::Status;

use runtime::budget::BudgetExceeded;

/// The reason why a request is not answered.
#[derive(Debug)]
pub(super) enum Refused {
    /// There is no memory for it.
    Exceeded(BudgetExceeded),
    /// It is not what the method takes, or the RPC failed.
    Status(Status),
}

impl From<Status> for Refused {
    fn from(status: Status) -> Self {
        Refused::Status(status)
    }
}

impl From<BudgetExceeded> for Refused {
    fn from(exceeded: BudgetExceeded) -> Self {
        Refused::Exceeded(exceeded)
    }
}
