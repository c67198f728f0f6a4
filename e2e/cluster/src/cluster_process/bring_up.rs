//! The order in which a cluster's programs start and end.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use programs::progress::Progress;
use programs::tcp_proxy::TcpProxy;
use programs::tikv;
use programs::tikv::real::PdAddresses;
use programs::tools::Tools;
use tokio::task::JoinSet;
use tracing::warn;

use crate::cluster_context::ClusterContext;
use crate::cluster_dir::ClusterDir;
use crate::config::{ClusterConfig, StoreProgram, forwards};
use crate::forward::{self, OutsideEnd};
use crate::namespace::NetworkNamespace;
use crate::state::ClusterState;
use crate::supervisor::Supervisor;
use crate::{addons, apiserver, cgroups, cleanup, containerd, controllers, credentials, kubelet, mounts, store};

/// For any single thing to get ready; a busy machine is slow.
const READY_TIMEOUT: Duration = Duration::from_secs(120);

/// A cluster and the one process that owns it.
pub(super) struct ClusterProcess {
    site: ClusterContext,
    config: ClusterConfig,
    supervisor: Supervisor,
    forwards: JoinSet<anyhow::Result<()>>,
    /// The way to a real TiKV cluster.
    relay: Option<TcpProxy>,
}

impl ClusterProcess {
    /// Makes network, mounts and cgroups; nothing runs yet.
    pub(super) fn begin(home: &ClusterDir, config: &ClusterConfig, tools: Tools) -> anyhow::Result<Self> {
        let setting = |path: &str| Some((path.to_owned(), fs::read_to_string(path).ok()?.trim().to_owned()));
        let state = ClusterState {
            programs: BTreeMap::new(),
            restarts: BTreeMap::new(),
            ports: BTreeMap::new(),
            sysctls: kubelet::SYSCTLS.iter().filter_map(|path| setting(path)).collect(),
        };
        state.write(home)?;
        mounts::memory(&home.node())?;
        cgroups::create(home)?;
        let namespace = NetworkNamespace::create(home)?;
        let site = ClusterContext {
            home: home.clone(),
            namespace,
            tools,
        };
        let supervisor = Supervisor::new(home, state);
        Ok(Self {
            site,
            config: config.clone(),
            supervisor,
            forwards: JoinSet::new(),
            relay: None,
        })
    }

    /// Starts everything and waits until it is ready.
    pub(super) async fn bring_up(&mut self, archives: &[PathBuf], progress: &Progress) -> anyhow::Result<()> {
        self.forward().await?;
        let port = *self
            .config
            .ports
            .get("api")
            .context("the API server has no port outside")?;
        credentials::create(&self.site, port)?;

        let whole = progress.step("node Ready, counted from the start of the first program");
        let step = progress.step(format_args!("{} healthy", self.config.store));
        self.supervisor.start(containerd::program(&self.site)?);
        self.store().await?;
        step.done();
        let step = progress.step(format_args!("kube-apiserver ready on {}", self.config.store));
        let members = store::members(self.config.store);
        let members = match self.config.through {
            Some(member) => members.get(member..=member).context("the store has no such member")?,
            None => members,
        };
        self.supervisor.start(apiserver::program(&self.site, members)?);
        let client = apiserver::client(&self.site.home.kubeconfig()).await?;
        self.supervisor
            .until(apiserver::NAME, "ready", READY_TIMEOUT, async || {
                apiserver::ready(&client).await
            })
            .await?;
        step.done();

        self.supervisor.start(controllers::controller_manager(&self.site));
        self.supervisor.start(controllers::scheduler(&self.site));
        self.supervisor.start(kubelet::proxy(&self.site)?);
        let home = &self.site.home;
        self.supervisor
            .until(containerd::NAME, "serving", READY_TIMEOUT, async || {
                containerd::serves(home)
            })
            .await?;
        self.supervisor.start(kubelet::program(&self.site)?);
        self.supervisor
            .until(kubelet::NAME, "Ready", READY_TIMEOUT, async || {
                kubelet::ready(&client).await
            })
            .await?;
        whole.done();

        let step = progress.step(format_args!("{} images imported", archives.len()));
        let (home, archives) = (self.site.home.clone(), archives.to_owned());
        let import = move || {
            archives
                .iter()
                .try_for_each(|archive| containerd::import(&home, archive))
        };
        tokio::task::spawn_blocking(import)
            .await
            .context("the thread that imports images ended")??;
        step.done();

        let step = progress.step("volumes created, CoreDNS Ready");
        let kubectl = self.site.kubectl();
        let objects = addons::objects(&self.site.home)?;
        self.supervisor
            .until(apiserver::NAME, "taking objects", READY_TIMEOUT, async || {
                kubectl.apply(&objects)
            })
            .await?;
        self.supervisor
            .until(kubelet::NAME, "running CoreDNS", READY_TIMEOUT, async || {
                addons::ready(&client).await
            })
            .await?;
        step.done();
        Ok(())
    }

