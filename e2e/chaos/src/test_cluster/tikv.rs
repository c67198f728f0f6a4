//! The TiKV of the members, a mock or a real cluster, and the faults of a mock.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use mock_tikv::{Action, Delay, Fault, FaultId, MockTikv, Options, RefusalCode, RegionFault, Rpc, Tail};
use programs::tcp_proxy::TcpProxy;
use programs::tikv::real::PdAddresses;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use super::network::{HUB_ADDRESS, Network};

/// TiKV's nodes.
pub(crate) const STORES: u64 = 3;

/// Until others lead what a dead store led.
const REGION_ELECTION_TIME: Duration = Duration::from_millis(300);

/// The prefix that members have if they are not given one, as it begins their keys.
const DEFAULT_KEY_PREFIX: &[u8] = b"\x09kubebrain";

/// The requests that brains send.
const BRAIN_RPCS: [Rpc; 15] = [
    Rpc::Get,
    Rpc::BatchGet,
    Rpc::Scan,
    Rpc::Prewrite,
    Rpc::Commit,
    Rpc::Tso,
    Rpc::GetRegion,
    Rpc::CheckTxnStatus,
    Rpc::ResolveLock,
    Rpc::ScanLock,
    Rpc::BatchRollback,
    Rpc::UnsafeDestroyRange,
    Rpc::GetMembers,
    Rpc::GetAllStores,
    Rpc::ScanRegions,
];

const REGION_FAULTS: [RegionFault; 8] = [
    RegionFault::NotLeader,
    RegionFault::RegionNotFound,
    RegionFault::EpochNotMatch,
    RegionFault::ServerIsBusy,
    RegionFault::StaleCommand,
    RegionFault::StoreNotMatch,
    RegionFault::MaxTimestampNotSynced,
    RegionFault::ReadIndexNotReady,
];

/// Storage of the members.
#[derive(Debug)]
pub(crate) struct Tikv {
    addresses: PdAddresses,
    /// Of the members' keys; they choose their own on a mock, which has no other user.
    prefix: Option<String>,
    kind: TikvKind,
}

#[derive(Debug)]
enum TikvKind {
    MockTikv(MockTikv),
    /// With the way to it.
    Real {
        _relay: TcpProxy,
    },
}

impl Tikv {
    /// Starts a mock in the hub.
    ///
    /// # Errors
    ///
    /// It cannot listen.
    pub(crate) async fn mock_tikv(seed: u64) -> anyhow::Result<Self> {
        let any = SocketAddr::new(HUB_ADDRESS.into(), 0);
        let options = Options {
            pd: any,
            stores: (0..STORES).map(|_| any).collect(),
            commit_latency: Duration::from_millis(1),
            seed,
            ..Options::default()
        };
        let mock_tikv = MockTikv::start(options).await.context("start the mock for TiKV")?;
        spread(&mock_tikv, seed).await.context("spread the regions")?;
        let stores = mock_tikv.stores();
        let addresses = PdAddresses {
            pd: vec![mock_tikv.pd().parse()?],
            stores: stores.values().map(|at| at.parse()).collect::<Result<_, _>>()?,
        };
        Ok(Self {
            addresses,
            prefix: None,
            kind: TikvKind::MockTikv(mock_tikv),
        })
    }

    /// Uses a real cluster, in an unused part of it.
    ///
    /// # Errors
    ///
    /// There is no way to it.
    pub(crate) fn real(addresses: PdAddresses, network: &Network) -> anyhow::Result<Self> {
        let relay = network.relay(&addresses.all())?;
        Ok(Self {
            addresses,
            prefix: Some(format!("chaos-{:032x}", rand::random::<u128>())),
            kind: TikvKind::Real { _relay: relay },
        })
    }

    /// Addresses on which its processes listen.
    pub(crate) fn addresses(&self) -> &PdAddresses {
        &self.addresses
    }

    /// Flags that make a brain use it.
    pub(crate) fn flags(&self) -> Vec<String> {
        let mut flags = vec![
            "--storage=tikv".to_owned(),
            format!("--tikv-pd-endpoints={}", self.addresses.endpoints()),
        ];
        flags.extend(self.prefix.iter().map(|prefix| format!("--tikv-key-prefix={prefix}")));
        flags
    }

    /// The mock, if it is one.
    pub(crate) fn as_mock(&self) -> Option<&MockTikv> {
        match &self.kind {
            TikvKind::MockTikv(mock_tikv) => Some(mock_tikv),
            TikvKind::Real { .. } => None,
        }
    }

