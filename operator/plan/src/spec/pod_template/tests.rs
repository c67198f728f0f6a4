use serde_json::json;

use super::*;

fn excess_of(template: &Value) -> Option<String> {
    let cluster = crate::testing::cluster(json!({}));
    let names = Names {
        cluster: "dev".to_owned(),
        namespace: "brains".to_owned(),
        domain: "cluster.local".to_owned(),
    };
    taken(template).or_else(|| excess(&cluster, &names, template, &[]))
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
        json!({"metadata": {"annotations": {"sidecar.istio.io/inject": "true"}, "labels": {"team": "a"}}}),
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
    for field in ["serviceAccountName", "serviceAccount"] {
        refused(json!({"spec": {field: "admin"}}), &format!("spec.{field}"));
    }
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
    refused(
        container("ephemeralContainers", json!({"name": "x"})),
        "spec.ephemeralContainers",
    );
    for list in ["containers", "initContainers"] {
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
    let cluster = crate::testing::cluster(json!({"tls": {"mode": "Secret", "secrets": secrets}}));
    let names = Names {
        cluster: "dev".to_owned(),
        namespace: "brains".to_owned(),
        domain: "cluster.local".to_owned(),
    };
    let volume = |source: Value| {
        let mut volume = source;
        volume["name"] = json!("a");
        json!({"spec": {"volumes": [volume]}})
    };
    let items = |key: &str| json!([{"key": key, "path": "x"}]);
    let judge = |template: Value| excess(&cluster, &names, &template, &[]);
    for good in [
        volume(json!({"secret": {"secretName": "bundle", "items": items("ca.crt")}})),
        volume(json!({"secret": {"secretName": "s", "items": items("tls.key")}})),
        volume(json!({"projected": {"sources": [{"secret": {"name": "p", "items": items("tls.crt")}}]}})),
        env(json!({"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "tls.crt"}}})),
        volume(json!({"secret": {"secretName": "dev-server-tls"}})),
    ] {
        assert_eq!(judge(good.clone()), None, "{good}");
    }
    // Other keys of the Secret do not belong to the certificate, and the operator's own certificate is not for brains.
    for bad in [
        volume(json!({"secret": {"secretName": "bundle"}})),
        volume(json!({"secret": {"secretName": "bundle", "items": []}})),
        volume(json!({"secret": {"secretName": "bundle", "items": null}})),
        volume(json!({"secret": {"secretName": "bundle", "items": items("password")}})),
        volume(json!({"secret": {"secretName": "s", "items": [{"key": "tls.crt"}, {"key": "token"}]}})),
        volume(json!({"projected": {"sources": [{"secret": {"name": "p"}}]}})),
        env(json!({"name": "A", "valueFrom": {"secretKeyRef": {"name": "bundle", "key": "password"}}})),
        json!({"spec": {"containers": [{"name": "x", "envFrom": [{"secretRef": {"name": "s"}}]}]}}),
        volume(json!({"secret": {"secretName": "o", "items": items("tls.key")}})),
    ] {
        assert!(judge(bad.clone()).is_some(), "{bad}");
    }
}

fn env(entry: Value) -> Value {
    json!({"spec": {"containers": [{"name": "x", "env": [entry]}]}})
}

#[test]
fn key_that_tikv_certificate_needs_is_all_that_is_read_of_its_secret() {
    let tls = json!({"caSecretRef": {"name": "database", "key": "ca.pem"}, "clientSecretRef": {"name": "client"}});
    let tikv = json!({"pdEndpoints": ["pd:2379"], "tls": tls});
    let cluster = crate::testing::cluster(json!({"storage": {"type": "TiKV", "embedded": null, "tikv": tikv}}));
    let names = Names {
        cluster: "dev".to_owned(),
        namespace: "brains".to_owned(),
        domain: "cluster.local".to_owned(),
    };
    let mount = |secret: Value| json!({"spec": {"volumes": [{"name": "a", "secret": secret}]}});
    let whole = excess(&cluster, &names, &mount(json!({"secretName": "database"})), &[]);
    let expected =
        "podTemplate.spec.volumes[0].secret: the spec names only ca.pem of Secret database: read only that, by its key";
    assert_eq!(whole.as_deref(), Some(expected));
    let one = mount(json!({"secretName": "database", "items": [{"key": "ca.pem", "path": "x"}]}));
    assert_eq!(excess(&cluster, &names, &one, &[]), None);
}

#[test]
fn field_that_is_not_on_the_list_is_refused() {
    let spec = |field: &str| json!({"spec": {field: {"x": 1}}});
    for field in ["fieldOfTomorrow", "resourceClaims", "ephemeralContainers", "subdomain"] {
        refused(spec(field), &format!("spec.{field}"));
    }
    refused(json!({"fieldOfTomorrow": 1}), "fieldOfTomorrow");
    refused(
        json!({"metadata": {"ownerReferences": [{"name": "x"}]}}),
        "metadata.ownerReferences",
    );
    let container = |more: Value| json!({"spec": {"initContainers": [more]}});
    for (more, path) in [
        (json!({"volumeDevices": [{"name": "x"}]}), "volumeDevices"),
        (json!({"resources": {"claims": [{"name": "x"}]}}), "resources.claims"),
        (json!({"securityContext": {"tomorrow": 1}}), "securityContext.tomorrow"),
        (
            json!({"env": [{"valueFrom": {"fileKeyRef": {"path": "x"}}}]}),
            "env[0].valueFrom.fileKeyRef",
        ),
        (json!({"livenessProbe": {"tomorrow": {}}}), "livenessProbe.tomorrow"),
    ] {
        refused(container(more), &format!("spec.initContainers[0].{path}"));
    }
    let volume = |more: Value| json!({"spec": {"volumes": [more]}});
    let claim = |spec: Value| volume(json!({"ephemeral": {"volumeClaimTemplate": {"spec": spec}}}));
    let snapshot = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "x"});
    for (more, path) in [
        (json!({"volumeName": "pv-1"}), "volumeName"),
        (
            json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "theirs"}}),
            "dataSource",
        ),
        (json!({"dataSourceRef": snapshot}), "dataSourceRef"),
        (json!({"selector": {"matchLabels": {"a": "b"}}}), "selector"),
    ] {
        refused(
            claim(more),
            &format!("spec.volumes[0].ephemeral.volumeClaimTemplate.spec.{path}"),
        );
    }
    let annotated = json!({"metadata": {"annotations": {"k8s.io/CloneRequest": "theirs"}}});
    refused(
        volume(json!({"ephemeral": {"volumeClaimTemplate": annotated}})),
        "spec.volumes[0].ephemeral.volumeClaimTemplate.metadata.annotations",
    );
    let labelled = json!({"metadata": {"labels": {"kubebrain.io/cluster": "theirs"}}});
    refused(
        volume(json!({"ephemeral": {"volumeClaimTemplate": labelled}})),
        "spec.volumes[0].ephemeral.volumeClaimTemplate.metadata.labels[kubebrain.io/cluster]",
    );
    for source in [
        "podCertificate",
        "clusterTrustBundle",
        "serviceAccountToken",
        "tomorrow",
    ] {
        refused(
            volume(
                json!({"projected": {"sources": [{"secret": {"name": "dev-server-tls"}}, {source: {"path": "x"}}]}}),
            ),
            &format!("spec.volumes[0].projected.sources[1].{source}"),
        );
    }
    let size = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    assert_eq!(excess_of(&claim(size)), None);
}

