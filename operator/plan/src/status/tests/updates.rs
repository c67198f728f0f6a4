//! From facts to conditions.

use super::*;

/// A settled cluster of one.
fn good() -> ConditionFacts {
    ConditionFacts {
        image_waits: None,
        replicas: 1,
        ready: 1,
        pods: 1,
        leader: Some("dev-0".to_owned()),
        lock: None,
        lead_unknown: false,
        trouble: None,
        stuck: None,
        alarm: None,
        change: ChangeInProgress::None,
        overdue: false,
        paused: false,
        ignored: None,
        pending: false,
        trust: CertificateState::Good,
        volumes: VolumeState::Bound,
        blocker: None,
        refused_pods: None,
        refused: false,
        contested: None,
        failure: None,
        unready_for: std::time::Duration::ZERO,
    }
}

/// A member that has been missing for a while, and no change in progress.
fn down(seconds: u64) -> ConditionFacts {
    ConditionFacts {
        ready: 0,
        leader: None,
        unready_for: std::time::Duration::from_secs(seconds),
        ..good()
    }
}

#[test]
fn unknown_leader_degrades_a_cluster_after_a_while() {
    let facts = |seconds| ConditionFacts {
        ready: 1,
        lead_unknown: true,
        ..down(seconds)
    };
    let unknown = [(0, "False/LeaderUnknown"), (1, "Unknown/LeaderUnknown")];
    check(facts(30), but(&unknown));
    check(facts(31), but(&[unknown[0], unknown[1], (3, "True/LeaderUnknown")]));
}

#[test]
fn member_that_does_not_start_degrades_a_cluster() {
    let facts = |overdue| ConditionFacts {
        change: ChangeInProgress::Creating,
        stuck: Some(Blocker {
            reason: "ImagePullFailed",
            message: why(),
        }),
        overdue,
        ..down(0)
    };
    let creating = [(0, "False/Creating"), (1, "False/NoLeader")];
    let degraded = (3, "True/ImagePullFailed");
    check(
        facts(false),
        but(&[creating[0], creating[1], (2, "True/Creating"), degraded]),
    );
    let late = [(2, "False/DeadlineExceeded"), (6, "True/DeadlineExceeded")];
    check(
        facts(true),
        but(&[creating[0], creating[1], late[0], degraded, late[1]]),
    );
}

fn why() -> String {
    "why".to_owned()
}

/// Ready, Available, Progressing, Degraded, CertificatesReady, StorageReady, Stalled: `Status/Reason` each.
#[track_caller]
fn check(facts: ConditionFacts, expected: [&str; 7]) {
    let updates = conditions::judge(&facts);
    let types = conditions::PERMANENT_CONDITIONS.into_iter().chain(["Stalled"]);
    let said = types.map(|type_| {
        let found = updates.iter().find(|update| update.type_ == type_);
        found.map_or("absent".to_owned(), |found| {
            documented_reasons::check(&found.reason);
            format!("{}/{}", found.status.as_str(), found.reason)
        })
    });
    assert_eq!(said.collect::<Vec<_>>(), expected, "{facts:?}");
    assert!(updates.iter().all(|update| !update.message.is_empty()), "{updates:?}");
}

