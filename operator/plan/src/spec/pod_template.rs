//! The partial PodTemplateSpec of a spec, and what it may not request.
//!
//! A user who may create a KubeBrainCluster gets pods that the operator creates. By default they have no more rights than brains need, so
//! that creating a cluster does not bypass the rules for creating pods: no access to the node, no root, no other identity, no Secret that
//! is not the cluster's own. Fields are allowed one by one (`allowed`), and so are labels and annotations (`metadata`), including those
//! that a spec gives to all objects. With the operator's `--allow-unsafe-pods`, this is left to the admission of the Kubernetes cluster.

use std::collections::BTreeMap;

use crds::KubeBrainCluster;
use serde_json::Value;

use crate::certificates::Leaf;
use crate::names::{Names, is_reserved};
use crate::objects::{BRAIN_CONTAINER, TOKEN_VOLUME};

mod allowed;
pub(super) mod metadata;

/// Fields of a pod that share namespaces with the node or between containers.
const NAMESPACE_SHARING_FIELDS: [&str; 4] = ["hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"];

/// Lists of containers.
const CONTAINER_LISTS: [&str; 2] = ["containers", "initContainers"];

/// Returns the first part that cannot be merged, with the reason. The API server, which knows all fields, validates them.
pub(super) fn malformed(template: &Value) -> Option<String> {
    let parts = ["", "/metadata", "/metadata/labels", "/metadata/annotations", "/spec"];
    let found = parts.into_iter().find(|part| {
        let value = template.pointer(part).filter(|value| !value.is_null());
        value.is_some_and(|value| !value.is_object())
    });
    if let Some(part) = found {
        return Some(format!("podTemplate{}: must be a map", part.replace('/', ".")));
    }
    let directive = directive(template, "podTemplate")?;
    Some(format!(
        "{directive}: directives of patches are not supported; lists merge by their keys, and a null removes a field"
    ))
}

/// Returns the path of the first field that is a directive for the merge.
fn directive(value: &Value, path: &str) -> Option<String> {
    match value {
        Value::Object(fields) => fields.iter().find_map(|(field, value)| {
            let path = format!("{path}.{field}");
            if field.starts_with('$') {
                return Some(path);
            }
            directive(value, &path)
        }),
        Value::Array(entries) => {
            let mut entries = entries.iter().enumerate();
            entries.find_map(|(i, entry)| directive(entry, &format!("{path}[{i}]")))
        }
        _ => None,
    }
}

/// Returns ConfigMaps that a template reads, with the fields that name them.
pub(super) fn config_maps(template: &Value) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut name = |path: String, reference: &Value| {
        found.extend(
            reference["name"]
                .as_str()
                .map(|name| (format!("podTemplate.{path}"), name.to_owned())),
        );
    };
    let spec = &template["spec"];
    for (path, container) in CONTAINER_LISTS.into_iter().flat_map(|list| entries(spec, "spec", list)) {
        for (path, env) in entries(container, &path, "env") {
            name(
                format!("{path}.valueFrom.configMapKeyRef"),
                &env["valueFrom"]["configMapKeyRef"],
            );
        }
        for (path, from) in entries(container, &path, "envFrom") {
            name(format!("{path}.configMapRef"), &from["configMapRef"]);
        }
    }
    for (path, volume) in entries(spec, "spec", "volumes") {
        name(format!("{path}.configMap"), &volume["configMap"]);
        for (path, source) in entries(&volume["projected"], &format!("{path}.projected"), "sources") {
            name(format!("{path}.configMap"), &source["configMap"]);
        }
    }
    found
}

/// Returns the first field that requests more than brains may have, with the reason of its refusal.
pub(super) fn excess(
    cluster: &KubeBrainCluster,
    names: &Names,
    template: &Value,
    allowed_metadata: &[String],
) -> Option<String> {
    let check = TemplateCheck {
        own: own_secrets(cluster, names),
        account: &names.cluster,
    };
    metadata::of_template(&template["metadata"], allowed_metadata)
        .and_then(|(path, why)| refuse(&path, &why))
        .or_else(|| check.pod(&template["spec"]))
        .or_else(|| {
            let path = allowed::stranger(template, &allowed::TEMPLATE, "")?;
            refuse(&path, "a podTemplate may not set this field")
        })
}

