//! Pod templates: names, containers, variables and volumes of a Deployment.

use std::collections::BTreeMap;

use serde_json::json;

use super::{ManagedFieldsEntry, ObjectMeta, OwnerReference, PodShape, Time, fields};
use crate::objects::pod::{
    Capabilities, ConfigMapProjection, ConfigMapVolumeSource, Container, ContainerPort, DownwardApiProjection,
    DownwardApiVolumeFile, EmptyDirVolumeSource, EnvVar, EnvVarSource, HttpGetAction, IntOrString, KeyToPath,
    LocalObjectReference, ObjectFieldSelector, Pod, PodSecurityContext, PodSpec, Probe, ProbeHandler,
    ProjectedVolumeSource, Quantity, ResourceRequirements, SecretKeySelector, SecurityContext,
    ServiceAccountTokenProjection, Toleration, Volume, VolumeMount, VolumeProjection, VolumeSource,
};
use crate::objects::split_mix::SplitMix;

/// The name of the volume with the token of the service account; each pod has its own end of it.
pub(super) const TOKEN_VOLUME: &str = "kube-api-access-";
const TOKEN_MOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const DEPLOYMENTS_PER_NAMESPACE: u64 = 4;
const FILE_MODE: i32 = 0o644;

const TEAMS: &[&str] = &[
    "payments",
    "search",
    "catalog",
    "identity",
    "logistics",
    "pricing",
    "media",
    "reports",
];
const SERVICES: &[&str] = &[
    "checkout",
    "inventory",
    "session",
    "invoice",
    "ranking",
    "profile",
    "shipment",
    "ledger",
];
const ROLES: &[&str] = &["api", "worker", "consumer", "gateway", "scheduler", "exporter"];
const SIDECARS: &[&str] = &["istio-proxy", "fluent-bit", "otel-collector", "vault-agent"];
const SUBJECTS: &[&str] = &[
    "DATABASE", "CACHE", "KAFKA", "FEATURE", "TRACING", "METRICS", "UPSTREAM", "STORAGE", "HTTP", "RETRY",
];
const PROPERTIES: &[&str] = &[
    "URL",
    "TIMEOUT",
    "POOL_SIZE",
    "ENABLED",
    "TOPIC",
    "PASSWORD",
    "BUCKET",
    "MAX_ATTEMPTS",
    "HOST",
    "LEVEL",
];

