//! The durations of an election, and the rules between them.

use std::time::Duration;

/// client-go multiplies its retry period by this factor for jitter, and requires the renew deadline to be longer than the product.
pub(crate) const JITTER_FACTOR: f64 = 1.2;

/// A candidate's identity and durations. Build with [`Config::storage`] or [`Config::lease`], adjust, and give it to
/// [`Elector::new`](crate::Elector::new), which checks it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The identity of the candidate. No two processes, and no two runs of one process, may share it: the record is all that an
    /// elector knows of an earlier run. See [`Config::unique`].
    pub identity: String,
    /// The time for which others must see the record unchanged before they may take it.
    pub lease_duration: Duration,
    /// A leader that has not renewed for this long, counted from when it sent its last successful request, no longer leads.
    pub renew_deadline: Duration,
    /// The time between renewals and, jittered by a factor of 1 to 2.2, between a candidate's reads of the lock.
    pub retry_period: Duration,
    /// The time limit of one call to the lock.
    pub call_timeout: Duration,
    /// The elector's reaction to the loss of leadership.
    pub after_loss: AfterLoss,
}

/// The reaction of an elector that lost the lock without a request to give it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterLoss {
    /// Become a candidate again: for a brain, which continues as a follower.
    Campaign,
    /// Return [`RunError::Lost`](crate::RunError::Lost) from `run`: for an operator, whose process then stops.
    Return,
}

/// The reason why a [`Config`] is invalid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A candidate without an identity cannot recognise itself in the record.
    #[error("identity must not be empty")]
    NoIdentity,
    /// A duration is zero.
    #[error("{0} must be more than zero")]
    Zero(&'static str),
    /// A leader must stop before others may start.
    #[error("lease duration {lease:?} must be longer than renew deadline {renew:?}")]
    LeaseTooShort { lease: Duration, renew: Duration },
    /// A leader must have time for more than one attempt.
    #[error("renew deadline {renew:?} must be longer than {JITTER_FACTOR} times retry period {retry:?}")]
    RenewTooShort { renew: Duration, retry: Duration },
    /// A call might take longer than the renew deadline.
    #[error("call timeout {call:?} must not be longer than renew deadline {renew:?}")]
    CallTooLong { call: Duration, renew: Duration },
    /// The lease duration is longer than a record can hold.
    #[error("lease duration {0:?} must not be longer than one day")]
    LeaseTooLong(Duration),
}

impl Config {
    /// The durations for a lock in the brain's own storage: 2 s, 1.5 s, 0.4 s, and 0.5 s for a call.
    #[must_use]
    pub fn storage(identity: impl Into<String>) -> Self {
        Self::with(identity, [2_000, 1_500, 400, 500])
    }

    /// The durations for a Kubernetes Lease, as in client-go: 15 s, 10 s, 2 s, and 5 s for a call.
    #[must_use]
    pub fn lease(identity: impl Into<String>) -> Self {
        Self::with(identity, [15_000, 10_000, 2_000, 5_000])
    }

    fn with(identity: impl Into<String>, millis: [u64; 4]) -> Self {
        let [lease_duration, renew_deadline, retry_period, call_timeout] = millis.map(Duration::from_millis);
        Self {
            identity: identity.into(),
            lease_duration,
            renew_deadline,
            retry_period,
            call_timeout,
            after_loss: AfterLoss::Campaign,
        }
    }

    /// Returns `name`, an underscore and 64 random bits: an identity that no other run of this process shares.
    #[must_use]
    pub fn unique(name: &str) -> String {
        format!("{name}_{:016x}", rand::random::<u64>())
    }

    /// Checks the rules between the durations.
    ///
    /// # Errors
    /// Returns the first rule that does not hold.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let (lease, renew, retry) = (self.lease_duration, self.renew_deadline, self.retry_period);
        if self.identity.is_empty() {
            return Err(ConfigError::NoIdentity);
        }
        let named = [
            ("lease duration", lease),
            ("renew deadline", renew),
            ("retry period", retry),
            ("call timeout", self.call_timeout),
        ];
        if let Some((name, _)) = named.iter().find(|(_, duration)| duration.is_zero()) {
            return Err(ConfigError::Zero(name));
        }
        if lease > Duration::from_secs(24 * 60 * 60) {
            return Err(ConfigError::LeaseTooLong(lease));
        }
        if lease <= renew {
            return Err(ConfigError::LeaseTooShort { lease, renew });
        }
        if renew.as_secs_f64() <= JITTER_FACTOR * retry.as_secs_f64() {
            return Err(ConfigError::RenewTooShort { renew, retry });
        }
        if self.call_timeout > renew {
            let call = self.call_timeout;
            return Err(ConfigError::CallTooLong { call, renew });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(change: impl FnOnce(&mut Config), says: &str) {
        let mut config = Config::storage("a");
        change(&mut config);
        assert_eq!(config.validate().unwrap_err().to_string(), says);
    }

    #[test]
    fn the_defaults_are_valid_and_identities_differ() {
        assert_eq!(Config::storage("a").validate(), Ok(()));
        assert_eq!(Config::lease("a").validate(), Ok(()));
        assert_ne!(Config::unique("a"), Config::unique("a"));
    }

    #[test]
    fn durations_that_cannot_work_are_refused_with_the_rule() {
        let ms = Duration::from_millis;
        refused(|c| c.identity.clear(), "identity must not be empty");
        refused(|c| c.retry_period = ms(0), "retry period must be more than zero");
        refused(
            |c| c.lease_duration = ms(1500),
            "lease duration 1.5s must be longer than renew deadline 1.5s",
        );
        refused(
            |c| c.retry_period = ms(1250),
            "renew deadline 1.5s must be longer than 1.2 times retry period 1.25s",
        );
        refused(
            |c| c.call_timeout = ms(1501),
            "call timeout 1.501s must not be longer than renew deadline 1.5s",
        );
        refused(
            |c| c.lease_duration = ms(86_400_001),
            "lease duration 86400.001s must not be longer than one day",
        );
    }
}
