//! The storage sidecar: a brain in the pod of the API server whose data it stores. It starts before the API server and stops after it.

use serde_json::{Value, json};

use super::apiserver::{self, Pki};
use super::{BRAINS, cluster, namespace};
use crate::install::{BRAIN_IMAGE, VERSION};

const TLS: &str = "/etc/kubebrain/tls";
const DATA: &str = "/var/lib/kubebrain";
/// Flags for the files of the certificates.
const FILES: [(&str, &str); 6] = [
    ("cert-file", "server.crt"),
    ("key-file", "server.key"),
    ("trusted-ca-file", "ca.crt"),
    ("peer-cert-file", "peer.crt"),
    ("peer-key-file", "peer.key"),
    ("peer-trusted-ca-file", "ca.crt"),
];
/// Flags that control which clients and peers may connect.
const RULES: [&str; 3] = [
    "--client-cert-auth=true",
    "--peer-client-cert-auth=true",
    "--peer-cert-allowed-cn=kubebrain-peer",
];

/// Returns a Deployment of one pod with a volume. The former pod must be gone before the next one starts.
pub(super) fn embedded() -> Vec<Value> {
    let name = "edge";
    let app = format!("{name}-apiserver");
    let spec = json!({
        "replicas": 1,
        "workload": {"type": "External", "selector": {"matchLabels": {"app": app}}},
        "storage": {"type": "Embedded"},
    });
    let volume = json!({"name": "data", "persistentVolumeClaim": {"claimName": format!("{name}-data")}});
    let own = [
        "--data-dir=/var/lib/kubebrain/data".to_owned(),
        format!("--initial-cluster=$(POD_NAME)=https://$(POD_NAME).{name}-headless.{BRAINS}.svc:2380"),
    ];
    let mounts = [json!({"name": "data", "mountPath": DATA})];
    let pod = pod(name, &own, &mounts, vec![volume]);
    vec![
        namespace(BRAINS),
        cluster(name, spec),
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": format!("{name}-data"), "namespace": BRAINS},
            "spec": {"accessModes": ["ReadWriteOncePod"], "resources": {"requests": {"storage": "10Gi"}}},
        }),
        apiserver::workload(
            "Deployment",
            &app,
            &json!({"replicas": 1, "strategy": {"type": "Recreate"}}),
            &pod,
        ),
        apiserver::service(name),
    ]
}

/// Returns two API servers, each with a member of its own. They are a StatefulSet, because members reach each other by the names of their
/// pods, which are in their certificates.
pub(super) fn tikv() -> Vec<Value> {
    let name = "hosted";
    let app = format!("{name}-apiserver");
    let prefix = "/registry-hosted";
    let spec = json!({
        "replicas": 2,
        "workload": {"type": "External", "selector": {"matchLabels": {"app": app}}},
        "storage": {
            "type": "TiKV",
            "tikv": {"pdEndpoints": ["pd.tikv.svc:2379"], "keyPrefix": prefix},
        },
    });
    let own = [
        "--storage=tikv".to_owned(),
        "--tikv-pd-endpoints=pd.tikv.svc:2379".to_owned(),
        format!("--tikv-key-prefix={prefix}"),
        "--tikv-gc-interval=10m".to_owned(),
        format!("--discovery-srv={name}-headless.{BRAINS}.svc.cluster.local"),
        format!("--initial-cluster-token={BRAINS}/{name}"),
    ];
    let pod = pod(name, &own, &[], Vec::new());
    let more = json!({"replicas": 2, "serviceName": format!("{name}-headless"), "podManagementPolicy": "Parallel"});
    vec![
        namespace(BRAINS),
        cluster(name, spec),
        apiserver::workload("StatefulSet", &app, &more, &pod),
        json!({
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": app, "namespace": BRAINS},
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": app}}, "unhealthyPodEvictionPolicy": "AlwaysAllow"},
        }),
        apiserver::service(name),
    ]
}

fn pod(name: &str, own: &[String], mounts: &[Value], volumes: Vec<Value>) -> Value {
    let mut all = apiserver::volumes(name, &Pki::Secret);
    all.push(certificates(name));
    all.extend(volumes);
    let mut pod = apiserver::pod(apiserver::container("https://127.0.0.1:2379"), all);
    pod["initContainers"] = json!([brain(name, own, mounts)]);
    pod
}