/// The pod that a Deployment's pods are made from.
pub(super) fn pod(number: u64, shape: PodShape, variables: usize, text: &mut SplitMix) -> Pod {
    let team = text.pick(TEAMS);
    let app = format!("{}-{}", text.pick(SERVICES), text.pick(ROLES));
    let namespace = format!(
        "{}-prod-{:03}",
        TEAMS[(number / DEPLOYMENTS_PER_NAMESPACE) as usize % TEAMS.len()],
        number / DEPLOYMENTS_PER_NAMESPACE
    );
    let (deployment, hash) = (format!("{app}-{number:03}"), text.suffix(10));
    let main = match shape.has_probes() {
        true => with_probes(main_container(&app, text)),
        false => main_container(&app, text),
    };
    let mut containers = vec![main];
    containers.extend(
        SIDECARS
            .iter()
            .take(shape.containers - 1)
            .map(|name| sidecar(name, &deployment, text)),
    );
    containers[0]
        .env
        .extend((0..variables).map(|n| variable(n, &app, &namespace, text)));
    let (labels, annotations) = (labels((team, &app, &deployment, &hash), text), annotations(shape, text));
    let metadata = ObjectMeta {
        generate_name: format!("{deployment}-{hash}-"),
        namespace,
        generation: 1,
        labels,
        annotations,
        owner_references: vec![OwnerReference {
            api_version: "apps/v1".to_owned(),
            kind: "ReplicaSet".to_owned(),
            name: format!("{deployment}-{hash}"),
            uid: text.uid(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }],
        ..ObjectMeta::default()
    };
    let spec = PodSpec {
        volumes: if shape.has_probes() { volumes(&app) } else { Vec::new() },
        containers,
        restart_policy: "Always".to_owned(),
        termination_grace_period_seconds: Some(30),
        dns_policy: "ClusterFirst".to_owned(),
        node_selector: map(&[("kubernetes.io/os", "linux")]),
        service_account_name: deployment.clone(),
        deprecated_service_account: deployment,
        security_context: Some(PodSecurityContext {
            run_as_user: Some(10_001),
            run_as_non_root: Some(true),
            fs_group: Some(10_001),
        }),
        scheduler_name: "default-scheduler".to_owned(),
        tolerations: ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]
            .map(toleration)
            .to_vec(),
        priority: Some(0),
        enable_service_links: Some(true),
        preemption_policy: Some("PreemptLowerPriority".to_owned()),
        ..PodSpec::default()
    };
    let mut pod = Pod {
        metadata,
        spec,
        ..Pod::default()
    };
    // the token's volume and its mounts are set by the API server, and are not the controller's
    let fields = fields::of_spec(&pod);
    let created_by = ManagedFieldsEntry::update("kube-controller-manager", "v1", Time::default(), fields);
    pod.metadata.managed_fields = vec![created_by];
    pod.spec.volumes.push(token_volume());
    for container in &mut pod.spec.containers {
        container.volume_mounts.push(mount(TOKEN_VOLUME, TOKEN_MOUNT));
    }
    pod
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

fn labels((team, app, deployment, hash): (&str, &str, &str, &str), text: &mut SplitMix) -> BTreeMap<String, String> {
    map(&[
        ("app.kubernetes.io/instance", deployment),
        ("app.kubernetes.io/managed-by", "Helm"),
        ("app.kubernetes.io/name", app),
        (
            "app.kubernetes.io/version",
            &format!("{}.{}.{}", text.below(5), text.below(40), text.below(20)),
        ),
        ("helm.sh/chart", &format!("{app}-1.{}.0", text.below(40))),
        ("pod-template-hash", hash),
        ("team", team),
    ])
}

fn annotations(shape: PodShape, text: &mut SplitMix) -> BTreeMap<String, String> {
    if !shape.has_probes() {
        return map(&[("checksum/config", &text.hex(64))]);
    }
    let mut annotations = map(&[
        ("checksum/config", &text.hex(64)),
        ("checksum/secret", &text.hex(64)),
        ("prometheus.io/path", "/metrics"),
        ("prometheus.io/port", "9090"),
        ("prometheus.io/scrape", "true"),
    ]);
    if shape.containers > 1 {
        let injected = json!({
            "containers": ["istio-proxy"],
            "imagePullSecrets": null,
            "initContainers": null,
            "revision": "default",
            "volumes": ["workload-socket", "workload-certs", "istio-envoy", "istio-data", "istio-token"],
        });
        annotations.insert("sidecar.istio.io/status".to_owned(), injected.to_string());
    }
    annotations
}

fn toleration(key: &str) -> Toleration {
    Toleration {
        key: key.to_owned(),
        operator: "Exists".to_owned(),
        value: String::new(),
        effect: "NoExecute".to_owned(),
        toleration_seconds: Some(300),
    }
}

fn main_container(app: &str, text: &mut SplitMix) -> Container {
    let version = format!("{}.{}.{}", text.below(5), text.below(40), text.below(20));
    Container {
        args: vec!["serve".to_owned(), "--config=/etc/app/config.yaml".to_owned()],
        env: vec![
            field_variable("POD_NAME", "metadata.name"),
            field_variable("POD_IP", "status.podIP"),
        ],
        resources: resources("500m", "512Mi", "1Gi"),
        ..container("app", format!("registry.example.com/platform/{app}:{version}"))
    }
}

/// With ports, probes and mounts of volumes.
fn with_probes(container: Container) -> Container {
    Container {
        ports: vec![port("http", 8_080), port("metrics", 9_090)],
        volume_mounts: vec![mount("config", "/etc/app"), mount("cache", "/var/cache/app")],
        liveness_probe: Some(probe("/healthz", 8_080)),
        readiness_probe: Some(probe("/readyz", 8_080)),
        ..container
    }
}

fn sidecar(name: &str, deployment: &str, text: &mut SplitMix) -> Container {
    let prefix = name.to_uppercase().replace('-', "_");
    let mut env = ["POD_NAMESPACE", "INSTANCE_IP", "SERVICE_ACCOUNT", "HOST_IP"]
        .into_iter()
        .zip([
            "metadata.namespace",
            "status.podIP",
            "spec.serviceAccountName",
            "status.hostIP",
        ])
        .map(|(name, path)| field_variable(name, path))
        .collect::<Vec<_>>();
    let config = json!({
        "concurrency": 1 + text.below(4),
        "discoveryAddress": "istiod.istio-system.svc:15012",
        "tracing": { "sampling": 1.0 },
    });
    let values = [
        ("WORKLOAD", deployment.to_owned()),
        ("LOG_LEVEL", "warning".to_owned()),
        ("CLUSTER_ID", "prod-eu-central-1".to_owned()),
        ("CONFIG", config.to_string()),
    ];
    env.extend(values.map(|(end, value)| EnvVar {
        name: format!("{prefix}_{end}"),
        value,
        value_from: None,
    }));
    Container {
        args: vec![
            "proxy".to_owned(),
            "sidecar".to_owned(),
            "--log_output_level=default:info".to_owned(),
        ],
        ports: vec![port("http-stats", 15_090)],
        env,
        resources: resources("100m", "128Mi", "256Mi"),
        volume_mounts: vec![mount("cache", "/var/lib/sidecar")],
        readiness_probe: Some(probe("/healthz/ready", 15_021)),
        ..container(
            name,
            format!("docker.io/library/{name}:1.{}.{}", text.below(30), text.below(9)),
        )
    }
}

/// A container with what all have.
fn container(name: &str, image: String) -> Container {
    Container {
        name: name.to_owned(),
        image,
        termination_message_path: "/dev/termination-log".to_owned(),
        termination_message_policy: "File".to_owned(),
        image_pull_policy: "IfNotPresent".to_owned(),
        security_context: Some(SecurityContext {
            capabilities: Some(Capabilities {
                drop: vec!["ALL".to_owned()],
            }),
            privileged: Some(false),
            run_as_user: None,
            run_as_non_root: None,
            read_only_root_filesystem: Some(true),
            allow_privilege_escalation: Some(false),
        }),
        ..Container::default()
    }
}

fn variable(n: usize, app: &str, namespace: &str, text: &mut SplitMix) -> EnvVar {
    let subject = SUBJECTS[n % SUBJECTS.len()];
    let property = PROPERTIES[n / SUBJECTS.len() % PROPERTIES.len()];
    let round = n / (SUBJECTS.len() * PROPERTIES.len());
    let name = match round {
        0 => format!("{subject}_{property}"),
        _ => format!("{subject}_{property}_{round}"),
    };
    let value = match property {
        "URL" => format!("http://{}.{namespace}.svc.cluster.local:8080/v1", text.pick(SERVICES)),
        "HOST" => format!("{}.{namespace}.svc.cluster.local", text.pick(SERVICES)),
        "TOPIC" => format!("{namespace}.{app}.{}", text.pick(SERVICES)),
        "BUCKET" => format!("s3://{namespace}-{}/{app}", text.pick(SERVICES)),
        "ENABLED" => text.pick(&["true", "false"]).to_owned(),
        "LEVEL" => text.pick(&["info", "warning"]).to_owned(),
        "PASSWORD" => {
            return EnvVar {
                value_from: Some(EnvVarSource {
                    field_ref: None,
                    secret_key_ref: Some(SecretKeySelector {
                        secret: LocalObjectReference {
                            name: format!("{app}-credentials"),
                        },
                        key: name.to_lowercase(),
                    }),
                }),
                value: String::new(),
                name,
            };
        }
        _ => format!("{}", 10 * (1 + text.below(100))),
    };
    EnvVar {
        name,
        value,
        value_from: None,
    }
}

fn field(path: &str) -> ObjectFieldSelector {
    ObjectFieldSelector {
        api_version: "v1".to_owned(),
        field_path: path.to_owned(),
    }
}

fn field_variable(name: &str, path: &str) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value: String::new(),
        value_from: Some(EnvVarSource {
            field_ref: Some(field(path)),
            secret_key_ref: None,
        }),
    }
}

