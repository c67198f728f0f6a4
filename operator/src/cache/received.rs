//! Objects from the API server, with their size bounded while they are parsed. Any writer of an object may make it large, and an object
//! with a few bytes per field takes many times its size in memory.
//!
//! Only the metadata that the operator reads is kept. Every other field has a memory budget; a field that exceeds it is skipped without
//! being built, and named in `cut`.

use std::borrow::Cow;
use std::fmt;

use kube::Resource;
use kube::core::{ApiResource, DynamicObject, DynamicResourceScope, ObjectMeta, TypeMeta};
use plan::names::is_reserved;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};

/// Memory for one field of an object itself, of its spec or of its status.
pub(crate) const MAX_FIELD_BYTES: usize = 256 << 10;
/// Memory per field for objects whose large fields are not read.
const MAX_LIGHT_FIELD_BYTES: usize = 64 << 10;
/// Memory for all fields of an object whose name and owner any client may forge. A pod has the fields of one template, which `MAX_FIELD_BYTES`
/// bounds.
const MAX_FORGEABLE_BYTES: usize = 384 << 10;
/// Memory for each of labels, annotations and owners of an object.
const MAX_METADATA_BYTES: usize = 64 << 10;
/// Additional memory for the operator's own labels and annotations.
const RESERVED_METADATA_BYTES: usize = 16 << 10;
/// Memory of a value, or of an entry of a map or a list, without its text.
const ENTRY_OVERHEAD_BYTES: usize = 96;
/// kubectl's copy of the whole object.
const LAST_APPLIED_ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// An object of any kind, with at most `MAX_FIELD_BYTES` bytes for each of its fields, or without any fields if `WHOLE` is false.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReceivedObject<const WHOLE: bool> {
    pub(crate) metadata: ObjectMeta,
    /// All other fields but kind and version.
    pub(crate) content: Map<String, Value>,
    /// Fields that were too large, such as `spec.podTemplate`.
    pub(crate) cut: Vec<String>,
}

/// An object with its content.
pub(crate) type WholeObject = ReceivedObject<true>;
/// An object without its content.
pub(crate) type ObjectStub = ReceivedObject<false>;

impl<const WHOLE: bool> ReceivedObject<WHOLE> {
    pub(crate) fn into_dynamic(self, resource: &ApiResource) -> DynamicObject {
        DynamicObject {
            types: Some(TypeMeta {
                api_version: resource.api_version.clone(),
                kind: resource.kind.clone(),
            }),
            metadata: self.metadata,
            data: Value::Object(self.content),
        }
    }

    /// Returns the object without the large fields of its spec and its status.
    pub(crate) fn light(&self) -> Self {
        let mut light = self.clone();
        for part in ["spec", "status"] {
            if let Some(Value::Object(fields)) = light.content.get_mut(part) {
                fields.retain(|_, value| weight(value) <= MAX_LIGHT_FIELD_BYTES);
            }
        }
        light
    }

    /// Returns the object, without the large fields if all together take more than the pod of a large template.
    pub(crate) fn bounded(&self) -> Cow<'_, Self> {
        let weight: usize = self.content.values().map(weight).sum();
        match weight > MAX_FORGEABLE_BYTES {
            true => Cow::Owned(self.light()),
            false => Cow::Borrowed(self),
        }
    }

    /// Parses the object as a type; `None` if the remaining fields do not parse.
    pub(crate) fn parse<K: serde::de::DeserializeOwned>(&self) -> Option<K> {
        let mut value = Value::Object(self.content.clone());
        value["metadata"] = serde_json::to_value(&self.metadata).ok()?;
        serde_json::from_value(value).ok()
    }
}

impl<const WHOLE: bool> Resource for ReceivedObject<WHOLE> {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::kind(resource)
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::group(resource)
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::version(resource)
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::plural(resource)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl<const WHOLE: bool> Serialize for ReceivedObject<WHOLE> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut content = self.content.clone();
        let metadata = serde_json::to_value(&self.metadata).map_err(serde::ser::Error::custom)?;
        content.insert("metadata".to_owned(), metadata);
        content.serialize(serializer)
    }
}

impl<'de, const WHOLE: bool> Deserialize<'de> for ReceivedObject<WHOLE> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<const WHOLE: bool>;
        impl<'de, const WHOLE: bool> Visitor<'de> for ObjectVisitor<WHOLE> {
            type Value = ReceivedObject<WHOLE>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut received = ReceivedObject::default();
                while let Some(field) = map.next_key::<String>()? {
                    match field.as_str() {
                        "metadata" => received.metadata = map.next_value::<BoundedMetadata>()?.0,
                        "apiVersion" | "kind" => drop(map.next_value::<IgnoredAny>()?),
                        _ if !WHOLE => drop(map.next_value::<IgnoredAny>()?),
                        "spec" | "status" | "data" => {
                            let (value, cut) = map.next_value_seed(FieldsVisitor)?;
                            received
                                .cut
                                .extend(cut.into_iter().map(|part| format!("{field}.{part}")));
                            received.content.insert(field, value);
                        }
                        _ => match map.next_value_seed(BoundedValue(&mut { MAX_FIELD_BYTES }))? {
                            Some(value) => drop(received.content.insert(field, value)),
                            None => received.cut.push(field),
                        },
                    }
                }
                Ok(received)
            }
        }
        deserializer.deserialize_map(ObjectVisitor::<WHOLE>)
    }
}

