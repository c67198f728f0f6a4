//! The pods that run `kubebrain backup`, or another subcommand that reads data from elsewhere, in a Job or in a Deployment: the program's flags, and the objects of the namespace that they name.

use std::collections::BTreeMap;

use crds::backup::destination::{Azure, CaBundleRef, ClaimDirectory, Destination, Gcs, S3};
use crds::backup::status::BackupRuntime;
use crds::cluster::bootstrap::{ClaimFile, FromEtcd};
use crds::cluster::image::LocalRef;
use crds::cluster::status::BundleKind;
use crds::wishes::CUTOVER;
use k8s_openapi::api::core::v1::{
    Container, DownwardAPIProjection, DownwardAPIVolumeFile, EnvVar, EnvVarSource, KeyToPath, LocalObjectReference,
    ObjectFieldSelector, PersistentVolumeClaimVolumeSource, PodSpec, ResourceRequirements, SecretKeySelector,
    Toleration, Volume, VolumeMount, VolumeProjection,
};

use super::access::{ClusterAccess, from_config_map};
use super::target::{BackupTarget, url};
use crate::names::{MANAGED_BY, MANAGER, labels};
use crate::objects::pod::{
    TEMPORARY_MOUNT, TEMPORARY_VOLUME, container_security, from_secret, item, mount, pod_security, projected,
    temporary_volume,
};

/// Volumes of the pods, which are mounted at paths of the same name below [`MOUNTS`].
const CLUSTER_VOLUME: &str = "cluster";
const CREDENTIALS_VOLUME: &str = "credentials";
const CA_VOLUME: &str = "destination-ca";
const ENCRYPTION_VOLUME: &str = "encryption";
const SOURCE_VOLUME: &str = "source";
const CUTOVER_VOLUME: &str = "cutover";
const MOUNTS: &str = "/etc/kubebrain";
/// Volume and mount of a destination that is a volume.
const CLAIM_VOLUME: &str = "backups";
const CLAIM_MOUNT: &str = "/backups";
/// The key of Google's file of credentials in its Secret, and the file.
const GOOGLE_CREDENTIALS: &str = "credentials.json";
/// Variables with the credentials of S3: each with true if the Secret must have it.
const S3_VARIABLES: [(&str, bool); 3] = [
    ("AWS_ACCESS_KEY_ID", true),
    ("AWS_SECRET_ACCESS_KEY", true),
    ("AWS_SESSION_TOKEN", false),
];
/// The same for Azure, where one of several sets is needed.
const AZURE_VARIABLES: [(&str, bool); 5] = [
    ("AZURE_STORAGE_ACCOUNT_KEY", false),
    ("AZURE_STORAGE_SAS_TOKEN", false),
    ("AZURE_TENANT_ID", false),
    ("AZURE_CLIENT_ID", false),
    ("AZURE_CLIENT_SECRET", false),
];

/// The parts of a pod that runs the program.
pub(crate) struct ProgramPod {
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<EnvVar>,
    pub(crate) volumes: Vec<Volume>,
    pub(crate) mounts: Vec<VolumeMount>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) account: Option<String>,
    /// True if credentials are files, which follow their Secret while the pod runs; otherwise they are variables.
    follows_secrets: bool,
}

/// Resources and placement of such a pod.
#[derive(Default)]
pub(crate) struct PodPlacement {
    pub(crate) resources: Option<ResourceRequirements>,
    pub(crate) node_selector: BTreeMap<String, String>,
    pub(crate) tolerations: Vec<Toleration>,
    pub(crate) priority_class_name: Option<String>,
}

impl ProgramPod {
    /// Returns a pod that runs `kubebrain backup ACTION` and reaches the target. It has the labels by which it is known, without those by
    /// which Services and budgets select brains.
    pub(crate) fn new(action: &str, target: BackupTarget<'_>, app: &str, own: (&str, &str)) -> Self {
        Self::of_command(&["backup", action], app, own).reaching(target)
    }

    /// Returns the same for a pod that runs until it is deleted.
    pub(crate) fn lasting(action: &str, target: BackupTarget<'_>, app: &str, own: (&str, &str)) -> Self {
        let mut pod = Self::of_command(&["backup", action], app, own);
        pod.follows_secrets = true;
        pod.reaching(target)
    }

