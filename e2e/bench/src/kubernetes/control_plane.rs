//! kube-apiserver, kube-controller-manager, kube-scheduler and kwok on one store.
//!
//! No client of the API server may be the limit: their own throttling is set far above what the machine does.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use programs::progress::Progress;
use programs::server::{self, Program};
use programs::tools::cache::ToolCache;
use programs::tools::go;
use serde_json::json;
use tokio::time::sleep;

use super::component::Component;
use super::credentials::{ADMIN, CONTROLLER_MANAGER, Credentials, SCHEDULER};
use super::store::{Store, StoreKind};
use crate::disk::{self, ServerDir};

const READY_TIMEOUT: Duration = Duration::from_secs(120);
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Requests a second that each client of the API server may send.
const CLIENT_QPS: u32 = 5_000;
/// Objects of a kind that kube-controller-manager works on at a time.
const CONCURRENT_SYNCS: u32 = 50;
/// Nodes, and pods, that kwok works on at a time.
const KWOK_PARALLELISM: u32 = 32;

/// Nodes become Ready at once and keep their leases; pods run at once when they have a node, and end at once.
const KWOK_STAGES: [&str; 4] = [
    "node/fast/node-initialize.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "pod/fast/pod-delete.yaml",
    "pod/fast/pod-ready.yaml",
];

/// The programs, built from Go modules.
#[derive(Clone, Debug)]
pub(super) struct ControlPlanePrograms {
    kubernetes: PathBuf,
    kwok: PathBuf,
    /// Files from kwok's sources that say how nodes and pods behave.
    stages: Vec<PathBuf>,
}

impl ControlPlanePrograms {
    /// Builds those that were not built before.
    ///
    /// # Errors
    ///
    /// There is no Go, or a build fails.
    pub(super) fn build(progress: &Progress) -> anyhow::Result<Self> {
        let cache = ToolCache::open()?;
        let sources = go::KWOK.sources("sigs.k8s.io/kwok")?.join("kustomize/stage");
        Ok(Self {
            stages: KWOK_STAGES.iter().map(|stage| sources.join(stage)).collect(),
            kubernetes: go::KUBERNETES.build(&cache, progress)?,
            kwok: go::KWOK.build(&cache, progress)?,
        })
    }

    fn kubernetes(&self, name: &'static str) -> Program {
        Program {
            name,
            path: self.kubernetes.join(name),
        }
    }

    fn kwok(&self) -> Program {
        Program {
            name: "kwok",
            path: self.kwok.join("kwok"),
        }
    }
}

/// A control plane that runs. Dropping it kills its programs, those first that use others.
pub(super) struct ControlPlane {
    controllers: Vec<Component>,
    apiserver: Component,
    store: Store,
    client: kube::Client,
    place: ServerDir,
}

/// The processes that are measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct ControlPlaneUsage {
    /// The store's.
    pub(super) store: server::ProcessUsage,
    /// kube-apiserver's.
    pub(super) apiserver: server::ProcessUsage,
    /// Processor time of the others.
    pub(super) controllers: Duration,
}

impl ControlPlane {
    /// Starts everything on an empty store, and waits until the API server is ready.
    ///
    /// # Errors
    ///
    /// A program ended, or was not ready in time: then with its last lines.
    pub(super) async fn start(
        programs: &ControlPlanePrograms,
        (kind, store): (StoreKind, &Program),
        place: ServerDir,
    ) -> anyhow::Result<Self> {
        let mut store = Store::start(kind, store, &place).await?;
        let port = server::free_ports()?.client;
        let credentials = Credentials::create(place.file("credentials"), port)?;
        let client = credentials.client().await?;
        let start = |program: &Program, args: &[String]| {
            Component::start(program, args, place.file(&format!("{}.log", program.name)))
        };
        let args = apiserver_arguments(&credentials, store.endpoint(), port);
        let mut apiserver = start(&programs.kubernetes("kube-apiserver"), &args)?;
        tokio::select! {
            outcome = apiserver.until(READY_TIMEOUT, async || ready(&client).await) => outcome?,
            ended = store_ended(&mut store) => ended?,
        }
        let controllers = vec![
            start(
                &programs.kubernetes("kube-controller-manager"),
                &controller_manager_arguments(&credentials),
            )?,
            start(
                &programs.kubernetes("kube-scheduler"),
                &scheduler_arguments(&credentials),
            )?,
            start(
                &programs.kwok(),
                &kwok_arguments(&credentials, &place, &programs.stages)?,
            )?,
        ];
        Ok(Self {
            controllers,
            apiserver,
            store,
            client,
            place,
        })
    }

    /// A client that may do everything.
    pub(super) fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// Waits until a program ends.
    ///
    /// # Errors
    ///
    /// Always, when it returns: the program that ended, with its last lines.
    pub(super) async fn failed(&mut self) -> anyhow::Result<()> {
        loop {
            self.check()?;
            sleep(CHECK_INTERVAL).await;
        }
    }

