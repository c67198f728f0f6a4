//! Clusters that begin with the data of an etcd: as a copy that follows it until its writers have stopped, and from a snapshot.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use e2e_cluster::namespace::NODE;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams};
use pb::auth_client::AuthClient;
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use programs::progress::Progress;
use programs::server::{Program, Server, ServerPorts};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::transport::Channel;
use wire::etcdserverpb as pb;

use super::backups::{claim, revision, volume};
use super::brains::embedded;
use super::kit::{self, Kit, STATE_TIMEOUT};
use super::pki::Authority;
use super::pods;
use crate::snapshot::save;

/// An etcd beside the cluster's API server: pods reach it at the node's address, with a client certificate, and tests on loopback without.
struct Etcd {
    server: Server,
    /// Its URL for pods.
    url: String,
    _files: TempDir,
}

impl Etcd {
    fn start(kit: &Kit, authority: &Authority) -> Self {
        Self::start_program(kit, authority, &Program::etcd(&Progress::stderr()).unwrap())
    }

    fn start_program(kit: &Kit, authority: &Authority, built: &Program) -> Self {
        let files = TempDir::new().unwrap();
        let path = |name: &str| files.path().join(name);
        let certificate = authority.secret("etcd", "etcd", &[NODE]);
        for (file, key) in [
            ("server.crt", "tls.crt"),
            ("server.key", "tls.key"),
            ("ca.crt", "ca.crt"),
        ] {
            fs::write(path(file), certificate["stringData"][key].as_str().unwrap()).unwrap();
        }
        let program = Program {
            name: built.name,
            path: inside(kit, &built.path, &path("etcd")),
        };
        let [client, peer, outer] = free_ports();
        let url = format!("https://{NODE}:{outer}");
        let file = |flag: &str, name: &str| format!("--{flag}={}", path(name).display());
        let flags = [
            format!("--listen-client-urls=http://127.0.0.1:{client},{url}"),
            format!("--advertise-client-urls={url}"),
            file("cert-file", "server.crt"),
            file("key-file", "server.key"),
            file("trusted-ca-file", "ca.crt"),
            "--client-cert-auth".to_owned(),
        ];
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let server = Server::start_at(&program, ServerPorts { client, peer }, &path("data"), &flags).unwrap();
        Self {
            server,
            url,
            _files: files,
        }
    }

    async fn connect(&self) -> Channel {
        self.server.connect().await.unwrap()
    }
}

/// Writes a program that runs another one in the cluster's network.
fn inside(kit: &Kit, program: &Path, script: &Path) -> PathBuf {
    let network = Path::new("/run/netns").join(kit.harness().cluster.home().netns());
    let text = format!(
        "#!/bin/sh\nexec nsenter --net={} -- {} \"$@\"\n",
        network.display(),
        program.display()
    );
    fs::write(script, text).unwrap();
    fs::set_permissions(script, fs::Permissions::from_mode(0o755)).unwrap();
    script.to_owned()
}

/// Ports that nothing listens on at the node.
fn free_ports() -> [u16; 3] {
    let listeners = [(); 3].map(|()| TcpListener::bind(("0.0.0.0", 0)).unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

/// Between two writes: the copy needs some of the processor's time.
const WRITE_INTERVAL: Duration = Duration::from_millis(5);

/// Writes one key after another until it is stopped.
struct Writer {
    stops: Arc<AtomicBool>,
    task: JoinSet<i64>,
}

impl Writer {
    fn start(channel: Channel) -> Self {
        let stops = Arc::new(AtomicBool::new(false));
        let stop = stops.clone();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut kv = KvClient::new(channel);
            for n in 0_u64.. {
                let put = pb::PutRequest {
                    key: format!("counter/{n:09}").into(),
                    value: vec![b'v'; 300].into(),
                    ..Default::default()
                };
                let put = kv.put(put).await.unwrap().into_inner();
                if stop.load(Ordering::Relaxed) {
                    return put.header.unwrap().revision;
                }
                tokio::time::sleep(WRITE_INTERVAL).await;
            }
            unreachable!("there are numbers left")
        });
        Self { stops, task }
    }

    /// Stops it; returns the revision of its last write.
    async fn stop(mut self) -> i64 {
        self.stops.store(true, Ordering::Relaxed);
        self.task.join_next().await.unwrap().unwrap()
    }
}

