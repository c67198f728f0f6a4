// Copyright 2021 TiKV Project Authors. Licensed under Apache-2.0.

use derive_new::new;

use crate::proto::metapb;
use crate::Error;
use crate::Key;
use crate::Result;

/// The ID of a region
pub(crate) type RegionId = u64;
/// The ID of a store
pub(crate) type StoreId = u64;

/// The ID and version information of a region.
#[derive(Eq, PartialEq, Hash, Clone, Default, Debug)]
pub struct RegionVerId {
    /// The ID of the region
    pub id: RegionId,
    /// Conf change version, auto increment when add or remove peer
    pub conf_ver: u64,
    /// Region version, auto increment when split or merge
    pub ver: u64,
}

/// Information about a TiKV region and its leader.
///
/// In TiKV all data is partitioned by range. Each partition is called a region.
#[derive(new, Clone, Default, Debug, PartialEq)]
pub struct RegionWithLeader {
    pub region: metapb::Region,
    pub leader: Option<metapb::Peer>,
}

impl Eq for RegionWithLeader {}

impl RegionWithLeader {
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        let start_key = &self.region.start_key;
        let end_key = &self.region.end_key;
        key >= start_key.as_slice() && (key < end_key.as_slice() || end_key.is_empty())
    }

    pub(crate) fn start_key(&self) -> Key {
        self.region.start_key.to_vec().into()
    }

    pub(crate) fn end_key(&self) -> Key {
        self.region.end_key.to_vec().into()
    }

    pub(crate) fn range(&self) -> (Key, Key) {
        (self.start_key(), self.end_key())
    }

    pub(crate) fn ver_id(&self) -> RegionVerId {
        let region = &self.region;
        // One that PD knows has an epoch: those without are refused when they come.
        let epoch = region.region_epoch.unwrap_or_default();
        RegionVerId {
            id: region.id,
            conf_ver: epoch.conf_ver,
            ver: epoch.version,
        }
    }

    pub(crate) fn id(&self) -> RegionId {
        self.region.id
    }

    pub(crate) fn get_store_id(&self) -> Result<StoreId> {
        self.leader
            .as_ref()
            .cloned()
            .ok_or_else(|| Error::LeaderNotFound { region: self.ver_id() })
            .map(|s| s.store_id)
    }
}
