//! The map from keys to stores: regions, their epochs, peers and leaders.
//!
//! Invariant: regions are in key order without gap or overlap, the first begins at the empty key, the last has no end.

use std::collections::BTreeSet;

use bytes::Bytes;

use crate::codec::{encode, encode_bound};
use crate::proto::{errorpb, kvrpcpb::Context, metapb};

/// Maximum number of stores that hold a region, as in TiKV.
const MAX_REPLICAS: usize = 3;

/// A range of keys that is served by one store at a time.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Region {
    /// Unique for ever.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The first key, not encoded; empty: from the beginning.
    #[prost(bytes = "bytes", tag = "2")]
    pub start: Bytes,
    /// The first key that is not in it, not encoded; empty: to the end.
    #[prost(bytes = "bytes", tag = "3")]
    pub end: Bytes,
    /// Rises with splits and merges.
    #[prost(uint64, tag = "4")]
    pub version: u64,
    /// Rises when a peer comes or goes.
    #[prost(uint64, tag = "5")]
    pub conf_version: u64,
    #[prost(message, repeated, tag = "6")]
    pub(crate) peers: Vec<metapb::Peer>,
    /// The id of the store that leads it.
    #[prost(uint64, tag = "7")]
    pub leader: u64,
}

impl Region {
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        self.start <= key && (self.end.is_empty() || key < self.end)
    }

    /// As PD and TiKV show it: bounds encoded.
    pub(crate) fn to_wire(&self) -> metapb::Region {
        metapb::Region {
            id: self.id,
            start_key: encode_bound(&self.start).into(),
            end_key: encode_bound(&self.end).into(),
            region_epoch: Some(metapb::RegionEpoch {
                conf_ver: self.conf_version,
                version: self.version,
            }),
            peers: self.peers.clone(),
            ..Default::default()
        }
    }

    pub(crate) fn leader_peer(&self) -> Option<metapb::Peer> {
        self.peers.iter().find(|peer| peer.store_id == self.leader).cloned()
    }

    /// Returns a region error that names the key if the key is not in this region.
    pub(crate) fn check_key(&self, key: &[u8]) -> Result<(), Box<errorpb::Error>> {
        if self.contains(key) {
            return Ok(());
        }
        Err(refusal("key not in region", |error| {
            error.key_not_in_region = Some(errorpb::KeyNotInRegion {
                key: Bytes::copy_from_slice(key),
                region_id: self.id,
                start_key: encode_bound(&self.start).into(),
                end_key: encode_bound(&self.end).into(),
            });
        }))
    }
}

/// Reason that a command on regions cannot be done.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RegionsError {
    #[error("the key is a region's bound already")]
    BoundAlready,
    #[error("no region begins at the key")]
    NoBound,
    #[error("there is no store {0}")]
    NoStore(u64),
}

/// All regions in key order. Kept as a whole: a change of regions replaces the table.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Regions {
    #[prost(message, repeated, tag = "1")]
    pub(crate) all: Vec<Region>,
    #[prost(uint64, tag = "2")]
    next_id: u64,
    #[prost(uint64, repeated, tag = "3")]
    pub(crate) stores: Vec<u64>,
}

impl Regions {
    /// One region over all keys, led by the first store.
    pub(crate) fn new(stores: Vec<u64>) -> Self {
        let mut regions = Self {
            all: Vec::new(),
            next_id: 1_000,
            stores,
        };
        let holders: Vec<_> = regions.stores.iter().copied().take(MAX_REPLICAS).collect();
        let id = regions.take_id();
        let peers = holders.iter().map(|&store_id| regions.new_peer(store_id)).collect();
        let leader = holders.first().copied().unwrap_or_default();
        regions.all.push(Region {
            id,
            version: 1,
            conf_version: holders.len() as u64,
            peers,
            leader,
            ..Default::default()
        });
        regions
    }

    fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn new_peer(&mut self, store_id: u64) -> metapb::Peer {
        metapb::Peer {
            id: self.take_id(),
            store_id,
            ..Default::default()
        }
    }

    fn place_of(&self, key: &[u8]) -> usize {
        self.all.partition_point(|region| region.start <= key) - 1
    }

    #[cfg(test)]
    pub(crate) fn by_key(&self, key: &[u8]) -> &Region {
        &self.all[self.place_of(key)]
    }

    /// The region of a key in the encoding that clients send to PD. The empty key is in the first region.
    pub(crate) fn by_encoded_key(&self, key: &[u8]) -> &Region {
        let after = self
            .all
            .partition_point(|region| region.start.is_empty() || encode(&region.start).as_slice() <= key);
        &self.all[after - 1]
    }

    /// The regions with a key in the range, in order; an empty `end` is none.
    pub(crate) fn by_encoded_range<'a>(&'a self, start: &[u8], end: &'a [u8]) -> impl Iterator<Item = &'a Region> {
        let first = self.by_encoded_key(start).id;
        let from = self.all.iter().skip_while(move |region| region.id != first);
        from.take_while(move |region| region.id == first || end.is_empty() || encode(&region.start).as_slice() < end)
    }

    pub(crate) fn by_id(&self, id: u64) -> Option<&Region> {
        self.all.iter().find(|region| region.id == id)
    }

