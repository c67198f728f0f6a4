//! The whole: PD, the stores, and the commands to them.

mod contents;
mod errors;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use tokio::sync::Mutex;
use tonic::transport::server::Router;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};

use crate::change::ChangeContent;
use crate::delays::Delays;
use crate::engine::Engine;
use crate::faults::Faults;
use crate::gate::Gate;
use crate::options::{Options, Tls};
use crate::proto::keyspacepb::keyspace_server::KeyspaceServer;
use crate::proto::pdpb::pd_server::PdServer as PdService;
use crate::proto::tikvpb::tikv_server::TikvServer;
use crate::regions::{Region, Regions, RegionsError};
use crate::replication::Tail;
use crate::rpc::{Counters, Rpc};
use crate::server::{
    Endpoint, EndpointError, GcStates, PD, PdMembers, PdServer, Process, Shared, StoreServer, is_pd, pd_process,
};
use crate::tso::Tso;

use errors::describe;
pub use errors::{CommandError, StartError};

/// TiKV takes requests of any size and answers with any; this is more than any client asks for.
const MAX_MESSAGE_BYTES: usize = 256 << 20;
/// Bytes that a connection may have in flight without being acknowledged.
const WINDOW_BYTES: u32 = 8 << 20;

/// A running mock. Dropped, it ends soon; [`MockTikv::stop`] waits for it.
///
/// Processes are named by number: PD is [`MockTikv::PD`], stores count from 1.
#[derive(Debug)]
pub struct MockTikv {
    shared: Arc<Shared>,
    endpoints: Mutex<BTreeMap<u64, Endpoint>>,
    /// Commands that read and replace the regions take turns.
    regions: Mutex<()>,
    tls: Option<ServerTlsConfig>,
}

impl MockTikv {
    /// PD's number among the processes.
    pub const PD: u64 = PD;

    /// Opens the data, listens and answers. All ports are open when this returns.
    pub async fn start(options: Options) -> Result<Self, StartError> {
        let tls = options.tls.as_ref().map(credentials).transpose()?;
        let ids: Vec<u64> = (1..).take(options.stores.len()).collect();
        if ids.is_empty() {
            return Err(StartError::NoStores);
        }
        let blank = Regions::new(ids.clone());
        let engine = Engine::open(blank, &options)?;
        claim(&engine, &options).await?;
        let window = engine.read().timestamp_window;
        let shared = Arc::new(Shared {
            cluster_id: options.cluster_id,
            engine,
            tso: Tso::new(window),
            faults: Faults::new(options.seed),
            delays: Delays::new(options.seed),
            pd_members: PdMembers::new(options.pd_members),
            counters: Counters::default(),
            late: Default::default(),
            gc: GcStates::new(options.gc),
            gates: (0..options.pd_members)
                .map(pd_process)
                .chain(ids.clone())
                .map(|id| (id, Gate::default()))
                .collect(),
            silent: Default::default(),
            addresses: OnceLock::new(),
        });
        let mut endpoints = BTreeMap::new();
        let any = SocketAddr::new(options.pd.ip(), 0);
        let pd = std::iter::once(options.pd).chain(std::iter::repeat(any));
        let pd = (0..options.pd_members).map(pd_process).zip(pd);
        for (id, address) in pd.chain(ids.into_iter().zip(options.stores)) {
            endpoints.insert(id, Endpoint::bind(address).await?);
        }
        let host = options.advertised_host.as_deref();
        let scheme = if tls.is_some() { "https" } else { "http" };
        shared.addresses.get_or_init(|| {
            let told = |(&id, endpoint): (&u64, &Endpoint)| match is_pd(id) {
                true => (id, format!("{scheme}://{}", advertised(host, endpoint.address))),
                false => (id, advertised(host, endpoint.address)),
            };
            endpoints.iter().map(told).collect()
        });
        let mock_tikv = Self {
            shared,
            endpoints: Mutex::new(endpoints),
            regions: Mutex::default(),
            tls,
        };
        let processes: Vec<u64> = mock_tikv.endpoints.lock().await.keys().copied().collect();
        for id in processes {
            mock_tikv.start_listening(id).await?;
        }
        Ok(mock_tikv)
    }

    /// `host:port` of PD, as clients are configured with it.
    #[must_use]
    pub fn pd(&self) -> String {
        self.pd_address(PD)
    }

    /// `host:port` of every member of PD.
    #[must_use]
    pub fn pd_members(&self) -> Vec<String> {
        let members = (0..self.shared.pd_members.number).map(pd_process);
        members.map(|process| self.pd_address(process)).collect()
    }

    fn pd_address(&self, process: u64) -> String {
        let url = self.shared.address(process);
        url.split_once("://")
            .map_or(url.clone(), |(_, address)| address.to_owned())
    }

