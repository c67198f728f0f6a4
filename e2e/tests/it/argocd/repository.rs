//! A git repository with the install files, as a user would have it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use programs::command::output;
use serde::Deserialize as _;
use serde_json::Value;

use super::servers::GIT;
use crate::chart;

const NAME: &str = "platform";
/// In the Applications, to be replaced.
const EXAMPLE: &str = "https://git.example.org/kubebrain.git";
/// Directory of the clusters.
const CLUSTERS: &str = "manifests/argocd/tenant/cluster";

/// A repository that the git daemon serves.
pub(super) struct Repository(PathBuf);

impl Repository {
    /// Makes it, with everything that the app of apps refers to. Objects that need cert-manager are left out: the cluster has none.
    pub(super) fn create(repositories: &Path) -> Self {
        let repository = Self(repositories.join(NAME));
        fs::create_dir(&repository.0).unwrap();
        repository.git(&["init", "--quiet", "--initial-branch=main"]);
        for directory in ["yaml", "argocd"] {
            let to = repository.0.join("manifests");
            fs::create_dir_all(&to).unwrap();
            let mut copy = Command::new("cp");
            copy.arg("-R").arg(chart::manifests(directory)).arg(to);
            output(&mut copy).unwrap();
        }
        for application in fs::read_dir(repository.0.join("manifests/argocd/apps")).unwrap() {
            let path = application.unwrap().path();
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.contains(EXAMPLE), "{}: {text}", path.display());
            fs::write(&path, text.replace(EXAMPLE, &Self::url())).unwrap();
        }
        repository.remove("manifests/argocd/apps/tenant-apiserver.yaml");
        let secrets = repository.0.join("manifests/argocd/tenant/secrets/secrets.yaml");
        let text = fs::read_to_string(&secrets).unwrap();
        let documents = serde_yaml::Deserializer::from_str(&text).map(|document| Value::deserialize(document).unwrap());
        let namespace = documents.into_iter().find(|object| object["kind"] == "Namespace");
        fs::write(&secrets, serde_yaml::to_string(&namespace.unwrap()).unwrap()).unwrap();
        repository
    }

    /// Returns the URL at which Argo CD finds it.
    pub(super) fn url() -> String {
        format!("{GIT}/{NAME}")
    }

    /// The Application that leads to all others.
    pub(super) fn app_of_apps() -> String {
        let text = fs::read_to_string(chart::manifests("argocd/app-of-apps.yaml")).unwrap();
        text.replace(EXAMPLE, &Self::url())
    }

    /// A cluster as it is in the working directory.
    pub(super) fn cluster(&self, name: &str) -> Value {
        serde_yaml::from_str(&fs::read_to_string(self.path_of(name)).unwrap()).unwrap()
    }

    /// Writes a cluster into the working directory.
    pub(super) fn write(&self, name: &str, cluster: &Value) {
        fs::write(self.path_of(name), serde_yaml::to_string(cluster).unwrap()).unwrap();
    }

    /// Removes a cluster from the working directory.
    pub(super) fn remove_cluster(&self, name: &str) {
        fs::remove_file(self.path_of(name)).unwrap();
    }

    /// Commits the working directory, and gives the revision.
    pub(super) fn commit(&self, message: &str) -> String {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--message", message]);
        self.git(&["rev-parse", "HEAD"]).trim().to_owned()
    }

    /// The rendered sample is called after its file.
    fn path_of(&self, name: &str) -> PathBuf {
        let file = if name == "tenant" { "cluster" } else { name };
        self.0.join(CLUSTERS).join(format!("{file}.yaml"))
    }

    fn remove(&self, file: &str) {
        fs::remove_file(self.0.join(file)).unwrap();
    }

    fn git(&self, arguments: &[&str]) -> String {
        let mut git = Command::new("git");
        git.arg("-C").arg(&self.0);
        git.args(["-c", "user.name=e2e", "-c", "user.email=e2e@kubebrain.io"]);
        git.args(["-c", "commit.gpgSign=false"]).args(arguments);
        output(&mut git).unwrap()
    }
}
