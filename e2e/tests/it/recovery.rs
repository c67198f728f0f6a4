//! A control plane is lost with its machine and its volumes, while a client writes. A new one is made of the manifests and the object store
//! alone, by the commands of `docs/operate/restore.md`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use e2e_cluster::cluster::{self, Cluster};
use e2e_cluster::cluster_dir::{ClusterDir, ClusterName};
use e2e_cluster::config::{ClusterConfig, StoreProgram};
use e2e_cluster::kubectl::Kubectl;
use e2e_cluster::namespace::TENANT_SERVICE;
use e2e_cluster::tenant::Tenant;
use e2e_cluster::{credentials, demo, inside, kubeconfig};
use programs::command::output;
use programs::progress::Progress;
use programs::tools::own::Programs;
use programs::watchdog::Watchdog;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::harness::cluster_program;
use crate::object_store::ObjectStore;

const TEST_TIMEOUT: Duration = Duration::from_secs(20 * 60);
/// For the status to say that something is archived: it is written once a minute.
const ARCHIVED_TIMEOUT: Duration = Duration::from_secs(180);
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Namespace and name of the tenant.
const NAMESPACE: &str = "tenants";
const TENANT: &str = "tenant";
/// Namespace of the operator.
const OPERATOR_NAMESPACE: &str = "kubebrain-system";
/// The document with the commands, and what they begin with.
const DOCUMENT: &str = "docs/operate/restore.md";
const FIRST_COMMAND: &str = "kubectl apply --kustomize manifests/yaml";
/// ConfigMaps that are created until the control plane is lost.
const WRITES: usize = 40;

fn start(name: &str, progress: &Progress) -> Cluster {
    let tests = ClusterName::of_tests(Programs::find().unwrap().dir());
    let config = ClusterConfig {
        name: format!("{tests}-{name}").parse().unwrap(),
        store: StoreProgram::Brain,
        through: None,
        product: true,
        test_images: false,
        ports: BTreeMap::default(),
    };
    cluster::down(&config.name, progress).unwrap();
    Cluster::start(&config, &cluster_program().unwrap(), progress).unwrap()
}

