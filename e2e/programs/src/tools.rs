//! The programs that are run: Debian's, those built from pinned Go modules and crates, and our own.

pub mod cache;
pub mod crates;
pub mod debian;
pub mod go;
pub mod own;
pub mod python;

use std::path::PathBuf;

use crate::progress::Progress;
use cache::ToolCache;

/// Installs or builds the programs that tests use.
///
/// # Errors
///
/// As [`Tools::prepare`], or Python's packages cannot be installed.
pub fn prepare_for_tests(progress: &Progress) -> anyhow::Result<()> {
    Tools::prepare(progress)?;
    debian::require(debian::CHAOS_PACKAGES, progress)?;
    let cache = ToolCache::open()?;
    for module in [go::ETCD_NEXT, go::CLIENTV3, go::HELM, go::PROMETHEUS, go::RCLONE] {
        module.build(&cache, progress)?;
    }
    crates::etcd_client_tests(&cache, progress)?;
    python::Python::prepare(progress)?;
    Ok(())
}

/// Paths of the programs of a whole cluster.
#[derive(Clone, Debug)]
pub struct Tools {
    /// kube-apiserver, kube-controller-manager, kube-proxy, kube-scheduler, kubectl, kubelet.
    pub kubernetes: PathBuf,
    /// etcd, etcdctl, etcdutl.
    pub etcd: PathBuf,
    /// coredns.
    pub addons: PathBuf,
    /// kubebrain, kubebrain-operator and the programs of this crate.
    pub own: own::Programs,
}

impl Tools {
    /// Finds, installs or builds everything. Several processes may do so at once: one builds, the others wait.
    ///
    /// # Errors
    ///
    /// A Debian package is missing and cannot be installed, a Go build fails, or our own programs are not built yet.
    pub fn prepare(progress: &Progress) -> anyhow::Result<Self> {
        let own = own::Programs::find()?;
        debian::require(debian::CLUSTER_PACKAGES, progress)?;
        let cache = ToolCache::open()?;
        Ok(Self {
            etcd: go::ETCD.build(&cache, progress)?,
            kubernetes: go::KUBERNETES.build(&cache, progress)?,
            addons: go::ADDONS.build(&cache, progress)?,
            own,
        })
    }
}
