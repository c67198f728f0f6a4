//! The configuration of a cluster.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cluster_dir::ClusterName;
use crate::{namespace, store};

/// Which program stores the cluster's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum StoreProgram {
    /// One kubebrain with its embedded engine.
    Brain,
    /// One etcd, to compare with.
    Etcd,
    /// Three kubebrains on a mock for TiKV, or on the cluster that `TIKV_PD` names.
    Tikv,
}

impl std::fmt::Display for StoreProgram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Brain => "kubebrain",
            Self::Etcd => "etcd",
            Self::Tikv => "three kubebrains on TiKV",
        })
    }
}

/// Names of what loopback ports outside of the cluster's network lead to, and its address inside.
pub fn forwards(store: StoreProgram) -> Vec<(&'static str, &'static str)> {
    let mut all = vec![("api", namespace::API), ("tenant", namespace::TENANT)];
    all.extend(store::members(store).iter().map(|member| (member.name, member.address)));
    if store == StoreProgram::Tikv {
        all.push((store::TIKV, store::TIKV_CONTROL));
    }
    all
}

/// A cluster to be started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClusterConfig {
    /// Its name on this machine.
    pub name: ClusterName,
    /// Store of its objects.
    pub store: StoreProgram,
    /// The one member of the store that the API server is connected to; it is connected to all if there is none here.
    pub through: Option<usize>,
    /// True if the images of brain, operator and the tenant's API server are built and imported too.
    pub product: bool,
    /// True if the images for tests of the operator are built and imported too: a second version of the brain, and the TiKV
    /// mock.
    pub test_images: bool,
    /// Loopback ports by name of [`forwards`]; a free one is taken for what is missing.
    pub ports: BTreeMap<String, u16>,
}
