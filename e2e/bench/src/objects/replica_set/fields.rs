//! Managed fields: which fields a manager owns, as JSON.

use serde_json::{Map, Value, json};

use crate::objects::pod::{Container, EnvVar, Pod, PodStatus, Volume};

/// Those of a pod's metadata and spec, by the controller that has created it.
pub(super) fn of_spec(pod: &Pod) -> String {
    let metadata = &pod.metadata;
    let owner = by_key("uid", &metadata.owner_references[0].uid);
    // volumes of the API server's own are not the controller's
    let volumes = pod
        .spec
        .volumes
        .iter()
        .filter(|volume| volume.source.projected.is_none());
    let containers = pod.spec.containers.iter();
    json!({
        "f:metadata": {
            "f:annotations": own(metadata.annotations.keys().map(String::as_str)),
            "f:generateName": {},
            "f:labels": own(metadata.labels.keys().map(String::as_str)),
            "f:ownerReferences": { ".": {}, (owner): {} },
        },
        "f:spec": {
            "f:containers": containers.map(of_container).collect::<Map<_, _>>(),
            "f:dnsPolicy": {},
            "f:enableServiceLinks": {},
            "f:restartPolicy": {},
            "f:schedulerName": {},
            "f:securityContext": own(["fsGroup", "runAsNonRoot", "runAsUser"]),
            "f:serviceAccount": {},
            "f:serviceAccountName": {},
            "f:terminationGracePeriodSeconds": {},
            "f:volumes": list(volumes.map(of_volume)),
        },
    })
    .to_string()
}

/// Those of a pod's status, by the kubelet.
pub(super) fn of_status(status: &PodStatus) -> String {
    let conditions = status
        .conditions
        .iter()
        .filter(|condition| condition.kind != "PodScheduled");
    let conditions = conditions.map(|condition| {
        let fields = own([
            "lastProbeTime",
            "lastTransitionTime",
            "observedGeneration",
            "status",
            "type",
        ]);
        (by_key("type", &condition.kind), fields)
    });
    let addresses = status
        .pod_ips
        .iter()
        .map(|address| (by_key("ip", &address.ip), own(["ip"])));
    json!({
        "f:status": {
            "f:conditions": list(conditions),
            "f:containerStatuses": {},
            "f:hostIP": {},
            "f:hostIPs": {},
            "f:observedGeneration": {},
            "f:phase": {},
            "f:podIP": {},
            "f:podIPs": list(addresses),
            "f:startTime": {},
        },
    })
    .to_string()
}

/// A whole with these fields.
fn own<'a>(fields: impl IntoIterator<Item = &'a str>) -> Value {
    list(fields.into_iter().map(|field| (format!("f:{field}"), json!({}))))
}

fn list(parts: impl Iterator<Item = (String, Value)>) -> Value {
    let itself = (".".to_owned(), json!({}));
    Value::Object([itself].into_iter().chain(parts).collect())
}

/// The part of a list that has this key.
fn by_key(key: &str, value: &str) -> String {
    format!(r#"k:{{"{key}":"{value}"}}"#)
}

fn of_volume(volume: &Volume) -> (String, Value) {
    let mut fields = own(["name"]);
    match volume.source.config_map {
        Some(_) => fields["f:configMap"] = own(["defaultMode", "name"]),
        None => fields["f:emptyDir"] = json!({}),
    }
    (by_key("name", &volume.name), fields)
}

fn of_container(container: &Container) -> (String, Value) {
    let ports = container.ports.iter().map(|port| {
        let key = format!(r#"k:{{"containerPort":{},"protocol":"TCP"}}"#, port.container_port);
        (key, own(["containerPort", "name", "protocol"]))
    });
    let mounts = container.volume_mounts.iter();
    let mounts = mounts.map(|mount| (by_key("mountPath", &mount.mount_path), own(["mountPath", "name"])));
    let mut fields = json!({
        ".": {},
        "f:args": {},
        "f:env": list(container.env.iter().map(of_variable)),
        "f:image": {},
        "f:imagePullPolicy": {},
        "f:name": {},
        "f:ports": list(ports),
        "f:resources": { ".": {}, "f:limits": own(["memory"]), "f:requests": own(["cpu", "memory"]) },
        "f:securityContext": {
            ".": {},
            "f:allowPrivilegeEscalation": {},
            "f:capabilities": own(["drop"]),
            "f:privileged": {},
            "f:readOnlyRootFilesystem": {},
        },
        "f:terminationMessagePath": {},
        "f:terminationMessagePolicy": {},
        "f:volumeMounts": list(mounts),
    });
    for (field, probe) in [
        ("f:livenessProbe", &container.liveness_probe),
        ("f:readinessProbe", &container.readiness_probe),
    ] {
        if probe.is_some() {
            fields[field] = of_probe();
        }
    }
    (by_key("name", &container.name), fields)
}

fn of_variable(variable: &EnvVar) -> (String, Value) {
    let mut fields = own(["name"]);
    match &variable.value_from {
        None => fields["f:value"] = json!({}),
        Some(source) if source.field_ref.is_some() => fields["f:valueFrom"] = own(["fieldRef"]),
        Some(_) => fields["f:valueFrom"] = own(["secretKeyRef"]),
    }
    (by_key("name", &variable.name), fields)
}

fn of_probe() -> Value {
    json!({
        ".": {},
        "f:failureThreshold": {},
        "f:httpGet": own(["path", "port", "scheme"]),
        "f:initialDelaySeconds": {},
        "f:periodSeconds": {},
        "f:successThreshold": {},
        "f:timeoutSeconds": {},
    })
}