    fn reaching(mut self, target: BackupTarget<'_>) -> Self {
        let pod = &mut self;
        pod.account = target.service_account_name.map(str::to_owned);
        let to = target.destination;
        if let Some(s3) = &to.s3 {
            pod.reach_s3(s3);
        } else if let Some(gcs) = &to.gcs {
            pod.reach_gcs(gcs);
        } else if let Some(azure) = &to.azure {
            pod.reach_azure(azure, target.service_account_name.is_some());
        } else if let Some(claim) = &to.persistent_volume_claim {
            pod.reach_claim(claim);
        }
        self
    }

    /// Returns a pod that runs a subcommand, with the labels by which it is known.
    fn of_command(command: &[&str], app: &str, own: (&str, &str)) -> Self {
        Self {
            args: command.iter().map(|word| (*word).to_owned()).collect(),
            env: Vec::new(),
            volumes: vec![temporary_volume()],
            mounts: vec![mount(TEMPORARY_VOLUME, TEMPORARY_MOUNT, false)],
            labels: labels([
                ("app.kubernetes.io/name", app),
                ("app.kubernetes.io/part-of", "kubebrain"),
                (MANAGED_BY, MANAGER),
                own,
            ]),
            account: None,
            follows_secrets: false,
        }
    }

    /// Returns a pod that runs `kubebrain snapshot restore` on a file.
    pub(crate) fn of_snapshot(file: &ClaimFile, app: &str, own: (&str, &str)) -> Self {
        let mut pod = Self::of_command(&["snapshot", "restore"], app, own);
        pod.args.push(format!("{CLAIM_MOUNT}/{}", file.path));
        pod.claim(CLAIM_VOLUME, &file.claim_name, true);
        pod.mounts.push(mount(CLAIM_VOLUME, CLAIM_MOUNT, true));
        pod
    }

    /// Returns a pod that runs `kubebrain import` and copies an etcd.
    pub(crate) fn of_etcd(etcd: &FromEtcd, app: &str, own: (&str, &str)) -> Self {
        let mut pod = Self::of_command(&["import"], app, own);
        pod.flag("from-endpoints", etcd.endpoints.join(","));
        let tls = etcd.tls.clone().unwrap_or_default();
        let mut files = Vec::new();
        let mut sources = Vec::new();
        if let Some(bundle) = &tls.ca_bundle_ref {
            sources.push(from_bundle(bundle));
            files.push(("cacert", "ca.crt"));
        }
        if let Some(client) = &tls.client_secret_ref {
            let pair = vec![item("tls.crt", "tls.crt"), item("tls.key", "tls.key")];
            sources.push(from_secret(&client.name, pair));
            files.extend([("cert", "tls.crt"), ("key", "tls.key")]);
        }
        if !sources.is_empty() {
            let path = pod.project(SOURCE_VOLUME, sources);
            for (flag, file) in files {
                pod.flag(flag, format!("{path}/{file}"));
            }
        }
        if let Some(user) = &etcd.user_secret_ref {
            pod.user("ETCD_USER", user);
        }
        if etcd.follow {
            pod.args.push("--follow".to_owned());
            let path = pod.project(CUTOVER_VOLUME, vec![from_annotation(CUTOVER, CUTOVER_VOLUME)]);
            pod.flag("cutover-file", format!("{path}/{CUTOVER_VOLUME}"));
        }
        pod
    }

    /// Adds the flags of a pod that stores what it reads from the members.
    pub(crate) fn store(&mut self, target: BackupTarget<'_>, access: &ClusterAccess) {
        self.object_flags(target.destination);
        self.decrypt(target);
        self.flag("endpoints", &access.endpoint);
        if let Some(sources) = &access.certificates {
            let path = self.project(CLUSTER_VOLUME, sources.clone());
            for (flag, file) in [("cacert", "ca.crt"), ("cert", "tls.crt"), ("key", "tls.key")] {
                self.flag(flag, format!("{path}/{file}"));
            }
        }
        if let Some(user) = target.user_secret_ref {
            self.user("BACKUP_USER", user);
        }
    }

    /// Adds the name and the password of the user of an etcd; the name is in this variable.
    fn user(&mut self, variable: &str, user: &LocalRef) {
        self.env.push(from_key(variable, &user.name, "username", true));
        self.env
            .push(from_key("ETCDCTL_PASSWORD", &user.name, "password", true));
        self.flag("user", format!("$({variable})"));
    }