    /// Splits at `key`. As in TiKV the right part keeps the id, and both parts get a higher version.
    pub(crate) fn split(&self, key: &[u8]) -> Result<Self, RegionsError> {
        let place = self.place_of(key);
        if self.all[place].start == key {
            return Err(RegionsError::BoundAlready);
        }
        let mut next = self.clone();
        let mut left = next.all[place].clone();
        left.id = next.take_id();
        left.peers = left.peers.iter().map(|peer| next.new_peer(peer.store_id)).collect();
        left.end = Bytes::copy_from_slice(key);
        left.version += 1;
        let right = &mut next.all[place];
        right.start = left.end.clone();
        right.version += 1;
        next.all.insert(place, left);
        Ok(next)
    }

    /// Takes away the bound at `key`: the region on its left goes, the one on its right grows.
    pub(crate) fn merge(&self, key: &[u8]) -> Result<Self, RegionsError> {
        let place = self.place_of(key);
        if place == 0 || self.all[place].start != key {
            return Err(RegionsError::NoBound);
        }
        let mut next = self.clone();
        let left = next.all.remove(place - 1);
        let right = &mut next.all[place - 1];
        right.start = left.start;
        right.version = right.version.max(left.version) + 1;
        Ok(next)
    }

    /// Gives the region of `key` to `store`: by a new leader when it holds a peer, else by a new peer that leads.
    pub(crate) fn move_to(&self, key: &[u8], store: u64) -> Result<Self, RegionsError> {
        if !self.stores.contains(&store) {
            return Err(RegionsError::NoStore(store));
        }
        let mut next = self.clone();
        let peer = next.new_peer(store);
        let place = next.place_of(key);
        let region = &mut next.all[place];
        if !region.peers.iter().any(|held| held.store_id == store) {
            let leader = region.leader;
            region.peers.retain(|held| held.store_id != leader);
            region.peers.push(peer);
            // One step adds the new peer, one takes the old one away.
            region.conf_version += 2;
        }
        region.leader = store;
        Ok(next)
    }

    /// Moves the lead of each region whose leader is not among `alive` to the next of its peers that is, as an election does. Regions
    /// without a majority of peers alive stay as they are.
    pub(crate) fn elect(&self, alive: &BTreeSet<u64>) -> Self {
        let mut next = self.clone();
        for region in &mut next.all {
            let living: Vec<u64> = region.peers.iter().map(|peer| peer.store_id).collect();
            let living: Vec<u64> = living.into_iter().filter(|store| alive.contains(store)).collect();
            if alive.contains(&region.leader) || 2 * living.len() <= region.peers.len() {
                continue;
            }
            // not always the same one, so that one store does not come to lead everything
            let after = living.iter().find(|&&store| store > region.leader);
            region.leader = after.or(living.first()).copied().unwrap_or(region.leader);
        }
        next
    }

    /// The region that a request to `store` is meant for, or the region error with which TiKV refuses it.
    pub(crate) fn check(&self, context: Option<&Context>, store: u64) -> Result<&Region, Box<errorpb::Error>> {
        let fallback = Context::default();
        let context = context.unwrap_or(&fallback);
        let meant = context.peer.as_ref().map_or(store, |peer| peer.store_id);
        if meant != store {
            return Err(refusal("store not match", |error| {
                error.store_not_match = Some(errorpb::StoreNotMatch {
                    request_store_id: meant,
                    actual_store_id: store,
                });
            }));
        }
        let region_id = context.region_id;
        let held = self
            .by_id(region_id)
            .filter(|region| region.peers.iter().any(|peer| peer.store_id == store));
        let Some(region) = held else {
            return Err(refusal(&format!("region {region_id} not found"), |error| {
                error.region_not_found = Some(errorpb::RegionNotFound { region_id });
            }));
        };
        if region.leader != store {
            return Err(not_leader(region_id, region.leader_peer()));
        }
        let known = context.region_epoch.unwrap_or_default();
        if known.version != region.version || known.conf_ver != region.conf_version {
            return Err(self.epoch_not_match(region));
        }
        Ok(region)
    }

    /// The answer to an outdated epoch: the region as it is now, and its left neighbour, which may have been part of it.
    pub(crate) fn epoch_not_match(&self, region: &Region) -> Box<errorpb::Error> {
        let place = self.place_of(&region.start);
        let current = self.all[place.saturating_sub(1)..=place]
            .iter()
            .rev()
            .map(Region::to_wire)
            .collect();
        refusal(&format!("epoch not match of region {}", region.id), |error| {
            error.epoch_not_match = Some(errorpb::EpochNotMatch {
                current_regions: current,
            });
        })
    }
}

/// The answer of a store that does not lead the region; `leader` is none during an election.
pub(crate) fn not_leader(region_id: u64, leader: Option<metapb::Peer>) -> Box<errorpb::Error> {
    refusal(&format!("peer is not leader of region {region_id}"), |error| {
        error.not_leader = Some(errorpb::NotLeader { region_id, leader });
    })
}

/// A region error with a message and the fields that `fill` sets.
pub(crate) fn refusal(message: &str, fill: impl FnOnce(&mut errorpb::Error)) -> Box<errorpb::Error> {
    let mut error = Box::new(errorpb::Error {
        message: message.to_owned(),
        ..Default::default()
    });
    fill(&mut error);
    error
}

#[cfg(test)]
mod tests;