/// The number of keys of a store.
async fn count(channel: &Channel) -> i64 {
    let range = pb::RangeRequest {
        key: "\0".into(),
        range_end: "\0".into(),
        count_only: true,
        ..Default::default()
    };
    let counted = KvClient::new(channel.clone()).range(range).await.unwrap();
    counted.into_inner().count
}

const USER: &str = "alice";

/// Adds a user, and a lease with a key. Returns the id of the lease.
async fn add_user_and_lease(channel: &Channel) -> i64 {
    let mut auth = AuthClient::new(channel.clone());
    let user = pb::AuthUserAddRequest {
        name: USER.to_owned(),
        password: "p".to_owned(),
        ..Default::default()
    };
    auth.user_add(user).await.unwrap();
    let grant = pb::LeaseGrantRequest { ttl: 3_600, id: 0 };
    let granted = LeaseClient::new(channel.clone()).lease_grant(grant).await.unwrap();
    let lease = granted.into_inner().id;
    let put = pb::PutRequest {
        key: "leased".into(),
        lease,
        ..Default::default()
    };
    KvClient::new(channel.clone()).put(put).await.unwrap();
    lease
}

/// Checks that a copy has them.
async fn assert_has_user_and_lease(copy: &Channel, lease: i64) {
    let users = AuthClient::new(copy.clone())
        .user_list(pb::AuthUserListRequest {})
        .await;
    assert_eq!(users.unwrap().into_inner().users, [USER]);
    let asked = pb::LeaseTimeToLiveRequest { id: lease, keys: true };
    let found = LeaseClient::new(copy.clone()).lease_time_to_live(asked).await;
    let found = found.unwrap().into_inner();
    assert_eq!(found.keys, ["leased"]);
    assert!((1..=3_600).contains(&found.ttl), "{}", found.ttl);
}

/// The source of a cluster: an etcd with a certificate of the authority, which asks for one, too.
fn from_etcd(etcd: &Etcd) -> Value {
    json!({
        "endpoints": [etcd.url],
        "tls": {
            "caBundleRef": {"kind": "Secret", "name": "etcd-ca", "key": "ca.crt"},
            "clientSecretRef": {"name": "etcd-client"},
        },
    })
}

/// The pods of the Job that copies.
async fn copying_pods(kit: &Kit) -> Vec<Pod> {
    let params = ListParams::default().labels("kubebrain.io/bootstrap=a");
    kit.api::<Pod>().list(&params).await.unwrap().items
}

#[test]
fn cluster_follows_an_etcd_under_writes_and_takes_over_from_it() {
    kit::run_troubled("migration", async |kit| {
        let authority = Authority::new("etcd-ca");
        let etcd = Etcd::start(&kit, &authority);
        let channel = etcd.connect().await;
        let writer = Writer::start(channel.clone());
        let mut spec = embedded();
        spec["bootstrap"] = json!({"fromEtcd": from_etcd(&etcd)});
        spec["bootstrap"]["fromEtcd"]["userSecretRef"] = json!({"name": "etcd-user"});
        let brains = kit.brains("a", spec).await;
        // it waits for each object that it names
        brains
            .until_condition("Bootstrapped", "False", &["WaitingForObject"])
            .await;
        let user = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "etcd-user"},
            "stringData": {"username": "root", "password": "p"},
        });
        for object in [
            authority.bundle("etcd-ca"),
            authority.secret("etcd-client", "client", &[]),
            user,
        ] {
            kit.try_apply(&object).await.unwrap();
        }
        brains.until_condition("Bootstrapped", "False", &["Following"]).await;

        // another pod continues
        let pods = copying_pods(&kit).await;
        let before: Vec<String> = pods.iter().map(Pod::name_any).collect();
        let kill = DeleteParams::default().grace_period(0);
        for pod in pods.iter().filter(|pod| pods::serves(pod)) {
            kit.api::<Pod>().delete(&pod.name_any(), &kill).await.unwrap();
        }
        kit.eventually("followed by another pod", async || {
            let pods = copying_pods(&kit).await;
            let follows = pods
                .iter()
                .any(|pod| !before.contains(&pod.name_any()) && pods::serves(pod));
            follows
                .then_some(())
                .ok_or(format!("{:?}", pods.iter().map(Pod::name_any).collect::<Vec<_>>()))
        })
        .await;
        brains.until_condition("Bootstrapped", "False", &["Following"]).await;

        // it does not end while a client writes
        brains.annotate("kubebrain.io/cutover", "true").await;
        brains.until_condition("Bootstrapped", "False", &["CuttingOver"]).await;
        let stopped = Instant::now();
        let newest = writer.stop().await;
        brains.until_condition("Bootstrapped", "True", &["Copied"]).await;
        kit.say(format_args!(
            "Number: from the last write to the compared copy: {} ms (goal 5000 ms)",
            stopped.elapsed().as_millis()
        ));
        brains.until_ready().await;
        kit.say(format_args!(
            "Number: from the last write to a cluster that serves: {} ms",
            stopped.elapsed().as_millis()
        ));
        let status = brains.get().await.status.unwrap().bootstrap.unwrap();
        assert_eq!(status.revision, Some(newest));
        assert_eq!(brains.count_keys().await, count(&channel).await);
        assert!(revision(&brains).await >= newest);
        etcd.server.stop().unwrap();
    });
}

