//! Certificates from cert-manager, for a cluster with `tls.mode: Secret` and for a tenant's control plane.

use serde_json::{Value, json};

use super::{BRAINS, cluster, namespace};

const CLUSTER: &str = "secure";

/// Returns an authority, a certificate for each use, and the cluster.
pub(super) fn objects() -> Vec<Value> {
    let service = |part: &str| {
        let host = format!("{CLUSTER}-{part}.{BRAINS}.svc");
        [format!("{host}.cluster.local"), host]
    };
    let members = format!("*.{CLUSTER}-headless.{BRAINS}.svc");
    let members = [format!("{members}.cluster.local"), members];
    let mut server: Vec<String> = service("client").into_iter().chain(service("leader")).collect();
    server.extend(members.iter().cloned());
    server.push("localhost".to_owned());
    let spec = json!({
        "replicas": 1,
        "storage": {"type": "Embedded", "embedded": {"size": "10Gi"}},
        "tls": {
            "mode": "Secret",
            "secrets": {
                "caBundle": {"name": format!("{CLUSTER}-authority"), "key": "ca.crt"},
                "server": {"name": format!("{CLUSTER}-server")},
                "peer": {"name": format!("{CLUSTER}-peer")},
                "operatorClient": {"name": format!("{CLUSTER}-operator-client")},
            },
        },
    });
    let mut all = vec![namespace(BRAINS)];
    all.extend(authority(CLUSTER));
    all.extend([
        leaf(
            CLUSTER,
            "server",
            &format!("{CLUSTER}-client"),
            &server,
            &["127.0.0.1", "::1"],
            &["server auth"],
        ),
        leaf(
            CLUSTER,
            "peer",
            "kubebrain-peer",
            &members,
            &[],
            &["server auth", "client auth"],
        ),
        leaf(
            CLUSTER,
            "operator-client",
            "kubebrain-operator",
            &[],
            &[],
            &["client auth"],
        ),
        leaf(
            CLUSTER,
            "apiserver-client",
            "kube-apiserver-etcd-client",
            &[],
            &[],
            &["client auth"],
        ),
        cluster(CLUSTER, spec),
    ]);
    all
}

/// Returns the certificate of the API server of the tenant `name`, and the key that signs its service account tokens.
pub(crate) fn tenant_pki(name: &str) -> Vec<Value> {
    let service = format!("{name}-apiserver");
    let hosts = [
        format!("{service}.{BRAINS}.svc"),
        service,
        "kubernetes".to_owned(),
        "kubernetes.default.svc".to_owned(),
        "localhost".to_owned(),
    ];
    let mut tokens = leaf(
        name,
        "service-accounts",
        "service-accounts",
        &[],
        &[],
        &["digital signature"],
    );
    // Tokens remain valid after a renewal of the certificate, because the key stays the same.
    tokens["spec"]["privateKey"] = json!({"algorithm": "RSA", "size": 2048, "rotationPolicy": "Never"});
    let mut all = authority(name);
    all.push(leaf(
        name,
        "apiserver-tls",
        "kube-apiserver",
        &hosts,
        &["127.0.0.1"],
        &["server auth"],
    ));
    all.push(tokens);
    all
}

/// Returns a separate certificate authority whose key no pod mounts.
fn authority(name: &str) -> Vec<Value> {
    let (first, root) = (format!("{name}-self-signed"), format!("{name}-authority"));
    vec![
        object("Issuer", &first, &json!({"selfSigned": {}})),
        object(
            "Certificate",
            &root,
            &json!({
                "secretName": root,
                "commonName": root,
                "isCA": true,
                "duration": "87600h",
                "privateKey": {"algorithm": "ECDSA", "size": 256},
                "issuerRef": {"group": "cert-manager.io", "kind": "Issuer", "name": first},
            }),
        ),
        object("Issuer", &root, &json!({"ca": {"secretName": root}})),
    ]
}

fn leaf(name: &str, part: &str, common_name: &str, hosts: &[String], addresses: &[&str], usages: &[&str]) -> Value {
    let full = format!("{name}-{part}");
    let mut spec = json!({
        "secretName": full,
        "commonName": common_name,
        "duration": "2160h",
        "renewBefore": "720h",
        "usages": usages,
        "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"},
        "issuerRef": {"group": "cert-manager.io", "kind": "Issuer", "name": format!("{name}-authority")},
    });
    if !hosts.is_empty() {
        spec["dnsNames"] = json!(hosts);
    }
    if !addresses.is_empty() {
        spec["ipAddresses"] = json!(addresses);
    }
    object("Certificate", &full, &spec)
}

fn object(kind: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "cert-manager.io/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": BRAINS},
        "spec": spec,
    })
}
