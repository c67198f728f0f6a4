//! The messages of PD that say where the processes of a cluster are, with the fields that are read.

use prost::Message;

#[derive(Clone, Message)]
pub(super) struct RequestHeader {
    #[prost(uint64, tag = "1")]
    pub(super) cluster_id: u64,
}

#[derive(Clone, Message)]
pub(super) struct ResponseHeader {
    #[prost(uint64, tag = "1")]
    pub(super) cluster_id: u64,
}

#[derive(Clone, Message)]
pub(super) struct GetMembersRequest {}

#[derive(Clone, Message)]
pub(super) struct GetMembersResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub(super) members: Vec<PdMember>,
}

#[derive(Clone, Message)]
pub(super) struct PdMember {
    #[prost(string, repeated, tag = "4")]
    pub(super) client_urls: Vec<String>,
}

#[derive(Clone, Message)]
pub(super) struct GetAllStoresRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<RequestHeader>,
    #[prost(bool, tag = "2")]
    pub(super) exclude_tombstone_stores: bool,
}

#[derive(Clone, Message)]
pub(super) struct GetAllStoresResponse {
    #[prost(message, repeated, tag = "2")]
    pub(super) stores: Vec<PdStore>,
}

#[derive(Clone, Message)]
pub(super) struct PdStore {
    #[prost(string, tag = "2")]
    pub(super) address: String,
}
