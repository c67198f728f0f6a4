//! The pod template: the brain's container under the restricted pod security standard.

use crds::cluster::image::PullPolicy;
use crds::cluster::pod::{PodSettings, RunAs};
use crds::cluster::storage::TikvTls;
use crds::cluster::tuning::CompactionMode;
use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapProjection, Container, ContainerPort, EmptyDirVolumeSource, EnvVar, EnvVarSource,
    HTTPGetAction, KeyToPath, LocalObjectReference, ObjectFieldSelector, PodSecurityContext, PodSpec, PodTemplateSpec,
    Probe, ProjectedVolumeSource, SeccompProfile, SecretProjection, SecurityContext, TopologySpreadConstraint, Volume,
    VolumeMount, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

use super::lease::{TOKEN_MOUNT, TOKEN_VOLUME, token_volume};
use super::{Renderer, merge, resources};
use crate::certificates::Leaf;
use crate::drift;
use crate::names::{CLIENT_PORT, METRICS_PORT, PEER_PORT, RESOURCES_HASH, RESTART_HASH, VERSION};
use crate::spec::{DesiredStorage, TikvConnection};

/// Volume and mount of the data.
pub const DATA_VOLUME: &str = "data";
pub(super) const DATA_MOUNT: &str = "/var/lib/kubebrain";
/// Below the mount, because a fresh file system has entries of its own at its root.
pub(super) const DATA_DIR: &str = "/var/lib/kubebrain/data";
const TLS_VOLUME: &str = "tls";
const TLS_MOUNT: &str = "/etc/kubebrain/tls";
/// Certificates for the connection to TiKV.
const TIKV_TLS_VOLUME: &str = "tikv-tls";
const TIKV_TLS_MOUNT: &str = "/etc/kubebrain/tikv";
/// Keys of JSON Web Tokens.
const JWT_VOLUME: &str = "jwt";
const JWT_MOUNT: &str = "/etc/kubebrain/jwt";
/// Volume and mount of temporary files.
pub const TEMPORARY_VOLUME: &str = "tmp";
pub const TEMPORARY_MOUNT: &str = "/tmp";
/// The flag by which a brain starts only for one TiKV cluster.
const TIKV_CLUSTER_ID_FLAG: &str = "tikv-cluster-id";
/// The flag, with its value, by which a brain refuses to start with an empty store.
pub const EXISTING_STATE_FLAG: &str = "--initial-cluster-state=existing";
const CLUSTER_STATE_FLAG: &str = "initial-cluster-state";
/// Environment variable for a brain's flag `--embedded-member`: brains with other names do not start.
pub const ONLY_MEMBER_ENV: &str = "ETCD_EMBEDDED_MEMBER";
/// Environment variable for a brain's flag `--embedded-cluster-id`: the brain does not start with another store.
pub const STORE_ID_ENV: &str = "ETCD_EMBEDDED_CLUSTER_ID";
pub const POD_NAME_ENV: &str = "POD_NAME";
const INSTANCE_ID_FLAG: &str = "distributed-tracing-instance-id";
/// Common name of the certificate that brains present to each other.
pub const PEER_COMMON_NAME: &str = "kubebrain-peer";
pub const BRAIN_CONTAINER: &str = "brain";
/// The unprivileged user of the image, as the number that the restricted standard requires.
const IMAGE_USER: i64 = 65532;

