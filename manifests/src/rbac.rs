//! What the operator may do: exactly what it does. And what a namespace's users may do with clusters.

use serde_json::{Value, json};

use crate::install::Install;

/// One row: API group, resources, verbs.
type Rule = (&'static str, &'static [&'static str], &'static [&'static str]);

/// In every namespace that has clusters.
///
/// Of Leases, Roles and RoleBindings the operator makes those of `leaderElection.backend: Lease`. It can hand out no right that it
/// does not have itself, which is why it may update Leases. It reads no node, executes nothing in a pod and writes no definition.
const RULES: &[Rule] = &[
    ("kubebrain.io", &["kubebrainclusters"], &["get", "list", "watch"]),
    ("kubebrain.io", &["kubebrainclusters/status"], &["patch"]),
    // Owner references that block the owner's deletion ask for this.
    ("kubebrain.io", &["kubebrainclusters/finalizers"], &["update"]),
    ("", &["configmaps"], &["get", "list", "watch", "create", "patch"]),
    (
        "",
        &["secrets", "services", "serviceaccounts"],
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
    ("", &["pods"], &["get", "list", "watch", "patch", "delete"]),
    ("", &["pods/resize"], &["patch"]),
    ("", &["persistentvolumeclaims"], &["get", "list", "watch", "patch"]),
    (
        "apps",
        &["statefulsets"],
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
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
];

/// What a user may do who may view a namespace.
const VIEW: &[Rule] = &[(
    "kubebrain.io",
    &["kubebrainclusters", "kubebrainclusters/status"],
    &["get", "list", "watch"],
)];

/// What a user may do who may edit a namespace. Whoever makes a cluster makes pods.
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
    let mut named = rule(&(leases.0, leases.1, &["get", "update"]));
    named["resourceNames"] = json!([install.name]);
    vec![rule(&(leases.0, leases.1, &["create"])), named]
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