    /// Mounts the key that the target is encrypted with, if it is.
    pub(crate) fn decrypt(&mut self, target: BackupTarget<'_>) {
        if let Some(encryption) = target.encryption {
            let key = &encryption.key_secret_ref;
            let sources = vec![from_secret(&key.name, vec![item(&key.key, "key")])];
            let path = self.project(ENCRYPTION_VOLUME, sources);
            self.flag("encryption-key-file", format!("{path}/key"));
        }
    }

    /// Adds the volume of a claim.
    pub(crate) fn claim(&mut self, volume: &str, claim: &str, is_read_only: bool) {
        self.volumes.push(Volume {
            name: volume.to_owned(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim.to_owned(),
                read_only: is_read_only.then_some(true),
            }),
            ..Volume::default()
        });
    }

    pub(crate) fn flag(&mut self, flag: &str, value: impl AsRef<str>) {
        self.args.push(format!("--{flag}={}", value.as_ref()));
    }

    fn optional(&mut self, flag: &str, value: Option<impl AsRef<str>>) {
        if let Some(value) = value {
            self.flag(flag, value);
        }
    }

    /// Mounts a volume of several sources, and returns its path.
    fn project(&mut self, name: &str, sources: Vec<VolumeProjection>) -> String {
        let path = format!("{MOUNTS}/{name}");
        self.volumes.push(projected(name, sources));
        self.mounts.push(mount(name, &path, true));
        path
    }

    fn reach_s3(&mut self, s3: &S3) {
        self.flag("destination", url("s3", &s3.bucket, s3.prefix.as_deref()));
        self.optional("destination-endpoint", s3.endpoint.as_ref());
        self.optional("destination-region", s3.region.as_ref());
        self.optional("destination-path-style", s3.path_style.map(|style| style.to_string()));
        self.trust(s3.ca_bundle_ref.as_ref());
        if let Some(secret) = &s3.credentials_secret_ref {
            self.credentials(&secret.name, &S3_VARIABLES);
        }
    }

    fn reach_gcs(&mut self, gcs: &Gcs) {
        self.flag("destination", url("gs", &gcs.bucket, gcs.prefix.as_deref()));
        self.optional("destination-endpoint", gcs.endpoint.as_ref());
        self.trust(gcs.ca_bundle_ref.as_ref());
        if let Some(secret) = &gcs.credentials_secret_ref {
            let file = item(GOOGLE_CREDENTIALS, GOOGLE_CREDENTIALS);
            let path = self.project(CREDENTIALS_VOLUME, vec![from_secret(&secret.name, vec![file])]);
            self.flag("destination-credentials-file", format!("{path}/{GOOGLE_CREDENTIALS}"));
            self.credentials(&secret.name, &[]);
        }
    }

    fn reach_azure(&mut self, azure: &Azure, has_account: bool) {
        self.flag("destination", url("az", &azure.container, azure.prefix.as_deref()));
        self.optional("destination-endpoint", azure.endpoint.as_ref());
        self.trust(azure.ca_bundle_ref.as_ref());
        self.env.push(EnvVar {
            name: "AZURE_STORAGE_ACCOUNT_NAME".to_owned(),
            value: Some(azure.account.clone()),
            ..EnvVar::default()
        });
        if let Some(secret) = &azure.credentials_secret_ref {
            self.credentials(&secret.name, &AZURE_VARIABLES);
        }
        if has_account {
            // Azure's webhook gives only pods with this label the identity of their account.
            self.labels
                .insert("azure.workload.identity/use".to_owned(), "true".to_owned());
        }
    }

    fn reach_claim(&mut self, claim: &ClaimDirectory) {
        let path = claim.path.as_ref().map_or_else(String::new, |path| format!("/{path}"));
        self.flag("destination", format!("file://{CLAIM_MOUNT}{path}"));
        self.claim(CLAIM_VOLUME, &claim.claim_name, false);
        self.mounts.push(mount(CLAIM_VOLUME, CLAIM_MOUNT, false));
    }

    fn trust(&mut self, bundle: Option<&CaBundleRef>) {
        let Some(bundle) = bundle else {
            return;
        };
        let path = self.project(CA_VOLUME, vec![from_bundle(bundle)]);
        self.flag("destination-ca-file", format!("{path}/ca.crt"));
    }

    /// Takes credentials from a Secret. Only known variables are read from it, and an incomplete Secret never makes the program use the
    /// identity of the node.
    fn credentials(&mut self, secret: &str, variables: &[(&str, bool)]) {
        self.args.push("--destination-explicit-credentials".to_owned());
        if self.follows_secrets && !variables.is_empty() {
            let files = variables.iter().map(|(name, _)| item(name, name)).collect();
            let path = self.project(CREDENTIALS_VOLUME, vec![from_secret_if_present(secret, files)]);
            self.flag("destination-credentials-dir", path);
            return;
        }
        let variables = variables
            .iter()
            .map(|(name, is_required)| from_key(name, secret, name, *is_required));
        self.env.extend(variables);
    }

    /// Adds the flags of new objects.
    fn object_flags(&mut self, to: &Destination) {
        if let Some(s3) = &to.s3 {
            self.optional("storage-class", s3.storage_class.as_ref());
            self.optional("server-side-encryption", s3.server_side_encryption.map(|it| it.flag()));
            self.optional("kms-key-id", s3.kms_key_id.as_ref());
        }
        self.optional(
            "storage-class",
            to.gcs.as_ref().and_then(|gcs| gcs.storage_class.as_ref()),
        );
        self.optional(
            "storage-class",
            to.azure.as_ref().and_then(|azure| azure.access_tier.as_ref()),
        );
    }

    /// Returns the pod with one container.
    pub(crate) fn spec(self, container: &str, runtime: &BackupRuntime, placement: PodPlacement) -> PodSpec {
        let secrets = runtime.image_pull_secrets.iter().map(|secret| LocalObjectReference {
            name: secret.name.clone(),
        });
        let secrets: Vec<_> = secrets.collect();
        let container = Container {
            name: container.to_owned(),
            image: Some(runtime.image.clone()),
            image_pull_policy: runtime.image_pull_policy.map(|policy| format!("{policy:?}")),
            args: Some(self.args),
            env: (!self.env.is_empty()).then_some(self.env),
            resources: placement.resources,
            security_context: Some(container_security()),
            // The status reports the reason of a failure.
            termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
            volume_mounts: Some(self.mounts),
            ..Container::default()
        };
        PodSpec {
            containers: vec![container],
            volumes: Some(self.volumes),
            service_account_name: self.account,
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            security_context: Some(pod_security(runtime.run_as.unwrap_or_default())),
            image_pull_secrets: (!secrets.is_empty()).then_some(secrets),
            node_selector: (!placement.node_selector.is_empty()).then_some(placement.node_selector),
            tolerations: (!placement.tolerations.is_empty()).then_some(placement.tolerations),
            priority_class_name: placement.priority_class_name,
            ..PodSpec::default()
        }
    }
}