#[test]
fn clusters_take_over_from_earlier_etcds_with_users_and_leases() {
    kit::run_troubled("migration-earlier", async |kit| {
        let authority = Authority::new("etcd-ca");
        for object in [
            authority.bundle("etcd-ca"),
            authority.secret("etcd-client", "client", &[]),
        ] {
            kit.try_apply(&object).await.unwrap();
        }
        let progress = Progress::stderr();
        let take_over = async |name: &str, program: Program| {
            let etcd = Etcd::start_program(&kit, &authority, &program);
            let channel = etcd.connect().await;
            let lease = add_user_and_lease(&channel).await;
            let writer = Writer::start(channel.clone());
            let mut spec = embedded();
            spec["bootstrap"] = json!({"fromEtcd": from_etcd(&etcd)});
            let brains = kit.brains(name, spec).await;
            brains.until_condition("Bootstrapped", "False", &["Following"]).await;
            brains.annotate("kubebrain.io/cutover", "true").await;
            brains.until_condition("Bootstrapped", "False", &["CuttingOver"]).await;
            let newest = writer.stop().await;
            brains.until_condition("Bootstrapped", "True", &["Copied"]).await;
            brains.until_ready().await;
            let status = brains.get().await.status.unwrap().bootstrap.unwrap();
            assert_eq!(status.revision, Some(newest));
            assert_eq!(brains.count_keys().await, count(&channel).await);
            assert_has_user_and_lease(&brains.connect().await, lease).await;
            etcd.server.stop().unwrap();
        };
        let earlier = Program::etcd_3_5(&progress).unwrap();
        let oldest = Program::etcd_3_4(&progress).unwrap();
        futures::join!(take_over("from-3-5", earlier), take_over("from-3-4", oldest));
    });
}

#[test]
fn cluster_begins_with_a_snapshot_of_an_etcd() {
    kit::run_troubled("migration-snapshot", async |kit| {
        let etcd = Etcd::start(&kit, &Authority::new("etcd-ca"));
        let channel = etcd.connect().await;
        let writer = Writer::start(channel.clone());
        kit.try_apply(&claim("snapshots")).await.unwrap();
        let mut spec = embedded();
        spec["bootstrap"] = json!({"fromSnapshot": {
            "persistentVolumeClaim": {"claimName": "snapshots", "path": "of/etcd.db"},
            "bumpRevision": 1000,
            "markCompacted": true,
        }});
        let brains = kit.brains("a", spec).await;
        let bound = |claim: &PersistentVolumeClaim| {
            let status = claim.status.as_ref().and_then(|status| status.phase.as_deref());
            status == Some("Bound")
        };
        kit.until::<PersistentVolumeClaim>("snapshots", "bound", STATE_TIMEOUT, bound)
            .await;
        // the first attempts find no file
        let last = writer.stop().await;
        let directory = volume(&kit, "snapshots").await.join("of");
        fs::create_dir_all(&directory).unwrap();
        save(&channel, &directory.join("new.db")).await;
        fs::rename(directory.join("new.db"), directory.join("etcd.db")).unwrap();
        brains.until_condition("Bootstrapped", "True", &["Restored"]).await;
        brains.until_ready().await;
        assert_eq!(brains.count_keys().await, count(&channel).await);
        let status: Value = serde_json::to_value(brains.get().await.status.unwrap().bootstrap.unwrap()).unwrap();
        assert_eq!(status["source"], "snapshot pvc://snapshots/of/etcd.db");
        assert!(revision(&brains).await >= last + 1000, "{status}");
        etcd.server.stop().unwrap();
    });
}