/// Returns true if a number is zero, in any notation.
fn is_zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}

fn has_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.values().any(has_null),
        Value::Array(entries) => entries.iter().any(has_null),
        _ => false,
    }
}

/// Returns the first label or annotation that belongs to the operator, with the reason of its refusal: pods are selected and compared by
/// them.
pub(super) fn taken(template: &Value) -> Option<String> {
    ["labels", "annotations"].into_iter().find_map(|kind| {
        let keys = template["metadata"][kind]
            .as_object()
            .into_iter()
            .flat_map(|map| map.keys());
        let taken = keys.into_iter().find(|key| is_reserved(key))?;
        refuse(
            &format!("metadata.{kind}[{taken}]"),
            "keys of kubebrain.io are reserved for the operator",
        )
    })
}

/// Keys of a Secret that the pods may read.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ReadableKeys {
    /// All keys: the operator wrote the Secret.
    All,
    /// The keys that a certificate needs, in a Secret of the user that may hold more.
    These(Vec<String>),
}

/// Returns Secrets that the pods may read: the cluster's certificates but not its authority's key, and those that the spec names.
fn own_secrets(cluster: &KubeBrainCluster, names: &Names) -> BTreeMap<String, ReadableKeys> {
    let mut named: Vec<(&String, &str)> = Vec::new();
    if let Some(given) = &cluster.spec.tls.secrets {
        named.push((&given.ca_bundle.name, &given.ca_bundle.key));
        for pair in [&given.server, &given.peer] {
            named.extend([(&pair.name, "tls.crt"), (&pair.name, "tls.key")]);
        }
    }
    if let Some(tls) = cluster.spec.storage.tikv.as_ref().and_then(|tikv| tikv.tls.as_ref()) {
        let client = &tls.client_secret_ref.name;
        named.push((&tls.ca_secret_ref.name, &tls.ca_secret_ref.key));
        named.extend([(client, "tls.crt"), (client, "tls.key")]);
    }
    if let Some(jwt) = &cluster.spec.jwt_secret_ref {
        named.extend([(&jwt.name, "jwt.pub"), (&jwt.name, "jwt.key")]);
    }
    let mut own = BTreeMap::new();
    for (name, key) in named {
        if let ReadableKeys::These(keys) = own
            .entry(name.clone())
            .or_insert_with(|| ReadableKeys::These(Vec::new()))
        {
            keys.push(key.to_owned());
        }
    }
    // The cluster's own Secrets are readable as a whole, even if the spec also names them.
    own.extend(Leaf::ALL.map(|leaf| (names.leaf(leaf), ReadableKeys::All)));
    own
}

struct TemplateCheck<'a> {
    own: BTreeMap<String, ReadableKeys>,
    account: &'a str,
}

fn refuse(path: &str, why: &str) -> Option<String> {
    Some(format!("podTemplate.{path}: {why}"))
}

/// Returns the entries of a list with their paths.
fn entries<'a>(parent: &'a Value, path: &str, list: &str) -> Vec<(String, &'a Value)> {
    let entries = parent[list].as_array().into_iter().flatten().enumerate();
    entries
        .map(|(i, entry)| (format!("{path}.{list}[{i}]"), entry))
        .collect()
}

