//! The ValidatingAdmissionPolicies, by their expressions.

use cel::{Context, Program, Value as Cel};
use serde_json::{Value, json};

use crate::files::{objects, only};

const FILE: &str = "yaml/components/admission-policies/objects.yaml";

/// Returns the policy with this name.
fn policy(name: &str) -> Value {
    let mut all = objects(FILE)
        .into_iter()
        .filter(|object| object["kind"] == "ValidatingAdmissionPolicy");
    all.find(|object| object["metadata"]["name"] == format!("kubebrain-operator-{name}"))
        .unwrap()
}

/// Returns the messages of the rules that are violated.
fn refusals(policy: &Value, object: &Value, user: &Value) -> Vec<String> {
    let mut context = Context::default();
    context.add_variable("object", cel::to_value(object).unwrap()).unwrap();
    let request = json!({"userInfo": user});
    context
        .add_variable("request", cel::to_value(request).unwrap())
        .unwrap();
    let mut refused = Vec::new();
    for validation in policy["spec"]["validations"].as_array().unwrap() {
        let expression = validation["expression"].as_str().unwrap();
        let program = Program::compile(expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
        match program
            .execute(&context)
            .unwrap_or_else(|error| panic!("{expression}: {error}"))
        {
            Cel::Bool(true) => {}
            Cel::Bool(false) => refused.push(validation["message"].as_str().unwrap().to_owned()),
            other => panic!("{expression} is {other:?}"),
        }
    }
    refused
}

fn cluster(spec: Value) -> Value {
    json!({"metadata": {"name": "dev"}, "spec": spec})
}

#[track_caller]
fn judge(spec: Value) -> Vec<String> {
    let policy = &policy("pod-templates");
    refusals(policy, &cluster(spec), &json!({"username": "somebody"}))
}

#[track_caller]
fn refused(spec: Value, part: &str) {
    let refusals = judge(spec);
    assert_eq!(refusals.len(), 1, "{refusals:?}");
    assert!(refusals[0].contains(part), "{refusals:?}");
}

#[test]
fn ordinary_clusters_are_accepted() {
    let none: Vec<String> = Vec::new();
    assert_eq!(judge(json!({})), none);
    assert_eq!(judge(json!({"podTemplate": null})), none);
    assert_eq!(judge(json!({"podTemplate": {"spec": null}})), none);
    assert_eq!(
        judge(json!({"podTemplate": {"metadata": {"labels": {"a": "b"}}}})),
        none
    );
    assert_eq!(judge(json!({"pod": null})), none);
    for account in [json!("dev"), json!(null)] {
        assert_eq!(judge(json!({"pod": {"serviceAccountName": account}})), none);
        assert_eq!(
            judge(json!({"podTemplate": {"spec": {"serviceAccountName": account}}})),
            none
        );
    }
    let spec = json!({
        "hostNetwork": false,
        "serviceAccountName": "dev",
        "containers": [{"name": "brain", "securityContext": null, "ports": [{"containerPort": 1}]}],
        "initContainers": [{"name": "before", "securityContext": {"privileged": false}}],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    });
    assert_eq!(judge(json!({"podTemplate": {"spec": spec}})), none);
}

#[test]
fn rights_over_a_node_are_refused() {
    let with = |spec: Value| json!({"podTemplate": {"spec": spec}});
    refused(with(json!({"hostNetwork": true})), "hostNetwork");
    refused(with(json!({"hostPID": true})), "hostPID");
    refused(with(json!({"hostIPC": true})), "hostIPC");
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        refused(
            with(json!({list: [{"name": "a"}, {"name": "b", "securityContext": {"privileged": true}}]})),
            "privileged",
        );
        refused(
            with(json!({list: [{"name": "a", "ports": [{"hostPort": 80}]}]})),
            "hostPort",
        );
    }
    refused(
        with(json!({"volumes": [{"name": "root", "hostPath": {"path": "/"}}]})),
        "hostPath",
    );
}