/// A field that Kubernetes adds is refused until it is reviewed: this test reports it when the types of Kubernetes are upgraded.
#[test]
fn every_field_of_kubernetes_is_allowed_or_refused_by_name() {
    let mut allowed = Vec::new();
    allowed::paths(&allowed::TEMPLATE, "", &mut allowed);
    let schema = schemars::schema_for!(k8s_openapi::api::core::v1::PodTemplateSpec);
    let schema = serde_json::to_value(schema).unwrap();
    let mut refused = Vec::new();
    walk(&schema, &schema, "", &allowed, &mut refused);
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/refused-pod-fields.txt");
    let found = refused.join("\n") + "\n";
    if std::env::var_os("KUBEBRAIN_BLESS").is_some() {
        std::fs::write(&file, &found).unwrap();
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(committed, found, "KUBEBRAIN_BLESS=1 writes {} anew", file.display());
    // The list names only fields that Kubernetes has.
    assert!(allowed.iter().any(|path| path == ".spec.containers[].image"));
}

/// The fields below a schema that the list does not allow, each where it begins.
fn walk(root: &Value, schema: &Value, path: &str, allowed: &[String], refused: &mut Vec<String>) {
    if allowed.iter().any(|allowed| allowed == path) {
        return;
    }
    if !path.is_empty() && !allowed.iter().any(|allowed| allowed.starts_with(path)) {
        refused.push(path.to_owned());
        return;
    }
    if let Some(reference) = schema["$ref"].as_str() {
        let target = root.pointer(reference.trim_start_matches('#')).unwrap();
        return walk(root, target, path, allowed, refused);
    }
    for part in ["anyOf", "allOf"] {
        if let Some(first) = schema[part].as_array().and_then(|all| all.first()) {
            return walk(root, first, path, allowed, refused);
        }
    }
    if schema["items"].is_object() {
        return walk(root, &schema["items"], &format!("{path}[]"), allowed, refused);
    }
    for (field, schema) in schema["properties"].as_object().into_iter().flatten() {
        walk(root, schema, &format!("{path}.{field}"), allowed, refused);
    }
}

#[test]
fn token_of_the_leader_lock_is_for_the_brain_alone() {
    let mount = |list: &str, name: &str| {
        let mounts = json!([{"name": "other", "mountPath": "/a"}, {"name": "kube-api-access", "mountPath": "/b"}]);
        json!({"spec": {list: [{"name": name, "volumeMounts": mounts}]}})
    };
    refused(mount("containers", "side"), "spec.containers[0].volumeMounts[1]");
    refused(
        mount("initContainers", "brain"),
        "spec.initContainers[0].volumeMounts[1]",
    );
    assert_eq!(excess_of(&mount("containers", "brain")), None);
    let handed = json!([{"name": "a", "mountPath": "/a", "mountPropagation": "Bidirectional"}]);
    refused(
        json!({"spec": {"containers": [{"name": "brain", "volumeMounts": handed}]}}),
        "spec.containers[0].volumeMounts[0].mountPropagation",
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
    for kind in ["labels", "annotations"] {
        refused(
            json!({"metadata": {kind: {"team": "a", "inject.example/agent": "true"}}}),
            &format!("metadata.{kind}[inject.example/agent]"),
        );
    }
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
        (json!({"spec": []}), "podTemplate.spec: must be a map"),
        (json!({"metadata": 1}), "podTemplate.metadata: must be a map"),
        (
            json!({"metadata": {"annotations": "x"}}),
            "podTemplate.metadata.annotations: must be a map",
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