impl Renderer<'_> {
    pub fn template(&self) -> Result<Value, serde_json::Error> {
        let spec = &self.cluster.spec;
        let mut labels = self.labels();
        labels.insert(VERSION.to_owned(), spec.version.clone());
        let mut annotations = self.annotations();
        annotations.insert(
            "kubectl.kubernetes.io/default-container".to_owned(),
            BRAIN_CONTAINER.to_owned(),
        );
        if let Some(at) = &self.desired.restart.at {
            annotations.insert(drift::RESTARTED_AT.to_owned(), at.clone());
        }
        let mut template = serde_json::to_value(PodTemplateSpec {
            metadata: Some(ObjectMeta {
                labels: Some(labels),
                annotations: Some(annotations),
                ..ObjectMeta::default()
            }),
            spec: Some(self.pod_spec()),
        })?;
        if let Some(given) = &self.desired.pod_template {
            self.merge(&mut template, given);
        }
        let hash = if self.epoch.resizes_in_place() {
            template["metadata"]["annotations"][RESOURCES_HASH] = json!(resources::hash(&template));
            drift::restart_hash(&resources::strip(&without_pinned(&template)))
        } else {
            drift::restart_hash(&template)
        };
        template["metadata"]["annotations"][RESTART_HASH] = json!(hash);
        Ok(template)
    }

    /// Merges a podTemplate over the rendered one. Containers that it adds get no additional rights unless they request them.
    fn merge(&self, template: &mut Value, given: &Value) {
        let mut given = given.clone();
        if !self.epoch.merges_strictly() {
            super::drop_nulls(&mut given);
            merge::merge(template, &given);
            return;
        }
        merge::merge(template, &given);
        for list in ["containers", "initContainers"] {
            let containers = template.pointer_mut(&format!("/spec/{list}"));
            let containers = containers.and_then(Value::as_array_mut).into_iter().flatten();
            for container in containers.filter_map(Value::as_object_mut) {
                let context = container.entry("securityContext").or_insert_with(|| json!({}));
                if let Some(context) = context.as_object_mut() {
                    context.entry("allowPrivilegeEscalation").or_insert(json!(false));
                }
            }
        }
    }

    pub fn pod_spec(&self) -> PodSpec {
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
            volumes: self.volumes(),
            service_account_name: Some(self.account().to_owned()),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            security_context: Some(pod_security(settings.run_as.unwrap_or_default())),
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
        let ports = [("client", CLIENT_PORT), ("peer", PEER_PORT), ("metrics", METRICS_PORT)];
        Container {
            name: BRAIN_CONTAINER.to_owned(),
            image: Some(self.desired.image.clone()),
            image_pull_policy: pull_policy.map(|policy| format!("{policy:?}")),
            args: Some(self.arguments()),
            env: Some(self.environment()),
            ports: Some(ports.map(|(name, number)| port(name, number)).to_vec()),
            // Checks only that the process lives, not the storage, whose failure would restart every brain.
            liveness_probe: Some(probe("/livez", 10, 3)),
            readiness_probe: Some(probe("/readyz", 2, 3)),
            // Opening the store replays the tail of the log, which may take a while.
            startup_probe: Some(probe("/livez", 1, 600)),
            resources: settings.resources.clone(),
            security_context: Some(container_security()),
            // The status reports the reason why a brain does not start.
            termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
            volume_mounts: Some(self.mounts()).filter(|mounts| !mounts.is_empty()),
            ..Container::default()
        }
    }

    /// Returns the pod's name and the store that an embedded brain must find. They are environment variables because brains that do not
    /// know them yet ignore them, whereas an unknown flag prevents the start.
    fn environment(&self) -> Vec<EnvVar> {
        let name = EnvVar {
            name: POD_NAME_ENV.to_owned(),
            value_from: Some(EnvVarSource {
                field_ref: Some(ObjectFieldSelector {
                    field_path: "metadata.name".to_owned(),
                    ..ObjectFieldSelector::default()
                }),
                ..EnvVarSource::default()
            }),
            ..EnvVar::default()
        };
        let mut all = vec![name];
        if self.names_only_member() {
            let variable = |name: &str, value: String| EnvVar {
                name: name.to_owned(),
                value: Some(value),
                ..EnvVar::default()
            };
            all.push(variable(ONLY_MEMBER_ENV, self.names().pod(0)));
            all.extend(self.pinned_store().map(|id| variable(STORE_ID_ENV, id.clone())));
        }
        all
    }

    /// Returns true if pods and Services of an embedded store name the only member.
    pub fn names_only_member(&self) -> bool {
        let is_known = self.pinned_store().is_some() || self.epoch.names_only_member();
        self.desired.storage.embedded().is_some() && is_known
    }

    /// Returns the id of the store, if brains must start only with that store.
    fn pinned_store(&self) -> Option<&String> {
        self.desired.store.as_ref().filter(|_| self.epoch.pins_store())
    }

    /// Returns the brain's command line. The kubelet fills in `$(POD_NAME_ENV)`. Nothing in it depends on the number of members, so scaling
    /// restarts no brain.
    fn arguments(&self) -> Vec<String> {
        let secure = self.desired.certificates.is_some();
        let scheme = if secure { "https" } else { "http" };
        let host = self.names().member_host("$(POD_NAME)");
        let any = self.epoch.any_address();
        let mut flags = vec![
            ("name", "$(POD_NAME)".to_owned()),
            ("listen-client-urls", format!("{scheme}://{any}:{CLIENT_PORT}")),
            ("advertise-client-urls", format!("{scheme}://{host}:{CLIENT_PORT}")),
            ("listen-peer-urls", format!("{scheme}://{any}:{PEER_PORT}")),
            ("initial-advertise-peer-urls", format!("{scheme}://{host}:{PEER_PORT}")),
            ("listen-metrics-urls", format!("http://{any}:{METRICS_PORT}")),
        ];
        if secure {
            flags.extend(certificate_flags());
        }
        match &self.desired.storage {
            DesiredStorage::Embedded(_) => {
                flags.push(("data-dir", DATA_DIR.to_owned()));
                flags.push(("initial-cluster", format!("$(POD_NAME)={scheme}://{host}:{PEER_PORT}")));
            }
            DesiredStorage::Tikv(tikv) => {
                flags.extend(tikv_flags(tikv));
                let id = tikv.cluster_id.as_ref().filter(|_| self.epoch.names_tikv_cluster());
                flags.extend(id.map(|id| (TIKV_CLUSTER_ID_FLAG, id.clone())));
                flags.push(("discovery-srv", self.names().discovery_domain()));
                flags.push(("initial-cluster-token", self.cluster_token()));
                flags.extend(self.election_flags());
            }
            // The user chose the directory and creates the pods, too.
            DesiredStorage::Unmanaged => {}
        }
        flags.extend(self.pinned_store().map(|_| (CLUSTER_STATE_FLAG, "existing".to_owned())));
        flags.extend(self.typed_flags());
        flags.extend(self.instance_id());
        // Kubernetes would treat `$(` in a user's value as a variable.
        let further = self.cluster.spec.flags.iter();
        let further = further.map(|(flag, value)| (flag.as_str(), value.replace("$(", "$$(")));
        flags
            .into_iter()
            .chain(further)
            .map(|(flag, value)| format!("--{flag}={value}"))
            .collect()
    }

    /// Flags for the leader election of members on TiKV. The brain has its own defaults for fields that the spec does not set.
    fn election_flags(&self) -> Vec<(&'static str, String)> {
        let election = self.cluster.spec.election();
        let timings = [
            ("election-lease-duration", election.lease_duration),
            ("election-renew-deadline", election.renew_deadline),
            ("election-retry-period", election.retry_period),
        ];
        let timings = timings.into_iter().filter_map(|(flag, set)| Some((flag, set?)));
        let mut flags: Vec<_> = timings.collect();
        if self.competes_by_lease() {
            flags.push(("election", "lease".to_owned()));
            flags.push(("lease-namespace", self.names().namespace.clone()));
            flags.push(("lease-name", self.names().lease()));
        }
        flags
    }

    /// If spans are exported, returns the name that identifies those of one member, unless the user chose one for all of them.
    fn instance_id(&self) -> Option<(&'static str, String)> {
        let given = |name: &str| {
            let flags = &self.cluster.spec.flags;
            let former = || flags.get(&format!("experimental-{name}"));
            flags.get(name).or_else(former).map(String::as_str)
        };
        let exports = given("enable-distributed-tracing") == Some("true") && given(INSTANCE_ID_FLAG).is_none();
        exports.then(|| (INSTANCE_ID_FLAG, "$(POD_NAME)".to_owned()))
    }

    /// Flags that have fields of their own.
    fn typed_flags(&self) -> Vec<(&'static str, String)> {
        let spec = &self.cluster.spec;
        let mut flags = Vec::new();
        if let Some(compaction) = &spec.auto_compaction {
            let mode = match compaction.mode {
                CompactionMode::Periodic => "periodic",
                CompactionMode::Revision => "revision",
            };
            flags.push(("auto-compaction-mode", mode.to_owned()));
            flags.push(("auto-compaction-retention", compaction.retention.clone()));
        }
        if let Some(bytes) = spec.quota.as_ref().and_then(crate::quantity::parse) {
            flags.push(("quota-backend-bytes", (bytes / crate::quantity::ONE).to_string()));
        } else if self
            .desired
            .storage
            .embedded()
            .is_some_and(|embedded| embedded.auto_grow.is_some())
        {
            // The quota of the brain's own would be reached before the volume has grown.
            flags.push(("quota-backend-bytes", "-1".to_owned()));
        }
        if let Some(level) = spec.log_level {
            flags.push(("log-level", level.flag().to_owned()));
        }
        flags
    }

    /// Returns one volume with certificates and trust, so that a change of both arrives at once.
    fn tls_volume(&self) -> Volume {
        let pair = |name: &str, file: &str| {
            let (certificate, key) = (format!("{file}.crt"), format!("{file}.key"));
            from_secret(name, vec![item("tls.crt", &certificate), item("tls.key", &key)])
        };
        let sources = match &self.cluster.spec.tls.secrets {
            Some(given) => vec![
                pair(&given.server.name, "server"),
                pair(&given.peer.name, "peer"),
                from_secret(&given.ca_bundle.name, vec![item(&given.ca_bundle.key, "ca.crt")]),
            ],
            None => vec![
                pair(&self.names().leaf(Leaf::Server), "server"),
                pair(&self.names().leaf(Leaf::Peer), "peer"),
                VolumeProjection {
                    config_map: Some(ConfigMapProjection {
                        name: self.names().bundle(),
                        items: Some(vec![item("ca.crt", "ca.crt")]),
                        ..ConfigMapProjection::default()
                    }),
                    ..VolumeProjection::default()
                },
            ],
        };
        projected(TLS_VOLUME, sources)
    }

    /// Returns the volume with the certificates for the connection to TiKV.
    fn tikv_volume(tls: &TikvTls) -> Volume {
        let (trusted, own) = (&tls.ca_secret_ref, &tls.client_secret_ref);
        let sources = vec![
            from_secret(&trusted.name, vec![item(&trusted.key, "ca.crt")]),
            from_secret(&own.name, vec![item("tls.crt", "tls.crt"), item("tls.key", "tls.key")]),
        ];
        projected(TIKV_TLS_VOLUME, sources)
    }

    /// Returns the token that distinguishes the owner of a key prefix from others.
    pub fn cluster_token(&self) -> String {
        format!("{}/{}", self.names().namespace, self.names().cluster)
    }

    fn volumes(&self) -> Option<Vec<Volume>> {
        let tls = self.desired.certificates.is_some().then(|| self.tls_volume());
        let token = self.competes_by_lease().then(token_volume);
        let all: Vec<Volume> = tls
            .into_iter()
            .chain(self.tikv_volumes().into_iter().flatten())
            .chain(token)
            .chain(self.has_temporary_files().then(temporary_volume))
            .chain(
                self.cluster
                    .spec
                    .jwt_secret_ref
                    .as_ref()
                    .map(|secret| jwt_volume(&secret.name)),
            )
            .collect();
        (!all.is_empty()).then_some(all)
    }

    /// Volumes for the connection to TiKV.
    pub fn tikv_volumes(&self) -> Option<Vec<Volume>> {
        let tls = self.desired.storage.tikv()?.tls.as_ref()?;
        Some(vec![Self::tikv_volume(tls)])
    }

    /// Mounts of those volumes.
    pub fn tikv_mounts(&self) -> Option<Vec<VolumeMount>> {
        self.desired.storage.tikv()?.tls.as_ref()?;
        Some(vec![mount(TIKV_TLS_VOLUME, TIKV_TLS_MOUNT, true)])
    }

    fn has_temporary_files(&self) -> bool {
        self.epoch.has_temporary_files() && self.desired.storage.tikv().is_some()
    }

    fn mounts(&self) -> Vec<VolumeMount> {
        let mut mounts = Vec::new();
        if self.desired.storage.embedded().is_some() {
            mounts.push(mount(DATA_VOLUME, DATA_MOUNT, false));
        }
        if self.desired.certificates.is_some() {
            mounts.push(mount(TLS_VOLUME, TLS_MOUNT, true));
        }
        mounts.extend(self.tikv_mounts().into_iter().flatten());
        if self.competes_by_lease() {
            mounts.push(mount(TOKEN_VOLUME, TOKEN_MOUNT, true));
        }
        if self.has_temporary_files() {
            mounts.push(mount(TEMPORARY_VOLUME, TEMPORARY_MOUNT, false));
        }
        if self.cluster.spec.jwt_secret_ref.is_some() {
            mounts.push(mount(JWT_VOLUME, JWT_MOUNT, true));
        }
        mounts
    }

    /// Returns the spec's constraints. Without any, members on TiKV prefer different zones and nodes.
    fn spread(&self, constraints: Vec<TopologySpreadConstraint>) -> Option<Vec<TopologySpreadConstraint>> {
        let constraints = if constraints.is_empty() && self.desired.storage.tikv().is_some() {
            ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
                .map(|key| TopologySpreadConstraint {
                    max_skew: 1,
                    topology_key: key.to_owned(),
                    when_unsatisfiable: "ScheduleAnyway".to_owned(),
                    ..TopologySpreadConstraint::default()
                })
                .to_vec()
        } else {
            constraints
        };
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

/// Returns the security settings of a pod under the restricted standard.
pub fn pod_security(run_as: RunAs) -> PodSecurityContext {
    let user = (run_as == RunAs::Image).then_some(IMAGE_USER);
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: user,
        run_as_group: user,
        fs_group: user,
        fs_group_change_policy: Some("OnRootMismatch".to_owned()),
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".to_owned(),
            ..SeccompProfile::default()
        }),
        ..PodSecurityContext::default()
    }
}

