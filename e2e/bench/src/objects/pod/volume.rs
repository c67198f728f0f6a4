//! Volumes.

use prost::Message;

use super::{LocalObjectReference, ObjectFieldSelector};

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Volume {
    #[prost(string, required, tag = "1")]
    pub(crate) name: String,
    #[prost(message, required, tag = "2")]
    pub(crate) source: VolumeSource,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct VolumeSource {
    #[prost(message, optional, tag = "2")]
    pub(crate) empty_dir: Option<EmptyDirVolumeSource>,
    #[prost(message, optional, tag = "19")]
    pub(crate) config_map: Option<ConfigMapVolumeSource>,
    #[prost(message, optional, tag = "26")]
    pub(crate) projected: Option<ProjectedVolumeSource>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct EmptyDirVolumeSource {
    #[prost(string, required, tag = "1")]
    pub(crate) medium: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ConfigMapVolumeSource {
    #[prost(message, required, tag = "1")]
    pub(crate) config_map: LocalObjectReference,
    #[prost(int32, optional, tag = "3")]
    pub(crate) default_mode: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProjectedVolumeSource {
    #[prost(message, repeated, tag = "1")]
    pub(crate) sources: Vec<VolumeProjection>,
    #[prost(int32, optional, tag = "2")]
    pub(crate) default_mode: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct VolumeProjection {
    #[prost(message, optional, tag = "2")]
    pub(crate) downward_api: Option<DownwardApiProjection>,
    #[prost(message, optional, tag = "3")]
    pub(crate) config_map: Option<ConfigMapProjection>,
    #[prost(message, optional, tag = "4")]
    pub(crate) service_account_token: Option<ServiceAccountTokenProjection>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DownwardApiProjection {
    #[prost(message, repeated, tag = "1")]
    pub(crate) items: Vec<DownwardApiVolumeFile>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DownwardApiVolumeFile {
    #[prost(string, required, tag = "1")]
    pub(crate) path: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) field_ref: Option<ObjectFieldSelector>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ConfigMapProjection {
    #[prost(message, required, tag = "1")]
    pub(crate) config_map: LocalObjectReference,
    #[prost(message, repeated, tag = "2")]
    pub(crate) items: Vec<KeyToPath>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyToPath {
    #[prost(string, required, tag = "1")]
    pub(crate) key: String,
    #[prost(string, required, tag = "2")]
    pub(crate) path: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ServiceAccountTokenProjection {
    #[prost(string, required, tag = "1")]
    pub(crate) audience: String,
    #[prost(int64, optional, tag = "2")]
    pub(crate) expiration_seconds: Option<i64>,
    #[prost(string, required, tag = "3")]
    pub(crate) path: String,
}
