//! Argo CD's own programs and what they need: redis, a git daemon, and definitions and configuration in the cluster.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use e2e_cluster::cluster::Cluster;
use e2e_cluster::cluster_dir::ClusterDir;
use e2e_cluster::kubectl::Kubectl;
use e2e_cluster::namespace::NetworkNamespace;
use e2e_cluster::supervisor::tail;
use programs::probe;
use programs::progress::Progress;
use programs::server::{self, Program};
use programs::tools::cache::ToolCache;
use programs::tools::{debian, go};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::chart;

/// Namespace of Argo CD's objects.
pub(super) const NAMESPACE: &str = "argocd";
/// Address of its git daemon, inside the cluster's network.
pub(super) const GIT: &str = "git://127.0.0.1:9418";

const MODULE: &str = "github.com/argoproj/argo-cd/v3";
const PACKAGES: &[debian::DebianPackage] = &[
    debian::DebianPackage {
        brings: "redis-server",
        name: "redis-server",
    },
    debian::DebianPackage {
        brings: GIT_DAEMON,
        name: "git",
    },
];
const GIT_DAEMON: &str = "/usr/lib/git-core/git-daemon";
/// Its configuration, by the ends of files' names.
const CONFIGURATION: [&str; 7] = [
    "cm",
    "cmd-params-cm",
    "rbac-cm",
    "secret",
    "tls-certs-cm",
    "ssh-known-hosts-cm",
    "gpg-keys-cm",
];
/// Programs that the repo-server calls by name for every revision.
const WRAPPERS: [&str; 2] = ["git-verify-wrapper.sh", "gpg-wrapper.sh"];
/// kubectl has kustomize in it.
const KUSTOMIZE: &str = "#!/bin/sh\ntest \"$1\" = build || exit 2\nshift\nexec kubectl kustomize \"$@\"\n";
/// As Argo CD's API server makes it, which does not run.
const DEFAULT_PROJECT: &str = "
apiVersion: argoproj.io/v1alpha1
kind: AppProject
metadata: {name: default, namespace: argocd}
spec:
  sourceRepos: ['*']
  destinations: [{server: '*', namespace: '*'}]
  clusterResourceWhitelist: [{group: '*', kind: '*'}]
";
const REDIS: &str = "127.0.0.1:6379";
const SYNC_TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The programs; they end when this is dropped.
pub(super) struct Servers {
    directory: TempDir,
    programs: PathBuf,
    home: ClusterDir,
    kubeconfig: PathBuf,
    running: Vec<(&'static str, Child)>,
}

impl Servers {
    /// Starts them and waits until they serve. For use inside of the cluster's network.
    pub(super) async fn start(cluster: &Cluster, kubeconfig: &Path, progress: &Progress) -> Self {
        debian::require(PACKAGES, progress).unwrap();
        let programs = go::ARGOCD.build(&ToolCache::open().unwrap(), progress).unwrap();
        let sources = go::ARGOCD.sources(MODULE).unwrap();
        let step = progress.step("Argo CD serves");
        let kubectl = cluster.kubectl().with(kubeconfig.to_owned());
        configure(&kubectl, &sources);
        let mut servers = Self {
            directory: TempDir::new().unwrap(),
            programs,
            home: cluster.home().clone(),
            kubeconfig: kubeconfig.to_owned(),
            running: Vec::new(),
        };
        servers.lay_out(&sources, &kubectl);
        servers.run_all();
        servers.until_healthy().await;
        step.done();
        servers
    }

    /// The directory whose subdirectories are repositories.
    pub(super) fn repositories(&self) -> PathBuf {
        self.path("git")
    }

    /// Argo CD's command line, without a cluster.
    pub(super) fn command_line(&self) -> Command {
        let mut command = Command::new(self.path("bin/argocd"));
        command.env("HOME", self.path("home"));
        command
    }

    /// The ends of all logs, for the reader of a failure.
    pub(super) fn logs(&self) -> String {
        let log = |(name, _): &(&str, Child)| format!("--- log of {name}\n{}\n", tail(&self.home.log(name)));
        self.running.iter().map(log).collect()
    }

    fn path(&self, inside: &str) -> PathBuf {
        self.directory.path().join(inside)
    }

    fn lay_out(&self, sources: &Path, kubectl: &Kubectl) {
        for directory in ["bin", "git", "home", "redis", "tmp", "tls", "ssh", "gpg"] {
            fs::create_dir(self.path(directory)).unwrap();
        }
        File::create(self.path("ssh/ssh_known_hosts")).unwrap();
        let program = self.programs.join("argocd");
        for name in ["argocd", "argocd-repo-server", "argocd-application-controller"] {
            symlink(&program, self.path("bin").join(name)).unwrap();
        }
        symlink(kubectl.program(), self.path("bin/kubectl")).unwrap();
        for wrapper in WRAPPERS {
            self.executable(wrapper, &fs::read(sources.join("hack").join(wrapper)).unwrap());
        }
        self.executable("kustomize", KUSTOMIZE.as_bytes());
    }