/// The same for a container.
pub fn container_security() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        capabilities: Some(Capabilities {
            drop: Some(vec!["ALL".to_owned()]),
            ..Capabilities::default()
        }),
        ..SecurityContext::default()
    }
}

/// Returns flags for the paths of the certificates, and for the clients and peers that may connect.
fn certificate_flags() -> Vec<(&'static str, String)> {
    let files = [
        ("cert-file", "server.crt"),
        ("key-file", "server.key"),
        ("trusted-ca-file", "ca.crt"),
        ("peer-cert-file", "peer.crt"),
        ("peer-key-file", "peer.key"),
        ("peer-trusted-ca-file", "ca.crt"),
    ];
    let files = files.map(|(flag, file)| (flag, format!("{TLS_MOUNT}/{file}")));
    let rules = [
        ("client-cert-auth", "true"),
        ("peer-client-cert-auth", "true"),
        ("peer-cert-allowed-cn", PEER_COMMON_NAME),
    ];
    let rules = rules.map(|(flag, value)| (flag, value.to_owned()));
    files.into_iter().chain(rules).collect()
}

/// Returns a pod template without the id of the TiKV cluster or of the embedded store. The id becomes known only while brains run. They
/// already use that cluster or store, so they need no restart for it.
fn without_pinned(template: &Value) -> Value {
    let mut template = template.clone();
    let flags = [TIKV_CLUSTER_ID_FLAG, CLUSTER_STATE_FLAG].map(|flag| format!("--{flag}="));
    let containers = template["spec"]["containers"].as_array_mut();
    for container in containers.into_iter().flatten() {
        if let Some(args) = container.get_mut("args").and_then(Value::as_array_mut) {
            let is_pinned = |arg: &str| flags.iter().any(|flag| arg.starts_with(flag.as_str()));
            args.retain(|arg| !arg.as_str().is_some_and(is_pinned));
        }
        if let Some(env) = container.get_mut("env").and_then(Value::as_array_mut) {
            let is_pinned = |name: &str| [ONLY_MEMBER_ENV, STORE_ID_ENV].contains(&name);
            env.retain(|variable| !variable["name"].as_str().is_some_and(is_pinned));
        }
    }
    template
}

