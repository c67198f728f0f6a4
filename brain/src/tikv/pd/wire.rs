//! The few fields of PD's messages that are needed here; numbers as in `pdpb.proto` and `metapb.proto`.

use bytes::Bytes;

/// What every answer begins with.
pub(super) trait Header {
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
pub(super) struct Member {
    #[prost(string, repeated, tag = "4")]
    pub(super) client_urls: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct GetMembersResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<ResponseHeader>,
    #[prost(message, optional, tag = "3")]
    pub(super) leader: Option<Member>,
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

impl Header for GetMembersResponse {
    fn header(&self) -> Option<&ResponseHeader> {
        self.header.as_ref()
    }
}

impl Header for GetRegionResponse {
    fn header(&self) -> Option<&ResponseHeader> {
        self.header.as_ref()
    }
}

impl Header for ScanRegionsResponse {
    fn header(&self) -> Option<&ResponseHeader> {
        self.header.as_ref()
    }
}
