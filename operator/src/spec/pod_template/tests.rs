use serde_json::json;

use super::*;

fn excess_of(template: &Value) -> Option<String> {
    let cluster = crate::world::cluster(json!({}));
    let names = Names {
        cluster: "dev".to_owned(),
        namespace: "brains".to_owned(),
        domain: "cluster.local".to_owned(),
    };
    taken(template).or_else(|| excess(&cluster, &names, template))
}

#[track_caller]
fn refused(template: Value, path: &str) {
    let said = excess_of(&template).unwrap_or_default();
    assert!(
        said.starts_with(&format!("podTemplate.{path}: ")),
        "{template}: {said:?}"
    );
}

#[test]
fn what_brains_may_have_is_let_through() {
    for template in [
        json!({}),
        json!({"metadata": {"annotations": {"sidecar.example/inject": "true"}, "labels": {"team": "a"}}}),
        json!({"spec": {"containers": [{"name": "brain", "env": [{"name": "A", "value": "1"}]}, {"name": "side", "image": "x"}]}}),
        json!({"spec": {"serviceAccountName": "dev", "hostNetwork": false, "tolerations": [{"operator": "Exists"}]}}),
        json!({"spec": {"volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "secret": {"secretName": "dev-server-tls"}}]}}),
        json!({"spec": {"containers": [{"name": "brain", "securityContext": {"capabilities": {"add": ["NET_BIND_SERVICE"]}}}]}}),
        json!({"spec": {"securityContext": {"runAsUser": 1000, "runAsNonRoot": true}}}),
    ] {
        assert_eq!(excess_of(&template), None, "{template}");
    }
}

#[test]
fn what_would_give_more_rights_is_refused_by_its_path() {
    for field in ["hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"] {
        refused(json!({"spec": {field: true}}), &format!("spec.{field}"));
    }
    refused(
        json!({"spec": {"serviceAccountName": "admin"}}),
        "spec.serviceAccountName",
    );
    refused(json!({"spec": {"serviceAccount": "admin"}}), "spec.serviceAccount");
    refused(
        json!({"spec": {"automountServiceAccountToken": true}}),
        "spec.automountServiceAccountToken",
    );
    refused(json!({"spec": {"nodeName": "n1"}}), "spec.nodeName");
    refused(
        json!({"spec": {"securityContext": {"runAsUser": 0}}}),
        "spec.securityContext.runAsUser",
    );
    refused(
        json!({"spec": {"securityContext": {"sysctls": [{"name": "a", "value": "1"}]}}}),
        "spec.securityContext.sysctls",
    );
    let container = |list: &str, container: Value| json!({"spec": {list: [{"name": "ok"}, container]}});
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        refused(
            container(list, json!({"name": "x", "securityContext": {"privileged": true}})),
            &format!("spec.{list}[1].securityContext.privileged"),
        );
    }
    let secure = |context: Value| container("containers", json!({"name": "brain", "securityContext": context}));
    let at = "spec.containers[1].securityContext";
    refused(
        secure(json!({"allowPrivilegeEscalation": true})),
        &format!("{at}.allowPrivilegeEscalation"),
    );
    refused(secure(json!({"runAsNonRoot": false})), &format!("{at}.runAsNonRoot"));
    refused(
        secure(json!({"capabilities": {"add": ["SYS_ADMIN"]}})),
        &format!("{at}.capabilities.add"),
    );
    refused(
        secure(json!({"seccompProfile": {"type": "Unconfined"}})),
        &format!("{at}.seccompProfile"),
    );
    refused(secure(json!({"procMount": "Unmasked"})), &format!("{at}.procMount"));
    refused(
        container(
            "containers",
            json!({"name": "x", "ports": [{"containerPort": 1, "hostPort": 80}]}),
        ),
        "spec.containers[1].ports[0].hostPort",
    );
    let env = json!({"name": "A", "valueFrom": {"secretKeyRef": {"name": "other", "key": "k"}}});
    refused(
        container("containers", json!({"name": "x", "env": [env]})),
        "spec.containers[1].env[0].valueFrom.secretKeyRef",
    );
    refused(
        container(
            "initContainers",
            json!({"name": "x", "envFrom": [{"secretRef": {"name": "other"}}]}),
        ),
        "spec.initContainers[1].envFrom[0].secretRef",
    );
    let volume = |volume: Value| json!({"spec": {"volumes": [volume]}});
    refused(
        volume(json!({"name": "a", "hostPath": {"path": "/"}})),
        "spec.volumes[0].hostPath",
    );
    refused(
        volume(json!({"name": "a", "nfs": {"server": "x", "path": "/"}})),
        "spec.volumes[0].nfs",
    );
    let driver = json!({"driver": "x", "nodePublishSecretRef": {"name": "other"}});
    refused(volume(json!({"name": "a", "csi": driver})), "spec.volumes[0].csi");
    refused(
        volume(json!({"name": "a", "persistentVolumeClaim": {"claimName": "theirs"}})),
        "spec.volumes[0].persistentVolumeClaim",
    );
    refused(
        volume(json!({"name": "a", "secret": {"secretName": "dev-ca"}})),
        "spec.volumes[0].secret",
    );
    let token = json!({"name": "a", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}});
    refused(
        volume(token),
        "spec.volumes[0].projected.sources[0].serviceAccountToken",
    );
    let secret = json!({"name": "a", "projected": {"sources": [{"secret": {"name": "other"}}]}});
    refused(volume(secret), "spec.volumes[0].projected.sources[0].secret");
    refused(
        json!({"metadata": {"labels": {"kubebrain.io/role": "leader"}}}),
        "metadata.labels[kubebrain.io/role]",
    );
    refused(
        json!({"metadata": {"annotations": {"kubebrain.io/restart-hash": "x"}}}),
        "metadata.annotations[kubebrain.io/restart-hash]",
    );
}

#[test]
fn secrets_that_the_spec_names_may_be_mounted() {
    let secrets = json!({
        "caBundle": {"name": "bundle"}, "server": {"name": "s"}, "peer": {"name": "p"}, "operatorClient": {"name": "o"},
    });
    let cluster = crate::world::cluster(json!({"tls": {"mode": "Secret", "secrets": secrets}}));
    let names = Names {
        cluster: "dev".to_owned(),
        namespace: "brains".to_owned(),
        domain: "cluster.local".to_owned(),
    };
    let mount = |name: &str| json!({"spec": {"volumes": [{"name": "a", "secret": {"secretName": name}}]}});
    assert_eq!(excess(&cluster, &names, &mount("bundle")), None);
    assert!(
        excess(&cluster, &names, &mount("o")).is_some(),
        "the operator's own is not for brains"
    );
}
