//! Connects to the API server as kubectl does, and explains its refusals to the user.

use std::fmt::Debug;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use crds::KubeBrainCluster;
use k8s_openapi::NamespaceResourceScope;
use kube::api::{Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Field manager of the plugin's writes.
pub(super) const FIELD_MANAGER: &str = "kubectl-kubebrain";
/// Timeout for a connection to the API server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How to reach the API server and as which user, with the options of kubectl.
#[derive(Debug, Args)]
pub(super) struct ConnectionOptions {
    /// Namespace of the cluster; default: that of the context
    #[arg(short, long, global = true)]
    namespace: Option<String>,
    /// Context of the kubeconfig
    #[arg(long, global = true)]
    context: Option<String>,
    /// User to act as
    #[arg(long = "as", global = true, value_name = "USER")]
    as_user: Option<String>,
    /// Group to act as a member of; can be given several times, requires --as
    #[arg(long = "as-group", global = true, value_name = "GROUP", requires = "as_user")]
    as_groups: Vec<String>,
    /// Path of the kubeconfig; default: $KUBECONFIG or ~/.kube/config
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

/// One namespace of an API server.
pub(super) struct TargetNamespace {
    pub(super) client: Client,
    pub(super) namespace: String,
}

/// Accepts the same kubeconfigs as kubectl.
async fn configure(
    read: Result<Kubeconfig, KubeconfigError>,
    options: &KubeConfigOptions,
) -> Result<kube::Config, KubeconfigError> {
    kube::Config::from_custom_kubeconfig(election::as_client_go(read?), options).await
}

impl TargetNamespace {
    pub(super) async fn connect(connection: &ConnectionOptions) -> anyhow::Result<Self> {
        let options = KubeConfigOptions {
            context: connection.context.clone(),
            ..KubeConfigOptions::default()
        };
        let mut config = match &connection.kubeconfig {
            Some(path) => {
                let at = || format!("use the kubeconfig {}", path.display());
                configure(Kubeconfig::read_from(path), &options)
                    .await
                    .with_context(at)?
            }
            None => match configure(Kubeconfig::read(), &options).await {
                Ok(config) => config,
                Err(_) if connection.context.is_none() => kube::Config::infer()
                    .await
                    .context("find the API server: no kubeconfig, and not in a pod")?,
                Err(error) => return Err(error).context("use the kubeconfig"),
            },
        };
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        if let Some(user) = &connection.as_user {
            config.auth_info.impersonate = Some(user.clone());
            config.auth_info.impersonate_groups = Some(connection.as_groups.clone());
        }
        let namespace = connection.namespace.clone();
        let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).context("make a client for the API server")?;
        Ok(Self { client, namespace })
    }

    pub(super) fn all<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(super) fn clusters(&self) -> Api<KubeBrainCluster> {
        self.all()
    }

    /// # Errors
    /// The cluster does not exist, or the API server refused or did not answer.
    pub(super) async fn get(&self, name: &str) -> anyhow::Result<KubeBrainCluster> {
        self.read(name).await
    }

    /// # Errors
    /// The object does not exist, or the API server refused or did not answer.
    pub(super) async fn read<K>(&self, name: &str) -> anyhow::Result<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let answer = self.all::<K>().get(name).await;
        answer.map_err(|error| self.explain(error, "get", &format!("{} {name}", K::kind(&()))))
    }

    /// Applies a merge patch to the cluster. A patch with a resource version fails if the cluster has been written since.
    ///
    /// # Errors
    /// The API server refused or did not answer.
    pub(super) async fn patch(&self, name: &str, patch: Value) -> anyhow::Result<()> {
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let answer = self.clusters().patch(name, &params, &Patch::Merge(patch)).await;
        answer.map_err(|error| self.explain(error, "patch", &format!("KubeBrainCluster {name}")))?;
        Ok(())
    }

    pub(super) async fn annotate(&self, name: &str, key: &str, value: &str) -> anyhow::Result<()> {
        let annotations = json!({ key: value });
        self.patch(name, json!({"metadata": {"annotations": annotations}}))
            .await
    }

    /// Explains a refusal of `verb` on `what`.
    pub(super) fn explain(&self, error: kube::Error, verb: &str, what: &str) -> anyhow::Error {
        let namespace = &self.namespace;
        let status = match error {
            kube::Error::Api(status) => status,
            other => return anyhow::Error::new(other).context(format!("could not {verb} {what}")),
        };
        let named = status.details.as_ref().is_some_and(|details| !details.name.is_empty());
        match status.code {
            401 => anyhow::anyhow!("the API server does not accept these credentials: {}", status.message),
            403 => anyhow::anyhow!(
                "no permission to {verb} {what} in namespace {namespace}: {}",
                status.message
            ),
            404 if named => anyhow::anyhow!("{what} does not exist in namespace {namespace}"),
            404 => anyhow::anyhow!(
                "this API server does not know {what}: the definition of KubeBrainCluster is not installed (manifests/yaml/crd)"
            ),
            409 => anyhow::anyhow!("another client changed {what} at the same time: try again"),
            _ => anyhow::anyhow!("could not {verb} {what}: {}", status.message),
        }
    }
}