fn port(name: &str, number: i32) -> ContainerPort {
    ContainerPort {
        name: name.to_owned(),
        container_port: number,
        protocol: "TCP".to_owned(),
        ..ContainerPort::default()
    }
}

fn resources(cpu: &str, memory: &str, most_memory: &str) -> ResourceRequirements {
    let quantity = |name: &str, value: &str| {
        let string = value.to_owned();
        (name.to_owned(), Quantity { string })
    };
    ResourceRequirements {
        limits: BTreeMap::from([quantity("memory", most_memory)]),
        requests: BTreeMap::from([quantity("cpu", cpu), quantity("memory", memory)]),
    }
}

fn mount(name: &str, path: &str) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        read_only: path == TOKEN_MOUNT,
        mount_path: path.to_owned(),
        ..VolumeMount::default()
    }
}

fn probe(path: &str, port: i32) -> Probe {
    Probe {
        handler: ProbeHandler {
            http_get: Some(HttpGetAction {
                path: path.to_owned(),
                port: IntOrString {
                    int: port,
                    ..IntOrString::default()
                },
                host: String::new(),
                scheme: "HTTP".to_owned(),
            }),
        },
        initial_delay_seconds: 5,
        timeout_seconds: 1,
        period_seconds: 10,
        success_threshold: 1,
        failure_threshold: 3,
    }
}

