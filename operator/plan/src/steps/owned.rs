//! Objects without keys of their own: applied if they differ, and deleted if they are no longer wanted.

use crds::KubeBrainCluster;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::core::DynamicObject;
use serde_json::{Value, json};

use super::{Additions, ContestedObject, Plan, PlanStep, additions, trial};
use crate::certificates::Leaf;
use crate::drift;
use crate::names::RESOURCES_HASH;
use crate::objects::{self, Object, ObjectKey, ObjectKind, Renderer, resources};
use crate::observed::Observed;
use crate::ownership::{self, Ownership};
use crate::spec::Desired;

/// Fields of a StatefulSet that Kubernetes never allows to change.
const IMMUTABLE_FIELDS: [&str; 4] = ["volumeClaimTemplates", "serviceName", "selector", "podManagementPolicy"];

/// Returns every object that this spec writes.
pub(super) fn keys(
    desired: &Desired,
    observed: &Observed,
    renderer: &Renderer<'_>,
) -> Result<Vec<ObjectKey>, serde_json::Error> {
    // Under a refused spec only certificates are written.
    let objects = match desired.refusal() {
        None => renderer.all(observed.pod_monitors)?,
        Some(_) => Vec::new(),
    };
    let mut keys: Vec<ObjectKey> = objects.into_iter().map(|object| object.key).collect();
    if desired.certificates.as_ref().is_some_and(|issued| !issued.is_empty()) {
        keys.push(ObjectKey::new(ObjectKind::Secret, desired.names.authority()));
        keys.push(ObjectKey::new(ObjectKind::ConfigMap, desired.names.bundle()));
        keys.extend(Leaf::ALL.map(|leaf| ObjectKey::new(ObjectKind::Secret, desired.names.leaf(leaf))));
    }
    Ok(keys)
}

pub(super) fn plan(
    plan: &mut Plan,
    cluster: &KubeBrainCluster,
    (desired, observed): (&Desired, &Observed),
    renderer: &Renderer<'_>,
) -> Result<(), serde_json::Error> {
    let uid = cluster.uid().unwrap_or_default();
    let objects = renderer.all(observed.pod_monitors)?;
    let locked = may_hold_lease(&objects, observed);
    for key in renderer.unwanted(&objects) {
        let Some(live) = observed.objects.get(&key).filter(|_| !(locked && is_lock(key.kind))) else {
            continue;
        };
        let owner = live
            .metadata
            .owner_references
            .iter()
            .flatten()
            .find(|owner| owner.uid == uid);
        let ours = owner.is_some_and(|owner| ownership::of(&live.metadata, &owner.name, &uid) == Ownership::Ours);
        if let (true, Some(live_uid), None) = (ours, &live.metadata.uid, &live.metadata.deletion_timestamp) {
            plan.steps.push(PlanStep::Delete {
                key,
                uid: live_uid.clone(),
            });
        }
    }
    for mut object in objects {
        if object.key.kind == ObjectKind::StatefulSet {
            let is_new = !observed.objects.contains_key(&object.key);
            if plan.is_blocked() || (is_new && (plan.certificates.preparing || plan.bootstrap.is_some())) {
                continue;
            }
            if let Some(live) = observed.objects.get(&object.key) {
                plan.fixed = keep_fixed(&mut object, &live.data);
                resources::record(&mut object.body, live, lags(live, observed));
                object.stamp();
                if trial::holds_back(plan, cluster, (desired, observed), renderer, (&object, live)) {
                    continue;
                }
            }
        }
        apply(plan, object, observed)?;
    }
    Ok(())
}

/// Returns true if pods do not have the CPU and memory of the live template yet.
fn lags(live: &DynamicObject, observed: &Observed) -> bool {
    let wanted = live.data["spec"]["template"]["metadata"]["annotations"][RESOURCES_HASH].as_str();
    let differs = |pod: &Pod| pod.annotations().get(RESOURCES_HASH).map(String::as_str) != wanted;
    observed.pods.iter().any(differs)
}

/// Returns true if an object of this kind is the Lease of the leader lock, or grants the right to it.
fn is_lock(kind: ObjectKind) -> bool {
    matches!(kind, ObjectKind::Role | ObjectKind::RoleBinding | ObjectKind::Lease)
}

/// Returns true if brains compete for a Lease, or if the live template would create such brains. The lock is kept that long.
fn may_hold_lease(objects: &[Object], observed: &Observed) -> bool {
    let set = objects.iter().find(|object| object.key.kind == ObjectKind::StatefulSet);
    let live = set.and_then(|set| observed.objects.get(&set.key)).cloned();
    let live: Option<StatefulSet> = live.and_then(|live| live.try_parse().ok());
    let template = live.and_then(|live| live.spec?.template.spec);
    let pods = observed.pods.iter().filter_map(|pod| pod.spec.as_ref());
    pods.chain(&template).any(objects::competes_by_lease)
}

