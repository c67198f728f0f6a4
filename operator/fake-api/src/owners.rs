//! The owners of the entries of an object's `data` and of its finalizers, as the API server keeps them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

/// The entries of one object that managers own, by manager and operation.
#[derive(Default)]
pub(crate) struct FieldOwners(BTreeMap<(String, ManagerOperation), BTreeSet<OwnedEntry>>);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ManagerOperation {
    Apply,
    Update,
}

/// A key of `data`, or a finalizer.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum OwnedEntry {
    Data(String),
    Finalizer(String),
}

impl FieldOwners {
    /// Records a create, which owns what it wrote.
    pub(crate) fn create(&mut self, manager: &str, object: &Value) {
        self.0
            .insert((manager.to_owned(), ManagerOperation::Update), entries(object));
    }

    /// Records an apply. It owns the entries it names. Entries that only this manager owned before and no longer names are removed from
    /// `object`. Afterwards `wanted` has the finalizers of all managers.
    pub(crate) fn apply(&mut self, manager: &str, object: &mut Value, wanted: &mut Value) {
        let place = (manager.to_owned(), ManagerOperation::Apply);
        let (before, now) = (self.0.remove(&place).unwrap_or_default(), entries(wanted));
        for others in self.0.values_mut() {
            // Another value takes the entry from its other owners.
            others.retain(
                |entry| !matches!(entry, OwnedEntry::Data(key) if now.contains(entry) && object["data"][key] != wanted["data"][key]),
            );
        }
        for entry in before.difference(&now) {
            if !self.0.values().any(|others| others.contains(entry)) {
                remove(object, entry);
            }
        }
        self.0.insert(place, now);
        if !wanted["metadata"]["finalizers"].is_null() {
            let all = entries(object).into_iter().chain(entries(wanted));
            let all: BTreeSet<String> = all.filter_map(OwnedEntry::finalizer).collect();
            wanted["metadata"]["finalizers"] = json!(all);
        }
    }
}

impl OwnedEntry {
    fn finalizer(self) -> Option<String> {
        match self {
            Self::Finalizer(name) => Some(name),
            Self::Data(_) => None,
        }
    }
}

fn entries(object: &Value) -> BTreeSet<OwnedEntry> {
    let data = object["data"].as_object().into_iter().flatten();
    let finalizers = object["metadata"]["finalizers"].as_array().into_iter().flatten();
    let finalizers = finalizers.filter_map(|name| Some(OwnedEntry::Finalizer(name.as_str()?.to_owned())));
    data.map(|(key, _)| OwnedEntry::Data(key.clone()))
        .chain(finalizers)
        .collect()
}

fn remove(object: &mut Value, entry: &OwnedEntry) {
    match entry {
        OwnedEntry::Data(key) => {
            if let Some(data) = object["data"].as_object_mut() {
                data.remove(key);
            }
        }
        OwnedEntry::Finalizer(name) => {
            if let Some(all) = object["metadata"]["finalizers"].as_array_mut() {
                all.retain(|each| each != name);
            }
        }
    }
}
