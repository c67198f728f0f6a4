//! Metadata of objects: `k8s.io.apimachinery.pkg.apis.meta.v1`.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ObjectMeta {
    #[prost(string, required, tag = "1")]
    pub(crate) name: String,
    #[prost(string, required, tag = "2")]
    pub(crate) generate_name: String,
    #[prost(string, required, tag = "3")]
    pub(crate) namespace: String,
    #[prost(string, required, tag = "4")]
    pub(crate) self_link: String,
    #[prost(string, required, tag = "5")]
    pub(crate) uid: String,
    #[prost(string, required, tag = "6")]
    pub(crate) resource_version: String,
    #[prost(int64, required, tag = "7")]
    pub(crate) generation: i64,
    #[prost(message, required, tag = "8")]
    pub(crate) creation_timestamp: Time,
    #[prost(btree_map = "string, string", tag = "11")]
    pub(crate) labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "12")]
    pub(crate) annotations: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "13")]
    pub(crate) owner_references: Vec<OwnerReference>,
    #[prost(message, repeated, tag = "17")]
    pub(crate) managed_fields: Vec<ManagedFieldsEntry>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct OwnerReference {
    #[prost(string, required, tag = "1")]
    pub(crate) kind: String,
    #[prost(string, required, tag = "3")]
    pub(crate) name: String,
    #[prost(string, required, tag = "4")]
    pub(crate) uid: String,
    #[prost(string, required, tag = "5")]
    pub(crate) api_version: String,
    #[prost(bool, optional, tag = "6")]
    pub(crate) controller: Option<bool>,
    #[prost(bool, optional, tag = "7")]
    pub(crate) block_owner_deletion: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ManagedFieldsEntry {
    #[prost(string, required, tag = "1")]
    pub(crate) manager: String,
    #[prost(string, required, tag = "2")]
    pub(crate) operation: String,
    #[prost(string, required, tag = "3")]
    pub(crate) api_version: String,
    #[prost(message, optional, tag = "4")]
    pub(crate) time: Option<Time>,
    #[prost(string, required, tag = "6")]
    pub(crate) fields_type: String,
    #[prost(message, optional, tag = "7")]
    pub(crate) fields_v1: Option<FieldsV1>,
    #[prost(string, required, tag = "8")]
    pub(crate) subresource: String,
}

/// A set of fields as JSON.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct FieldsV1 {
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub(crate) raw: Option<Bytes>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Time {
    #[prost(int64, required, tag = "1")]
    pub(crate) seconds: i64,
    #[prost(int32, required, tag = "2")]
    pub(crate) nanos: i32,
}

impl Time {
    /// A whole second.
    pub(super) fn at(seconds: i64) -> Self {
        Self { seconds, nanos: 0 }
    }
}

impl ManagedFieldsEntry {
    /// The fields that `manager` has set by an update.
    pub(super) fn update(manager: &str, api_version: &str, time: Time, fields: String) -> Self {
        Self {
            manager: manager.to_owned(),
            operation: "Update".to_owned(),
            api_version: api_version.to_owned(),
            time: Some(time),
            fields_type: "FieldsV1".to_owned(),
            fields_v1: Some(FieldsV1 {
                raw: Some(fields.into()),
            }),
            subresource: String::new(),
        }
    }
}
