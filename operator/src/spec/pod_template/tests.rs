use serde_json::json;

use super::*;

fn excess_of(template: &Value) -> Option<String> {
    let cluster = crate::fake_cluster::cluster(json!({}));
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
fn permitted_fields_are_accepted() {
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
fn extra_privileges_are_refused_with_their_path() {
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
    let cluster = crate::fake_cluster::cluster(json!({"tls": {"mode": "Secret", "secrets": secrets}}));
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

#[test]
fn profiles_labels_and_groups_of_the_node_are_refused() {
    let pod = |context: Value| json!({"spec": {"securityContext": context}});
    let container = |context: Value| json!({"spec": {"containers": [{"name": "brain", "securityContext": context}]}});
    for (context, field) in [
        (json!({"appArmorProfile": {"type": "Unconfined"}}), "appArmorProfile"),
        (
            json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": "x"}}),
            "appArmorProfile",
        ),
        (json!({"appArmorProfile": {}}), "appArmorProfile"),
        (json!({"seLinuxOptions": {"type": "spc_t"}}), "seLinuxOptions"),
        (
            json!({"windowsOptions": {"hostProcess": true}}),
            "windowsOptions.hostProcess",
        ),
        (json!({"supplementalGroups": [1000, 0]}), "supplementalGroups"),
        (json!({"runAsUser": 0.0}), "runAsUser"),
    ] {
        refused(pod(context.clone()), &format!("spec.securityContext.{field}"));
        refused(
            container(context),
            &format!("spec.containers[0].securityContext.{field}"),
        );
    }
    let annotation = "container.apparmor.security.beta.kubernetes.io/brain";
    refused(
        json!({"metadata": {"annotations": {annotation: "unconfined"}}}),
        &format!("metadata.annotations[{annotation}]"),
    );
    for good in [
        json!({"metadata": {"annotations": {annotation: "runtime/default"}}}),
        pod(json!({"appArmorProfile": {"type": "RuntimeDefault"}, "supplementalGroups": [1000], "seLinuxOptions": {}})),
        container(json!({"windowsOptions": {"hostProcess": false}})),
    ] {
        assert_eq!(excess_of(&good), None, "{good}");
    }
}

#[test]
fn nulls_take_away_no_protection() {
    for (template, path) in [
        (json!({"spec": {"securityContext": null}}), "spec.securityContext"),
        (
            json!({"spec": {"securityContext": {"runAsNonRoot": null}}}),
            "spec.securityContext",
        ),
        (
            json!({"spec": {"containers": [{"name": "brain", "securityContext": null}]}}),
            "spec.containers[0].securityContext",
        ),
        (
            json!({"spec": {"containers": [{"name": "brain", "securityContext": {"capabilities": {"drop": null}}}]}}),
            "spec.containers[0].securityContext",
        ),
        (json!({"spec": {"serviceAccountName": null}}), "spec.serviceAccountName"),
        (
            json!({"spec": {"automountServiceAccountToken": null}}),
            "spec.automountServiceAccountToken",
        ),
    ] {
        refused(template, path);
    }
    let probe = json!({"spec": {"containers": [{"name": "brain", "startupProbe": null}]}});
    assert_eq!(excess_of(&probe), None);
}

#[test]
fn kubelet_dials_no_other_host() {
    let container = |more: Value| {
        let mut container = more;
        container["name"] = json!("brain");
        json!({"spec": {"containers": [container]}})
    };
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        for action in ["httpGet", "tcpSocket"] {
            refused(
                container(json!({probe: {action: {"host": "169.254.169.254", "port": 80}}})),
                &format!("spec.containers[0].{probe}.{action}.host"),
            );
        }
    }
    for hook in ["postStart", "preStop"] {
        refused(
            container(json!({"lifecycle": {hook: {"httpGet": {"host": "a.example", "port": 80}}}})),
            &format!("spec.containers[0].lifecycle.{hook}.httpGet.host"),
        );
    }
    let own = container(json!({"readinessProbe": {"httpGet": {"path": "/x", "port": 80}}}));
    assert_eq!(excess_of(&own), None);
}

#[test]
fn unmergeable_template_is_refused_with_its_path() {
    for (template, expected) in [
        (json!({"spec": []}), "podTemplate.spec: it is no map"),
        (json!({"metadata": 1}), "podTemplate.metadata: it is no map"),
        (
            json!({"metadata": {"annotations": "x"}}),
            "podTemplate.metadata.annotations: it is no map",
        ),
        (
            json!({"spec": {"$patch": "replace"}}),
            "podTemplate.spec.$patch: directives",
        ),
        (
            json!({"spec": {"containers": [{"name": "brain", "$patch": "delete"}]}}),
            "podTemplate.spec.containers[0].$patch: directives",
        ),
    ] {
        let said = malformed(&template).unwrap_or_default();
        assert!(said.starts_with(expected), "{template}: {said:?}");
    }
    for good in [
        json!({}),
        json!({"spec": null}),
        json!({"spec": {"fieldOfTomorrow": [1]}}),
    ] {
        assert_eq!(malformed(&good), None, "{good}");
    }
}

#[test]
fn config_maps_are_named_with_their_fields() {
    let template = json!({"spec": {
        "containers": [{"name": "brain",
            "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "k"}}}],
            "envFrom": [{"configMapRef": {"name": "b"}}],
        }],
        "volumes": [
            {"name": "c", "configMap": {"name": "c"}},
            {"name": "d", "projected": {"sources": [{"configMap": {"name": "d"}}]}},
        ],
    }});
    let named = config_maps(&template);
    let named: Vec<(&str, &str)> = named
        .iter()
        .map(|(path, name)| (path.as_str(), name.as_str()))
        .collect();
    let expected = [
        ("podTemplate.spec.containers[0].env[0].valueFrom.configMapKeyRef", "a"),
        ("podTemplate.spec.containers[0].envFrom[0].configMapRef", "b"),
        ("podTemplate.spec.volumes[0].configMap", "c"),
        ("podTemplate.spec.volumes[1].projected.sources[0].configMap", "d"),
    ];
    assert_eq!(named, expected);
}
