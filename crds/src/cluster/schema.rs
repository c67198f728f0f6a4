//! Schema fragments that the derive cannot express: list types, and objects whose unknown fields are preserved.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::status::{CertificateStatus, MemberStatus};
use crate::flags::{self, Treatment};

/// A list whose entries are identified by `key`, so that server-side apply merges it instead of replacing it.
fn map_list<T: JsonSchema>(generator: &mut SchemaGenerator, key: &str, max_items: u32) -> Schema {
    let mut schema = generator.subschema_for::<Vec<T>>();
    schema.insert("x-kubernetes-list-type".into(), "map".into());
    schema.insert("x-kubernetes-list-map-keys".into(), vec![key].into());
    schema.insert("maxItems".into(), max_items.into());
    schema
}

pub(crate) fn conditions(generator: &mut SchemaGenerator) -> Schema {
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

/// Labels or annotations.
pub(crate) fn texts(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": {"type": "string"},
        "maxProperties": 64,
    })
}

/// Flags of the brain by their names, without dashes.
pub(super) fn flags(_: &mut SchemaGenerator) -> Schema {
    let owned: Vec<String> = super::OWN_FLAGS.iter().map(|flag| format!("'{flag}'")).collect();
    let free: Vec<String> = flags::all()
        .filter(|flag| flag.treatment != Treatment::Refused)
        .map(|flag| flag.name)
        .filter(|name| !super::OWN_FLAGS.contains(name))
        .filter(|name| super::TYPED_FLAGS.iter().all(|(typed, _)| typed != name))
        .map(|name| format!("'{name}'"))
        .collect();
    let typed: Vec<String> = super::TYPED_FLAGS.iter().map(|(flag, _)| format!("'{flag}'")).collect();
    json_schema!({
        "type": "object",
        "additionalProperties": {"type": "string", "maxLength": 1024},
        "maxProperties": 64,
        "x-kubernetes-validations": [
            {
                "rule": "self.all(flag, flag.matches('^[a-z][a-z0-9-]*$'))",
                "message": "flags are written without leading dashes, such as max-txn-ops: \"1024\"",
            },
            {
                "rule": format!("!self.exists(flag, flag in [{}])", owned.join(", ")),
                "message": "this flag is set by the operator: names, addresses, certificates and storage follow from the other fields of the spec",
            },
            {
                "rule": format!("!self.exists(flag, flag in [{}])", typed.join(", ")),
                "message": "this flag has a field of its own: use spec.quota, autoCompaction, logLevel, leaderElection or storage.tikv.gc",
            },
            {
                "rule": format!("self.all(flag, flag in [{}])", free.join(", ")),
                "message": "this flag cannot be set here: `kubebrain --help` lists the brain's flags, and some of them follow from other fields of the spec",
            },
        ],
    })
}