impl TemplateCheck<'_> {
    fn pod(&self, spec: &Value) -> Option<String> {
        if let Some(field) = NAMESPACE_SHARING_FIELDS.into_iter().find(|field| spec[*field] == true) {
            return refuse(
                &format!("spec.{field}"),
                "brains may not use the host's namespaces or see other processes",
            );
        }
        for field in ["serviceAccountName", "serviceAccount"] {
            if spec[field]
                .as_str()
                .is_some_and(|name| !name.is_empty() && name != self.account)
            {
                return refuse(&format!("spec.{field}"), "brains may not use another service account");
            }
        }
        for field in ["serviceAccountName", "automountServiceAccountToken"] {
            if spec.get(field).is_some_and(Value::is_null) {
                return refuse(&format!("spec.{field}"), "the operator sets this field");
            }
        }
        if spec["automountServiceAccountToken"] == true {
            return refuse(
                "spec.automountServiceAccountToken",
                "brains get a token only where their leader lock is a Lease",
            );
        }
        if spec["nodeName"].as_str().is_some_and(|name| !name.is_empty()) {
            return refuse(
                "spec.nodeName",
                "it bypasses the scheduler and taints: use pod.nodeSelector",
            );
        }
        if let Some(why) = security("spec.securityContext", spec.get("securityContext")) {
            return Some(why);
        }
        for list in CONTAINER_LISTS {
            for (path, container) in entries(spec, "spec", list) {
                let is_brain = list == "containers" && container["name"] == BRAIN_CONTAINER;
                let found = mounts(&path, container, is_brain).or_else(|| self.container(&path, container));
                if found.is_some() {
                    return found;
                }
            }
        }
        let volumes = entries(spec, "spec", "volumes");
        volumes
            .into_iter()
            .find_map(|(path, volume)| self.volume(&path, volume))
    }

    fn container(&self, path: &str, container: &Value) -> Option<String> {
        let context = container.get("securityContext");
        if let Some(why) = security(&format!("{path}.securityContext"), context).or_else(|| dials(path, container)) {
            return Some(why);
        }
        let ports = entries(container, path, "ports");
        if let Some((path, _)) = ports
            .iter()
            .find(|(_, port)| port["hostPort"].as_i64().unwrap_or_default() != 0)
        {
            return refuse(
                &format!("{path}.hostPort"),
                "brains may not use a port of the node: use a Service",
            );
        }
        let env = entries(container, path, "env").into_iter().find_map(|(path, env)| {
            let reference = &env["valueFrom"]["secretKeyRef"];
            let keys = [reference["key"].as_str()];
            self.secret(
                &format!("{path}.valueFrom.secretKeyRef"),
                reference["name"].as_str(),
                Some(&keys),
            )
        });
        env.or_else(|| {
            let mut all = entries(container, path, "envFrom").into_iter();
            all.find_map(|(path, from)| {
                let name = from["secretRef"]["name"].as_str();
                self.secret(&format!("{path}.secretRef"), name, None)
            })
        })
    }

    fn volume(&self, path: &str, volume: &Value) -> Option<String> {
        let secret = &volume["secret"];
        let path_of_secret = format!("{path}.secret");
        if let Some(why) = self.secret(&path_of_secret, secret["secretName"].as_str(), items(secret).as_deref()) {
            return Some(why);
        }
        for (path, source) in entries(&volume["projected"], &format!("{path}.projected"), "sources") {
            let secret = &source["secret"];
            let path = format!("{path}.secret");
            if let Some(why) = self.secret(&path, secret["name"].as_str(), items(secret).as_deref()) {
                return Some(why);
            }
        }
        let claim = &volume["ephemeral"]["volumeClaimTemplate"]["metadata"]["labels"];
        let reserved = claim
            .as_object()
            .and_then(|labels| labels.keys().find(|key| is_reserved(key)));
        refuse(
            &format!("{path}.ephemeral.volumeClaimTemplate.metadata.labels[{}]", reserved?),
            "keys of kubebrain.io are reserved for the operator",
        )
    }

    /// Checks a reference to the Secret `name` with these keys, or with all. The API server refuses an entry of `keys` that is not a text.
    fn secret(&self, path: &str, name: Option<&str>, keys: Option<&[Option<&str>]>) -> Option<String> {
        let name = name?;
        let allowed = match self.own.get(name) {
            Some(ReadableKeys::All) => return None,
            Some(ReadableKeys::These(allowed)) => allowed,
            None => {
                let why = "does not belong to this cluster: brains may read only their own Secrets and those that the spec names";
                return refuse(path, &format!("Secret {name} {why}"));
            }
        };
        let is_allowed = |key: &Option<&str>| key.is_some_and(|key| allowed.iter().any(|allowed| allowed == key));
        if keys.is_some_and(|keys| !keys.is_empty() && keys.iter().all(is_allowed)) {
            return None;
        }
        refuse(
            path,
            &format!(
                "the spec names only {} of Secret {name}: read only that, by its key",
                allowed.join(" and ")
            ),
        )
    }
}

