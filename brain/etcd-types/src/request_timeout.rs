//! How long a request may wait.

use std::time::Duration;

/// The part of the timeout that does not depend on the election, as of etcd's `ReqTimeout`.
const BASE_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The shortest part for the election: twice etcd's election timeout, and the default lease duration.
const MIN_ELECTION_TIMEOUT: Duration = Duration::from_secs(2);

/// The timeout of a request with default timings: 7 s, as in etcd.
pub const REQUEST_TIMEOUT: Duration = BASE_REQUEST_TIMEOUT.saturating_add(MIN_ELECTION_TIMEOUT);

/// Returns the timeout of a request for members whose lock lasts for `lease_duration`. A longer lock means slow storage or slow elections, so
/// requests wait longer by the same time.
#[must_use]
pub fn request_timeout(lease_duration: Duration) -> Duration {
    BASE_REQUEST_TIMEOUT + lease_duration.max(MIN_ELECTION_TIMEOUT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_wait_for_an_election() {
        assert_eq!(
            request_timeout(Duration::ZERO),
            REQUEST_TIMEOUT,
            "a member that needs no lock"
        );
        assert_eq!(request_timeout(Duration::from_secs(2)), Duration::from_secs(7));
        assert_eq!(request_timeout(Duration::from_secs(15)), Duration::from_secs(20));
    }
}