fn volumes(app: &str) -> Vec<Volume> {
    let config = VolumeSource {
        config_map: Some(ConfigMapVolumeSource {
            config_map: LocalObjectReference {
                name: format!("{app}-config"),
            },
            default_mode: Some(FILE_MODE),
        }),
        ..VolumeSource::default()
    };
    let cache = VolumeSource {
        empty_dir: Some(EmptyDirVolumeSource::default()),
        ..VolumeSource::default()
    };
    [("config", config), ("cache", cache)]
        .map(|(name, source)| volume(name, source))
        .to_vec()
}

fn volume(name: &str, source: VolumeSource) -> Volume {
    Volume {
        name: name.to_owned(),
        source,
    }
}

fn token_volume() -> Volume {
    let token = VolumeProjection {
        service_account_token: Some(ServiceAccountTokenProjection {
            audience: String::new(),
            expiration_seconds: Some(3_607),
            path: "token".to_owned(),
        }),
        ..VolumeProjection::default()
    };
    let certificate = VolumeProjection {
        config_map: Some(ConfigMapProjection {
            config_map: LocalObjectReference {
                name: "kube-root-ca.crt".to_owned(),
            },
            items: vec![KeyToPath {
                key: "ca.crt".to_owned(),
                path: "ca.crt".to_owned(),
            }],
        }),
        ..VolumeProjection::default()
    };
    let namespace = VolumeProjection {
        downward_api: Some(DownwardApiProjection {
            items: vec![DownwardApiVolumeFile {
                path: "namespace".to_owned(),
                field_ref: Some(field("metadata.namespace")),
            }],
        }),
        ..VolumeProjection::default()
    };
    let source = VolumeSource {
        projected: Some(ProjectedVolumeSource {
            sources: vec![token, certificate, namespace],
            default_mode: Some(FILE_MODE),
        }),
        ..VolumeSource::default()
    };
    volume(TOKEN_VOLUME, source)
}