fn but(changes: &[(usize, &'static str)]) -> [&'static str; 7] {
    let mut expected = OK;
    for (index, value) in changes {
        expected[*index] = value;
    }
    expected
}

#[test]
fn conditions_follow_from_the_facts() {
    check(good(), OK);
    let creating = ConditionFacts {
        change: ChangeInProgress::Creating,
        volumes: VolumeState::None,
        ..down(0)
    };
    let expected = but(&[
        (0, "False/Creating"),
        (1, "False/NoLeader"),
        (2, "True/Creating"),
        (5, "Unknown/Creating"),
    ]);
    check(creating, expected);
    let rolling = ConditionFacts {
        change: ChangeInProgress::Rolling(None),
        ..good()
    };
    check(
        rolling.clone(),
        but(&[(0, "False/RollingUpdate"), (2, "True/RollingUpdate")]),
    );
    let overdue = ConditionFacts {
        overdue: true,
        ..rolling
    };
    let late = "False/DeadlineExceeded";
    check(
        overdue,
        but(&[
            (0, "False/RollingUpdate"),
            (2, late),
            (3, "True/DeadlineExceeded"),
            (6, "True/DeadlineExceeded"),
        ]),
    );
    let by_hand = ConditionFacts {
        change: ChangeInProgress::ByHand(why()),
        ..good()
    };
    check(by_hand, but(&[(0, "False/RollingUpdate"), (2, "False/RollingUpdate")]));
    let scaling = ConditionFacts {
        change: ChangeInProgress::Scaling,
        ..down(0)
    };
    check(
        scaling,
        but(&[(0, "False/Scaling"), (1, "False/NoLeader"), (2, "True/Scaling")]),
    );
    let growing = ConditionFacts {
        change: ChangeInProgress::Resizing(why()),
        ..good()
    };
    check(growing, but(&[(2, "True/ResizingStorage")]));
    let stuck = |volumes| ConditionFacts { volumes, ..good() };
    check(
        stuck(VolumeState::NotExpandable(why())),
        but(&[(5, "False/NotExpandable")]),
    );
    check(
        stuck(VolumeState::ResizeFailed(why())),
        but(&[(5, "False/ResizeFailed")]),
    );
    let suspended = ConditionFacts {
        replicas: 0,
        pods: 0,
        ..down(100)
    };
    check(suspended, but(&[(0, "False/Suspended"), (1, "False/Suspended")]));
}

#[test]
fn a_missing_member_is_degraded_after_a_while() {
    let expected = [(0, "False/NoLeader"), (1, "False/NoLeader")];
    check(down(30), but(&expected));
    check(down(31), but(&[expected[0], expected[1], (3, "True/MembersUnhealthy")]));
    // A member that still leads but is not ready does not serve clients.
    let unready = ConditionFacts {
        leader: Some("dev-0".to_owned()),
        ..down(0)
    };
    check(unready, but(&[(0, "False/MembersUnhealthy")]));
}

#[test]
fn what_keeps_the_brains_from_writing_is_told() {
    let full = ConditionFacts {
        alarm: Some("NOSPACE".to_owned()),
        ..good()
    };
    check(
        full,
        but(&[(0, "False/NoSpace"), (1, "False/NoSpace"), (3, "True/NoSpace")]),
    );
    let pending = ConditionFacts {
        volumes: VolumeState::Pending(why()),
        ..down(0)
    };
    let unreachable = "False/StorageUnreachable";
    check(
        pending,
        but(&[(0, unreachable), (1, unreachable), (5, "False/PendingVolume")]),
    );
    let lost = ConditionFacts {
        volumes: VolumeState::Lost(why()),
        ..down(0)
    };
    let terminating = ConditionFacts {
        volumes: VolumeState::Terminating(why()),
        ..good()
    };
    check(terminating, but(&[(5, "False/VolumeTerminating")]));
    check(
        lost,
        but(&[(0, unreachable), (1, unreachable), (5, "False/VolumeLost")]),
    );
}

#[test]
fn certificates_have_a_condition_of_their_own() {
    check(
        ConditionFacts {
            trust: CertificateState::Disabled,
            ..good()
        },
        but(&[(4, "True/Disabled")]),
    );
    check(
        ConditionFacts {
            trust: CertificateState::Due(why()),
            ..good()
        },
        but(&[(2, "True/RotatingCertificates"), (4, "False/Renewing")]),
    );
    check(
        ConditionFacts {
            trust: CertificateState::AuthorityExpires(why()),
            ..good()
        },
        but(&[(4, "True/AuthorityExpires")]),
    );
    let error = (0, "False/CertificateError");
    check(
        ConditionFacts {
            trust: CertificateState::Missing(why()),
            ..good()
        },
        but(&[error, (2, "True/RotatingCertificates"), (4, "False/SecretMissing")]),
    );
    check(
        ConditionFacts {
            trust: CertificateState::Expired(why()),
            ..good()
        },
        but(&[error, (3, "True/CertificateError"), (4, "False/Expired")]),
    );
    check(
        ConditionFacts {
            trust: CertificateState::Broken(crate::certificates::CertificateProblem::new("AuthorityMissing", why())),
            ..good()
        },
        but(&[error, (3, "True/CertificateError"), (4, "False/AuthorityMissing")]),
    );
}

#[test]
fn blockers_stall_and_failures_degrade() {
    let blocker = ConditionFacts {
        blocker: Some(Blocker {
            reason: "OwnershipConflict",
            message: why(),
        }),
        ..good()
    };
    let no = "False/OwnershipConflict";
    let yes = "True/OwnershipConflict";
    check(blocker, but(&[(0, no), (2, no), (3, yes), (6, yes)]));
    check(
        ConditionFacts {
            failure: Some(why()),
            ..good()
        },
        but(&[(3, "True/ReconcileError")]),
    );
    check(ConditionFacts { paused: true, ..good() }, but(&[(2, "False/Paused")]));
    check(
        ConditionFacts {
            paused: true,
            pending: true,
            ..good()
        },
        but(&[(0, "False/Paused"), (2, "False/Paused")]),
    );
}

#[test]
fn pods_that_a_quota_refuses_are_named_and_not_the_volume_that_waits_for_them() {
    let facts = ConditionFacts {
        volumes: VolumeState::Pending("data-dev-0".to_owned()),
        refused_pods: Some(Blocker {
            reason: "QuotaExceeded",
            message: "failed quota: q: must specify limits.memory".to_owned(),
        }),
        pods: 0,
        ..down(0)
    };
    let quota = "False/QuotaExceeded";
    check(
        facts,
        but(&[
            (0, quota),
            (1, quota),
            (3, "True/QuotaExceeded"),
            (5, "False/PendingVolume"),
        ]),
    );
}

#[test]
fn ignored_wish_is_said() {
    let facts = ConditionFacts {
        ignored: Some("it is in the future: ignored".to_owned()),
        ..good()
    };
    let updates = conditions::judge(&facts);
    let progressing = updates.iter().find(|update| update.type_ == "Progressing").unwrap();
    assert_eq!(
        progressing.message,
        "nothing is being changed; it is in the future: ignored"
    );
}
