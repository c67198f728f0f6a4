//! The table of reasons in the operator's README, for tests: it must contain every reason of a condition.

/// Returns every reason in the table, in its order.
pub fn reasons() -> Vec<&'static str> {
    let rows = include_str!("../../../README.md")
        .lines()
        .filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split('`').next()).collect()
}

/// Fails unless `reason` is in the table.
#[track_caller]
pub fn check(reason: &str) {
    assert!(
        reasons().contains(&reason),
        "{reason} is not in the table of operator/README.md"
    );
}

/// A reason in the table that does not occur in the sources is outdated.
#[test]
fn every_documented_reason_is_in_the_sources() {
    let sources = [
        include_str!("conditions.rs"),
        include_str!("change.rs"),
        include_str!("facts.rs"),
        include_str!("lock.rs"),
        include_str!("pod.rs"),
        include_str!("../spec.rs"),
        include_str!("../spec/storage.rs"),
        include_str!("../certificates/provided.rs"),
        include_str!("../steps/certificates/provided.rs"),
        include_str!("../steps/certificates/authority.rs"),
        include_str!("../steps/claims.rs"),
        include_str!("../steps/downgrade.rs"),
        include_str!("../steps/store.rs"),
        include_str!("../steps/trial.rs"),
    ];
    for reason in reasons() {
        let named = sources.iter().any(|source| source.contains(&format!("\"{reason}\"")));
        assert!(named, "{reason} is in the table and nowhere else");
    }
    assert!(reasons().is_sorted(), "the table is in the order of the alphabet");
}
