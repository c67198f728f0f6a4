//! Certificates, keys and kubeconfigs of one control plane.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::json;
use testkit::certificates::{Ca, Leaf};

/// The user who may do everything.
pub(super) const ADMIN: &str = "admin";
/// The user of kube-controller-manager, as Kubernetes' own rules name it.
pub(super) const CONTROLLER_MANAGER: &str = "system:kube-controller-manager";
/// The user of kube-scheduler, as Kubernetes' own rules name it.
pub(super) const SCHEDULER: &str = "system:kube-scheduler";

/// The files of a control plane whose API server has a port of loopback.
#[derive(Debug)]
pub(super) struct Credentials {
    dir: PathBuf,
}

impl Credentials {
    /// Writes all files into a directory, which is created.
    ///
    /// # Errors
    ///
    /// A key cannot be made, or a file not written.
    pub(super) fn create(dir: PathBuf, port: u16) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        let this = Self { dir };
        let ca = Ca::new("kubernetes");
        this.write("ca.crt", &ca.pem)?;
        this.write_leaf("apiserver", &ca.server())?;
        let keys = rcgen::KeyPair::generate().context("make the key of service accounts")?;
        this.write("sa.key", &keys.serialize_pem())?;
        this.write("sa.pub", &keys.public_key_pem())?;
        for (user, group) in [
            (ADMIN, Some("system:masters")),
            (CONTROLLER_MANAGER, None),
            (SCHEDULER, None),
        ] {
            this.write_leaf(user, &ca.user(user, group))?;
            this.write(&format!("{user}.kubeconfig"), &this.kubeconfig(user, port).to_string())?;
        }
        Ok(this)
    }

    /// The path of a file: `ca.crt`, `apiserver.crt`, `apiserver.key`, `sa.key`, `sa.pub`, `<user>.kubeconfig`.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// `--flag=<file>`.
    pub(super) fn flag(&self, flag: &str, file: &str) -> String {
        format!("--{flag}={}", self.file(file).display())
    }

    /// A client that may do everything.
    ///
    /// # Errors
    ///
    /// The kubeconfig makes no client.
    pub(super) async fn client(&self) -> anyhow::Result<kube::Client> {
        let config = Kubeconfig::read_from(self.file(&format!("{ADMIN}.kubeconfig")))?;
        let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
        Ok(kube::Client::try_from(config)?)
    }

    /// JSON is YAML, too.
    fn kubeconfig(&self, user: &str, port: u16) -> serde_json::Value {
        let file = |name: &str| self.file(name).display().to_string();
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "bench", "cluster": {
                "server": format!("https://127.0.0.1:{port}"),
                "certificate-authority": file("ca.crt"),
            }}],
            "users": [{"name": user, "user": {
                "client-certificate": file(&format!("{user}.crt")),
                "client-key": file(&format!("{user}.key")),
            }}],
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": user}}],
            "current-context": "bench",
        })
    }

    fn write_leaf(&self, name: &str, leaf: &Leaf) -> anyhow::Result<()> {
        self.write(&format!("{name}.crt"), &leaf.cert)?;
        self.write(&format!("{name}.key"), &leaf.key)
    }

    fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let path: &Path = &self.file(name);
        std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
    }
}
