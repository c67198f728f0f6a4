//! The rights of the operator, limited to what it does; and the rights of a namespace's users on clusters.

use serde_json::{Value, json};

use crate::install::Install;

/// One rule: API group, resources, verbs.
type Rule = (&'static str, &'static [&'static str], &'static [&'static str]);

/// Rights in every namespace that has clusters.
///
/// The operator creates the Leases, Roles and RoleBindings of `leaderElection.backend: Lease`. It cannot grant a right that it does not
/// have itself. It may update Leases because the brains do. It reads no nodes, executes nothing in pods and writes no CRDs.
const RULES: &[Rule] = &[
    // Only the operator's own finalizer is patched into a cluster.
    (
        "kubebrain.io",
        &["kubebrainclusters"],
        &["get", "list", "watch", "patch"],
    ),
    ("kubebrain.io", &["kubebrainclusters/status"], &["patch"]),
    // Owner references that block the owner's deletion require this.
    ("kubebrain.io", &["kubebrainclusters/finalizers"], &["update"]),
    ("", &["configmaps"], &["get", "list", "watch", "create", "patch"]),
    (
        "",
        &["secrets", "services", "serviceaccounts"],
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
    // The operator creates a pod to try a new template.
    ("", &["pods"], &["get", "list", "watch", "create", "patch", "delete"]),
    ("", &["pods/resize"], &["patch"]),
    ("", &["persistentvolumeclaims"], &["get", "list", "watch", "patch"]),
    (
        "apps",
        &["statefulsets"],
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
    // Deletes the keys of a deleted cluster.
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
    // These two apply only where other software has installed their CRDs.
    (
        "monitoring.coreos.com",
        &["podmonitors"],
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
    ("core.pingcap.com", &["clusters"], &["get", "list", "watch"]),
    ("events.k8s.io", &["events"], &["create", "patch"]),
    // Only the events of a StatefulSet's controller say why it cannot create pods. The older events API can select them by their object.
    ("", &["events"], &["list"]),
];

/// Rights of a user who may view a namespace.
const VIEW: &[Rule] = &[(
    "kubebrain.io",
    &["kubebrainclusters", "kubebrainclusters/status"],
    &["get", "list", "watch"],
)];

/// Rights of a user who may edit a namespace. A user who can create a cluster can create pods.
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

/// Returns the ServiceAccount, and the right to the Lease of the leader election, in the operator's own namespace.
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

/// Returns the rights of an operator that manages every namespace.
pub(crate) fn cluster_wide(install: &Install) -> Vec<Value> {
    vec![
        role(install, &install.name, None, rules(RULES)),
        binding(install, &install.name, None),
    ]
}

/// Returns the rights of an operator that manages this namespace, and possibly others.
pub(crate) fn in_namespace(install: &Install, namespace: &str) -> Vec<Value> {
    vec![
        role(install, &install.name, Some(namespace), rules(RULES)),
        binding(install, &install.name, Some(namespace)),
    ]
}

/// Returns the roles that Kubernetes adds to its own roles view, edit and admin.
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

/// Returns the rules for the Lease. `create` cannot be restricted by name.
fn election_rules(install: &Install) -> Vec<Value> {
    let leases = ("coordination.k8s.io", &["leases"][..]);
    let mut named = rule(&(leases.0, leases.1, &["update"]));
    named["resourceNames"] = json!([install.name]);
    // The operator also reads the Leases of other installations: if a Lease does not change, its installation no longer exists.
    vec![rule(&(leases.0, leases.1, &["create", "get"])), named]
}

fn rules(table: &[Rule]) -> Vec<Value> {
    table.iter().map(rule).collect()
}

fn rule((group, resources, verbs): &Rule) -> Value {
    json!({"apiGroups": [group], "resources": resources, "verbs": verbs})
}

/// Returns a Role, or a ClusterRole without a namespace.
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

    /// Kubernetes lets a subject grant only rights that it has. Compares with the Role of brains that compete for a Lease, as the operator
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
