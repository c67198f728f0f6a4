//! The files, and the objects in them.

use std::path::{Path, PathBuf};

use serde::Deserialize as _;
use serde_json::Value;

/// Returns the path of a file or a directory of the package.
pub(crate) fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

#[track_caller]
pub(crate) fn text(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns the names of all files below a directory, in order.
pub(crate) fn below(directory: &str) -> Vec<String> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path(directory)).unwrap() {
        let name = format!("{directory}/{}", entry.unwrap().file_name().to_str().unwrap());
        if path(&name).is_dir() {
            names.extend(below(&name));
        } else {
            names.push(name);
        }
    }
    names.sort();
    names
}

pub(crate) fn documents(text: &str) -> Vec<Value> {
    let all = serde_yaml::Deserializer::from_str(text).map(|document| Value::deserialize(document).unwrap());
    // The chart has files without an object, by their conditions.
    all.filter(|object| !object.is_null()).collect()
}

#[track_caller]
pub(crate) fn objects(name: &str) -> Vec<Value> {
    documents(&text(name))
}

/// Returns every object in the YAML files below a directory, with the name of its file.
pub(crate) fn objects_below(directory: &str) -> Vec<(String, Value)> {
    let files = below(directory).into_iter().filter(|name| name.ends_with(".yaml"));
    files
        .flat_map(|name| objects(&name).into_iter().map(move |object| (name.clone(), object)))
        .collect()
}

/// Returns the only object of a kind in a file.
#[track_caller]
pub(crate) fn only(name: &str, kind: &str) -> Value {
    let mut all = objects(name);
    all.retain(|object| object["kind"] == kind);
    assert_eq!(all.len(), 1, "{name} has one {kind}");
    all.remove(0)
}

/// Returns the strings of a list; none if there is no list.
pub(crate) fn strings(list: &Value) -> Vec<&str> {
    let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().map(|each| each.as_str().unwrap()).collect()
}
