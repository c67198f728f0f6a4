//! The rights of the operator: exactly what it does. And the rights of a namespace's users on clusters.

use serde_json::{Value, json};

use crate::install::Install;

/// One row: API group, resources, verbs.
type Rule = (&'static str, &'static [&'static str], &'static [&'static str]);

/// In every namespace that has clusters.
///
/// Of Leases, Roles and RoleBindings the operator makes those of `leaderElection.backend: Lease`. It can hand out no right that it
/// does not have itself, which is why it may update Leases: brains do. It reads no node, executes nothing in a pod and writes no
/// definition.
const RULES: &[Rule] = &[
    // Only its own finalizer is patched into a cluster.
    (
        "kubebrain.io",
        &["kubebrainclusters"],
        &["get", "list", "watch", "patch"],
    ),
    ("kubebrain.io", &["kubebrainclusters/status"], &["patch"]),
    // Owner references that block the owner's deletion ask for this.
    ("kubebrain.io", &["kubebrainclusters/finalizers"], &["update"]),
    ("", &["configmaps"], &["get", "list", "watch", "create", "patch"]),
    (
        "",
        &["secrets", "services", "serviceaccounts"],
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
    // One is made to try a new template.
    ("", &["pods"], &["get", "list", "watch", "create", "patch", "delete"]),
    ("", &["pods/resize"], &["patch"]),
    ("", &["persistentvolumeclaims"], &["get", "list", "watch", "patch"]),
    (
        "apps",
        &["statefulsets"],
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
    // The wipe of a deleted cluster.
    ("batch", &["jobs"], &["get", "create", "delete"]),
    (
        "policy",
        &["poddisruptionbudgets"],
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
    (
        "coordination.k8s.io",
        &["leases"],
        &["get", "list", "watch", "create", "update", "patch", "delete"],
    ),
    (
        "rbac.authorization.k8s.io",
        &["roles", "rolebindings"],
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
    // These two only where somebody else installed their definitions.
    (
        "monitoring.coreos.com",
        &["podmonitors"],
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
    ("core.pingcap.com", &["clusters"], &["get", "list", "watch"]),
    ("events.k8s.io", &["events"], &["create", "patch"]),
    // A StatefulSet's controller says only there why it cannot make pods. The older API finds them by their object.
    ("", &["events"], &["list"]),
];

/// Rights of a user who may view a namespace.
const VIEW: &[Rule] = &[(
    "kubebrain.io",
    &["kubebrainclusters", "kubebrainclusters/status"],
    &["get", "list", "watch"],
)];

/// Rights of a user who may edit a namespace. A user who makes a cluster makes pods.
const EDIT: &[Rule] = &[
    (
        "kubebrain.io",
        &["kubebrainclusters"],
        &["create", "delete", "deletecollection", "patch", "update"],
    ),
    (
        "kubebrain.io",
        &["kubebrainclusters/scale"],
        &["get", "patch", "update"],
    ),
];

/// ServiceAccount, and the right to the Lease by which replicas agree, in the operator's own namespace.
pub(crate) fn own(install: &Install) -> Vec<Value> {
    let election = install.named("leader-election");
    let space = install.namespace.as_str();
    vec![
        json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": install.metadata(&install.name, Some(space)),
        }),
        role(install, &election, Some(space), election_rules(install)),
        binding(install, &election, Some(space)),
    ]
}

/// For an operator that looks after every namespace.
pub(crate) fn cluster_wide(install: &Install) -> Vec<Value> {
    vec![
        role(install, &install.name, None, rules(RULES)),
        binding(install, &install.name, None),
    ]
}

/// For an operator that looks after this namespace, and perhaps others.
pub(crate) fn in_namespace(install: &Install, namespace: &str) -> Vec<Value> {
    vec![
        role(install, &install.name, Some(namespace), rules(RULES)),
        binding(install, &install.name, Some(namespace)),
    ]
}

/// Added by Kubernetes to its own roles view, edit and admin.
pub(crate) fn aggregated(install: &Install) -> Vec<Value> {
    [
        ("view", VIEW, &["view", "edit", "admin"][..]),
        ("edit", EDIT, &["edit", "admin"]),
    ]
    .into_iter()
    .map(|(part, table, into)| {
        let mut role = role(install, &install.named(part), None, rules(table));
        for name in into {
            role["metadata"]["labels"][format!("rbac.authorization.k8s.io/aggregate-to-{name}")] = json!("true");
        }
        role
    })
    .collect()
}

/// Creation cannot be restricted by name.
fn election_rules(install: &Install) -> Vec<Value> {
    let leases = ("coordination.k8s.io", &["leases"][..]);
    let mut named = rule(&(leases.0, leases.1, &["update"]));
    named["resourceNames"] = json!([install.name]);
    // The operator also reads the Leases of other installations: one that does not change belongs to an installation that is gone.
    vec![rule(&(leases.0, leases.1, &["create", "get"])), named]
}

fn rules(table: &[Rule]) -> Vec<Value> {
    table.iter().map(rule).collect()
}

fn rule((group, resources, verbs): &Rule) -> Value {
    json!({"apiGroups": [group], "resources": resources, "verbs": verbs})
}

/// A ClusterRole without a namespace.
fn role(install: &Install, name: &str, namespace: Option<&str>, rules: Vec<Value>) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind(namespace),
        "metadata": install.metadata(name, namespace),
        "rules": rules,
    })
}

fn binding(install: &Install, name: &str, namespace: Option<&str>) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": format!("{}Binding", kind(namespace)),
        "metadata": install.metadata(name, namespace),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind(namespace), "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": install.name, "namespace": install.namespace}],
    })
}

fn kind(namespace: Option<&str>) -> &'static str {
    if namespace.is_some() { "Role" } else { "ClusterRole" }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize as _;

    use super::*;

    /// Kubernetes lets nobody hand out a right that he does not have: the Role of brains that compete for a Lease, as the operator
    /// renders it.
    #[test]
    fn operator_holds_what_it_grants() {
        let rendered = include_str!("../../operator/fixtures/epoch-2/lease.yaml");
        let objects =
            serde_yaml::Deserializer::from_str(rendered).map(|document| Value::deserialize(document).unwrap());
        let roles: Vec<Value> = objects.filter(|object| object["kind"] == "Role").collect();
        assert_eq!(roles.len(), 1);
        let words = |list: &Value| -> Vec<String> { serde_json::from_value(list.clone()).unwrap() };
        for rule in roles[0]["rules"].as_array().unwrap() {
            let (groups, resources) = (words(&rule["apiGroups"]), words(&rule["resources"]));
            let mut held = RULES.iter().filter(|(group, plurals, _)| {
                groups == [*group] && resources.iter().all(|resource| plurals.contains(&resource.as_str()))
            });
            let (_, _, verbs) = held.next().unwrap();
            let missing: Vec<String> = words(&rule["verbs"])
                .into_iter()
                .filter(|verb| !verbs.contains(&verb.as_str()))
                .collect();
            assert!(missing.is_empty(), "{missing:?} of {resources:?}");
        }
    }
}
