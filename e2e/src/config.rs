//! What a cluster is to be like.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::home::Name;
use crate::{namespace, store};

/// Which program stores the cluster's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum Store {
    /// One kubebrain with its embedded engine.
    Brain,
    /// One etcd, to compare with.
    Etcd,
}

impl std::fmt::Display for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Brain => "kubebrain",
            Self::Etcd => "etcd",
        })
    }
}

/// Names of what loopback ports outside of the cluster's network lead to, and its address inside.
pub const FORWARDS: [(&str, &str); 3] = [
    ("api", namespace::API),
    ("store", store::ADDRESS),
    ("tenant", namespace::TENANT),
];

/// A cluster to be started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Config {
    /// Its name on this machine.
    pub name: Name,
    /// What stores its objects.
    pub store: Store,
    /// Whether the images of brain, operator and the tenant's API server are built and imported too.
    pub product: bool,
    /// Loopback ports by name of [`FORWARDS`]; a free one is taken for what is missing.
    pub ports: BTreeMap<String, u16>,
}
