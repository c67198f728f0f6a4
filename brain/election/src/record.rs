//! The record in a lock: client-go's `LeaderElectionRecord`, with durations that may be parts of a second.

use std::time::Duration;

pub use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The holder of a lock, and since when. The field names on disk are client-go's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// The holder; empty after a release.
    #[serde(default)]
    pub holder_identity: String,
    /// The time for which the record must be seen unchanged before another may take it. Zero: unspecified.
    #[serde(rename = "leaseDurationSeconds", default, with = "seconds")]
    pub lease_duration: Duration,
    /// The time at which the holder acquired it, on the writer's wall clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acquire_time: Option<Timestamp>,
    /// The time of the last write, on the writer's wall clock, but always later than in the record before: no two renewals are
    /// equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renew_time: Option<Timestamp>,
    /// The number of times that the holder changed.
    #[serde(default)]
    pub leader_transitions: u32,
}

/// The stored bytes are not a record.
#[derive(Debug, thiserror::Error)]
#[error("bytes of the lock are not a leader election record")]
pub struct DecodeError(#[from] serde_json::Error);

impl Record {
    /// Returns the record as JSON.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings, numbers and times always have a JSON form")
    }

    /// Decodes a record from JSON.
    ///
    /// # Errors
    /// The bytes are not a record: not JSON, a field of another type, a duration that is negative or absurd.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        // A derived decoder also accepts a list of the fields' values, and `[]` for an empty record.
        if !bytes.trim_ascii_start().starts_with(b"{") {
            return Err(DecodeError(serde::de::Error::custom("not a JSON object")));
        }
        Ok(serde_json::from_slice(bytes)?)
    }

    /// Returns true if the lock has no holder.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.holder_identity.is_empty()
    }
}

/// Returns `wall` with the precision of a record, or just after `previous` if the wall clock stopped or went back.
pub(crate) fn later_than(previous: Option<Timestamp>, wall: Timestamp) -> Timestamp {
    let micros = match previous {
        Some(previous) => wall.as_microsecond().max(previous.as_microsecond().saturating_add(1)),
        None => wall.as_microsecond(),
    };
    Timestamp::from_microsecond(micros).unwrap_or(Timestamp::MAX)
}

/// A duration as a number of seconds: an integer if whole, as client-go writes it; else with milliseconds.
mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        if duration.subsec_nanos() == 0 {
            to.serialize_u64(duration.as_secs())
        } else {
            to.serialize_f64(duration.as_secs_f64())
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(from)?;
        let limit = f64::from(u32::MAX);
        if !(0.0..=limit).contains(&seconds) {
            return Err(D::Error::custom(format!("{seconds} is not a duration in seconds")));
        }
        Duration::try_from_secs_f64(seconds).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            holder_identity: "a_1".to_owned(),
            lease_duration: Duration::from_secs(15),
            acquire_time: Some("2026-01-02T03:04:05Z".parse().unwrap()),
            renew_time: Some("2026-01-02T03:04:06.5Z".parse().unwrap()),
            leader_transitions: 7,
        }
    }

    #[test]
    fn a_record_reads_as_client_go_writes_it() {
        let text = r#"{"holderIdentity":"a_1","leaseDurationSeconds":15,"acquireTime":"2026-01-02T03:04:05Z","renewTime":"2026-01-02T03:04:06.5Z","leaderTransitions":7}"#;
        assert_eq!(String::from_utf8(record().encode()).unwrap(), text);
        assert_eq!(Record::decode(text.as_bytes()).unwrap(), record());
    }

    #[test]
    fn parts_of_a_second_survive() {
        for millis in [1, 400, 1500, 2000, 86_399_999] {
            let lease_duration = Duration::from_millis(millis);
            let record = Record {
                lease_duration,
                ..record()
            };
            assert_eq!(Record::decode(&record.encode()).unwrap(), record);
        }
    }

    #[test]
    fn malformed_record_is_an_error() {
        for bad in [
            "",
            "[]",
            "{",
            r#"{"leaseDurationSeconds":-1}"#,
            r#"{"leaseDurationSeconds":1e300}"#,
            r#"{"leaderTransitions":-1}"#,
        ] {
            assert!(Record::decode(bad.as_bytes()).is_err(), "{bad:?} was taken");
        }
        assert_eq!(Record::decode(b"{}").unwrap(), Record::default());
    }

    #[test]
    fn no_two_renewals_have_the_same_time_even_if_the_wall_clock_goes_back() {
        let first = record().renew_time.unwrap();
        let second = later_than(Some(first), "2020-01-01T00:00:00Z".parse().unwrap());
        assert_eq!(second.as_microsecond(), first.as_microsecond() + 1);
    }
}
