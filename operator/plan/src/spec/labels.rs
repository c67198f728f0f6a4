//! Labels and annotations that Kubernetes accepts. It would refuse others on each object that has them, one after the other.

use std::collections::BTreeMap;

use crds::KubeBrainCluster;

/// Maximum length of the name of a key, and of the value of a label, in bytes.
const MAX_NAME_BYTES: usize = 63;
/// Maximum length of the prefix of a key, a DNS subdomain.
const MAX_PREFIX_BYTES: usize = 253;

/// Returns what is wrong with labels and annotations of a spec, if anything.
pub(super) fn malformed(cluster: &KubeBrainCluster) -> Option<String> {
    let none = BTreeMap::new();
    let spec = &cluster.spec;
    let inherited = spec.inherited_metadata.as_ref();
    let monitoring = spec.monitoring.as_ref();
    let monitor = monitoring.and_then(|monitoring| monitoring.pod_monitor.as_ref());
    let of_objects = inherited.map_or(&none, |inherited| &inherited.labels);
    let of_monitor = monitor.map_or(&none, |monitor| &monitor.labels);
    let labels = [
        ("inheritedMetadata.labels", of_objects),
        ("monitoring.podMonitor.labels", of_monitor),
    ];
    let annotations = [
        (
            "inheritedMetadata.annotations",
            inherited.map_or(&none, |inherited| &inherited.annotations),
        ),
        ("services.client.annotations", &spec.services.client.annotations),
    ];
    let keys = labels.iter().find_map(|(field, all)| key(field, all, str::to_owned));
    // Kubernetes checks keys of annotations in lower case.
    let keys = keys.or_else(|| {
        annotations
            .iter()
            .find_map(|(field, all)| key(field, all, str::to_ascii_lowercase))
    });
    keys.or_else(|| labels.iter().find_map(|(field, all)| value(field, all)))
}

fn key(field: &str, all: &BTreeMap<String, String>, as_seen: fn(&str) -> String) -> Option<String> {
    let key = all.keys().find(|key| !is_key(&as_seen(key)))?;
    Some(format!(
        "{field}[{key}]: a key has a name of at most {MAX_NAME_BYTES} letters, digits, '-', '_' and '.', which begins and ends with a letter or digit, and before it a DNS name and '/', if any"
    ))
}

fn value(field: &str, all: &BTreeMap<String, String>) -> Option<String> {
    let (key, _) = all.iter().find(|(_, value)| !value.is_empty() && !is_name(value))?;
    Some(format!(
        "{field}[{key}]: the value of a label has at most {MAX_NAME_BYTES} letters, digits, '-', '_' and '.', and begins and ends with a letter or digit"
    ))
}

/// Returns true if this is a valid key of a label or an annotation.
fn is_key(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && is_name(name),
        None => is_name(key),
    }
}

fn is_name(text: &str) -> bool {
    let ends = [text.bytes().next(), text.bytes().last()];
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    text.len() <= MAX_NAME_BYTES
        && ends
            .iter()
            .all(|end| end.is_some_and(|byte| byte.is_ascii_alphanumeric()))
        && text.bytes().all(is_inner)
}

fn is_subdomain(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_label = |label: &str| {
        !label.is_empty() && !label.starts_with('-') && !label.ends_with('-') && label.bytes().all(is_inner)
    };
    text.len() <= MAX_PREFIX_BYTES && text.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(inherited: Value, field: Option<&str>) {
        let cluster = crate::testing::cluster(json!({"inheritedMetadata": inherited}));
        let found = malformed(&cluster);
        let found = found.as_ref().map(|found| found.split(": ").next().unwrap());
        assert_eq!(found, field);
    }

    #[test]
    fn bad_keys_and_values_are_named() {
        let long = "x".repeat(64);
        check(json!({"labels": {"a": "", "a.b/C_d": "1.0-x", "x": &long[1..]}}), None);
        check(json!({"annotations": {"a.b/c": "any value, of course"}}), None);
        for key in ["a b", "", "-a", "a/", "/a", "A/b", "a..b/c", "a/b/c", &long] {
            let named = |field: &str| format!("inheritedMetadata.{field}[{key}]");
            check(json!({"labels": {key: "v"}}), Some(&named("labels")));
            let is_other = key == "A/b";
            check(
                json!({"annotations": {key: "v"}}),
                (!is_other).then(|| named("annotations")).as_deref(),
            );
        }
        for value in ["a b", "a/b", "-", &long] {
            check(json!({"labels": {"k": value}}), Some("inheritedMetadata.labels[k]"));
        }
    }
}
