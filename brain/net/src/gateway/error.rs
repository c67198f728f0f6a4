//! The reason why an exchange failed.

use tonic::Status;

use runtime::budget::BudgetExceeded;

/// The reason why a request is not answered.
#[derive(Debug)]
pub(super) enum GatewayRefusal {
    /// There is no memory for it.
    Exceeded(BudgetExceeded),
    /// It is not what the method takes, or the RPC failed.
    Status(Status),
}

impl From<Status> for GatewayRefusal {
    fn from(status: Status) -> Self {
        GatewayRefusal::Status(status)
    }
}

impl From<BudgetExceeded> for GatewayRefusal {
    fn from(exceeded: BudgetExceeded) -> Self {
        GatewayRefusal::Exceeded(exceeded)
    }
}
