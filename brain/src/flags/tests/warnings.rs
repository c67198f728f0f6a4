use super::*;

#[test]
fn a_feature_gate_that_asks_for_what_is_not_so_is_warned_of() {
    let check = |line: &str, expected: &[&str]| {
        let warnings = serve(line).1;
        let heads: Vec<_> = warnings
            .iter()
            .map(|warning| warning.split(':').next().unwrap())
            .collect();
        assert_eq!(heads, expected, "{line}");
    };
    let so = "LeaseCheckpoint=true,LeaseCheckpointPersist=true,InitialCorruptCheck=true,CompactHashCheck=false";
    check(&format!("--feature-gates={so}"), &[]);
    check("--feature-gates=AllBeta=true", &[]);
    check("--experimental-enable-lease-checkpoint=false", &[]);
    check(
        "--experimental-stop-grpc-service-on-defrag",
        &["the feature gate StopGRPCServiceOnDefrag=true has no effect here"],
    );
    check(
        "--feature-gates=LeaseCheckpoint=false",
        &["the feature gate LeaseCheckpoint=false has no effect here"],
    );
    check(
        "--feature-gates=AllAlpha=true,SetMemberLocalAddr=false",
        &[
            "the feature gate CompactHashCheck=true has no effect here",
            "the feature gate StopGRPCServiceOnDefrag=true has no effect here",
        ],
    );
}

#[test]
fn flag_without_effect_is_warned_of_once_unless_default() {
    assert_eq!(
        serve("--snapshot-count 5").1,
        vec!["--snapshot-count has no effect here: there are no raft snapshots"]
    );
    assert_eq!(serve("--experimental-snapshot-catchup-entries 9").1.len(), 1);
    assert_eq!(serve("--max-learners 3").1.len(), 1);
    assert_eq!(
        serve("--snapshot-count 10000 --pre-vote=true --force-new-cluster=false").1,
        Vec::<String>::new()
    );
}