fn workspace(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// The directory that a user has in git, and the keys that they keep elsewhere.
struct Site {
    directory: TempDir,
}

impl Site {
    /// Writes it for a tenant whose certificates are made in the home of a cluster.
    fn create(home: &ClusterDir, url: &str, store: &ObjectStore) -> Self {
        let this = Self {
            directory: TempDir::new().unwrap(),
        };
        fs::create_dir(this.path("site")).unwrap();
        fs::create_dir(this.path("keys")).unwrap();
        symlink(workspace("manifests"), this.path("manifests")).unwrap();
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        let files = credentials::tenant(home, TENANT, TENANT_SERVICE, url).unwrap();
        let read = |(key, path): (&str, PathBuf)| (key.to_owned(), fs::read_to_string(path).unwrap().into());
        let data: serde_json::Map<String, Value> = files.into_iter().map(read).collect();
        let pki = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tenant-pki"}, "stringData": data});
        let secrets = store.named().into_iter().chain([pki]).map(|mut object| {
            object["metadata"]["namespace"] = json!(NAMESPACE);
            object
        });
        this.write("0-objects.yaml", [namespace].into_iter().chain(secrets));
        this.write("1-cluster.yaml", [this.cluster(store, TENANT)]);
        let tenant = Tenant {
            name: TENANT,
            namespace: NAMESPACE,
            brain: TENANT,
            members: 1,
            address: TENANT_SERVICE,
        };
        fs::write(this.path("site/2-apiserver.yaml"), tenant.objects()).unwrap();
        for file in this.keys() {
            fs::copy(home.path("pki").join(&file), this.path("keys").join(&file)).unwrap();
        }
        this
    }

    /// The resource, with an archive below a prefix.
    fn cluster(&self, store: &ObjectStore, prefix: &str) -> Value {
        json!({
            "apiVersion": "kubebrain.io/v1alpha1", "kind": "KubeBrainCluster",
            "metadata": {"name": TENANT, "namespace": NAMESPACE},
            "spec": {
                "version": env!("CARGO_PKG_VERSION"), "replicas": 1,
                "storage": {"type": "Embedded", "embedded": {"size": "1Gi"}},
                "podDisruptionBudget": {"enabled": false},
                "backup": {"destination": store.destination(prefix), "archive": {"interval": "1s"}},
            },
        })
    }

    /// Says in the manifest that the cluster begins with the end of its archive.
    fn restore(&self, store: &ObjectStore) {
        let mut cluster = self.cluster(store, "again");
        cluster["spec"]["bootstrap"] = json!({"fromBackup": {
            "destination": store.destination(TENANT), "end": true, "bumpRevision": 1_000_000, "markCompacted": true,
        }});
        self.write("1-cluster.yaml", [cluster]);
    }

    fn write(&self, file: &str, objects: impl IntoIterator<Item = Value>) {
        let documents = objects
            .into_iter()
            .map(|object| serde_yaml::to_string(&object).unwrap());
        let documents: Vec<String> = documents.collect();
        fs::write(self.path("site").join(file), documents.join("---\n")).unwrap();
    }

    fn path(&self, inside: &str) -> PathBuf {
        self.directory.path().join(inside)
    }

    /// The files with which the tenant's administrator is known to its API server.
    fn keys(&self) -> [String; 3] {
        ["ca.crt", "admin.crt", "admin.key"].map(|file| format!("{TENANT}-{file}"))
    }

    /// Returns kubectl for the tenant in this cluster, with the keys that were kept.
    fn tenant(&self, cluster: &Cluster) -> Kubectl {
        for file in self.keys() {
            let kept = self.path("keys").join(&file);
            fs::copy(kept, cluster.home().path("pki").join(&file)).unwrap();
        }
        let url = format!("https://127.0.0.1:{}", cluster.port("tenant").unwrap());
        let (authority, user) = (format!("{TENANT}-ca"), format!("{TENANT}-admin"));
        kubeconfig::write(cluster.home(), "tenant.kubeconfig", &url, &authority, &user).unwrap();
        cluster.tenant()
    }

    /// Runs the commands of the document.
    fn run_commands(&self, cluster: &Cluster) {
        let document = fs::read_to_string(workspace(DOCUMENT)).unwrap();
        let from = document.find(FIRST_COMMAND).expect("the document has the commands");
        let (commands, _) = document[from..].split_once("```").unwrap();
        let kubectl = cluster.kubectl().program().parent().unwrap();
        let path = format!("{}:{}", kubectl.display(), std::env::var("PATH").unwrap());
        let mut shell = Command::new("sh");
        shell.args(["-euc", commands]).current_dir(self.directory.path());
        shell.env("PATH", path).env("KUBECONFIG", cluster.home().kubeconfig());
        if let Err(error) = output(&mut shell) {
            panic!("{error:#}\n{}", described(cluster));
        }
    }
}

/// Describes the tenant's namespace for the reader of a failure.
fn described(cluster: &Cluster) -> String {
    let get = |args: &[&str]| {
        let said = cluster.kubectl().run([&["--namespace", NAMESPACE], args].concat());
        said.unwrap_or_else(|error| format!("{error:#}"))
    };
    let objects = get(&["get", "kubebraincluster,pod,job,pvc", "--output", "wide"]);
    let events = get(&["get", "events", "--sort-by", ".lastTimestamp"]);
    let status = get(&["get", "kubebraincluster", TENANT, "--output", "jsonpath={.status}"]);
    format!("{objects}\n{events}\n{status}")
}

/// Returns what the tenant has, by kind and name: the uid and the content.
fn objects(tenant: &Kubectl) -> BTreeMap<String, Value> {
    let kinds = "namespaces,configmaps,secrets,serviceaccounts,customresourcedefinitions,pens.example.org,clusterroles";
    let listed = tenant
        .run(["get", kinds, "--all-namespaces", "--output", "json"])
        .unwrap();
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let items = listed["items"].as_array().unwrap().iter();
    items
        .map(|item| {
            let meta = &item["metadata"];
            let key = format!("{} {} {}", item["kind"], meta["namespace"], meta["name"]);
            let content = json!([
                meta["uid"],
                meta["resourceVersion"],
                item["data"],
                item["spec"],
                item["rules"]
            ]);
            (key, content)
        })
        .collect()
}

fn revision_of(object: &Value) -> i64 {
    object[1].as_str().unwrap().parse().unwrap()
}

/// Waits until a field of the tenant's status is as wanted.
fn until_status(cluster: &Cluster, path: &str, is_wanted: impl Fn(&str) -> bool) {
    let deadline = Instant::now() + ARCHIVED_TIMEOUT;
    let path = format!("jsonpath={{.status.{path}}}");
    let get = [
        "--namespace",
        NAMESPACE,
        "get",
        "kubebraincluster",
        TENANT,
        "--output",
        &path,
    ];
    loop {
        let found = cluster.kubectl().run(get).unwrap();
        if is_wanted(&found) {
            return;
        }
        assert!(Instant::now() < deadline, "{path} is {found:?}\n{}", described(cluster));
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Waits until the status says that everything up to a revision is archived.
fn until_archived(cluster: &Cluster, revision: i64) {
    until_status(cluster, "backup.archivedRevision", |archived| {
        archived.parse::<i64>().is_ok_and(|archived| archived >= revision)
    });
}

/// Gives the operator of a cluster, before it is installed, an advisory about each version of brains.
fn create_advisory(cluster: &Cluster) {
    let record = json!({"id": "EXAMPLE-1", "summary": "all is lost", "affected": [
        {"package": {"name": "kubebrain"}, "ranges": [{"type": "SEMVER", "events": [{"introduced": "0"}]}]},
    ]});
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OPERATOR_NAMESPACE}});
    let advisories = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "kubebrain-advisories", "namespace": OPERATOR_NAMESPACE},
        "data": {"example-1.json": record.to_string()},
    });
    for object in [namespace, advisories] {
        cluster
            .kubectl()
            .apply(&serde_yaml::to_string(&object).unwrap())
            .unwrap();
    }
}

