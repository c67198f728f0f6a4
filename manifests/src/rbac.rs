//! What the operator may do: exactly what it does.

use serde_json::{Value, json};

use crate::render::{NAME, NAMESPACE, labels};

/// ServiceAccount, roles and bindings.
pub(crate) fn objects() -> Vec<Value> {
    vec![
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(Some(NAMESPACE))}),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": metadata(None),
            "rules": rules(),
        }),
        binding("ClusterRole", None),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": metadata(Some(NAMESPACE)),
            "rules": election_rules(),
        }),
        binding("Role", Some(NAMESPACE)),
    ]
}

/// In every namespace that has clusters.
fn rules() -> Vec<Value> {
    vec![
        rule("kubebrain.io", &["kubebrainclusters"], &["get", "list", "watch"]),
        rule("kubebrain.io", &["kubebrainclusters/status"], &["patch"]),
        // Owner references that block the owner's deletion ask for this.
        rule("kubebrain.io", &["kubebrainclusters/finalizers"], &["update"]),
        rule(
            "",
            &["configmaps", "secrets"],
            &["get", "list", "watch", "create", "patch"],
        ),
        rule(
            "",
            &["services", "serviceaccounts"],
            &["get", "list", "watch", "create", "patch", "delete"],
        ),
        rule("", &["pods"], &["list", "watch", "patch", "delete"]),
        rule("", &["persistentvolumeclaims"], &["list", "watch", "patch"]),
        rule("apps", &["statefulsets"], &["get", "list", "watch", "create", "patch"]),
        rule(
            "policy",
            &["poddisruptionbudgets"],
            &["get", "list", "watch", "create", "patch", "delete"],
        ),
        rule(
            "monitoring.coreos.com",
            &["podmonitors"],
            &["get", "create", "patch", "delete"],
        ),
        rule("events.k8s.io", &["events"], &["create", "patch"]),
    ]
}

/// In the operator's own namespace. Creation cannot be restricted by name.
fn election_rules() -> Vec<Value> {
    let mut named = rule("coordination.k8s.io", &["leases"], &["get", "update"]);
    named["resourceNames"] = json!([NAME]);
    vec![rule("coordination.k8s.io", &["leases"], &["create"]), named]
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": resources, "verbs": verbs})
}

fn binding(role: &str, namespace: Option<&str>) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": format!("{role}Binding"),
        "metadata": metadata(namespace),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": NAME},
        "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}],
    })
}

fn metadata(namespace: Option<&str>) -> Value {
    let mut metadata = json!({"name": NAME, "labels": labels()});
    if let Some(namespace) = namespace {
        metadata["namespace"] = json!(namespace);
    }
    metadata
}