    /// Address of the store that leads a part of the members' data.
    ///
    /// # Errors
    ///
    /// It is no address. On a real cluster each part has one of the stores, for the leader of a part is unknown.
    pub(crate) fn store_of(&self, part: DataPart) -> anyhow::Result<SocketAddr> {
        let Some(mock_tikv) = self.as_mock() else {
            let stores = &self.addresses.stores;
            let store = stores.get(part as usize % stores.len().max(1));
            return store.copied().context("a cluster without stores");
        };
        let key = part.first_key();
        let regions = mock_tikv.regions();
        let led = regions.iter().rev().find(|region| region.start <= key);
        let leader = led.context("no region begins all")?.leader;
        let stores = mock_tikv.stores();
        let address = stores.get(&leader).context("a leader that is not a store")?;
        Ok(address.parse()?)
    }

    /// Ends a mock; a real cluster runs on.
    ///
    /// # Errors
    ///
    /// It does not end.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        match self.kind {
            TikvKind::MockTikv(mock_tikv) => mock_tikv.stop().await.context("stop the mock"),
            TikvKind::Real { .. } => Ok(()),
        }
    }
}

/// Part of the members' data, by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataPart {
    /// The lock and the membership.
    Cells,
    /// The fence, and the lanes.
    Fence,
    Rows,
    Log,
}

impl DataPart {
    pub(crate) const ALL: [Self; 4] = [Self::Cells, Self::Fence, Self::Rows, Self::Log];

    /// Under the prefix that members have of themselves.
    fn first_key(self) -> Vec<u8> {
        let kind = match self {
            Self::Cells => b'c',
            Self::Fence => b'f',
            Self::Rows => b'r',
            Self::Log => b'w',
        };
        [DEFAULT_KEY_PREFIX, &[kind]].concat()
    }
}

/// Gives each part a region of its own; those of the log and of the lock are led by different stores.
async fn spread(mock_tikv: &MockTikv, seed: u64) -> anyhow::Result<()> {
    for (place, part) in [0, 1, 2, 1].into_iter().zip(DataPart::ALL) {
        let key = part.first_key();
        mock_tikv.split(&key).await?;
        mock_tikv.move_region(&key, (seed + place) % STORES + 1).await?;
    }
    Ok(())
}

/// Something that a store or PD of a mock does wrong for a while.
#[derive(Clone, Debug)]
pub(crate) enum TikvFault {
    /// Requests of one kind.
    Faults(Fault),
    /// Answers are late, of all processes or of one.
    Slow(Delay),
    /// A process is paused.
    Pause(u64),
    /// A process is gone.
    Kill(u64),
    /// A store is gone, and soon others lead what it led.
    Crash(u64),
    /// The region of a part answers nothing, wherever it is.
    Silence(DataPart),
    /// All processes are killed and come back at once.
    Restart,
    /// A region is split at a random key of the members'.
    Split(Vec<u8>),
    /// A region moves to another store.
    Move(Vec<u8>, u64),
}

impl TikvFault {
    /// Any.
    pub(crate) fn any(chance: &mut StdRng) -> Self {
        match chance.random_range(0..100) {
            0..45 => Self::Faults(fault(chance)),
            45..49 => Self::Faults(slow_reads(chance)),
            49..52 => Self::slow(chance),
            52..60 => Self::Pause(chance.random_range(MockTikv::PD..=STORES)),
            60..67 => Self::Kill(chance.random_range(MockTikv::PD..=STORES)),
            67..75 => Self::Crash(chance.random_range(1..=STORES)),
            75..81 => Self::Silence(*DataPart::ALL.choose(chance).expect("there are some")),
            81..86 => Self::Restart,
            86..93 => Self::Split(key(chance)),
            _ => Self::Move(key(chance), chance.random_range(1..=STORES)),
        }
    }

    /// A cluster that is as slow as a leader must tolerate: always, sometimes, in one store of three, or in stalls.
    pub(crate) fn slow(chance: &mut StdRng) -> Self {
        let millis = Duration::from_millis;
        Self::Slow(match chance.random_range(0..4) {
            0 => Delay::of(millis(chance.random_range(100..300))),
            1 => Delay::of(millis(50)).with_jitter(millis(300)),
            2 => Delay::of(millis(chance.random_range(100..500))).at(chance.random_range(1..=STORES)),
            _ => Delay::stalls(Duration::from_secs(3), Duration::from_secs(1)),
        })
    }

