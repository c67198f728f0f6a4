//! Members whose lock is a Lease of a real Kubernetes.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use e2e_cluster::cluster_dir::ClusterDir;
use e2e_cluster::lock::FileLock;
use e2e_cluster::{apiserver, credentials};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use pb::kv_client::KvClient;
use pb::maintenance_client::MaintenanceClient;
use programs::members::{self, Members};
use programs::progress::Progress;
use programs::server::{Program, Server, ServerPorts, command, free_ports, spawn};
use programs::tikv::MockTikv;
use programs::tools::cache::ToolCache;
use programs::tools::go;
use tempfile::TempDir;
use tokio::time::timeout;
use wire::etcdserverpb as pb;

use crate::harness::deadline;

const ELECTION_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const NAMESPACE: &str = "default";

/// Flags of a member that competes for a Lease. Its name is that of the test.
fn by_lease(kubeconfig: &Path, name: &str) -> Vec<String> {
    let patient = members::PATIENT_ELECTION_FLAGS.iter().map(ToString::to_string);
    let flags = [
        "--election-retry-period=400ms".to_owned(),
        "--election=lease".to_owned(),
        format!("--lease-namespace={NAMESPACE}"),
        format!("--lease-name={name}"),
        format!("--lease-kubeconfig={}", kubeconfig.display()),
    ];
    flags.into_iter().chain(patient).collect()
}

fn refs(flags: &[String]) -> Vec<&str> {
    flags.iter().map(String::as_str).collect()
}

/// One more member, with flags of its own.
struct Guest {
    ports: ServerPorts,
    dir: TempDir,
}

