//! Additional flags of the brain that a spec sets.

use std::collections::BTreeMap;

use crds::cluster::{OWN_FLAGS, TYPED_FLAGS};
use crds::flags::{self, Treatment};

use super::{SpecRefusal, invalid};

/// # Errors
/// A flag is unknown to the brain, would prevent its start, or follows from another field of the spec.
pub(super) fn check(given: &BTreeMap<String, String>) -> Result<(), SpecRefusal> {
    for (flag, value) in given {
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if flag.is_empty() || !flag.starts_with(|c: char| c.is_ascii_lowercase()) || !flag.chars().all(good) {
            return Err(invalid(format!(
                "flags: {flag:?} is not a flag; write it without leading dashes"
            )));
        }
        if OWN_FLAGS.contains(&flag.as_str()) {
            return Err(invalid(format!("flags: {flag:?} is set by the operator")));
        }
        let Some(known) = flags::named(flag) else {
            return Err(invalid(format!("flags: the brain has no flag {flag:?}{}", hint(flag))));
        };
        if let Some((_, field)) = TYPED_FLAGS.iter().find(|(name, _)| *name == known.current_name()) {
            return Err(invalid(format!("flags: set spec.{field} instead of {flag:?}")));
        }
        if known.treatment == Treatment::Refused {
            return Err(invalid(format!("flags: the brain refuses to start with {flag:?}")));
        }
        if value.contains(['\0', '\n']) {
            return Err(invalid(format!(
                "flags: the value of {flag:?} has a line break or a zero byte"
            )));
        }
        if let Some(fault) = known.fault(value) {
            let shown: String = value.chars().take(64).collect();
            return Err(invalid(format!("flags: {flag}: {shown:?} {fault}")));
        }
    }
    Ok(())
}

/// Suggests the known flag that is most similar to an unknown one, if there is one.
fn hint(flag: &str) -> String {
    let settable = flags::all().filter(|known| known.treatment != Treatment::Refused);
    let free = settable.filter(|known| !OWN_FLAGS.contains(&known.name));
    let closest = free
        .map(|known| (strsim::osa_distance(flag, known.name), known.name))
        .min_by_key(|(distance, _)| *distance);
    match closest.filter(|(distance, _)| *distance <= flag.len() / 3) {
        Some((_, name)) => format!(": did you mean {name:?}?"),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Returns reason and message of the refusal; empty if there is none.
    fn judged(spec: Value) -> String {
        let cluster = crate::testing::cluster(spec);
        let refusal = check(&cluster.spec.flags).err();
        refusal
            .map(|refusal| format!("{}: {}", refusal.reason, refusal.message))
            .unwrap_or_default()
    }

    #[track_caller]
    fn refused(spec: Value, expected: &str) {
        let said = judged(spec.clone());
        assert!(said.starts_with(expected), "{spec}: {said:?}");
    }

    #[test]
    fn unknown_flag_is_refused_with_the_closest_one() {
        let unknown = |flag: &str, expected: &str| refused(json!({"flags": {flag: "1"}}), expected);
        unknown(
            "max-txn-op",
            "InvalidSpec: flags: the brain has no flag \"max-txn-op\": did you mean \"max-txn-ops\"?",
        );
        assert_eq!(
            judged(json!({"flags": {"frobnicate": "1"}})),
            "InvalidSpec: flags: the brain has no flag \"frobnicate\""
        );
        unknown(
            "discovery-token",
            "InvalidSpec: flags: the brain refuses to start with \"discovery-token\"",
        );
    }

    #[test]
    fn value_that_the_brain_does_not_take_is_refused_in_words() {
        let judge = |flag: &str, value: &str| judged(json!({"flags": {flag: value}}));
        for (flag, value, fault) in [
            ("max-txn-ops", "abc", "is not an integer"),
            ("bcrypt-cost", "3", "is not in 4 to 31"),
            ("strict-reads", "yes", "is neither true nor false"),
            ("metrics", "all", "is none of basic, extensive"),
            (
                "grpc-keepalive-interval",
                "5",
                "is not a duration such as 5s, 1m30s or 100ms",
            ),
            ("compaction-sleep-interval", "1h", "is longer than 30s"),
            (
                "experimental-warning-apply-duration",
                "-1s",
                "is not a duration such as 5s, 1m30s or 100ms",
            ),
        ] {
            assert_eq!(
                judge(flag, value),
                format!("InvalidSpec: flags: {flag}: {value:?} {fault}")
            );
        }
        assert_eq!(judge("grpc-keepalive-interval", "1m30s"), "");
        assert_eq!(judge("metrics", "extensive"), "");
    }

    #[test]
    fn flags_that_the_operator_sets_cannot_be_set() {
        assert_eq!(
            judged(json!({"flags": {"max-txn-ops": "1024", "max-request-bytes": "1"}})),
            ""
        );
        for &flag in OWN_FLAGS {
            refused(
                json!({"flags": {flag: "x"}}),
                &format!("InvalidSpec: flags: {flag:?} is set by the operator"),
            );
        }
        refused(
            json!({"flags": {"log-level": "debug"}}),
            "InvalidSpec: flags: set spec.logLevel instead of \"log-level\"",
        );
        for flag in ["", "--log-level", "Log", "a b", "a=b", "1a"] {
            refused(
                json!({"flags": {flag: "x"}}),
                &format!("InvalidSpec: flags: {flag:?} is not a flag"),
            );
        }
        refused(
            json!({"flags": {"metrics": "x\ny"}}),
            "InvalidSpec: flags: the value of \"metrics\"",
        );
    }
}