    /// Starts the members of the store, one after the other, and before them what they store in.
    async fn store(&mut self) -> anyhow::Result<()> {
        let store = self.config.store;
        let flags = match store {
            StoreProgram::Tikv => self.tikv().await?,
            StoreProgram::Brain | StoreProgram::Etcd => Vec::new(),
        };
        let site = &self.site;
        for member in store::members(store) {
            self.supervisor.start(store::program(site, store, member, &flags)?);
            let healthy = async || store::healthy(site, member).await;
            self.supervisor
                .until(member.name, "healthy", READY_TIMEOUT, healthy)
                .await?;
        }
        Ok(())
    }

    /// Starts the mock of TiKV that several brains store in, or a relay to the real cluster. Returns the flags that brains need for it.
    async fn tikv(&mut self) -> anyhow::Result<Vec<String>> {
        let site = &self.site;
        if let Ok(pd) = std::env::var(tikv::REAL_PD_VARIABLE) {
            let real = PdAddresses::ask(&pd).await?;
            let (here, there) = (Path::new("/proc/self/ns/net"), site.namespace.path());
            self.relay = Some(TcpProxy::start(here, &[there], &real.all())?);
            return Ok(store::tikv_flags(Some(&real)));
        }
        self.supervisor.start(store::tikv(site)?);
        let serves = async || store::tikv_serves(site).await;
        self.supervisor
            .until(store::TIKV, "serving", READY_TIMEOUT, serves)
            .await?;
        Ok(store::tikv_flags(None))
    }

    /// Opens the ways into the cluster's network.
    async fn forward(&mut self) -> anyhow::Result<()> {
        for (name, address) in forwards(self.config.store) {
            let wanted = self.config.ports.get(name).copied().unwrap_or(0);
            let outside = OutsideEnd::listen(&self.site, name, wanted).await?;
            self.config.ports.insert(name.to_owned(), outside.port()?);
            self.forwards.spawn(outside.run());
            self.supervisor.start(forward::inside(&self.site, name, address)?);
        }
        self.supervisor.note(|state| state.ports.clone_from(&self.config.ports))
    }

    /// Keeps it running; programs that end are started again.
    pub(super) async fn keep(&mut self) -> anyhow::Result<()> {
        tokio::select! {
            failed = self.supervisor.failed() => failed,
            Some(ended) = self.forwards.join_next() => ended.context("a forwarding task panicked")?,
        }
    }

    /// Ends the programs: those that use others first.
    pub(super) async fn end(mut self) {
        let users = [
            kubelet::NAME,
            kubelet::PROXY,
            controllers::CONTROLLER_MANAGER,
            controllers::SCHEDULER,
            containerd::NAME,
        ];
        self.supervisor.stop(&users).await;
        if let Err(error) = cleanup::pods(&self.site.home) {
            warn!(%error, "pods keep running until the sweep");
        }
        self.supervisor.stop(&[apiserver::NAME]).await;
        // one after the other: the leader hands over to one that is left
        for member in store::members(self.config.store) {
            self.supervisor.stop(&[member.name]).await;
        }
        self.supervisor.stop_all().await;
    }
}