/// A map with a budget for each field, and the names of fields that are too large.
struct FieldsVisitor;

impl<'de> DeserializeSeed<'de> for FieldsVisitor {
    type Value = (Value, Vec<String>);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = (Value, Vec<String>);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut fields, mut cut) = (Map::new(), Vec::new());
        // The same amount bounds the number of fields.
        let mut all = MAX_FIELD_BYTES;
        while let Some(field) = map.next_key::<String>()? {
            let value = map.next_value_seed(BoundedValue(&mut { MAX_FIELD_BYTES }))?;
            match value.filter(|_| spend(&mut all, field.len())) {
                Some(value) => drop(fields.insert(field, value)),
                None if cut.len() < 8 => cut.push(field.chars().take(64).collect()),
                None => {}
            }
        }
        Ok((Value::Object(fields), cut))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok((Value::Null, Vec::new()))
    }
}

/// Takes the memory of an entry with a text of this length from a budget. Returns false if too little is left.
fn spend(budget: &mut usize, text: usize) -> bool {
    let left = budget.checked_sub(ENTRY_OVERHEAD_BYTES + text);
    *budget = left.unwrap_or_default();
    left.is_some()
}

/// Any value within the rest of a budget; `None` if it takes more. In that case it is still read to its end.
struct BoundedValue<'a>(&'a mut usize);

impl<'de> DeserializeSeed<'de> for BoundedValue<'_> {
    type Value = Option<Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl BoundedValue<'_> {
    fn keep(self, text: usize, value: impl FnOnce() -> Value) -> Option<Value> {
        spend(self.0, text).then(value)
    }
}

