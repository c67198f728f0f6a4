//! The store of a cluster's API server: brains, or etcd to compare with. All are started with etcd's flags.

use std::path::PathBuf;

use anyhow::ensure;
use programs::members;
use programs::probe;
use programs::tikv::real::PdAddresses;

use crate::cluster_context::ClusterContext;
use crate::config::StoreProgram;
use crate::forward;
use crate::supervisor::SupervisedProgram;

/// One process of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreMember {
    /// The program's name in state and logs, and that of the port that leads to it.
    pub name: &'static str,
    /// Its client address, in the cluster's network.
    pub address: &'static str,
    peers: &'static str,
}

/// The first member's name, or the only one's.
pub const NAME: &str = MEMBERS[0].name;

/// As many as a store may have. Their addresses are none that a real PD listens at.
pub const MEMBERS: [StoreMember; 3] = [
    StoreMember {
        name: "store",
        address: "127.0.0.11:2379",
        peers: "127.0.0.11:2380",
    },
    StoreMember {
        name: "store-2",
        address: "127.0.0.12:2379",
        peers: "127.0.0.12:2380",
    },
    StoreMember {
        name: "store-3",
        address: "127.0.0.13:2379",
        peers: "127.0.0.13:2380",
    },
];

/// The name of what many brains store in, in state and logs, and that of the port that leads to its commands.
pub const TIKV: &str = "tikv";
const PD: &str = "127.0.0.1:12379";
/// Address on which the mock of TiKV takes commands.
pub const TIKV_CONTROL: &str = "127.0.0.1:12380";

/// The members of a store.
pub fn members(store: StoreProgram) -> &'static [StoreMember] {
    match store {
        StoreProgram::Brain | StoreProgram::Etcd => &MEMBERS[..1],
        StoreProgram::Tikv => &MEMBERS,
    }
}

/// Returns the program to run for one member, with more flags that all of them have.
///
/// # Errors
///
/// There is no such program yet.
pub fn program(
    site: &ClusterContext,
    store: StoreProgram,
    member: &StoreMember,
    more: &[String],
) -> anyhow::Result<SupervisedProgram> {
    let path: PathBuf = match store {
        StoreProgram::Brain | StoreProgram::Tikv => site.tools.own.get("kubebrain")?,
        StoreProgram::Etcd => site.tools.etcd.join("etcd"),
    };
    let (url, peer_url) = (format!("http://{}", member.address), format!("http://{}", member.peers));
    let pair = |member: &StoreMember| format!("{}=http://{}", member.name, member.peers);
    let cluster: Vec<String> = members(store).iter().map(pair).collect();
    let mut args = vec![
        format!("--name={}", member.name),
        site.file_flag("data-dir", &format!("store/{}", member.name)),
        format!("--listen-client-urls={url}"),
        format!("--advertise-client-urls={url}"),
        format!("--listen-peer-urls={peer_url}"),
        format!("--initial-advertise-peer-urls={peer_url}"),
        format!("--initial-cluster={}", cluster.join(",")),
        // what kubeadm sets
        "--feature-gates=InitialCorruptCheck=true".to_owned(),
        "--watch-progress-notify-interval=5s".to_owned(),
    ];
    args.extend_from_slice(more);
    Ok(site.program(member.name, &path, args))
}

/// Returns the flags that make brains store in TiKV: in the mock, or in a real cluster.
pub fn tikv_flags(real: Option<&PdAddresses>) -> Vec<String> {
    let mut flags = vec!["--storage=tikv".to_owned()];
    match real {
        None => flags.push(format!("--tikv-pd-endpoints={PD}")),
        Some(real) => flags.extend([
            format!("--tikv-pd-endpoints={}", real.endpoints()),
            // it may hold what others left
            format!("--tikv-key-prefix=cluster-{:032x}", rand::random::<u128>()),
        ]),
    }
    // beside a whole Kubernetes a machine is busy
    flags.extend(members::PATIENT_ELECTION_FLAGS.map(str::to_owned));
    flags
}

/// Returns the storage of many brains: the mock of TiKV, with its data in a file.
///
/// # Errors
///
/// It is not built.
pub fn tikv(site: &ClusterContext) -> anyhow::Result<SupervisedProgram> {
    let args = [
        format!("--pd-listen={PD}"),
        "--store-listen=127.0.0.1:20160".to_owned(),
        "--store-listen=127.0.0.1:20161".to_owned(),
        "--store-listen=127.0.0.1:20162".to_owned(),
        format!("--control-listen={TIKV_CONTROL}"),
        site.file_flag("data-file", "store/tikv"),
    ];
    Ok(site.program(TIKV, &site.tools.own.get("mock-tikv")?, args))
}

/// Checks that a member serves.
///
/// # Errors
///
/// It does not, and why.
pub async fn healthy(site: &ClusterContext, member: &StoreMember) -> anyhow::Result<()> {
    let answer = probe::get(&forward::socket(site, member.name), "/health").await?;
    ensure!(answer.contains("\"true\""), "the store's /health says: {answer}");
    Ok(())
}

/// Checks that the mock of TiKV serves.
///
/// # Errors
///
/// It does not, and why.
pub async fn tikv_serves(site: &ClusterContext) -> anyhow::Result<()> {
    probe::get(&forward::socket(site, TIKV), "/status").await.map(drop)
}
