//! The end of the tasks of a request that nobody waits for any more: what is under way ends by itself and is not tried again.

use std::sync::Arc;

use tokio::sync::AcquireError;
use tokio::sync::Semaphore;

use crate::Error;

/// Closes the permits of a request's tasks when the request ends or is dropped. The attempt under way is not cut off: it learns that a
/// region or a store is not where it was, for those who ask next.
pub(super) struct EndOfRequest(pub(super) Arc<Semaphore>);

impl Drop for EndOfRequest {
    fn drop(&mut self) {
        self.0.close();
    }
}

pub(super) fn nobody_waits(_: AcquireError) -> Error {
    Error::StringError("nobody waits for the request any more".to_owned())
}