/// Plans to write `object` unless the live one matches it or is not ours.
pub(super) fn apply(plan: &mut Plan, object: Object, observed: &Observed) -> Result<(), serde_json::Error> {
    if plan.foreign.contains(&object.key) || plan.former.contains(&object.key) {
        return Ok(());
    }
    let Some(live) = observed.objects.get(&object.key) else {
        plan.steps.push(PlanStep::Apply { object, uid: None });
        return Ok(());
    };
    let differs = differs(&object, observed)?;
    let additions = added(&object, live, observed)?.filter(|_| !differs);
    if !differs && additions.is_none() {
        return Ok(());
    }
    let known = observed.applies.get(&object.key);
    if let Some(held) = known.and_then(|known| known.held(&object)) {
        let field = match additions {
            Some(additions) => additions.fields.join(", "),
            None => drift::difference(&object.body, &serde_json::to_value(live)?).unwrap_or_default(),
        };
        plan.contested.insert(object.key, ContestedObject { field, held });
        return Ok(());
    }
    plan.steps.push(match additions {
        Some(additions) => PlanStep::TakeBack {
            uid: live.metadata.uid.clone().unwrap_or_default(),
            object,
            additions,
        },
        None => PlanStep::Apply {
            uid: live.metadata.uid.clone(),
            object,
        },
    });
    Ok(())
}

/// Returns what another manager added to the live object and must be removed, unless admission adds it.
fn added(object: &Object, live: &DynamicObject, observed: &Observed) -> Result<Option<Additions>, serde_json::Error> {
    if live.metadata.deletion_timestamp.is_some() || observed.is_as_admitted(object) {
        return Ok(None);
    }
    Ok(additions::find(object, &serde_json::to_value(live)?))
}

/// The same for objects that are written although nothing may change: only the data of the live object counts.
pub(super) fn apply_data(plan: &mut Plan, object: Object, observed: &Observed) {
    let live = observed
        .objects
        .get(&object.key)
        .and_then(|live| live.metadata.uid.clone());
    if live.is_some() && data_differs(&object, observed) {
        plan.steps.push(PlanStep::Apply { object, uid: live });
    }
}

/// Returns true if a live object exists, is not being deleted, and has other data than `object`.
pub(super) fn data_differs(object: &Object, observed: &Observed) -> bool {
    let live = observed.objects.get(&object.key);
    live.is_some_and(|live| {
        live.metadata.deletion_timestamp.is_none() && !drift::is_within(&object.body["data"], &live.data["data"])
    })
}

/// Takes labels and annotations from the live object: while nothing may change, those of the spec do not count.
pub fn keep_metadata(object: &mut Object, live: &DynamicObject) {
    object.body["metadata"]["labels"] = json!(live.metadata.labels);
    object.body["metadata"]["annotations"] = json!(live.metadata.annotations);
}

/// Returns true if a live object exists, is not being deleted, and differs from `object`.
pub(super) fn differs(object: &Object, observed: &Observed) -> Result<bool, serde_json::Error> {
    let live = observed.objects.get(&object.key);
    let Some(live) = live.filter(|live| live.metadata.deletion_timestamp.is_none()) else {
        return Ok(false);
    };
    let stamped = |annotations: Option<&Value>| annotations.and_then(|all| all.get(drift::APPLIED_HASH)).cloned();
    let live_body = serde_json::to_value(live)?;
    let same =
        stamped(object.body.pointer("/metadata/annotations")) == stamped(live_body.pointer("/metadata/annotations"));
    Ok((!same || !drift::is_within(&object.body, &live_body)) && !observed.is_as_admitted(object))
}

/// Takes immutable fields from the live StatefulSet, so that the others can still change. Returns the names of those that differ.
///
/// The size of the claims is not one of them, because claims themselves can grow.
fn keep_fixed(object: &mut Object, live: &Value) -> Vec<&'static str> {
    let mut differing = Vec::new();
    for field in IMMUTABLE_FIELDS {
        let wanted = &object.body["spec"][field];
        let present = &live["spec"][field];
        if drift::is_within(wanted, present) {
            continue;
        }
        if field != "volumeClaimTemplates" || !differ_in_size_only(wanted, present) {
            differing.push(field);
        }
        object.body["spec"][field] = present.clone();
    }
    object.stamp();
    differing
}

fn differ_in_size_only(wanted: &Value, present: &Value) -> bool {
    let strip = |templates: &Value| {
        let mut templates = templates.clone();
        for template in templates.as_array_mut().into_iter().flatten() {
            if let Some(spec) = template["spec"].as_object_mut() {
                spec.remove("resources");
                spec.remove("volumeAttributesClassName");
            }
        }
        templates
    };
    drift::is_within(&strip(wanted), &strip(present))
}
