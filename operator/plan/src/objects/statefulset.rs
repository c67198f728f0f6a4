//! The StatefulSet. The operator, not the StatefulSet controller, decides when a pod is replaced.

use crds::cluster::storage::{Embedded, Retention};
use k8s_openapi::api::apps::v1::{
    StatefulSet, StatefulSetPersistentVolumeClaimRetentionPolicy, StatefulSetSpec, StatefulSetUpdateStrategy,
};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

use serde_json::Value;

use super::pod::DATA_VOLUME;
use super::{Renderer, epoch};

impl Renderer<'_> {
    /// Returns JSON, because its template may have fields that our version of the types does not have.
    pub fn stateful_set(&self) -> Result<Value, serde_json::Error> {
        let embedded = self.desired.storage.embedded();
        let retention = |embedded: &Embedded| StatefulSetPersistentVolumeClaimRetentionPolicy {
            when_deleted: Some(
                match embedded.when_deleted {
                    Retention::Retain => "Retain",
                    Retention::Delete => "Delete",
                }
                .to_owned(),
            ),
            when_scaled: Some("Retain".to_owned()),
        };
        let spec = StatefulSetSpec {
            replicas: Some(self.desired.replicas),
            service_name: Some(self.names().headless()),
            selector: LabelSelector {
                match_labels: Some(self.names().selector()),
                ..LabelSelector::default()
            },
            pod_management_policy: Some("Parallel".to_owned()),
            update_strategy: Some(StatefulSetUpdateStrategy {
                type_: Some("OnDelete".to_owned()),
                ..StatefulSetUpdateStrategy::default()
            }),
            min_ready_seconds: Some(self.cluster.spec.strategy().min_ready_seconds),
            revision_history_limit: Some(3),
            persistent_volume_claim_retention_policy: embedded.map(retention),
            volume_claim_templates: embedded.map(|embedded| vec![self.claim(embedded)]),
            ..StatefulSetSpec::default()
        };
        let mut metadata = self.metadata(&self.names().cluster);
        if let Some(record) = self.epoch.record() {
            let annotations = metadata.annotations.get_or_insert_default();
            annotations.insert(epoch::EPOCH_ANNOTATION.to_owned(), record.to_owned());
        }
        let mut set = serde_json::to_value(StatefulSet {
            metadata,
            spec: Some(spec),
            ..StatefulSet::default()
        })?;
        set["spec"]["template"] = self.template()?;
        Ok(set)
    }

    /// Returns the claim template. It has no inherited labels, because it can never be changed.
    pub(super) fn claim(&self, storage: &Embedded) -> PersistentVolumeClaim {
        let spec = PersistentVolumeClaimSpec {
            access_modes: Some(vec![format!("{:?}", storage.access_mode)]),
            storage_class_name: storage.storage_class_name.clone(),
            volume_attributes_class_name: storage.volume_attributes_class_name.clone(),
            volume_mode: Some("Filesystem".to_owned()),
            resources: Some(VolumeResourceRequirements {
                requests: Some([("storage".to_owned(), storage.size.clone())].into()),
                ..VolumeResourceRequirements::default()
            }),
            ..PersistentVolumeClaimSpec::default()
        };
        let metadata = ObjectMeta {
            name: Some(DATA_VOLUME.to_owned()),
            labels: Some(self.names().labels()),
            ..ObjectMeta::default()
        };
        PersistentVolumeClaim {
            metadata,
            spec: Some(spec),
            ..PersistentVolumeClaim::default()
        }
    }
}
