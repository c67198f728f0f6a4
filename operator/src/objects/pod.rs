//! The pod template: the brain's container under the restricted pod security standard.

use crds::cluster::image::PullPolicy;
use crds::cluster::pod::PodSettings;
use crds::cluster::tuning::CompactionMode;
use k8s_openapi::DeepMerge;
use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapProjection, Container, ContainerPort, EnvVar, EnvVarSource, HTTPGetAction, KeyToPath,
    LocalObjectReference, ObjectFieldSelector, PodSecurityContext, PodSpec, PodTemplateSpec, Probe,
    ProjectedVolumeSource, SeccompProfile, SecretProjection, SecurityContext, TopologySpreadConstraint, Volume,
    VolumeMount, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::Renderer;
use crate::certificates::Leaf;
use crate::names::{CLIENT_PORT, METRICS_PORT, PEER_PORT, VERSION};

/// Volume and mount of the data.
pub(super) const DATA: &str = "data";
const DATA_MOUNT: &str = "/var/lib/kubebrain";
/// Below the mount: a fresh file system has things of its own at its root.
const DATA_DIR: &str = "/var/lib/kubebrain/data";
const TLS: &str = "tls";
const TLS_MOUNT: &str = "/etc/kubebrain/tls";
const CONTAINER: &str = "brain";
/// The unprivileged user of the image, by number as the restricted standard wants it.
const USER: i64 = 65532;