/// Returns those of the keys that the Secret has: the program names what is missing.
fn from_secret_if_present(secret: &str, items: Vec<KeyToPath>) -> VolumeProjection {
    let mut projection = from_secret(secret, items);
    if let Some(source) = &mut projection.secret {
        source.optional = Some(true);
    }
    projection
}

/// Returns a variable with the value of a Secret's key.
fn from_key(variable: &str, secret: &str, key: &str, is_required: bool) -> EnvVar {
    EnvVar {
        name: variable.to_owned(),
        value_from: Some(EnvVarSource {
            secret_key_ref: Some(SecretKeySelector {
                name: secret.to_owned(),
                key: key.to_owned(),
                optional: Some(!is_required),
            }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    }
}

/// Returns the CA certificates of a reference as the file `ca.crt`.
fn from_bundle(bundle: &CaBundleRef) -> VolumeProjection {
    match bundle.kind {
        BundleKind::ConfigMap => from_config_map(&bundle.name, &bundle.key),
        BundleKind::Secret => from_secret(&bundle.name, vec![item(&bundle.key, "ca.crt")]),
    }
}

/// Returns the value of an annotation of the pod as a file, which is empty without the annotation, and follows it.
fn from_annotation(annotation: &str, file: &str) -> VolumeProjection {
    VolumeProjection {
        downward_api: Some(DownwardAPIProjection {
            items: Some(vec![DownwardAPIVolumeFile {
                path: file.to_owned(),
                field_ref: Some(ObjectFieldSelector {
                    api_version: Some("v1".to_owned()),
                    field_path: format!("metadata.annotations['{annotation}']"),
                }),
                ..DownwardAPIVolumeFile::default()
            }]),
        }),
        ..VolumeProjection::default()
    }
}
