//! Identities and rights in a cluster: one certificate and kubeconfig per program, and the administrator's.

use std::path::PathBuf;

use crate::cluster_context::ClusterContext;
use crate::cluster_dir::ClusterDir;
use crate::kubeconfig;
use crate::kubelet::NODE_NAME;
use crate::namespace::{API, API_SERVICE, NODE};
use crate::pki::{self, Authority, CertificateSubject};

/// Writes them all; the administrator's kubeconfig leads to loopback port `port`.
///
/// # Errors
///
/// A key cannot be made or a file not written.
pub fn create(site: &ClusterContext, port: u16) -> anyhow::Result<()> {
    let home = &site.home;
    let authority = Authority::create(home, "ca")?;
    let user = |file, user| CertificateSubject {
        file,
        user,
        group: None,
        serves: &[],
    };
    let serves = ["kubernetes.default.svc", "localhost", "127.0.0.1", NODE, API_SERVICE];
    authority.issue(&CertificateSubject {
        serves: &serves,
        ..user("apiserver", "kube-apiserver")
    })?;
    authority.issue(&CertificateSubject {
        group: Some("system:masters"),
        ..user("admin", "admin")
    })?;
    authority.issue(&user("controller-manager", "system:kube-controller-manager"))?;
    authority.issue(&user("scheduler", "system:kube-scheduler"))?;
    authority.issue(&user("proxy", "system:kube-proxy"))?;
    let (node, serves) = (format!("system:node:{NODE_NAME}"), [NODE_NAME, NODE]);
    authority.issue(&CertificateSubject {
        group: Some("system:nodes"),
        serves: &serves,
        ..user("node", &node)
    })?;
    pki::service_accounts(home, "sa")?;
    for user in ["controller-manager", "scheduler", "proxy", "node"] {
        kubeconfig::write(
            home,
            &format!("config/{user}.kubeconfig"),
            &format!("https://{API}"),
            "ca",
            user,
        )?;
    }
    kubeconfig::write(home, "kubeconfig", &format!("https://127.0.0.1:{port}"), "ca", "admin")?;
    Ok(())
}

/// Writes what a tenant's API server needs, and a kubeconfig that leads to it at `url`. The files' names begin with `name`; the
/// server also answers to the name or address `serves`. Gives the files by the names under which the server looks for them.
///
/// # Errors
///
/// A key cannot be made or a file not written.
pub fn tenant(home: &ClusterDir, name: &str, serves: &str, url: &str) -> anyhow::Result<Vec<(&'static str, PathBuf)>> {
    let authority = Authority::create(home, &format!("{name}-ca"))?;
    let serves = [serves, "127.0.0.1"];
    let (server, admin) = (format!("{name}-apiserver"), format!("{name}-admin"));
    let user = |file, user| CertificateSubject {
        file,
        user,
        group: None,
        serves: &[],
    };
    authority.issue(&CertificateSubject {
        serves: &serves,
        ..user(&server, "kube-apiserver")
    })?;
    authority.issue(&CertificateSubject {
        group: Some("system:masters"),
        ..user(&admin, "admin")
    })?;
    pki::service_accounts(home, &format!("{name}-sa"))?;
    kubeconfig::write(home, &format!("{name}.kubeconfig"), url, &format!("{name}-ca"), &admin)?;
    let names = ["ca.crt", "apiserver.crt", "apiserver.key", "sa.pub", "sa.key"];
    Ok(names.map(|file| (file, home.path(format!("pki/{name}-{file}")))).into())
}
