//! The rights of the operator and of users.

use serde_json::{Value, json};

use crate::files::{objects, objects_below, only, strings};

fn is_role(object: &Value) -> bool {
    ["Role", "ClusterRole"].contains(&object["kind"].as_str().unwrap())
}

#[test]
fn an_operator_of_some_namespaces_has_no_right_elsewhere() {
    for (directory, namespaces) in [
        ("yaml/one-namespace", &["brains"][..]),
        ("yaml/several-namespaces", &["brains-a", "brains-b"]),
    ] {
        let all = objects_below(directory);
        assert!(
            all.iter()
                .all(|(_, object)| !object["kind"].as_str().unwrap().starts_with("Cluster"))
        );
        for kind in ["Namespace", "Role", "RoleBinding"] {
            let some = all.iter().filter(|(_, object)| object["kind"] == kind);
            let field = if kind == "Namespace" { "name" } else { "namespace" };
            let spaces: Vec<&str> = some
                .map(|(_, object)| object["metadata"][field].as_str().unwrap())
                .collect();
            assert_eq!(spaces, namespaces, "{kind}");
        }
        let kustomization = only(&format!("{directory}/kustomization.yaml"), "Kustomization");
        let patch = kustomization["patches"][0]["patch"].as_str().unwrap();
        assert!(
            patch.contains(&format!("--namespace={}\"", namespaces.join(","))),
            "{patch}"
        );
    }
}

#[test]
fn roles_give_no_wildcard_and_no_way_to_more_rights() {
    for (name, object) in objects_below("yaml") {
        if !is_role(&object) {
            continue;
        }
        for rule in object["rules"].as_array().unwrap() {
            let text = rule.to_string();
            for bad in [
                "\"*\"",
                "escalate",
                "bind\"",
                "impersonate",
                "pods/exec",
                "nodes",
                "customresourcedefinitions",
            ] {
                assert!(!text.contains(bad), "{name}: {text}");
            }
        }
    }
}

/// Kubernetes lets a subject grant only rights that it has. Compares with the Role of brains that compete for a Lease, as the operator
/// renders it.
#[test]
fn operator_holds_what_it_grants() {
    let role = only("../operator/plan/fixtures/epoch-2/lease.yaml", "Role");
    let own = only("yaml/cluster-wide/rbac.yaml", "ClusterRole");
    for rule in role["rules"].as_array().unwrap() {
        let resources = strings(&rule["resources"]);
        let mut held = own["rules"].as_array().unwrap().iter().filter(|own| {
            own["apiGroups"] == rule["apiGroups"]
                && resources
                    .iter()
                    .all(|resource| strings(&own["resources"]).contains(resource))
        });
        let verbs = strings(&held.next().unwrap()["verbs"]);
        let missing: Vec<&str> = strings(&rule["verbs"])
            .into_iter()
            .filter(|verb| !verbs.contains(verb))
            .collect();
        assert!(missing.is_empty(), "{missing:?} of {resources:?}");
    }
}

#[test]
fn every_binding_gives_a_role_beside_it_to_the_operator() {
    let mut bindings = 0;
    for name in [
        "yaml/operator/rbac.yaml",
        "yaml/cluster-wide/rbac.yaml",
        "yaml/one-namespace/rbac.yaml",
        "yaml/several-namespaces/rbac.yaml",
    ] {
        let all = objects(name);
        for role in all.iter().filter(|object| is_role(object)) {
            let (kind, metadata) = (role["kind"].as_str().unwrap(), &role["metadata"]);
            let binding = all
                .iter()
                .find(|object| object["kind"] == format!("{kind}Binding") && object["metadata"] == *metadata);
            let binding = binding.unwrap_or_else(|| panic!("{name}: nothing binds {metadata}"));
            let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": metadata["name"]});
            assert_eq!(binding["roleRef"], role, "{name}");
            let account = &only("yaml/operator/rbac.yaml", "ServiceAccount")["metadata"];
            let account =
                json!([{"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}]);
            assert_eq!(binding["subjects"], account, "{name}");
            bindings += 1;
        }
    }
    assert_eq!(bindings, 5);
}

#[test]
fn the_operator_may_renew_the_lease_that_it_is_told_to_take() {
    let role = only("yaml/operator/rbac.yaml", "Role");
    let update = role["rules"].as_array().unwrap().iter();
    let mut update = update.filter(|rule| strings(&rule["verbs"]).contains(&"update"));
    let names = strings(&update.next().unwrap()["resourceNames"])[0].to_owned();
    let deployment = only("yaml/operator/operator.yaml", "Deployment");
    let arguments = &deployment["spec"]["template"]["spec"]["containers"][0]["args"];
    assert!(strings(arguments).contains(&format!("--leader-elect-name={names}").as_str()));
}

#[test]
fn roles_of_users_are_added_to_those_of_kubernetes() {
    let roles = objects("yaml/cluster-wide/roles.yaml");
    let into = |role: &Value| -> Vec<String> {
        let labels = role["metadata"]["labels"].as_object().unwrap();
        let mut into = labels.iter().filter_map(|(label, value)| {
            assert!(value.is_string());
            let role = label.strip_prefix("rbac.authorization.k8s.io/aggregate-to-")?;
            (value == "true").then(|| role.to_owned())
        });
        into.by_ref().collect()
    };
    assert_eq!(into(&roles[0]), ["admin", "edit", "view"]);
    assert_eq!(into(&roles[1]), ["admin", "edit"]);
}