/// Returns a native sidecar: an init container that keeps running. The API server starts when its startup probe succeeds.
fn brain(name: &str, own: &[String], mounts: &[Value]) -> Value {
    let host = format!("$(POD_NAME).{name}-headless.{BRAINS}.svc");
    let mut arguments = vec![
        "--name=$(POD_NAME)".to_owned(),
        "--listen-client-urls=https://[::]:2379".to_owned(),
        format!("--advertise-client-urls=https://{host}:2379"),
        "--listen-peer-urls=https://[::]:2380".to_owned(),
        format!("--initial-advertise-peer-urls=https://{host}:2380"),
        "--listen-metrics-urls=http://[::]:2381".to_owned(),
    ];
    arguments.extend(FILES.map(|(flag, file)| format!("--{flag}={TLS}/{file}")));
    arguments.extend(RULES.map(str::to_owned));
    arguments.extend(own.iter().cloned());
    let mut all = vec![json!({"name": "tls", "mountPath": TLS, "readOnly": true})];
    all.extend(mounts.iter().cloned());
    json!({
        "name": "brain",
        "image": format!("{BRAIN_IMAGE}:{VERSION}"),
        "restartPolicy": "Always",
        "args": arguments,
        "env": [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "ports": [port("client", 2379), port("peer", 2380), port("metrics", 2381)],
        "startupProbe": probe("/readyz", 1, 600),
        "livenessProbe": probe("/livez", 10, 3),
        "readinessProbe": probe("/readyz", 2, 3),
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
        "securityContext": apiserver::restricted(),
        "volumeMounts": all,
    })
}

fn port(name: &str, number: i32) -> Value {
    json!({"name": name, "containerPort": number, "protocol": "TCP"})
}

fn probe(path: &str, period: i32, failures: i32) -> Value {
    json!({
        "httpGet": {"path": path, "port": "metrics"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    })
}

/// Returns the volume with the certificates that the operator issued for the members of the cluster `name`. Renewals update it in place.
fn certificates(name: &str) -> Value {
    let pair = |part: &str| {
        json!({"secret": {"name": format!("{name}-{part}-tls"), "items": [
            {"key": "tls.crt", "path": format!("{part}.crt")},
            {"key": "tls.key", "path": format!("{part}.key")},
        ]}})
    };
    let bundle =
        json!({"configMap": {"name": format!("{name}-ca-bundle"), "items": [{"key": "ca.crt", "path": "ca.crt"}]}});
    json!({"name": "tls", "projected": {"defaultMode": 0o440, "sources": [pair("server"), pair("peer"), bundle]}})
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize as _;

    use super::*;

    /// Returns the flags in a list of arguments, with their values. The names are those of the fixtures' cluster.
    fn flags(arguments: &Value, name: &str) -> BTreeMap<String, String> {
        let arguments = arguments.as_array().unwrap().iter();
        arguments
            .map(|argument| {
                let (flag, value) = argument.as_str().unwrap().split_once('=').unwrap();
                let value = value
                    .replace(&format!("{name}-headless.{BRAINS}."), "dev-headless.brains.")
                    .replace(&format!("{BRAINS}/{name}"), "brains/dev");
                (flag.to_owned(), value)
            })
            .collect()
    }

    /// Compares a sample's flags with those of the operator's fixture. The values of the flags in `own` follow from the spec and may
    /// differ; flags in `optional` may be absent.
    #[track_caller]
    fn same_flags_as_the_operator((sample, name): (&[Value], &str), fixture: &str, own: &[&str], optional: &[&str]) {
        let brain = sample
            .iter()
            .find_map(|object| object.pointer("/spec/template/spec/initContainers/0/args"))
            .unwrap();
        let rendered = serde_yaml::Deserializer::from_str(fixture)
            .map(|document| Value::deserialize(document).unwrap())
            .find(|object| object["kind"] == "StatefulSet")
            .unwrap();
        let arguments = rendered.pointer("/spec/template/spec/containers/0/args").unwrap();
        let (mut expected, mut found) = (flags(arguments, "dev"), flags(brain, name));
        expected.retain(|flag, _| !optional.contains(&flag.as_str()));
        for flag in own {
            let values = [&mut expected, &mut found].map(|flags| flags.remove(*flag));
            assert!(values.iter().all(Option::is_some), "{flag}: {values:?}");
        }
        assert_eq!(found, expected);
    }

    #[test]
    fn embedded_sidecar_has_the_flags_of_the_operator() {
        let fixture = include_str!("../../../operator/fixtures/epoch-2/minimal.yaml");
        same_flags_as_the_operator((&embedded(), "edge"), fixture, &[], &[]);
    }

    #[test]
    fn sidecar_on_tikv_has_the_flags_of_the_operator() {
        let own = ["--tikv-pd-endpoints", "--tikv-key-prefix"];
        let optional = [
            "--tikv-ca",
            "--tikv-cert",
            "--tikv-key",
            "--tikv-gc-window",
            "--election-lease-duration",
            "--election-renew-deadline",
        ];
        let fixture = include_str!("../../../operator/fixtures/epoch-2/tikv.yaml");
        same_flags_as_the_operator((&tikv(), "hosted"), fixture, &own, &optional);
    }
}