impl<'de> Visitor<'de> for BoundedValue<'_> {
    type Value = Option<Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
        Ok(self.keep(0, || Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
        Ok(self.keep(0, || value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        Ok(self.keep(0, || value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
        Ok(self.keep(0, || Number::from_f64(value).map_or(Value::Null, Value::Number)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
        Ok(self.keep(value.len(), || Value::String(value.to_owned())))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(self.keep(0, || Value::Null))
    }

    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(self.keep(0, || Value::Null))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut entries = spend(self.0, 0).then(Vec::new);
        while let Some(all) = &mut entries {
            match list.next_element_seed(BoundedValue(&mut *self.0))? {
                Some(Some(entry)) => all.push(entry),
                Some(None) => entries = None,
                None => return Ok(entries.map(Value::Array)),
            }
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = spend(self.0, 0).then(Map::new);
        while let Some(all) = &mut fields {
            let Some(field) = map.next_key::<String>()? else {
                return Ok(fields.map(Value::Object));
            };
            let value = map.next_value_seed(BoundedValue(&mut *self.0))?;
            match value.filter(|_| spend(self.0, field.len())) {
                Some(value) => drop(all.insert(field, value)),
                None => fields = None,
            }
        }
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(None)
    }
}

/// The parts of the metadata that the operator reads.
struct BoundedMetadata(ObjectMeta);

impl<'de> Deserialize<'de> for BoundedMetadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MetadataVisitor;
        impl<'de> Visitor<'de> for MetadataVisitor {
            type Value = Map<String, Value>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("metadata")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Map::new();
                while let Some(field) = map.next_key::<String>()? {
                    let value = match field.as_str() {
                        "labels" | "annotations" => Some(map.next_value_seed(TextsVisitor)?),
                        "name"
                        | "namespace"
                        | "uid"
                        | "resourceVersion"
                        | "generation"
                        | "creationTimestamp"
                        | "deletionTimestamp"
                        | "deletionGracePeriodSeconds"
                        | "finalizers"
                        | "ownerReferences" => map.next_value_seed(BoundedValue(&mut { MAX_METADATA_BYTES }))?,
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                            None
                        }
                    };
                    if let Some(value) = value {
                        fields.insert(field, value);
                    }
                }
                Ok(fields)
            }
        }
        let fields = deserializer.deserialize_map(MetadataVisitor)?;
        let metadata = serde_json::from_value(Value::Object(fields)).map_err(serde::de::Error::custom)?;
        Ok(Self(metadata))
    }
}

/// Labels or annotations: as many as fit, the operator's own before all others.
struct TextsVisitor;

impl<'de> DeserializeSeed<'de> for TextsVisitor {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for TextsVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of texts")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut texts, mut left, mut reserved) = (Map::new(), MAX_METADATA_BYTES, RESERVED_METADATA_BYTES);
        while let Some(key) = map.next_key::<String>()? {
            if key == LAST_APPLIED_ANNOTATION {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let value: String = map.next_value()?;
            let budget = if is_reserved(&key) { &mut reserved } else { &mut left };
            if budget
                .checked_sub(ENTRY_OVERHEAD_BYTES + key.len() + value.len())
                .is_some()
            {
                spend(budget, key.len() + value.len());
                texts.insert(key, Value::String(value));
            }
        }
        Ok(Value::Object(texts))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Value::Object(Map::new()))
    }
}

/// Returns the memory that a value takes, as the budgets count it.
pub(crate) fn weight(value: &Value) -> usize {
    ENTRY_OVERHEAD_BYTES
        + match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
            Value::String(text) => text.len(),
            Value::Array(entries) => entries.iter().map(weight).sum(),
            Value::Object(fields) => fields
                .iter()
                .map(|(key, value)| ENTRY_OVERHEAD_BYTES + key.len() + weight(value))
                .sum(),
        }
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt as _;
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> WholeObject {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn ordinary_object_is_read_whole() {
        let value = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": "a", "namespace": "b", "uid": "u", "resourceVersion": "7", "generation": 2,
                "labels": {"x": "y"}, "annotations": {"note": "z"}, "finalizers": ["f"],
                "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "n", "uid": "o", "controller": true}],
            },
            "data": {"k": "v", "n": null}, "spec": {"list": [1, -1, 1.5, true, {"a": {}}]}, "status": {},
        });
        let found = read(&value.to_string());
        assert!(found.cut.is_empty(), "{:?}", found.cut);
        let mut expected = value.clone();
        expected
            .as_object_mut()
            .unwrap()
            .retain(|field, _| field != "apiVersion" && field != "kind");
        assert_eq!(serde_json::to_value(&found).unwrap(), expected);
        let stub: ObjectStub = serde_json::from_value(value).unwrap();
        assert_eq!((stub.metadata, stub.content.len()), (found.metadata, 0));
    }

    #[test]
    fn field_that_is_too_large_is_cut_and_the_rest_is_read() {
        for large in [
            json!("x".repeat(MAX_FIELD_BYTES)),
            json!(vec![0; MAX_FIELD_BYTES / 50]),
            json!({"deep": vec![json!({}); MAX_FIELD_BYTES / 50]}),
            Value::Object((0..MAX_FIELD_BYTES / 50).map(|i| (i.to_string(), json!(0))).collect()),
        ] {
            let value = json!({"metadata": {"name": "a"}, "rules": large, "data": {"a": large, "b": "c"}, "spec": {"podTemplate": large, "version": "1"}});
            let found = read(&value.to_string());
            let mut cut = found.cut;
            cut.sort();
            assert_eq!(cut, ["data.a", "rules", "spec.podTemplate"]);
            assert_eq!(
                Value::Object(found.content),
                json!({"data": {"b": "c"}, "spec": {"version": "1"}})
            );
            assert_eq!(found.metadata.name.as_deref(), Some("a"));
        }
    }

    #[test]
    fn metadata_is_bounded_and_the_operators_own_comes_through() {
        let mut annotations: Map<String, Value> = (0..10_000).map(|i| (format!("a{i}"), json!("x"))).collect();
        annotations.insert("kubebrain.io/skip-wipe".to_owned(), json!("true"));
        annotations.insert(LAST_APPLIED_ANNOTATION.to_owned(), json!("{}"));
        let labels: Map<String, Value> = (0..10_000).map(|i| (format!("a{i}"), json!("x"))).collect();
        let managed = vec![json!({"manager": "x"}); 10_000];
        let metadata = json!({"name": "a", "annotations": annotations, "labels": labels, "managedFields": managed});
        let found = read(&json!({"metadata": metadata}).to_string());
        assert_eq!(found.annotations()["kubebrain.io/skip-wipe"], "true");
        assert!(found.annotations().len() < 1000 && found.labels().len() < 1000);
        assert!(!found.annotations().contains_key(LAST_APPLIED_ANNOTATION));
        assert_eq!(found.metadata.managed_fields, None);
    }

    #[test]
    fn object_of_many_large_fields_is_kept_without_them() {
        let large = "x".repeat(200 << 10);
        let value = |fields: &[&str]| {
            let mut spec = json!({"nodeName": "n1"});
            for field in fields {
                spec[*field] = json!(large);
            }
            read(&json!({"metadata": {"name": "a"}, "spec": spec}).to_string())
        };
        let kept = |fields: &[&str]| value(fields).bounded().content["spec"].as_object().unwrap().len();
        assert_eq!(kept(&["containers"]), 2);
        assert_eq!(kept(&["containers", "volumes"]), 1);
    }

    #[test]
    fn weight_is_what_the_budget_measures() {
        let value = json!({"a": [1, "two", {"b": null}], "c": true});
        let mut budget = MAX_FIELD_BYTES;
        let mut text = serde_json::Deserializer::from_str(r#"{"a": [1, "two", {"b": null}], "c": true}"#);
        assert_eq!(
            BoundedValue(&mut budget).deserialize(&mut text).unwrap(),
            Some(value.clone())
        );
        assert_eq!(MAX_FIELD_BYTES - budget, weight(&value));
    }
}