    /// Checks that all programs are running.
    ///
    /// # Errors
    ///
    /// One has ended: then with its last lines.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        self.store.check()?;
        self.apiserver.check()?;
        self.controllers.iter_mut().try_for_each(Component::check)
    }

    /// Processor time and memory so far.
    ///
    /// # Errors
    ///
    /// A program has ended.
    pub(super) fn usage(&self) -> anyhow::Result<ControlPlaneUsage> {
        let mut controllers = Duration::ZERO;
        for component in &self.controllers {
            controllers += component.usage()?.cpu;
        }
        Ok(ControlPlaneUsage {
            store: self.store.usage()?,
            apiserver: self.apiserver.usage()?,
            controllers,
        })
    }

    /// Bytes that the store's files occupy.
    ///
    /// # Errors
    ///
    /// They cannot be listed.
    pub(super) fn directory_bytes(&self) -> anyhow::Result<u64> {
        disk::occupied(&self.place.data())
    }

    /// Resets the kernel's record of peak memory of the store and the API server.
    ///
    /// # Errors
    ///
    /// A program has ended.
    pub(super) fn forget_peaks(&self) -> anyhow::Result<()> {
        for pid in [self.store.pid(), self.apiserver.pid()] {
            std::fs::write(format!("/proc/{pid}/clear_refs"), "5").context("forget the peak of memory")?;
        }
        Ok(())
    }

    /// Ends it, the store in order.
    ///
    /// # Errors
    ///
    /// The store does not end, or is a brain that logged a warning or an error.
    pub(super) fn stop(self) -> anyhow::Result<()> {
        drop((self.controllers, self.apiserver));
        self.store.stop()
    }
}

/// Waits until a store ends, which is always an error.
async fn store_ended(store: &mut Store) -> anyhow::Result<()> {
    loop {
        store.check()?;
        sleep(CHECK_INTERVAL).await;
    }
}

/// Checks that the API server is ready to serve.
pub(crate) async fn ready(client: &kube::Client) -> anyhow::Result<()> {
    let request = http::Request::get("/readyz").body(Vec::new())?;
    let answer = client.request_text(request).await?;
    ensure!(answer == "ok", "/readyz says: {answer}");
    Ok(())
}

fn apiserver_arguments(credentials: &Credentials, store: &str, port: u16) -> Vec<String> {
    vec![
        format!("--etcd-servers={store}"),
        format!("--secure-port={port}"),
        "--bind-address=127.0.0.1".to_owned(),
        "--advertise-address=192.0.2.1".to_owned(), // for documentation: no client connects to it
        "--service-cluster-ip-range=198.51.100.0/24".to_owned(),
        "--authorization-mode=Node,RBAC".to_owned(),
        credentials.flag("tls-cert-file", "apiserver.crt"),
        credentials.flag("tls-private-key-file", "apiserver.key"),
        credentials.flag("client-ca-file", "ca.crt"),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        credentials.flag("service-account-key-file", "sa.pub"),
        credentials.flag("service-account-signing-key-file", "sa.key"),
        "--max-requests-inflight=3000".to_owned(),
        "--max-mutating-requests-inflight=1000".to_owned(),
    ]
}

fn controller_manager_arguments(credentials: &Credentials) -> Vec<String> {
    let mut args = vec![
        credentials.flag("kubeconfig", &format!("{CONTROLLER_MANAGER}.kubeconfig")),
        credentials.flag("service-account-private-key-file", "sa.key"),
        credentials.flag("root-ca-file", "ca.crt"),
        "--use-service-account-credentials=true".to_owned(),
        // a late renewal must not end a run
        "--leader-elect=false".to_owned(),
        "--secure-port=0".to_owned(),
        format!("--kube-api-qps={CLIENT_QPS}"),
        format!("--kube-api-burst={CLIENT_QPS}"),
    ];
    let kinds = ["deployment", "replicaset", "gc", "namespace"];
    args.extend(kinds.map(|kind| format!("--concurrent-{kind}-syncs={CONCURRENT_SYNCS}")));
    args
}

fn scheduler_arguments(credentials: &Credentials) -> Vec<String> {
    vec![
        credentials.flag("kubeconfig", &format!("{SCHEDULER}.kubeconfig")),
        "--leader-elect=false".to_owned(),
        "--secure-port=0".to_owned(),
        format!("--kube-api-qps={CLIENT_QPS}"),
        format!("--kube-api-burst={CLIENT_QPS}"),
    ]
}

/// Kwok throttles no requests. The number of objects that it works on at a time has no flag, only a field of its configuration.
fn kwok_arguments(credentials: &Credentials, place: &ServerDir, stages: &[PathBuf]) -> anyhow::Result<Vec<String>> {
    let config = json!({
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokConfiguration",
        "options": {
            "manageAllNodes": true,
            "cidr": "10.0.0.0/8",
            "nodePlayStageParallelism": KWOK_PARALLELISM,
            "podPlayStageParallelism": KWOK_PARALLELISM,
            "nodeLeaseParallelism": KWOK_PARALLELISM,
            "nodeLeaseDurationSeconds": 40,
        },
    });
    let path = place.file("kwok.yaml");
    std::fs::write(&path, config.to_string()).with_context(|| format!("write {}", path.display()))?;
    let mut args = vec![
        credentials.flag("kubeconfig", &format!("{ADMIN}.kubeconfig")),
        format!("--server-address=127.0.0.1:{}", server::free_ports()?.client),
    ];
    args.extend(
        [&path]
            .into_iter()
            .chain(stages)
            .map(|file| format!("--config={}", file.display())),
    );
    Ok(args)
}
