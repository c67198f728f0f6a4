//! The few fields of PD's messages that are needed here; numbers as in `pdpb.proto` and `metapb.proto`.

use bytes::Bytes;

/// The head of every answer.
pub(super) trait HasHeader {
    fn header(&self) -> Option<&ResponseHeader>;

    fn cluster_id(&self) -> u64 {
        self.header().map_or(0, |header| header.cluster_id)
    }

    fn error(&self) -> Option<&str> {
        self.header()?.error.as_ref().map(|error| error.message.as_str())
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RequestHeader {
    #[prost(uint64, tag = "1")]
    pub(super) cluster_id: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ResponseHeader {
    #[prost(uint64, tag = "1")]
    pub(super) cluster_id: u64,
    #[prost(message, optional, tag = "2")]
    pub(super) error: Option<PdError>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct PdError {
    #[prost(string, tag = "2")]
    pub(super) message: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct GetMembersRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<RequestHeader>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct PdMember {
    #[prost(uint64, tag = "2")]
    pub(super) member_id: u64,
    #[prost(string, repeated, tag = "4")]
    pub(super) client_urls: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct GetMembersResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<ResponseHeader>,
    #[prost(message, optional, tag = "3")]
    pub(super) leader: Option<PdMember>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct GetRegionRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<RequestHeader>,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) region_key: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Region {
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) start_key: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    pub(super) end_key: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct GetRegionResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<ResponseHeader>,
    #[prost(message, optional, tag = "2")]
    pub(super) region: Option<Region>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ScanRegionsRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<RequestHeader>,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) start_key: Bytes,
    #[prost(int32, tag = "3")]
    pub(super) limit: i32,
    #[prost(bytes = "bytes", tag = "4")]
    pub(super) end_key: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ListedRegion {
    #[prost(message, optional, tag = "1")]
    pub(super) region: Option<Region>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ScanRegionsResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub(super) region_metas: Vec<Region>,
    #[prost(message, repeated, tag = "4")]
    pub(super) regions: Vec<ListedRegion>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct UpdateServiceGcSafePointRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<RequestHeader>,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) service_id: Bytes,
    #[prost(int64, tag = "3")]
    pub(super) ttl: i64,
    #[prost(uint64, tag = "4")]
    pub(super) safe_point: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct UpdateServiceGcSafePointResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<ResponseHeader>,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) service_id: Bytes,
    #[prost(uint64, tag = "4")]
    pub(super) min_safe_point: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct UpdateGcSafePointRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<RequestHeader>,
    #[prost(uint64, tag = "2")]
    pub(super) safe_point: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct UpdateGcSafePointResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<ResponseHeader>,
    #[prost(uint64, tag = "2")]
    pub(super) new_safe_point: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct KeyspaceScope {
    #[prost(uint32, tag = "1")]
    pub(super) keyspace_id: u32,
}

/// The same for the safe point of transactions and for that of GC.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct AdvanceSafePointRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<RequestHeader>,
    #[prost(message, optional, tag = "2")]
    pub(super) keyspace_scope: Option<KeyspaceScope>,
    #[prost(uint64, tag = "3")]
    pub(super) target: u64,
}

/// The same for both, too; but only that of transactions names the service that blocks it.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct AdvanceSafePointResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<ResponseHeader>,
    #[prost(uint64, tag = "3")]
    pub(super) new_safe_point: u64,
    #[prost(string, tag = "4")]
    pub(super) blocker_description: String,
}

impl HasHeader for GetMembersResponse {
    fn header(&self) -> Option<&ResponseHeader> {
        self.header.as_ref()
    }
}

impl HasHeader for GetRegionResponse {
    fn header(&self) -> Option<&ResponseHeader> {
        self.header.as_ref()
    }
}

impl HasHeader for ScanRegionsResponse {
    fn header(&self) -> Option<&ResponseHeader> {
        self.header.as_ref()
    }
}

impl HasHeader for UpdateServiceGcSafePointResponse {
    fn header(&self) -> Option<&ResponseHeader> {
        self.header.as_ref()
    }
}

impl HasHeader for UpdateGcSafePointResponse {
    fn header(&self) -> Option<&ResponseHeader> {
        self.header.as_ref()
    }
}

impl HasHeader for AdvanceSafePointResponse {
    fn header(&self) -> Option<&ResponseHeader> {
        self.header.as_ref()
    }
}