impl Guest {
    fn new() -> Self {
        Self {
            ports: free_ports().unwrap(),
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn place(&self) -> Option<String> {
        Some(format!("guest=http://127.0.0.1:{}", self.ports.peer))
    }

    fn start(&self, shared: &[String], flags: &[String]) -> anyhow::Result<Server> {
        let name = ["--name=guest".to_owned()];
        let flags: Vec<String> = shared.iter().chain(&name).chain(flags).cloned().collect();
        let program = Program::kubebrain()?;
        let server = Server::start_at(&program, self.ports, self.dir.path(), &refs(&flags))?;
        Ok(members::ELECTION_MESSAGES
            .iter()
            .fold(server, |server, text| server.expected_logs(text)))
    }
}

/// Returns the answer of a port to a plain HTTP request.
fn http(port: u16, path: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

async fn until(what: &str, mut fits: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !fits().await {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    timeout(ELECTION_TIMEOUT, waiting)
        .await
        .unwrap_or_else(|_| panic!("{what} did not come"));
}

async fn holder(leases: &Api<Lease>, name: &str) -> String {
    let spec = leases.get(name).await.unwrap().spec.unwrap();
    let identity = spec.holder_identity.unwrap_or_default();
    identity
        .rsplit_once('_')
        .map_or(identity.clone(), |(name, _)| name.to_owned())
}

/// Puts through a member until `done`; each must be answered, one revision after the other.
async fn writes(server: &Server, done: &std::sync::atomic::AtomicBool) -> i64 {
    let mut kv = KvClient::new(server.connect().await.unwrap());
    let put = pb::PutRequest {
        key: b"a".to_vec().into(),
        ..pb::PutRequest::default()
    };
    let mut last = None;
    loop {
        let answer = timeout(ELECTION_TIMEOUT, kv.put(put.clone()))
            .await
            .expect("an answer in time");
        let revision = answer.unwrap().into_inner().header.unwrap().revision;
        assert!(
            last.is_none_or(|last| revision == last + 1),
            "{revision} after {last:?}"
        );
        last = Some(revision);
        if done.load(std::sync::atomic::Ordering::Relaxed) {
            return revision;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_agree_on_a_leader_by_a_lease_and_hand_it_over() {
    const NAME: &str = "brains-agree";
    let _deadline = deadline();
    let program = Program::kubebrain().unwrap();
    let host = Server::start(&program, &[]).unwrap();
    let api = ApiServer::start(host.endpoint()).await;
    let leases: Api<Lease> = Api::namespaced(api.client().await, NAMESPACE);
    let (tikv, guest) = (MockTikv::start(None, &[]).unwrap(), Guest::new());
    let flags = by_lease(&api.home.tenant_kubeconfig(), NAME);
    let mut members = Members::brains_with(guest.place(), &program, tikv.pd(), 2, &refs(&flags)).unwrap();
    let port = free_ports().unwrap().client;
    let own = [format!("--leader-http=127.0.0.1:{port}")];
    let server = guest.start(&members.shared_flags(), &own).unwrap();

    let first = members.leader().await.unwrap();
    let other = 1 - first;
    let named = format!("m{first}");
    assert_eq!(holder(&leases, NAME).await, named);
    for path in ["/", "/leader"] {
        let answer = http(port, path).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(
            answer
                .to_lowercase()
                .contains("content-type: text/plain; charset=utf-8\r\n")
        );
        assert!(
            answer.ends_with(&format!("\r\n\r\n{{\"name\":\"{named}\"}}")),
            "{answer}"
        );
    }

    // By request: no write is refused during the move.
    let done = std::sync::atomic::AtomicBool::new(false);
    let target_id = members::status(server.endpoint())
        .await
        .unwrap()
        .header
        .unwrap()
        .member_id;
    let channel = members.server(first).unwrap().connect().await.unwrap();
    let moved = async {
        let mut maintenance = MaintenanceClient::new(channel);
        let asked = maintenance.move_leader(pb::MoveLeaderRequest { target_id });
        timeout(ELECTION_TIMEOUT, asked).await.expect("moved in time")
    };
    let moved = async {
        let moved = moved.await;
        until("the guest's lead", async || {
            members::status(server.endpoint())
                .await
                .is_ok_and(|status| members::leads(&status))
        })
        .await;
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        moved
    };
    let (moved, _) = tokio::join!(moved, writes(members.server(other).unwrap(), &done));
    moved.unwrap();
    assert_eq!(holder(&leases, NAME).await, "guest");
    assert!(http(port, "/").unwrap().ends_with("{\"name\":\"guest\"}"));

    // By SIGTERM: no write is refused either.
    let done = std::sync::atomic::AtomicBool::new(false);
    let stopped = async {
        let stopped = tokio::task::spawn_blocking(move || server.stop()).await.unwrap();
        members.leader().await.unwrap();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        stopped
    };
    let (stopped, _) = tokio::join!(stopped, writes(members.server(other).unwrap(), &done));
    stopped.unwrap();
    let last = members.leader().await.unwrap();
    assert_eq!(holder(&leases, NAME).await, format!("m{last}"));

    // Without a word: the other one leads when the Lease has run out.
    members.kill(last).unwrap();
    let done = std::sync::atomic::AtomicBool::new(true);
    let next = 1 - last;
    writes(members.server(next).unwrap(), &done).await;
    assert_eq!(holder(&leases, NAME).await, format!("m{next}"));
    members.stop().unwrap();
    // It was given back.
    assert_eq!(holder(&leases, NAME).await, "");
    drop(api);
    host.stop().unwrap();
}

/// A kube-apiserver of its own.
pub(crate) struct ApiServer {
    child: Child,
    home: ClusterDir,
    /// Else it would be swept as what a killed run left.
    _lock: FileLock,
}

impl ApiServer {
    pub(crate) async fn start(store: &str) -> Self {
        let home = ClusterDir::of(&format!("lease-{:08x}", rand::random::<u32>()).parse().unwrap());
        let port = free_ports().unwrap().client;
        std::fs::create_dir_all(home.dir().parent().unwrap()).unwrap();
        let lock = FileLock::take(&home).unwrap();
        home.claim().unwrap();
        std::fs::create_dir_all(home.path("pki")).unwrap();
        credentials::tenant(&home, "tenant", "localhost", &format!("https://127.0.0.1:{port}")).unwrap();
        let at = |flag: &str, file: &str| format!("--{flag}={}", home.path(format!("pki/tenant-{file}")).display());
        let path = go::KUBERNETES
            .build(&ToolCache::open().unwrap(), &Progress::stderr())
            .unwrap();
        let mut server = command(&Program {
            name: apiserver::NAME,
            path: path.join(apiserver::NAME),
        });
        server.args([
            format!("--etcd-servers={store}"),
            "--service-cluster-ip-range=10.98.0.0/24".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
            "--advertise-address=192.0.2.1".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
            format!("--secure-port={port}"),
            "--authorization-mode=RBAC".to_owned(),
            at("tls-cert-file", "apiserver.crt"),
            at("tls-private-key-file", "apiserver.key"),
            at("client-ca-file", "ca.crt"),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            at("service-account-key-file", "sa.pub"),
            at("service-account-signing-key-file", "sa.key"),
        ]);
        let log = File::create(home.path("log")).unwrap();
        server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = spawn(server).unwrap();
        let started = Self {
            child,
            home,
            _lock: lock,
        };
        let client = started.client().await;
        until("the API server", async || apiserver::ready(&client).await.is_ok()).await;
        started
    }

    /// Its administrator's.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.home.tenant_kubeconfig()
    }

    async fn client(&self) -> kube::Client {
        apiserver::client(&self.home.tenant_kubeconfig()).await.unwrap()
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        // both fail only if it has ended already
        drop(self.child.kill());
        drop(self.child.wait());
        let removed = self
            .home
            .remove()
            .and_then(|()| Ok(std::fs::remove_file(self.home.lock())?));
        if let Err(error) = removed {
            eprintln!("{}: {error:#}", self.home.dir().display());
        }
    }
}

/// Returns the output of a member that ends.
fn says_and_ends(started: anyhow::Result<Server>) -> String {
    let mut server = match started {
        Ok(server) => server,
        Err(ended) => return format!("{ended:#}"),
    };
    let deadline = tokio::time::Instant::now() + ELECTION_TIMEOUT;
    while server.ended().unwrap().is_none() {
        assert!(
            tokio::time::Instant::now() < deadline,
            "it goes on: {}",
            server.last_lines()
        );
        std::thread::sleep(POLL_INTERVAL);
    }
    assert!(!server.ended().unwrap().unwrap().success(), "{}", server.last_lines());
    server.last_lines()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_refuses_a_lease_that_lives_in_its_own_store() {
    const NAME: &str = "brains-circular";
    let _deadline = deadline();
    let (tikv, guest) = (MockTikv::start(None, &[]).unwrap(), Guest::new());
    let program = Program::kubebrain().unwrap();
    let members =
        Members::brains_with(guest.place(), &program, tikv.pd(), 2, &members::PATIENT_ELECTION_FLAGS).unwrap();
    let api = ApiServer::start(&members.url(0).unwrap()).await;
    let refused =
        format!("the lease {NAMESPACE}/{NAME} is stored in this store, at /registry/leases/{NAMESPACE}/{NAME}");
    // There is no such Lease yet: it is found once the member leads.
    let flags = by_lease(&api.home.tenant_kubeconfig(), NAME);
    let shared = members.shared_flags();
    let said = says_and_ends(guest.start(&shared, &flags));
    assert!(said.contains(&refused), "{said}");
    // The other members continue, and a second start does not disturb them: this time, the Lease is found at the start.
    let mut kv = KvClient::new(members.server(1).unwrap().connect().await.unwrap());
    until("a leader", async || {
        kv.put(pb::PutRequest {
            key: b"a".to_vec().into(),
            ..pb::PutRequest::default()
        })
        .await
        .is_ok()
    })
    .await;
    let leader = members.leader().await.unwrap();
    let term = members.status(leader).await.unwrap().raft_term;
    let said = says_and_ends(guest.start(&shared, &flags));
    assert!(said.contains(&refused), "{said}");
    let status = members.status(leader).await.unwrap();
    assert!(members::leads(&status) && status.raft_term == term, "{status:?}");
    drop(api);
    // They said that a later leader had begun, and are not asked to end in order.
    drop(members);
}
