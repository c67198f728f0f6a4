//! A kube-apiserver that runs in a pod, with brains that the operator made as its store.

use std::path::Path;

use crate::cluster_dir::ClusterDir;
use crate::credentials;
use crate::kubectl::Kubectl;

/// A tenant's API server, and where its brains are.
#[derive(Clone, Copy, Debug)]
pub struct Tenant<'a> {
    /// Begins the names of its files in the cluster's home.
    pub name: &'a str,
    /// The namespace of its pod and of the brains.
    pub namespace: &'a str,
    /// The `KubeBrainCluster` that stores its objects.
    pub brain: &'a str,
    /// The brains that it knows, from the first on.
    pub members: usize,
    /// The address of its Service.
    pub address: &'a str,
}

impl Tenant<'_> {
    /// Makes its certificates, its Secret, its Deployment and its Service. Its kubeconfig leads to `url`.
    ///
    /// # Errors
    ///
    /// A file cannot be written; kubectl's.
    pub fn create(&self, home: &ClusterDir, kubectl: &Kubectl, url: &str) -> anyhow::Result<()> {
        let pki = credentials::tenant(home, self.name, self.address, url)?;
        let mut secret = vec![
            "--namespace",
            self.namespace,
            "create",
            "secret",
            "generic",
            "tenant-pki",
        ];
        let file = |(key, path): &(&str, std::path::PathBuf)| from_file(key, path);
        let files: Vec<String> = pki.iter().map(file).collect();
        secret.extend(files.iter().map(String::as_str));
        kubectl.run(secret)?;
        kubectl.apply(&self.objects())
    }

    /// The Deployment and the Service, as YAML. The Deployment needs the Secret `tenant-pki`.
    #[must_use]
    pub fn objects(&self) -> String {
        let Self { namespace, brain, .. } = self;
        let server = |member| format!("https://{brain}-{member}.{brain}-headless.{namespace}.svc:2379");
        let servers: Vec<String> = (0..self.members).map(server).collect();
        include_str!("tenant.yaml")
            .replace("$NAMESPACE", namespace)
            .replace("$BRAIN", brain)
            .replace("$SERVERS", &servers.join(","))
            .replace("$ADDRESS", self.address)
    }
}

fn from_file(key: &str, path: &Path) -> String {
    format!("--from-file={key}={}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tenant_knows_each_of_its_brains() {
        let tenant = Tenant {
            name: "t",
            namespace: "shop",
            brain: "b",
            members: 2,
            address: "10.96.0.99",
        };
        let objects = tenant.objects();
        let servers = "--etcd-servers=https://b-0.b-headless.shop.svc:2379,https://b-1.b-headless.shop.svc:2379\n";
        assert!(objects.contains(servers), "{objects}");
        assert!(objects.contains("configMap: {name: b-ca-bundle}"), "{objects}");
        assert!(!objects.contains('$'), "{objects}");
    }
}