fn config_map(number: usize) -> String {
    format!("\"ConfigMap\" \"shop\" \"written-{number}\"")
}

#[test]
fn lost_control_plane_is_made_again_of_manifests_and_the_object_store() {
    let _deadline = Watchdog::within(TEST_TIMEOUT);
    let progress = Progress::stderr();
    let mut store = ObjectStore::create(&progress);
    let former = start("lost", &progress);
    let home = former.home().clone();
    inside::run(&home, async || store.start(&home).await).unwrap();
    let url = format!("https://127.0.0.1:{}", former.port("tenant").unwrap());
    let site = Site::create(&home, &url, &store);
    create_advisory(&former);
    site.run_commands(&former);
    let tenant = site.tenant(&former);
    demo::use_tenant(&tenant, &progress).unwrap();
    let before = objects(&tenant);
    let newest = before.values().map(revision_of).max().unwrap();
    until_archived(&former, newest);
    until_status(
        &former,
        "conditions[?(@.type==\"VersionAffected\")].message",
        |message| {
            message
                == concat!(
                    "EXAMPLE-1 affects ",
                    env!("CARGO_PKG_VERSION"),
                    " (no version fixes it): all is lost"
                )
        },
    );

    // the object store sees nothing of it after a moment in the middle of writes
    let mut written = Vec::new();
    for number in 0..WRITES {
        let name = format!("written-{number}");
        tenant
            .run(["--namespace", "shop", "create", "configmap", &name])
            .unwrap();
        written.push(Instant::now());
    }
    store.kill();
    let lost = Instant::now();
    drop(tenant);
    drop(former);
    cluster::down(home.name(), &progress).unwrap();
    assert!(!home.dir().exists(), "the volumes are still there");

    site.restore(&store);
    let found = start("found", &progress);
    let home = found.home().clone();
    inside::run(&home, async || store.start(&home).await).unwrap();
    let begun = Instant::now();
    site.run_commands(&found);
    let took = begun.elapsed();
    let tenant = site.tenant(&found);
    let after = objects(&tenant);
    for (key, object) in &before {
        assert_eq!(after.get(key), Some(object), "{key}");
    }
    // exactly a prefix of what was acknowledged
    let kept = (0..WRITES)
        .take_while(|number| after.contains_key(&config_map(*number)))
        .count();
    let written_after = (kept..WRITES).filter(|number| after.contains_key(&config_map(*number)));
    assert_eq!(
        written_after.collect::<Vec<_>>(),
        [0; 0],
        "{kept} were kept before a gap"
    );
    let age = written.get(kept).map_or(Duration::ZERO, |oldest| lost - *oldest);
    progress.say(format_args!(
        "  Number: from an empty Kubernetes to the tenant's API server: {} ms; lost: {} of {WRITES} writes, the oldest {} ms before the end",
        took.as_millis(),
        WRITES - kept,
        age.as_millis(),
    ));

    // it continues, at revisions that no client has seen, and is archived again
    demo::use_tenant(&tenant, &progress).unwrap();
    let newest = objects(&tenant).values().map(revision_of).max().unwrap();
    assert!(newest > 1_000_000, "{newest}");
    until_archived(&found, newest);
    drop(tenant);
    found.stop().unwrap();
}
