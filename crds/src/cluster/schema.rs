//! Schema fragments that the derive cannot express: list types, and objects kept as they were written.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::status::{CertificateStatus, MemberStatus};

/// A list whose entries are told apart by `key`, so that server-side apply merges it instead of replacing it.
fn map_list<T: JsonSchema>(generator: &mut SchemaGenerator, key: &str, max_items: u32) -> Schema {
    let mut schema = generator.subschema_for::<Vec<T>>();
    schema.insert("x-kubernetes-list-type".into(), "map".into());
    schema.insert("x-kubernetes-list-map-keys".into(), vec![key].into());
    schema.insert("maxItems".into(), max_items.into());
    schema
}

pub(super) fn conditions(generator: &mut SchemaGenerator) -> Schema {
    map_list::<Condition>(generator, "type", 16)
}

pub(super) fn members(generator: &mut SchemaGenerator) -> Schema {
    map_list::<MemberStatus>(generator, "name", 64)
}

pub(super) fn certificates(generator: &mut SchemaGenerator) -> Schema {
    map_list::<CertificateStatus>(generator, "secretName", 16)
}

/// A set of short texts.
pub(super) fn names(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": {"type": "string", "minLength": 1, "maxLength": 253},
        "maxItems": 32,
        "x-kubernetes-list-type": "set",
    })
}

/// An object whose fields the schema does not know.
pub(super) fn preserved_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "nullable": true, "x-kubernetes-preserve-unknown-fields": true})
}