    /// Returns the number of a member of PD, which count from 0, among the processes.
    #[must_use]
    pub fn pd_process(member: usize) -> u64 {
        pd_process(member)
    }

    /// A member of PD leads from now on, and the others do not.
    pub fn lead_pd(&self, member: usize) {
        self.shared.pd_members.lead(pd_process(member));
    }

    /// A member of PD names no leader from now on, or does again.
    pub fn set_pd_aware(&self, member: usize, aware: bool) {
        self.shared.pd_members.set_aware(pd_process(member), aware);
    }

    /// Returns the delays of answers.
    #[must_use]
    pub fn delays(&self) -> &Delays {
        &self.shared.delays
    }

    /// `host:port` of every store, by its number.
    #[must_use]
    pub fn stores(&self) -> BTreeMap<u64, String> {
        let all = self.shared.addresses.get().cloned().unwrap_or_default();
        all.into_iter().filter(|&(id, _)| !is_pd(id)).collect()
    }

    #[must_use]
    pub fn cluster_id(&self) -> u64 {
        self.shared.cluster_id
    }

    /// Returns the faults.
    #[must_use]
    pub fn faults(&self) -> &Faults {
        &self.shared.faults
    }

    /// Returns the number of requests of each kind since the start or the last reset.
    #[must_use]
    pub fn requests(&self) -> BTreeMap<Rpc, u64> {
        self.shared.counters.read()
    }

    /// Begins to count from zero.
    pub fn reset_requests(&self) {
        self.shared.counters.reset();
    }

    /// All regions, in key order.
    #[must_use]
    pub fn regions(&self) -> Vec<Region> {
        self.shared.engine.read().regions.all.clone()
    }

    /// The highest safe point that PD received.
    #[must_use]
    pub fn safe_point(&self) -> u64 {
        self.shared.engine.read().safe_point
    }

    /// Another service wants nothing to be collected that a read at `until` needs.
    pub fn hold_gc(&self, service: &str, until: u64) {
        self.shared.gc.hold(service, until);
    }

