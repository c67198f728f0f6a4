//! Clusters as passes see them. The memory that specs take is bounded, for one cluster and for all together.
//!
//! A cluster that is too large is still kept, without the fields that do not fit: its spec is refused with this reason, and the other
//! clusters are not affected.

use std::collections::HashMap;

use crds::KubeBrainCluster;
use kube::ResourceExt;
use kube::core::ApiResource;
use kube::runtime::reflector::ObjectRef;
use plan::spec::TOO_LARGE_ANNOTATION;
use serde_json::Value;

use super::received::{self, MAX_FIELD_BYTES, WholeObject};

/// Memory for the specs of all clusters together, beyond `FREE_SPEC_BYTES` of each.
const MAX_SPECS_BYTES: usize = 24 << 20;
/// A spec up to this size, such as one without templates, is not counted.
const FREE_SPEC_BYTES: usize = 16 << 10;
/// Fields of a spec that are dropped when the specs of all clusters take too much.
const HEAVY_FIELD_BYTES: usize = 4 << 10;
pub(crate) fn resource() -> ApiResource {
    ApiResource::erase::<KubeBrainCluster>(&())
}

/// Memory of the specs of all clusters.
#[derive(Default)]
pub(super) struct SpecWeights {
    each: HashMap<ObjectRef<KubeBrainCluster>, usize>,
    /// Clusters that were cut because of the others, with the memory of their whole specs.
    cut: HashMap<ObjectRef<KubeBrainCluster>, usize>,
}

impl SpecWeights {
    pub(super) fn forget(&mut self, cluster: &KubeBrainCluster) {
        self.each.remove(&ObjectRef::from_obj(cluster));
        self.cut.remove(&ObjectRef::from_obj(cluster));
    }

    /// Removes and returns clusters that were too large beside the others and that fit now. They must be read and admitted again.
    pub(super) fn take_fitting(&mut self) -> Vec<ObjectRef<KubeBrainCluster>> {
        let mut total: usize = self.each.values().sum();
        let fits = |_: &ObjectRef<KubeBrainCluster>, weight: &mut usize| {
            let fits = total.saturating_add(*weight) <= MAX_SPECS_BYTES;
            total += if fits { *weight } else { 0 };
            fits
        };
        self.cut.extract_if(fits).map(|(cluster, _)| cluster).collect()
    }

    /// Clears everything before a new list.
    pub(super) fn clear(&mut self) {
        self.each.clear();
        self.cut.clear();
    }

    /// Returns the cluster in the form in which it is kept.
    pub(super) fn admit(&mut self, mut object: WholeObject) -> Option<KubeBrainCluster> {
        let own = ObjectRef::new(&object.name_any()).within(&object.namespace().unwrap_or_default());
        self.each.remove(&own);
        self.cut.remove(&own);
        let spec = object.content.get_mut("spec");
        let weight = spec
            .as_deref()
            .map_or(0, received::weight)
            .saturating_sub(FREE_SPEC_BYTES);
        let others: usize = self.each.values().sum();
        if others.saturating_add(weight) <= MAX_SPECS_BYTES {
            self.each.insert(own, weight);
            return read(object);
        }
        self.cut.insert(own, weight);
        if let Some(Value::Object(spec)) = spec {
            spec.retain(|field, value| {
                let stays = received::weight(value) <= HEAVY_FIELD_BYTES;
                if !stays {
                    object.cut.push(format!("spec.{field}"));
                }
                stays
            });
        }
        let why = format!(
            "the specs of all clusters together take more than {} MiB of the operator's memory: reduce {} or other clusters",
            MAX_SPECS_BYTES >> 20,
            object.cut.join(", ")
        );
        mark(read(object)?, why)
    }
}

/// Parses a cluster, and marks it if a field of its spec was too large.
///
/// Returns `None` if the object is not a `KubeBrainCluster` of this version.
pub(crate) fn read(object: WholeObject) -> Option<KubeBrainCluster> {
    let mut cluster: KubeBrainCluster = object.parse()?;
    cluster.annotations_mut().remove(TOO_LARGE_ANNOTATION);
    let cut: Vec<&str> = object
        .cut
        .iter()
        .filter(|field| field.starts_with("spec."))
        .map(String::as_str)
        .collect();
    if cut.is_empty() {
        return Some(cluster);
    }
    let why = format!(
        "{} takes more than {} KiB of the operator's memory: reduce it, for example by moving data to a ConfigMap that the pods mount",
        cut.join(", "),
        MAX_FIELD_BYTES >> 10
    );
    mark(cluster, why)
}

fn mark(mut cluster: KubeBrainCluster, why: String) -> Option<KubeBrainCluster> {
    cluster.annotations_mut().insert(TOO_LARGE_ANNOTATION.to_owned(), why);
    Some(cluster)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns a cluster with a podTemplate of this number of bytes, as received.
    fn received(name: &str, bytes: usize) -> WholeObject {
        let mut cluster = serde_json::to_value(plan::testing::cluster(json!({}))).unwrap();
        cluster["metadata"]["name"] = json!(name);
        cluster["spec"]["podTemplate"] = json!({"metadata": {"annotations": {"a": "x".repeat(bytes)}}});
        serde_json::from_value(cluster).unwrap()
    }

    #[test]
    fn cluster_that_is_too_large_is_seen_without_what_is() {
        let cluster = read(received("dev", 1_350_000)).unwrap();
        assert!(cluster.spec.pod_template.is_none());
        assert_eq!(cluster.spec.version, "0.1.0");
        let why = plan::spec::too_large(&cluster).unwrap();
        assert!(why.starts_with("spec.podTemplate takes more than 256 KiB"), "{why}");
        let ordinary = read(received("dev", 1000)).unwrap();
        assert!(ordinary.spec.pod_template.is_some() && plan::spec::too_large(&ordinary).is_none());
    }

    #[test]
    fn all_clusters_together_are_bounded_and_those_that_fit_are_whole() {
        let mut weights = SpecWeights::default();
        let count = MAX_SPECS_BYTES / (200 << 10) + 50;
        let clusters: Vec<KubeBrainCluster> = (0..count)
            .map(|i| weights.admit(received(&format!("c{i}"), 200 << 10)).unwrap())
            .collect();
        let whole = clusters
            .iter()
            .filter(|cluster| cluster.spec.pod_template.is_some())
            .count();
        assert!((1..count).contains(&whole), "{whole}");
        assert!(
            plan::spec::too_large(&clusters[count - 1])
                .unwrap()
                .starts_with("the specs of all clusters")
        );
        assert!(plan::spec::too_large(&weights.admit(received("small", 0)).unwrap()).is_none());
        // A deleted cluster frees memory, and one that is read again counts once.
        weights.forget(&clusters[0]);
        let again = || received("c1", 200 << 10);
        assert!(plan::spec::too_large(&weights.admit(again()).unwrap()).is_none());
        assert!(plan::spec::too_large(&weights.admit(again()).unwrap()).is_none());
    }

    #[test]
    fn mark_cannot_be_set_by_a_user() {
        let mut object = received("dev", 10);
        object
            .annotations_mut()
            .insert(TOO_LARGE_ANNOTATION.to_owned(), "x".to_owned());
        assert_eq!(plan::spec::too_large(&read(object).unwrap()), None);
    }
}
