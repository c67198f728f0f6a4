//! What the members share, a stand-in or a real cluster, and what can go wrong with a stand-in.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use e2e::relay::Relay;
use e2e::tikv::real::Addresses;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use tikv_stand_in::{Action, Fault, FaultId, Options, RegionFault, Rpc, StandIn, Tail};

use super::network::{HUB, Network};

/// TiKV's nodes.
pub(crate) const STORES: u64 = 3;

/// The requests that brains send.
const RPCS: [Rpc; 15] = [
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

/// What the members store in.
#[derive(Debug)]
pub(crate) struct Tikv {
    addresses: Addresses,
    /// Of the members' keys; they choose their own on a stand-in, which nobody else uses.
    prefix: Option<String>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    StandIn(StandIn),
    /// With the way to it.
    Real {
        _relay: Relay,
    },
}

impl Tikv {
    /// Starts a stand-in in the hub.
    ///
    /// # Errors
    ///
    /// It cannot listen.
    pub(crate) async fn stand_in(seed: u64) -> anyhow::Result<Self> {
        let any = SocketAddr::new(HUB.into(), 0);
        let options = Options {
            pd: any,
            stores: (0..STORES).map(|_| any).collect(),
            commit_latency: Duration::from_millis(1),
            seed,
            ..Options::default()
        };
        let stand_in = StandIn::start(options).await.context("start the stand-in for TiKV")?;
        let stores = stand_in.stores();
        let addresses = Addresses {
            pd: vec![stand_in.pd().parse()?],
            stores: stores.values().map(|at| at.parse()).collect::<Result<_, _>>()?,
        };
        Ok(Self {
            addresses,
            prefix: None,
            kind: Kind::StandIn(stand_in),
        })
    }

    /// Uses a real cluster, in a part of it that nobody has used.
    ///
    /// # Errors
    ///
    /// There is no way to it.
    pub(crate) fn real(addresses: Addresses, network: &Network) -> anyhow::Result<Self> {
        let relay = network.relay(&addresses.all())?;
        Ok(Self {
            addresses,
            prefix: Some(format!("chaos-{:032x}", rand::random::<u128>())),
            kind: Kind::Real { _relay: relay },
        })
    }

    /// Where its processes listen.
    pub(crate) fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// What makes a brain use it.
    pub(crate) fn flags(&self) -> Vec<String> {
        let mut flags = vec![
            "--storage=tikv".to_owned(),
            format!("--tikv-pd-endpoints={}", self.addresses.endpoints()),
        ];
        flags.extend(self.prefix.iter().map(|prefix| format!("--tikv-key-prefix={prefix}")));
        flags
    }

    /// The stand-in, if it is one.
    pub(crate) fn as_stand_in(&self) -> Option<&StandIn> {
        match &self.kind {
            Kind::StandIn(stand_in) => Some(stand_in),
            Kind::Real { .. } => None,
        }
    }

    /// Ends a stand-in; a real cluster runs on.
    ///
    /// # Errors
    ///
    /// It does not end.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        match self.kind {
            Kind::StandIn(stand_in) => stand_in.stop().await.context("stop the stand-in"),
            Kind::Real { .. } => Ok(()),
        }
    }
}

/// Something that a store or PD of a stand-in does wrong for a while.
#[derive(Clone, Debug)]
pub(crate) enum Trouble {
    /// Requests of one kind.
    Faults(Fault),
    /// A process stands still.
    Pause(u64),
    /// A process is gone.
    Kill(u64),
    /// All processes are killed and come back at once.
    Restart,
    /// A region is split at a random key of the members'.
    Split(Vec<u8>),
    /// A region moves to another store.
    Move(Vec<u8>, u64),
}

impl Trouble {
    /// Any.
    pub(crate) fn any(chance: &mut StdRng) -> Self {
        match chance.random_range(0..100) {
            0..60 => Self::Faults(fault(chance)),
            60..70 => Self::Pause(chance.random_range(StandIn::PD..=STORES)),
            70..78 => Self::Kill(chance.random_range(StandIn::PD..=STORES)),
            78..84 => Self::Restart,
            84..92 => Self::Split(key(chance)),
            _ => Self::Move(key(chance), chance.random_range(1..=STORES)),
        }
    }

    /// Lets it happen; [`Trouble::end`] ends it.
    ///
    /// # Errors
    ///
    /// The stand-in refuses.
    pub(crate) async fn begin(&self, tikv: &StandIn) -> anyhow::Result<Option<FaultId>> {
        match self {
            Self::Faults(fault) => return Ok(Some(tikv.faults().add(fault.clone())?)),
            Self::Pause(process) => tikv.pause(*process)?,
            Self::Kill(process) => tikv.kill(*process).await?,
            Self::Restart => tikv.restart(Tail::Keep).await?,
            // that such a region is there already is no failure
            Self::Split(key) => drop(tikv.split(key).await),
            Self::Move(key, store) => drop(tikv.move_region(key, *store).await),
        }
        Ok(None)
    }

    /// Puts it right again.
    ///
    /// # Errors
    ///
    /// The stand-in refuses.
    pub(crate) async fn end(&self, tikv: &StandIn, fault: Option<FaultId>) -> anyhow::Result<()> {
        match self {
            Self::Faults(_) => {
                if let Some(fault) = fault {
                    tikv.faults().remove(fault);
                }
                // late ones arrive now, if they have not before
                tikv.faults().deliver().await;
            }
            Self::Pause(process) => tikv.resume(*process)?,
            Self::Kill(process) => tikv.revive(*process).await?,
            Self::Restart | Self::Split(_) | Self::Move(..) => {}
        }
        Ok(())
    }
}

/// A fault of some requests, as random as it is allowed.
fn fault(chance: &mut StdRng) -> Fault {
    loop {
        let rpc = *RPCS.choose(chance).expect("there are some");
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

/// A key somewhere in what the members write: under their prefix, a kind of row, and a byte.
fn key(chance: &mut StdRng) -> Vec<u8> {
    let kind = *b"cfrw".choose(chance).expect("there are some");
    vec![
        9,
        b'k',
        b'u',
        b'b',
        b'e',
        b'b',
        b'r',
        b'a',
        b'i',
        b'n',
        kind,
        chance.random(),
    ]
}

/// A printed seed makes the same choices again.
pub(crate) fn chance(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}