    /// Keys, versions of all keys together, and locks that are held.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        let tables = self.shared.engine.read();
        let versions = tables.writes.values().map(Vec::len).sum();
        Sizes {
            keys: tables.writes.len(),
            versions,
            locks: tables.locks.len(),
        }
    }

    /// Splits the region of `key` there.
    pub async fn split(&self, key: &[u8]) -> Result<(), CommandError> {
        self.change_regions(|regions| regions.split(key)).await
    }

    /// Joins the two regions that meet at `key`.
    pub async fn merge(&self, key: &[u8]) -> Result<(), CommandError> {
        self.change_regions(|regions| regions.merge(key)).await
    }

    /// Makes `store` the leader of the region of `key`, with a new peer there if need be.
    pub async fn move_region(&self, key: &[u8], store: u64) -> Result<(), CommandError> {
        self.change_regions(|regions| regions.move_to(key, store)).await
    }

    async fn change_regions(
        &self,
        next: impl FnOnce(&Regions) -> Result<Regions, RegionsError>,
    ) -> Result<(), CommandError> {
        let _turn = self.regions.lock().await;
        Ok(self.shared.engine.change_regions(next).await??)
    }

    /// Stops a process in its tracks: SIGSTOP.
    pub fn pause(&self, process: u64) -> Result<(), CommandError> {
        self.set_open(process, false)
    }

    /// Lets a paused process continue, as SIGCONT does.
    pub fn resume(&self, process: u64) -> Result<(), CommandError> {
        self.set_open(process, true)
    }

    fn set_open(&self, process: u64, open: bool) -> Result<(), CommandError> {
        let gate = self
            .shared
            .gates
            .get(&process)
            .ok_or(CommandError::NoProcess(process))?;
        gate.set_open(open);
        Ok(())
    }

    /// Ends all connections of a process and closes its port. Its regions stay where they are until they are moved.
    pub async fn kill(&self, process: u64) -> Result<(), CommandError> {
        let mut endpoints = self.endpoints.lock().await;
        endpoints
            .get_mut(&process)
            .ok_or(CommandError::NoProcess(process))?
            .stop()
            .await;
        Ok(())
    }

    /// Brings a killed process back at its port.
    pub async fn revive(&self, process: u64) -> Result<(), CommandError> {
        self.shared
            .gates
            .get(&process)
            .ok_or(CommandError::NoProcess(process))?;
        Ok(self.start_listening(process).await?)
    }

    /// Holds elections: regions whose leader was killed or paused are led by other peers, where a majority of them answers.
    pub async fn elect(&self) -> Result<(), CommandError> {
        let endpoints = self.endpoints.lock().await;
        let is_open = |id: &u64| self.shared.gates.get(id).is_some_and(Gate::is_open);
        let running = endpoints.iter().filter(|(_, endpoint)| endpoint.is_running());
        let alive: BTreeSet<u64> = running.map(|(&id, _)| id).filter(|id| is_open(id)).collect();
        drop(endpoints);
        self.change_regions(|regions| Ok(regions.elect(&alive))).await
    }

    /// Silences the region of `key`, or ends its silence. Requests that arrive while it is silent are answered afterwards.
    pub fn silence(&self, key: &[u8], silent: bool) {
        self.shared.silent.set(key, silent);
    }

    /// While `hold` is set, writes are answered before they are synced. Only then does a restart have a tail to lose.
    pub async fn hold_sync(&self, hold: bool) -> Result<(), CommandError> {
        Ok(self.shared.engine.hold_sync(hold).await?)
    }

    /// Kills PD and all stores, reloads the data and brings back those that were alive.
    pub async fn restart(&self, tail: Tail) -> Result<(), CommandError> {
        let mut alive = Vec::new();
        for (&id, endpoint) in self.endpoints.lock().await.iter_mut() {
            if endpoint.is_running() {
                alive.push(id);
                endpoint.stop().await;
            }
        }
        let engine = &self.shared.engine;
        let now = self.shared.tso.allocate(engine, 1).await;
        let now = now.map_err(|status| CommandError::Refused(status.message().to_owned()))?;
        engine.restart(tail, now).await?;
        for id in alive {
            self.start_listening(id).await?;
        }
        Ok(())
    }

    /// Ends, in order: all that was answered is in the data file, and both the file and the ports are free.
    pub async fn stop(self) -> Result<(), CommandError> {
        for endpoint in self.endpoints.lock().await.values_mut() {
            endpoint.stop().await;
        }
        Ok(self.shared.engine.stop().await?)
    }

    async fn start_listening(&self, process: u64) -> Result<(), EndpointError> {
        let service = self.service(process);
        match self.endpoints.lock().await.get_mut(&process) {
            Some(endpoint) => endpoint.start(service).await,
            None => Ok(()),
        }
    }

    fn service(&self, id: u64) -> Router {
        let process = Process {
            shared: Arc::clone(&self.shared),
            id,
        };
        let mut server = Server::builder()
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .tcp_nodelay(true);
        if let Some(tls) = &self.tls {
            server = server
                .tls_config(tls.clone())
                .expect("the certificates were tried at the start");
        }
        if is_pd(id) {
            let pd = PdServer(process);
            return server
                .add_service(PdService::new(pd.clone()))
                .add_service(KeyspaceServer::new(pd));
        }
        let store = TikvServer::new(StoreServer(process));
        server.add_service(
            store
                .max_decoding_message_size(MAX_MESSAGE_BYTES)
                .max_encoding_message_size(MAX_MESSAGE_BYTES),
        )
    }
}

/// Sizes of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Sizes {
    pub keys: usize,
    pub versions: usize,
    pub locks: usize,
}

/// Marks new data as this cluster's; refuses another's.
async fn claim(engine: &Engine, options: &Options) -> Result<(), StartError> {
    let (cluster, stores) = {
        let tables = engine.read();
        (tables.cluster, tables.regions.stores.len())
    };
    let wanted = options.cluster_id;
    match cluster {
        Some(found) if found != wanted => Err(StartError::Cluster { found, wanted }),
        Some(_) if stores != options.stores.len() => Err(StartError::Stores {
            found: stores,
            wanted: options.stores.len(),
        }),
        Some(_) => Ok(()),
        None => {
            let regions = engine.read().regions.clone();
            let changes = vec![ChangeContent::Cluster(wanted), ChangeContent::Regions(regions)];
            engine
                .change(changes)
                .await
                .map_err(|failure| StartError::FirstWrite(describe(failure)))
        }
    }
}

fn advertised(host: Option<&str>, address: SocketAddr) -> String {
    host.map_or_else(|| address.to_string(), |host| format!("{host}:{}", address.port()))
}

/// Reads the certificates and tries them.
fn credentials(tls: &Tls) -> Result<ServerTlsConfig, StartError> {
    let read = |path: &PathBuf| {
        std::fs::read(path).map_err(|source| StartError::Credentials {
            path: path.clone(),
            source,
        })
    };
    let identity = Identity::from_pem(read(&tls.cert)?, read(&tls.key)?);
    let config = ServerTlsConfig::new()
        .identity(identity)
        .client_ca_root(Certificate::from_pem(read(&tls.ca)?));
    Server::builder().tls_config(config.clone()).map_err(StartError::Tls)?;
    Ok(config)
}