/// Returns the keys that the items of a volume name; `None` without items, which means the whole Secret.
fn items(source: &Value) -> Option<Vec<Option<&str>>> {
    let items = source["items"].as_array()?;
    Some(items.iter().map(|item| item["key"].as_str()).collect())
}

/// Only the brain's container may mount the token of a leader lock, and mounts must not propagate to the node.
fn mounts(path: &str, container: &Value, is_brain: bool) -> Option<String> {
    entries(container, path, "volumeMounts")
        .into_iter()
        .find_map(|(path, mount)| {
            if mount["name"] == TOKEN_VOLUME && !is_brain {
                return refuse(&path, "the token of the leader lock is for the brain's container alone");
            }
            let propagation = mount["mountPropagation"].as_str().unwrap_or("None");
            if !["None", "HostToContainer"].contains(&propagation) {
                return refuse(
                    &format!("{path}.mountPropagation"),
                    "brains may not propagate mounts to the node",
                );
            }
            None
        })
}

/// Checks the rights of a pod or a container.
fn security(path: &str, context: Option<&Value>) -> Option<String> {
    let context = context?;
    let at = |field: &str| format!("{path}.{field}");
    if has_null(context) {
        return refuse(path, "the operator sets this field; a null would remove it");
    }
    for field in ["privileged", "allowPrivilegeEscalation"] {
        if context[field] == true {
            return refuse(&at(field), "brains may not gain privileges");
        }
    }
    for field in ["runAsUser", "runAsGroup", "fsGroup"] {
        if is_zero(&context[field]) {
            return refuse(&at(field), "brains may not run as root");
        }
    }
    let mut groups = context["supplementalGroups"].as_array().into_iter().flatten();
    if groups.any(is_zero) {
        return refuse(&at("supplementalGroups"), "brains may not be in the group of root");
    }
    if context["runAsNonRoot"] == false {
        return refuse(&at("runAsNonRoot"), "brains may not run as root");
    }
    let added = context["capabilities"]["add"].as_array().into_iter().flatten();
    if let Some(capability) = added.into_iter().find(|name| *name != "NET_BIND_SERVICE") {
        return refuse(
            &at("capabilities.add"),
            &format!("brains may not add the capability {capability}"),
        );
    }
    if context["seccompProfile"]["type"] == "Unconfined" {
        return refuse(&at("seccompProfile"), "brains must run with a seccomp profile");
    }
    let app_armor = &context["appArmorProfile"];
    if !app_armor.is_null() && app_armor["type"] != "RuntimeDefault" {
        return refuse(
            &at("appArmorProfile"),
            "brains must run with the runtime's AppArmor profile",
        );
    }
    let labels = context["seLinuxOptions"].as_object();
    if labels.is_some_and(|labels| !labels.is_empty()) {
        return refuse(
            &at("seLinuxOptions"),
            "brains must run with the SELinux label that the runtime assigns",
        );
    }
    if context["windowsOptions"]["hostProcess"] == true {
        return refuse(
            &at("windowsOptions.hostProcess"),
            "brains may not use paths or devices of the node",
        );
    }
    if context["procMount"].as_str().is_some_and(|mount| mount != "Default") {
        return refuse(&at("procMount"), "brains may not unmask /proc");
    }
    let sysctls = context["sysctls"].as_array();
    if sysctls.is_some_and(|list| !list.is_empty()) {
        return refuse(&at("sysctls"), "brains may not change kernel parameters");
    }
    None
}

/// The kubelet sends probes from the node's network, so they may only go to the pod itself.
fn dials(path: &str, container: &Value) -> Option<String> {
    let probes = ["livenessProbe", "readinessProbe", "startupProbe"].map(|probe| (probe.to_owned(), &container[probe]));
    let hooks = ["postStart", "preStop"].map(|hook| (format!("lifecycle.{hook}"), &container["lifecycle"][hook]));
    for (name, handler) in probes.into_iter().chain(hooks) {
        for action in ["httpGet", "tcpSocket"] {
            if handler[action]["host"].as_str().is_some_and(|host| !host.is_empty()) {
                return refuse(
                    &format!("{path}.{name}.{action}.host"),
                    "probes may only go to the pod itself, not to another host",
                );
            }
        }
    }
    None
}

#[cfg(test)]
mod tests;