impl Renderer<'_> {
    pub(super) fn template(&self) -> PodTemplateSpec {
        let spec = &self.cluster.spec;
        let mut labels = self.labels();
        labels.insert(VERSION.to_owned(), spec.version.clone());
        let mut annotations = self.annotations();
        annotations.insert(
            "kubectl.kubernetes.io/default-container".to_owned(),
            CONTAINER.to_owned(),
        );
        if let Some(at) = &spec.restarted_at {
            annotations.insert("kubectl.kubernetes.io/restartedAt".to_owned(), at.clone());
        }
        let mut template = PodTemplateSpec {
            metadata: Some(ObjectMeta {
                labels: Some(labels),
                annotations: Some(annotations),
                ..ObjectMeta::default()
            }),
            spec: Some(self.pod_spec()),
        };
        if let Some(overrides) = &self.desired.overrides {
            template.merge_from(overrides.clone());
        }
        template
    }

    fn pod_spec(&self) -> PodSpec {
        let image = self.cluster.spec.image.clone().unwrap_or_default();
        let settings = self.cluster.spec.pod.clone().unwrap_or_default();
        let secrets: Vec<_> = self
            .cluster
            .spec
            .image_pull_secrets
            .iter()
            .map(|secret| LocalObjectReference {
                name: secret.name.clone(),
            })
            .collect();
        PodSpec {
            containers: vec![self.container(image.pull_policy, &settings)],
            volumes: self.desired.certificates.is_some().then(|| vec![self.tls_volume()]),
            service_account_name: Some(settings.service_account_name.unwrap_or(self.names().cluster.clone())),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            security_context: Some(PodSecurityContext {
                run_as_non_root: Some(true),
                run_as_user: Some(USER),
                run_as_group: Some(USER),
                fs_group: Some(USER),
                fs_group_change_policy: Some("OnRootMismatch".to_owned()),
                seccomp_profile: Some(SeccompProfile {
                    type_: "RuntimeDefault".to_owned(),
                    ..SeccompProfile::default()
                }),
                ..PodSecurityContext::default()
            }),
            termination_grace_period_seconds: Some(settings.termination_grace_period_seconds.unwrap_or(60)),
            image_pull_secrets: (!secrets.is_empty()).then_some(secrets),
            node_selector: (!settings.node_selector.is_empty()).then_some(settings.node_selector),
            tolerations: (!settings.tolerations.is_empty()).then_some(settings.tolerations),
            topology_spread_constraints: self.spread(settings.topology_spread_constraints),
            priority_class_name: settings.priority_class_name,
            ..PodSpec::default()
        }
    }

    fn container(&self, pull_policy: Option<PullPolicy>, settings: &PodSettings) -> Container {
        let mut mounts = vec![VolumeMount {
            name: DATA.to_owned(),
            mount_path: DATA_MOUNT.to_owned(),
            ..VolumeMount::default()
        }];
        if self.desired.certificates.is_some() {
            mounts.push(VolumeMount {
                name: TLS.to_owned(),
                mount_path: TLS_MOUNT.to_owned(),
                read_only: Some(true),
                ..VolumeMount::default()
            });
        }
        let ports = [("client", CLIENT_PORT), ("peer", PEER_PORT), ("metrics", METRICS_PORT)];
        Container {
            name: CONTAINER.to_owned(),
            image: Some(self.desired.image.clone()),
            image_pull_policy: pull_policy.map(|policy| format!("{policy:?}")),
            args: Some(self.arguments()),
            env: Some(vec![EnvVar {
                name: "POD_NAME".to_owned(),
                value_from: Some(EnvVarSource {
                    field_ref: Some(ObjectFieldSelector {
                        field_path: "metadata.name".to_owned(),
                        ..ObjectFieldSelector::default()
                    }),
                    ..EnvVarSource::default()
                }),
                ..EnvVar::default()
            }]),
            ports: Some(ports.map(|(name, number)| port(name, number)).to_vec()),
            // The process lives: never the storage, or its failure would restart every brain.
            liveness_probe: Some(probe("/livez", 10, 3)),
            readiness_probe: Some(probe("/readyz", 2, 3)),
            // Opening replays the tail of the log, which may take a while.
            startup_probe: Some(probe("/livez", 1, 600)),
            resources: settings.resources.clone(),
            security_context: Some(SecurityContext {
                allow_privilege_escalation: Some(false),
                read_only_root_filesystem: Some(true),
                capabilities: Some(Capabilities {
                    drop: Some(vec!["ALL".to_owned()]),
                    ..Capabilities::default()
                }),
                ..SecurityContext::default()
            }),
            volume_mounts: Some(mounts),
            ..Container::default()
        }
    }

    /// The brain's command line. `$(POD_NAME)` is filled in by the kubelet.
    fn arguments(&self) -> Vec<String> {
        let secure = self.desired.certificates.is_some();
        let scheme = if secure { "https" } else { "http" };
        let host = self.names().member_host("$(POD_NAME)");
        let peer = format!("{scheme}://{host}:{PEER_PORT}");
        let mut flags = vec![
            ("name", "$(POD_NAME)".to_owned()),
            ("data-dir", DATA_DIR.to_owned()),
            ("listen-client-urls", format!("{scheme}://0.0.0.0:{CLIENT_PORT}")),
            ("advertise-client-urls", format!("{scheme}://{host}:{CLIENT_PORT}")),
            ("listen-peer-urls", format!("{scheme}://0.0.0.0:{PEER_PORT}")),
            ("initial-advertise-peer-urls", peer.clone()),
            ("initial-cluster", format!("$(POD_NAME)={peer}")),
            ("listen-metrics-urls", format!("http://0.0.0.0:{METRICS_PORT}")),
        ];
        if secure {
            for (flag, file) in [
                ("cert-file", "server.crt"),
                ("key-file", "server.key"),
                ("trusted-ca-file", "ca.crt"),
                ("peer-cert-file", "peer.crt"),
                ("peer-key-file", "peer.key"),
                ("peer-trusted-ca-file", "ca.crt"),
            ] {
                flags.push((flag, format!("{TLS_MOUNT}/{file}")));
            }
            flags.push(("client-cert-auth", "true".to_owned()));
            flags.push(("peer-client-cert-auth", "true".to_owned()));
        }
        let spec = &self.cluster.spec;
        let mut typed = Vec::new();
        if let Some(compaction) = &spec.auto_compaction {
            let mode = match compaction.mode {
                CompactionMode::Periodic => "periodic",
                CompactionMode::Revision => "revision",
            };
            typed.push(("auto-compaction-mode", mode.to_owned()));
            typed.push(("auto-compaction-retention", compaction.retention.clone()));
        }
        if let Some(bytes) = spec.quota.as_ref().and_then(crate::quantity::parse) {
            typed.push(("quota-backend-bytes", (bytes / crate::quantity::ONE).to_string()));
        }
        if let Some(level) = spec.log_level {
            typed.push(("log-level", level.flag().to_owned()));
        }
        // Kubernetes would take `$(` in a user's value for a variable.
        let further = self
            .cluster
            .spec
            .flags
            .iter()
            .map(|(flag, value)| (flag.as_str(), value.replace("$(", "$$(")));
        flags
            .into_iter()
            .chain(typed)
            .chain(further)
            .map(|(flag, value)| format!("--{flag}={value}"))
            .collect()
    }

    /// Certificates and trust in one volume, so that a change of both arrives at once.
    fn tls_volume(&self) -> Volume {
        let secret = |leaf: Leaf, file: &str| VolumeProjection {
            secret: Some(SecretProjection {
                name: self.names().leaf(leaf),
                items: Some(vec![
                    item("tls.crt", &format!("{file}.crt")),
                    item("tls.key", &format!("{file}.key")),
                ]),
                ..SecretProjection::default()
            }),
            ..VolumeProjection::default()
        };
        let bundle = VolumeProjection {
            config_map: Some(ConfigMapProjection {
                name: self.names().bundle(),
                items: Some(vec![item("ca.crt", "ca.crt")]),
                ..ConfigMapProjection::default()
            }),
            ..VolumeProjection::default()
        };
        Volume {
            name: TLS.to_owned(),
            projected: Some(ProjectedVolumeSource {
                default_mode: Some(0o440),
                sources: Some(vec![secret(Leaf::Server, "server"), secret(Leaf::Peer, "peer"), bundle]),
            }),
            ..Volume::default()
        }
    }

    fn spread(&self, constraints: Vec<TopologySpreadConstraint>) -> Option<Vec<TopologySpreadConstraint>> {
        let own = || LabelSelector {
            match_labels: Some(self.names().selector()),
            ..LabelSelector::default()
        };
        let filled: Vec<_> = constraints
            .into_iter()
            .map(|mut constraint| {
                constraint.label_selector.get_or_insert_with(own);
                constraint
            })
            .collect();
        (!filled.is_empty()).then_some(filled)
    }
}

fn item(key: &str, path: &str) -> KeyToPath {
    KeyToPath {
        key: key.to_owned(),
        path: path.to_owned(),
        ..KeyToPath::default()
    }
}

fn port(name: &str, number: i32) -> ContainerPort {
    ContainerPort {
        name: Some(name.to_owned()),
        container_port: number,
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    }
}

fn probe(path: &str, period: i32, failures: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::String("metrics".to_owned()),
            scheme: Some("HTTP".to_owned()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period),
        failure_threshold: Some(failures),
        timeout_seconds: Some(5),
        ..Probe::default()
    }
}