    fn executable(&self, name: &str, content: &[u8]) {
        use std::os::unix::fs::PermissionsExt as _;
        let path = self.path("bin").join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn run_all(&mut self) {
        let [redis, git] = ["redis", "git"].map(|directory| self.path(directory).display().to_string());
        let (_, port) = REDIS.split_once(':').unwrap();
        let memory_only = ["--save", "", "--appendonly", "no", "--bind", "127.0.0.1"];
        self.run(
            "argocd-redis",
            &debian::find("redis-server").unwrap(),
            &[&memory_only[..], &["--port", port, "--dir", &redis]].concat(),
        );
        let base = format!("--base-path={git}");
        let serve = ["--reuseaddr", "--listen=127.0.0.1", "--port=9418", "--export-all"];
        self.run(
            "argocd-git",
            Path::new(GIT_DAEMON),
            &[&serve[..], &[&base, &git]].concat(),
        );
        let repo_server = self.path("bin/argocd-repo-server");
        let addresses = ["--address", "127.0.0.1", "--metrics-address", "127.0.0.1"];
        let others = ["--port", "8081", "--metrics-port", "8084", "--redis", REDIS];
        self.run("argocd-repo-server", &repo_server, &[&addresses[..], &others].concat());
        let controller = self.path("bin/argocd-application-controller");
        let kubeconfig = self.kubeconfig.display().to_string();
        let cluster = ["--kubeconfig", &kubeconfig, "--namespace", NAMESPACE];
        let others = [
            "--redis",
            REDIS,
            "--repo-server",
            "127.0.0.1:8081",
            "--metrics-port",
            "8082",
        ];
        self.run(
            "argocd-application-controller",
            &controller,
            &[&cluster[..], &others, &["--persist-resource-health"]].concat(),
        );
    }

    /// Starts a program in the cluster's network, with a log beside those of the cluster.
    fn run(&mut self, name: &'static str, path: &Path, arguments: &[&str]) {
        let (nsenter, enter) = NetworkNamespace::of(&self.home).enter(path);
        let mut command = server::command(&Program { name, path: nsenter });
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
        command.args(enter).args(arguments).env("PATH", path);
        command.env("HOME", self.path("home")).env("TMPDIR", self.path("tmp"));
        // access to the cluster that it runs beside; its flag does not pass all parts of it
        command.env("KUBECONFIG", &self.kubeconfig);
        for (variable, directory) in [("TLS", "tls"), ("SSH", "ssh"), ("GPG", "gpg")] {
            command.env(format!("ARGOCD_{variable}_DATA_PATH"), self.path(directory));
        }
        command
            .env("ARGOCD_ASK_PASS_SOCK", self.path("tmp/askpass.sock"))
            .env("ARGOCD_FAKE_IN_CLUSTER", "true")
            .env("ARGOCD_GPG_ENABLED", "false")
            // It may miss that a definition is established, which it sees at its next look only: after minutes by default.
            .env("ARGOCD_RECONCILIATION_TIMEOUT", "10s")
            .env("ARGOCD_RECONCILIATION_JITTER", "0s")
            .env("HOSTNAME", "argocd-application-controller-0");
        let log = self.home.open_log(name).unwrap();
        command
            .stdin(Stdio::null())
            .stderr(log.try_clone().unwrap())
            .stdout(log);
        self.running.push((name, server::spawn(command).unwrap()));
    }

    async fn until_healthy(&mut self) {
        let deadline = Instant::now() + SYNC_TIMEOUT;
        for address in ["127.0.0.1:8084", "127.0.0.1:8082"] {
            while let Err(error) = probe::command(address, "GET", "/healthz", "").await {
                for (name, child) in &mut self.running {
                    let ended = child.try_wait().unwrap();
                    assert_eq!(ended, None, "{name} ended:\n{}", tail(&self.home.log(name)));
                }
                assert!(Instant::now() < deadline, "{address}: {error:#}\n{}", self.logs());
                tokio::time::sleep(POLL_INTERVAL).await; // between looks
            }
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for (_, child) in self.running.iter_mut().rev() {
            // One that has ended before is what is wanted too.
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// Definitions and configuration as of its own release, and ours on top.
fn configure(kubectl: &Kubectl, sources: &Path) {
    kubectl.run(["create", "namespace", NAMESPACE]).unwrap();
    let apply = |files: Vec<PathBuf>| {
        let mut command = vec!["--namespace".into(), NAMESPACE.into(), "apply".into()];
        command.push("--server-side".into());
        command.extend(files.iter().map(|file| format!("--filename={}", file.display())));
        kubectl.run::<String>(command).unwrap();
    };
    let definitions = ["application-crd.yaml", "appproject-crd.yaml"];
    apply(
        definitions
            .iter()
            .map(|file| sources.join("manifests/crds").join(file))
            .collect(),
    );
    let configuration = CONFIGURATION.iter().map(|name| format!("argocd-{name}.yaml"));
    apply(
        configuration
            .map(|file| sources.join("manifests/base/config").join(file))
            .collect(),
    );
    let patch = format!(
        "--patch-file={}",
        chart::manifests("argocd/argocd-cm-patch.yaml").display()
    );
    let space = ["--namespace", NAMESPACE];
    kubectl
        .run([&space[..], &["patch", "configmap", "argocd-cm", &patch]].concat())
        .unwrap();
    let established = ["wait", "--for=condition=Established", "--timeout=60s"];
    let both = ["crd/applications.argoproj.io", "crd/appprojects.argoproj.io"];
    kubectl.run([&established[..], &both].concat()).unwrap();
    kubectl.apply(DEFAULT_PROJECT).unwrap();
}
