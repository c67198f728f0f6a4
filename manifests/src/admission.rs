//! Opt-in ValidatingAdmissionPolicies. Only the operator and Kubernetes' own controllers may write the operator's objects, and no cluster
//! gets pods with rights over a node.

use serde_json::{Value, json};

use crate::install::Install;

/// A policy and its binding.
struct Policy {
    part: &'static str,
    constraints: Value,
    validations: Vec<(String, &'static str)>,
}

/// Returns the policy for objects with the operator's label.
pub(crate) fn children(install: &Install) -> Vec<Value> {
    let account = format!("system:serviceaccount:{}:{}", install.namespace, install.name);
    // Controllers use accounts of kube-system or the controller manager's own name; nodes write the pods they run.
    let writer = format!(
        "request.userInfo.username in ['{account}', 'system:kube-controller-manager', 'system:kube-scheduler'] || \
         request.userInfo.username.startsWith('system:serviceaccount:kube-system:') || \
         (has(request.userInfo.groups) && 'system:nodes' in request.userInfo.groups)"
    );
    let policy = Policy {
        part: "children",
        constraints: json!({
            // Pods may still be deleted: they are recreated.
            "resourceRules": [
                resources("", "v1", &["CREATE", "UPDATE"], &["pods"]),
                resources("", "v1", &["CREATE", "UPDATE", "DELETE"], &["configmaps", "secrets", "serviceaccounts", "services"]),
                resources("apps", "v1", &["CREATE", "UPDATE", "DELETE"], &["statefulsets"]),
                resources("policy", "v1", &["CREATE", "UPDATE", "DELETE"], &["poddisruptionbudgets"]),
                resources("rbac.authorization.k8s.io", "v1", &["CREATE", "UPDATE", "DELETE"], &["roles", "rolebindings"]),
            ],
            "objectSelector": {"matchLabels": {"app.kubernetes.io/managed-by": "kubebrain-operator"}},
        }),
        validations: vec![(
            writer,
            "the KubeBrain operator manages this object: change the KubeBrainCluster instead, or leave out the label \
             app.kubernetes.io/managed-by",
        )],
    };
    policy.objects(install)
}

/// Returns the policy against KubeBrainClusters whose pods would have rights over a node, or those of another account.
pub(crate) fn pod_templates(install: &Install) -> Vec<Value> {
    let policy = Policy {
        part: "pod-templates",
        constraints: json!({
            "resourceRules": [resources("kubebrain.io", "v1alpha1", &["CREATE", "UPDATE"], &["kubebrainclusters"])],
        }),
        validations: pod_template_rules(),
    };
    policy.objects(install)
}

fn pod_template_rules() -> Vec<(String, &'static str)> {
    let pod = "object.spec.podTemplate.spec";
    // An explicit null counts as absent.
    let template = "has(object.spec.podTemplate) && object.spec.podTemplate != null && has(object.spec.podTemplate.spec) \
                    && object.spec.podTemplate.spec != null";
    let flag = |field: &str| format!("!({template} && has({pod}.{field}) && {pod}.{field} == true)");
    let each = |list: &str, bad: &str| {
        format!("!({template} && has({pod}.{list}) && {pod}.{list} != null && {pod}.{list}.exists(c, {bad}))")
    };
    let containers = |bad: &str| {
        ["containers", "initContainers", "ephemeralContainers"]
            .map(|list| each(list, bad))
            .join(" && ")
    };
    let context = "has(c.securityContext) && c.securityContext != null";
    let token =
        "has(c.volumeMounts) && c.volumeMounts != null && c.volumeMounts.exists(m, m.name == 'kube-api-access')";
    let account = |field: &str| {
        format!(
            "!({template} && has({pod}.{field}) && {pod}.{field} != null && {pod}.{field} != '' && \
             {pod}.{field} != object.metadata.name)"
        )
    };
    vec![
        (
            flag("hostNetwork"),
            "podTemplate.spec.hostNetwork must not be true: brains need no network of a node",
        ),
        (
            flag("hostPID"),
            "podTemplate.spec.hostPID must not be true: brains need no processes of a node",
        ),
        (
            flag("hostIPC"),
            "podTemplate.spec.hostIPC must not be true: brains need no memory of a node",
        ),
        (
            containers(&format!(
                "{context} && has(c.securityContext.privileged) && c.securityContext.privileged == true"
            )),
            "no container of podTemplate may be privileged: remove securityContext.privileged",
        ),
        (
            each("volumes", "has(c.hostPath) && c.hostPath != null"),
            "podTemplate.spec.volumes must not have a hostPath: use another kind of volume",
        ),
        (
            containers(
                "has(c.ports) && c.ports != null && c.ports.exists(p, has(p.hostPort) && p.hostPort != null && p.hostPort != 0)",
            ),
            "no container of podTemplate may have a hostPort: use services.client instead",
        ),
        (
            format!(
                "!({template} && has({pod}.containers) && {pod}.containers != null && {pod}.containers.exists(c, c.name != 'brain' && {token})) && {}",
                each("initContainers", token)
            ),
            "no container of podTemplate but the brain may mount kube-api-access, which is the token of the leader lock",
        ),
        (
            [account("serviceAccountName"), account("serviceAccount")].join(" && "),
            "podTemplate.spec.serviceAccountName must be the cluster's own account, which has the cluster's name: remove it",
        ),
        (
            "!(has(object.spec.pod) && object.spec.pod != null && has(object.spec.pod.serviceAccountName) && \
             object.spec.pod.serviceAccountName != null && object.spec.pod.serviceAccountName != object.metadata.name)"
                .to_owned(),
            "pod.serviceAccountName must be the cluster's own account, which has the cluster's name: remove it",
        ),
    ]
}

impl Policy {
    fn objects(self, install: &Install) -> Vec<Value> {
        let name = install.named(self.part);
        let validations: Vec<Value> = self
            .validations
            .into_iter()
            .map(|(expression, message)| json!({"expression": expression, "message": message, "reason": "Forbidden"}))
            .collect();
        let group = "admissionregistration.k8s.io/v1";
        vec![
            json!({
                "apiVersion": group,
                "kind": "ValidatingAdmissionPolicy",
                "metadata": install.metadata(&name, None),
                "spec": {
                    "failurePolicy": "Fail",
                    "matchConstraints": self.constraints,
                    "validations": validations,
                },
            }),
            json!({
                "apiVersion": group,
                "kind": "ValidatingAdmissionPolicyBinding",
                "metadata": install.metadata(&name, None),
                "spec": {"policyName": name, "validationActions": ["Deny"]},
            }),
        ]
    }
}

fn resources(group: &str, version: &str, operations: &[&str], resources: &[&str]) -> Value {
    json!({"apiGroups": [group], "apiVersions": [version], "operations": operations, "resources": resources})
}

#[cfg(test)]
mod tests;