/// Flags for the connection to TiKV.
pub fn tikv_flags(tikv: &TikvConnection) -> Vec<(&'static str, String)> {
    let mut flags = vec![
        ("storage", "tikv".to_owned()),
        ("tikv-pd-endpoints", tikv.pd_endpoints.join(",")),
        ("tikv-key-prefix", tikv.key_prefix.clone()),
    ];
    if tikv.tls.is_some() {
        let files = [("tikv-ca", "ca.crt"), ("tikv-cert", "tls.crt"), ("tikv-key", "tls.key")];
        flags.extend(files.map(|(flag, file)| (flag, format!("{TIKV_TLS_MOUNT}/{file}"))));
    }
    if let Some((interval, window)) = &tikv.gc {
        flags.push(("tikv-gc-interval", interval.clone()));
        flags.push(("tikv-gc-window", window.clone()));
    }
    flags
}

/// Returns a volume of several sources that only the brain's group can read.
pub fn projected(name: &str, sources: Vec<VolumeProjection>) -> Volume {
    Volume {
        name: name.to_owned(),
        projected: Some(ProjectedVolumeSource {
            default_mode: Some(0o440),
            sources: Some(sources),
        }),
        ..Volume::default()
    }
}

pub fn from_secret(name: &str, items: Vec<KeyToPath>) -> VolumeProjection {
    VolumeProjection {
        secret: Some(SecretProjection {
            name: name.to_owned(),
            items: Some(items),
            ..SecretProjection::default()
        }),
        ..VolumeProjection::default()
    }
}

/// Returns the volume with the keys of JSON Web Tokens. Members that only verify tokens have no private key.
fn jwt_volume(secret: &str) -> Volume {
    let public = from_secret(secret, vec![item("jwt.pub", "jwt.pub")]);
    let mut private = from_secret(secret, vec![item("jwt.key", "jwt.key")]);
    if let Some(source) = &mut private.secret {
        source.optional = Some(true);
    }
    projected(JWT_VOLUME, vec![public, private])
}

pub fn temporary_volume() -> Volume {
    Volume {
        name: TEMPORARY_VOLUME.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource::default()),
        ..Volume::default()
    }
}

pub fn mount(name: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    }
}

pub fn item(key: &str, path: &str) -> KeyToPath {
    KeyToPath {
        key: key.to_owned(),
        path: path.to_owned(),
        ..KeyToPath::default()
    }
}

pub(super) fn port(name: &str, number: i32) -> ContainerPort {
    ContainerPort {
        name: Some(name.to_owned()),
        container_port: number,
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    }
}

pub(super) fn probe(path: &str, period: i32, failures: i32) -> Probe {
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