#[test]
fn token_of_the_leader_lock_is_for_the_brain_alone() {
    let mounts = |list: &str, name: &str| {
        let mounts = json!([{"name": "kube-api-access", "mountPath": "/a"}]);
        json!({"podTemplate": {"spec": {list: [{"name": name, "volumeMounts": mounts}]}}})
    };
    refused(mounts("containers", "side"), "kube-api-access");
    refused(mounts("initContainers", "brain"), "kube-api-access");
    assert_eq!(judge(mounts("containers", "brain")), Vec::<String>::new());
}

#[test]
fn foreign_accounts_are_refused() {
    for field in ["serviceAccountName", "serviceAccount"] {
        refused(
            json!({"podTemplate": {"spec": {field: "admin"}}}),
            "podTemplate.spec.serviceAccountName",
        );
    }
    refused(
        json!({"pod": {"serviceAccountName": "admin"}}),
        "pod.serviceAccountName",
    );
}

#[test]
fn only_operator_and_controllers_write_children() {
    let policy = &policy("children");
    let may = |user: Value| refusals(policy, &json!({}), &user).is_empty();
    for name in [
        "system:serviceaccount:kubebrain-system:kubebrain-operator",
        "system:serviceaccount:kube-system:statefulset-controller",
        "system:kube-controller-manager",
    ] {
        assert!(
            may(json!({"username": name, "groups": ["system:authenticated"]})),
            "{name}"
        );
        assert!(may(json!({"username": name})), "{name}");
    }
    assert!(may(json!({"username": "system:node:a", "groups": ["system:nodes"]})));
    for name in [
        "jane",
        "system:serviceaccount:brains:kubebrain-operator",
        "system:serviceaccount:kube-system-not:default",
        "system:node:a",
    ] {
        assert!(
            !may(json!({"username": name, "groups": ["system:authenticated"]})),
            "{name}"
        );
        assert!(!may(json!({"username": name})), "{name}");
    }
}

#[test]
fn the_operator_that_may_write_children_is_the_one_that_is_installed() {
    let account = only("yaml/operator/rbac.yaml", "ServiceAccount");
    let (namespace, name) = (&account["metadata"]["namespace"], &account["metadata"]["name"]);
    let user = format!(
        "system:serviceaccount:{}:{}",
        namespace.as_str().unwrap(),
        name.as_str().unwrap()
    );
    assert_eq!(
        refusals(&policy("children"), &json!({}), &json!({"username": user})),
        Vec::<String>::new()
    );
}

#[test]
fn children_are_what_the_operator_labels() {
    let labels = &policy("children")["spec"]["matchConstraints"]["objectSelector"]["matchLabels"];
    for (label, value) in labels.as_object().unwrap() {
        for object in objects("../operator/plan/fixtures/epoch-2/minimal.yaml") {
            assert_eq!(&object["metadata"]["labels"][label], value, "{}", object["kind"]);
        }
    }
}

#[test]
fn every_policy_denies_by_a_binding() {
    let all = objects(FILE);
    let of = |kind: &str| -> Vec<Value> {
        let some = all.iter().filter(|object| object["kind"] == kind);
        some.cloned().collect()
    };
    let policies = of("ValidatingAdmissionPolicy");
    assert_eq!(policies.len(), 2);
    for (policy, binding) in policies.iter().zip(of("ValidatingAdmissionPolicyBinding")) {
        let name = &policy["metadata"]["name"];
        let spec = json!({"policyName": name, "validationActions": ["Deny"]});
        assert_eq!((&binding["metadata"]["name"], &binding["spec"]), (name, &spec));
        assert_eq!(policy["spec"]["failurePolicy"], "Fail", "{name}");
        for validation in policy["spec"]["validations"].as_array().unwrap() {
            assert_eq!(validation["reason"], "Forbidden", "{validation}");
        }
    }
}
