use serde_json::{Value, json};

use super::*;
use crate::testing::{cluster, settings};

/// Returns reason and message of the refusal; empty if the spec can be applied.
fn judged(spec: Value) -> String {
    let refusal = read(&cluster(spec), &strict(), None).err();
    refusal
        .map(|refusal| format!("{}: {}", refusal.reason, refusal.message))
        .unwrap_or_default()
}

fn strict() -> OperatorSettings {
    OperatorSettings {
        allow_unsafe_pods: false,
        ..settings()
    }
}

#[track_caller]
fn refused(spec: Value, expected: &str) {
    let said = judged(spec.clone());
    assert!(said.starts_with(expected), "{spec}: {said:?}");
}

#[test]
fn secrets_of_somebody_else_have_to_be_named() {
    refused(
        json!({"tls": {"mode": "Secret"}}),
        "InvalidSpec: tls.secrets is required when mode is Secret",
    );
}

#[test]
fn lease_as_leader_lock_is_accepted() {
    let tikv = json!({"type": "TiKV", "embedded": null, "tikv": {"pdEndpoints": ["pd:2379"]}});
    let lock = json!({"backend": "Lease", "leaseDuration": "20s"});
    assert_eq!(judged(json!({"storage": tikv, "leaderElection": lock})), "");
}

#[test]
fn contradictions_that_the_api_server_did_not_see_are_refused() {
    refused(json!({"replicas": 2}), "InvalidSpec: Embedded storage is single-member");
    refused(
        json!({"storage": {"embedded": {"size": "ten"}}}),
        "InvalidSpec: storage.embedded.size \"ten\"",
    );
    refused(
        json!({"storage": {"embedded": {"size": "0"}}}),
        "InvalidSpec: storage.embedded.size \"0\"",
    );
    refused(
        json!({"leaderElection": {"retryPeriod": "1d"}}),
        "InvalidSpec: leaderElection: \"1d\" is not a duration",
    );
    refused(
        json!({"tls": {"validity": "90d"}}),
        "InvalidSpec: tls.validity: \"90d\"",
    );
    refused(
        json!({"tls": {"renewBefore": "2160h"}}),
        "InvalidSpec: tls.renewBefore must be shorter",
    );
    refused(
        json!({"tls": {"validity": "30s", "renewBefore": "1s"}}),
        "InvalidSpec: tls.validity must be between",
    );
}

#[test]
fn alternative_names_are_dns_names_or_addresses() {
    for good in ["a", "etcd.example.org", "*.example.org", "10.0.0.9", "fd00::1", "A-b.c"] {
        assert_eq!(judged(json!({"tls": {"serverAltNames": [good]}})), "", "{good}");
    }
    for bad in [
        "",
        "a..b",
        "-a",
        "a-",
        "a_b",
        "https://a",
        "a b",
        "*.",
        "a.*.b",
        "10.0.0.9:80",
        "ä",
    ] {
        refused(
            json!({"tls": {"serverAltNames": [bad]}}),
            &format!("InvalidSpec: tls.serverAltNames: {bad:?}"),
        );
    }
}

#[test]
fn inherited_annotations_give_pods_nothing_either() {
    let inherit = |key: &str| json!({"inheritedMetadata": {"annotations": {"team": "a", key: "x"}}});
    let label = json!({"inheritedMetadata": {"labels": {"team": "a", "azure.workload.identity/use": "true"}}});
    refused(
        label,
        "InvalidSpec: inheritedMetadata.labels[azure.workload.identity/use]: ",
    );
    let allowing = OperatorSettings {
        allowed_pod_metadata: vec!["example.com/*".to_owned()],
        ..strict()
    };
    refused(
        inherit("example.com/team"),
        "InvalidSpec: inheritedMetadata.annotations[example.com/team]: ",
    );
    assert!(read(&cluster(inherit("example.com/team")), &allowing, None).is_ok());
    for key in [
        "container.apparmor.security.beta.kubernetes.io/brain",
        "eks.amazonaws.com/role-arn",
        "iam.gke.io/gcp-service-account",
    ] {
        refused(
            inherit(key),
            &format!("InvalidSpec: inheritedMetadata.annotations[{key}]: "),
        );
        assert!(read(&cluster(inherit(key)), &settings(), None).is_ok());
    }
    // They are not inherited at all.
    for key in ["argocd.argoproj.io/tracking-id", "kubebrain.io/restart-hash"] {
        assert_eq!(judged(inherit(key)), "", "{key}");
    }
}

#[test]
fn pod_template_is_judged_by_what_it_asks_for() {
    assert_eq!(judged(json!({"podTemplate": {}})), "");
    assert_eq!(
        judged(json!({"podTemplate": {"spec": {"hostNetwork": null, "tolerations": []}}})),
        ""
    );
    assert_eq!(
        judged(json!({"podTemplate": {"metadata": {"labels": {"team": "a"}}}})),
        ""
    );
    refused(
        json!({"podTemplate": {"spec": {"contianers": []}, "x": 1}}),
        "InvalidSpec: podTemplate.spec.contianers: a podTemplate may not set this field",
    );
    refused(
        json!({"podTemplate": {"spec": 1}}),
        "InvalidSpec: podTemplate.spec: must be a map",
    );
    let label = json!({"podTemplate": {"metadata": {"labels": {"kubebrain.io/role": "leader"}}}});
    refused(
        label.clone(),
        "InvalidSpec: podTemplate.metadata.labels[kubebrain.io/role]: keys",
    );
    let host = json!({"podTemplate": {"spec": {"hostNetwork": true}}});
    refused(host.clone(), "InvalidSpec: podTemplate.spec.hostNetwork: ");
    let account = json!({"pod": {"serviceAccountName": "admin"}});
    refused(account.clone(), "InvalidSpec: pod.serviceAccountName \"admin\": ");
    // The operator's flags may leave this to admission, except for the labels by which it selects pods.
    for spec in [host, account] {
        assert!(read(&cluster(spec), &settings(), None).is_ok());
    }
    assert!(read(&cluster(label), &settings(), None).is_err());
}