    /// Lets it happen; [`TikvFault::end`] ends it.
    ///
    /// # Errors
    ///
    /// The mock refuses.
    pub(crate) async fn begin(&self, tikv: &MockTikv) -> anyhow::Result<Option<FaultId>> {
        match self {
            Self::Faults(fault) => return Ok(Some(tikv.faults().add(fault.clone())?)),
            Self::Slow(delay) => tikv.delays().set([*delay]),
            Self::Pause(process) => tikv.pause(*process)?,
            Self::Kill(process) => tikv.kill(*process).await?,
            Self::Crash(store) => {
                tikv.kill(*store).await?;
                tokio::time::sleep(REGION_ELECTION_TIME).await;
                tikv.elect().await?;
            }
            Self::Silence(part) => tikv.silence(&part.first_key(), true),
            Self::Restart => tikv.restart(Tail::Keep).await?,
            // an existing region with this bound is not a failure
            Self::Split(key) => drop(tikv.split(key).await),
            Self::Move(key, store) => drop(tikv.move_region(key, *store).await),
        }
        Ok(None)
    }

    /// Puts it right again.
    ///
    /// # Errors
    ///
    /// The mock refuses.
    pub(crate) async fn end(&self, tikv: &MockTikv, fault: Option<FaultId>) -> anyhow::Result<()> {
        match self {
            Self::Faults(_) => {
                if let Some(fault) = fault {
                    tikv.faults().remove(fault);
                }
                // late ones arrive now, if they have not before
                tikv.faults().deliver().await;
            }
            Self::Slow(_) => tikv.delays().set([]),
            Self::Pause(process) => tikv.resume(*process)?,
            Self::Kill(process) | Self::Crash(process) => tikv.revive(*process).await?,
            Self::Silence(part) => tikv.silence(&part.first_key(), false),
            Self::Restart | Self::Split(_) | Self::Move(..) => {}
        }
        Ok(())
    }
}

/// A fault of some requests, as random as it is allowed.
fn fault(chance: &mut StdRng) -> Fault {
    loop {
        let rpc = *BRAIN_RPCS.choose(chance).expect("there are some");
        let silent = chance.random_bool(0.3);
        let some = Duration::from_millis(chance.random_range(1..1500));
        let after = chance.random_bool(0.7).then_some(some);
        let action = match chance.random_range(0..7) {
            0 => Action::LoseRequest { silent },
            1 | 2 => Action::LoseReply { silent },
            3 => Action::DelayRequest { by: some },
            4 => Action::Late { after },
            5 => Action::Duplicate { after },
            _ => Action::Region {
                error: *REGION_FAULTS.choose(chance).expect("there are some"),
            },
        };
        let regional = rpc.is_regional() || !matches!(action, Action::Region { .. });
        let stream = rpc == Rpc::Tso && matches!(action, Action::Late { .. } | Action::Duplicate { .. });
        if regional && !stream {
            return Fault::new(rpc, action).with_probability(chance.random_range(0.05..0.9));
        }
    }
}

/// Reads that take longer than a storage that is well, one by one or all of them.
fn slow_reads(chance: &mut StdRng) -> Fault {
    let rpc = *[Rpc::Get, Rpc::BatchGet, Rpc::Scan]
        .choose(chance)
        .expect("there are some");
    let single = chance.random_bool(0.5);
    let by = Duration::from_millis(chance.random_range(if single { 500..3_500 } else { 2..100 }));
    let slow = Fault::new(rpc, Action::DelayReply { by });
    match single {
        true => slow.after(chance.random_range(0..20)).times(chance.random_range(1..4)),
        false => slow,
    }
}

/// Requests of at least `min_bytes`, or all if it is 0, are refused as too large, as by proxies, message size limits or memory quotas on
/// the way to TiKV.
pub(crate) fn too_large(min_bytes: usize) -> Fault {
    let refused = Action::Refuse {
        code: RefusalCode::ResourceExhausted,
        message: "grpc: received message larger than max".to_owned(),
    };
    Fault::new(Rpc::Prewrite, refused).with_min_bytes(min_bytes)
}

/// A key somewhere in what the members write: under their prefix, a kind of row, and a byte.
fn key(chance: &mut StdRng) -> Vec<u8> {
    let part = *DataPart::ALL.choose(chance).expect("there are some");
    let mut key = part.first_key();
    key.push(chance.random());
    key
}

/// A printed seed makes the same choices again.
pub(crate) fn chance(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}
