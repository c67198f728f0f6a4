//! For tests: a world in memory that carries out plans as the API server, the StatefulSet controller and a kubelet would.
//!
//! It is as simple as possible: everything happens at once, and nothing fails.

#![allow(clippy::unwrap_used, reason = "a test fails where a helper fails")]

use std::collections::BTreeMap;
use std::time::Duration;

use crds::KubeBrainCluster;
use crds::wishes::{CUTOVER, CUTOVER_VALUE};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use kube::core::DynamicObject;
use serde_json::{Value, json};

use crate::applied::AppliedSteps;
use crate::certificates::{CaBundle, InspectedCertificate};
use crate::issuance;
use crate::member::{
    BrainRole, CertificateInUse, KnownLeader, LoadedCertificates, MemberAnswer, MemberStorage, StoredFormats,
};
use crate::names::{MEMORY_RESIZED, RESOURCES_HASH, ROLE};
use crate::objects::{Epoch, Object, ObjectKey, ObjectKind, Renderer};
use crate::observed::{Observed, is_ready};
use crate::spec::is_external;
use crate::spec::{self, Desired, OperatorSettings};
use crate::status::{self, StatusInput};
use crate::steps::{self, Plan, PlanStep, describe};

/// Start time of the world.
pub const BEGIN: &str = "2026-11-21T00:00:00Z";

/// Id of the store of every brain, unless a test sets another one.
pub const STORE: &str = "00000000000000c1";

/// One cluster and all that belongs to it.
pub struct FakeCluster {
    pub cluster: KubeBrainCluster,
    pub seen: Observed,
    /// True if leaders refuse to hand over.
    pub refuses_hand_over: bool,
    /// The operator's default image.
    pub default_image: String,
    uids: u64,
}

/// Returns a cluster named `dev` with an embedded store; `spec` is merged over a minimal spec. Templates are not tried, so a change is one
/// step.
pub fn cluster(spec: Value) -> KubeBrainCluster {
    let mut value = json!({
        "apiVersion": "kubebrain.io/v1alpha1",
        "kind": "KubeBrainCluster",
        "metadata": {
            "name": "dev", "namespace": "brains", "uid": "cluster-uid", "generation": 1,
            "annotations": {"kubebrain.io/skip-trial": "true"},
        },
        "spec": {
            "replicas": 1,
            "version": "0.1.0",
            "storage": {"type": "Embedded", "embedded": {"size": "10Gi"}},
        },
    });
    overlay(&mut value["spec"], spec);
    serde_json::from_value(value).unwrap()
}

fn overlay(base: &mut Value, more: Value) {
    match (base, more) {
        (Value::Object(base), Value::Object(more)) => {
            for (key, value) in more {
                overlay(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, more) => *base = more,
    }
}

/// Merges as RFC 7386 defines.
fn merge_patch(base: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *base = patch.clone();
        return;
    };
    if !base.is_object() {
        *base = json!({});
    }
    let base = base.as_object_mut().unwrap();
    for (field, value) in fields {
        match value {
            Value::Null => drop(base.remove(field)),
            value => merge_patch(base.entry(field.clone()).or_insert(Value::Null), value),
        }
    }
}

pub fn settings() -> OperatorSettings {
    OperatorSettings {
        default_image: "kubebrain.io/kubebrain".to_owned(),
        cluster_domain: "cluster.local".to_owned(),
        ca_propagation: Duration::from_secs(600),
        allow_unsafe_pods: true,
        allowed_pod_metadata: Vec::new(),
    }
}

impl FakeCluster {
    /// Returns a world with only the cluster's resource.
    pub fn new(spec: Value) -> Self {
        let seen = Observed {
            now: BEGIN.parse().unwrap(),
            ..Observed::default()
        };
        Self {
            cluster: cluster(spec),
            seen,
            refuses_hand_over: false,
            default_image: settings().default_image,
            uids: 0,
        }
    }

    /// Returns a cluster whose brain serves and that needs no steps.
    pub fn settled(spec: Value) -> Self {
        let mut fake = Self::new(spec);
        fake.settle();
        fake
    }

    /// The same in another namespace.
    pub fn settled_in(namespace: &str, spec: Value) -> Self {
        let mut fake = Self::new(spec);
        fake.cluster.metadata.namespace = Some(namespace.to_owned());
        fake.cluster.metadata.uid = Some(format!("uid-of-{namespace}"));
        fake.settle();
        fake
    }

    /// Runs passes, with the kubelet in between, until no steps are left.
    pub fn settle(&mut self) {
        for _ in 0..10 {
            let steps = self.pass();
            self.kubelet();
            if steps.is_empty() {
                self.pass();
                return;
            }
        }
        panic!("still steps after ten passes: {:?}", self.steps());
    }

    /// Changes the spec, as a user would.
    pub fn edit(&mut self, spec: Value) {
        let mut value = serde_json::to_value(&self.cluster).unwrap();
        overlay(&mut value["spec"], spec);
        self.cluster = serde_json::from_value(value).unwrap();
        *self.cluster.metadata.generation.as_mut().unwrap() += 1;
    }

    pub fn wait(&mut self, seconds: i64) {
        self.seen.now += SignedDuration::from_secs(seconds);
    }

    pub fn at(&mut self, now: Timestamp) {
        self.seen.now = now;
    }

    pub fn desired(&self) -> Desired {
        let set = self.seen.objects.get(&ObjectKey::new(ObjectKind::StatefulSet, "dev"));
        let running = set.and_then(|set| i32::try_from(set.data["spec"]["replicas"].as_i64()?).ok());
        let settings = OperatorSettings {
            default_image: self.default_image.clone(),
            ..settings()
        };
        spec::desired(&self.cluster, &settings, None, running, Ok(()), self.seen.now)
    }

    pub fn plan(&self) -> Plan {
        steps::plan(&self.cluster, &self.desired(), &self.own()).unwrap()
    }

    /// Returns the input of a pass: the observed state without the pods and claims of others.
    pub fn own(&self) -> Observed {
        let mut own = self.seen.clone();
        let uid = self.cluster.uid().unwrap_or_default();
        if !is_external(&self.cluster) {
            crate::ownership::keep_own(&mut own, &self.desired().names, &uid);
        }
        own
    }

    /// Returns the steps of the next pass, in words.
    pub fn steps(&self) -> Vec<String> {
        let desired = self.desired();
        self.plan().steps.iter().map(|step| describe(step, &desired)).collect()
    }

    /// Runs one pass. Returns its steps, in words. The status is published.
    pub fn pass(&mut self) -> Vec<String> {
        let (desired, plan) = (self.desired(), self.plan());
        let mut applied = AppliedSteps::default();
        let mut said = Vec::new();
        let observed = self.own();
        let steps = match desired.held {
            Some(_) => plan.safe_steps(),
            None => plan.steps.clone(),
        };
        for step in &steps {
            self.carry_out(step, &desired, &mut applied);
            said.push(describe(step, &desired));
        }
        let pass = StatusInput {
            desired: &desired,
            observed: &observed,
            plan: &plan,
            applied: &applied,
        };
        let status = status::of(&self.cluster, &pass);
        for condition in status.conditions.iter().flatten() {
            status::documented_reasons::check(&condition.reason);
        }
        self.cluster.status = Some(status);
        self.controllers();
        said
    }

    pub fn carry_out(&mut self, step: &PlanStep, desired: &Desired, applied: &mut AppliedSteps) {
        let (now, cluster) = (self.seen.now, self.cluster.clone());
        let renderer = Renderer::new(&cluster, desired);
        match step {
            PlanStep::WriteAuthority { change, before, .. } => {
                let at = (&desired.names, now);
                let (object, view) = issuance::authority(&renderer, before.as_deref(), change, at).unwrap();
                self.write(desired, &object);
                applied.authority = Some(view);
            }
            PlanStep::DiscardAuthority { .. } => {
                let key = ObjectKey::new(ObjectKind::Secret, desired.names.authority());
                self.seen.objects.remove(&key).unwrap();
            }
            PlanStep::Issue {
                leaf,
                request,
                signer,
                bundle,
                ..
            } => {
                let at = (&desired.names, now);
                let (object, stored) = issuance::leaf(&renderer, (*leaf, request), (signer, bundle), at).unwrap();
                self.write(desired, &object);
                applied.leaves.insert(*leaf, stored);
            }
            PlanStep::Apply { object, .. } => self.write(desired, object),
            PlanStep::CreateClaim { claim } => self.seen.claims.push(*claim.clone()),
            PlanStep::Bootstrap { job } => {
                assert!(self.seen.bootstrap.job.is_none(), "there is a Job");
                let mut job = job.clone();
                self.uids += 1;
                job.metadata.uid = Some(format!("uid-{}", self.uids));
                job.metadata.creation_timestamp = Some(Time(status::whole_seconds(now)));
                self.seen.bootstrap.job = Some(job);
            }
            PlanStep::EndBootstrap { .. } => self.seen.bootstrap.job = None,
            PlanStep::CutOver { pod, .. } => self.cut_over(pod),
            PlanStep::TakeBack { object, additions, .. } => {
                let live = self.seen.objects.get_mut(&object.key).unwrap();
                let mut value = serde_json::to_value(&*live).unwrap();
                merge_patch(&mut value, &additions.patch);
                *live = serde_json::from_value(value).unwrap();
            }
            PlanStep::Delete { key, .. } => drop(self.seen.objects.remove(key)),
            PlanStep::ChangeClaim {
                claim,
                size,
                attributes_class,
            } => {
                let claim = self
                    .seen
                    .claims
                    .iter_mut()
                    .find(|each| each.name_any() == *claim)
                    .unwrap();
                let mut value = serde_json::to_value(&*claim).unwrap();
                value["spec"]["resources"]["requests"]["storage"] = json!(size);
                if let Some(class) = attributes_class {
                    value["spec"]["volumeAttributesClassName"] = json!(class);
                }
                *claim = serde_json::from_value(value).unwrap();
            }
            PlanStep::RetainClaims { set, .. } => {
                let set = self.object(ObjectKind::StatefulSet, set);
                set.data["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] = json!("Retain");
                *set.metadata.generation.get_or_insert_default() += 1;
            }
            PlanStep::Try { pod, .. } => {
                assert!(self.seen.trial.is_none(), "there is a trial");
                let mut pod = pod.clone();
                self.uids += 1;
                pod["metadata"]["uid"] = json!(format!("uid-{}", self.uids));
                pod["metadata"]["creationTimestamp"] = json!(status::whole_seconds(now));
                self.seen.trial = Some(serde_json::from_value(pod).unwrap());
            }
            PlanStep::EndTrial { .. } => self.seen.trial = None,
            PlanStep::Scale { set, replicas, .. } => {
                let set = self.object(ObjectKind::StatefulSet, set);
                set.data["spec"]["replicas"] = json!(replicas);
                *set.metadata.generation.get_or_insert_default() += 1;
            }
            PlanStep::Label { pod, role, .. } => {
                let labels = self.pod(pod).labels_mut();
                match role {
                    Some(role) => drop(labels.insert(ROLE.to_owned(), (*role).to_owned())),
                    None => drop(labels.remove(ROLE)),
                }
            }
            PlanStep::Resize {
                pod, hash, restarts, ..
            } => self.resize(pod, hash, *restarts),
            PlanStep::HandOver { to, .. } => {
                applied.asked = true;
                if !self.refuses_hand_over {
                    applied.handed_over = true;
                    self.lead(to);
                }
            }
            PlanStep::Replace { pod, .. } => self.seen.pods.retain(|each| each.name_any() != *pod),
        }
    }

    /// Annotates a pod of the bootstrap.
    fn cut_over(&mut self, pod: &str) {
        let mut pods = self.seen.bootstrap.pods.iter_mut();
        let pod = pods.find(|each| each.name_any() == pod).unwrap();
        let annotation = (CUTOVER.to_owned(), CUTOVER_VALUE.to_owned());
        pod.annotations_mut().extend([annotation]);
    }

    /// Gives a pod the resources of the template.
    fn resize(&mut self, name: &str, hash: &str, restarts: bool) {
        let set = self.object(ObjectKind::StatefulSet, "dev").data.clone();
        let template = &set["spec"]["template"]["spec"]["containers"][0]["resources"];
        let pod = self.pod(name);
        pod.annotations_mut().insert(RESOURCES_HASH.to_owned(), hash.to_owned());
        match restarts {
            true => pod.annotations_mut().insert(MEMORY_RESIZED.to_owned(), hash.to_owned()),
            false => pod.annotations_mut().remove(MEMORY_RESIZED),
        };
        pod.spec.as_mut().unwrap().containers[0].resources = serde_json::from_value(template.clone()).unwrap();
    }

    /// Renders the StatefulSet as an operator of `epoch` did, and recreates its pods.
    pub fn made_in(&mut self, epoch: Epoch) {
        let (cluster, desired) = (self.cluster.clone(), self.desired());
        let objects = Renderer::of_epoch(epoch, &cluster, &desired).all(false).unwrap();
        for object in &objects {
            self.write(&desired, object);
        }
        self.seen.pods.clear();
        self.controllers();
        self.kubelet();
        self.pass();
    }

    fn write(&mut self, desired: &Desired, object: &Object) {
        let former = self.seen.objects.get(&object.key);
        let mut object = object.clone();
        if let Some(former) = former.filter(|_| desired.held.is_some()) {
            steps::keep_metadata(&mut object, former);
        }
        let uid = former.and_then(|former| former.metadata.uid.clone());
        let generation = former.and_then(|former| former.metadata.generation).unwrap_or_default() + 1;
        let status = former.map(|former| former.data["status"].clone());
        let mut body = object.body.clone();
        self.uids += 1;
        body["metadata"]["uid"] = json!(uid.unwrap_or(format!("uid-{}", self.uids)));
        body["metadata"]["generation"] = json!(generation);
        if let Some(status) = status {
            body["status"] = status;
        }
        self.seen
            .objects
            .insert(object.key.clone(), serde_json::from_value(body).unwrap());
    }

    /// Acts as the StatefulSet controller: adopts the newest template, creates missing pods and claims, removes surplus ones.
    pub fn controllers(&mut self) {
        let Some(set) = self
            .seen
            .objects
            .get_mut(&ObjectKey::new(ObjectKind::StatefulSet, "dev"))
        else {
            return;
        };
        let revision = revision_of(set);
        let set_uid = set.metadata.uid.clone();
        set.data["status"] =
            json!({"observedGeneration": set.metadata.generation, "updateRevision": revision, "replicas": 1});
        let replicas = usize::try_from(set.data["spec"]["replicas"].as_u64().unwrap()).unwrap();
        let (template, claim) = (
            set.data["spec"]["template"].clone(),
            set.data["spec"]["volumeClaimTemplates"][0].clone(),
        );
        let names: Vec<String> = (0..replicas).map(|ordinal| format!("dev-{ordinal}")).collect();
        self.seen.pods.retain(|pod| names.contains(&pod.name_any()));
        self.seen.probes.retain(|pod, _| names.contains(pod));
        let missing = |seen: &Observed, name: &String| seen.pods.iter().all(|pod| pod.name_any() != *name);
        let ordinals: Vec<usize> = (0..replicas)
            .filter(|ordinal| missing(&self.seen, &names[*ordinal]))
            .collect();
        for ordinal in ordinals {
            self.uids += 1;
            let mut pod = template.clone();
            let metadata = &mut pod["metadata"];
            metadata["name"] = json!(format!("dev-{ordinal}"));
            metadata["uid"] = json!(format!("uid-{}", self.uids));
            metadata["resourceVersion"] = json!(self.uids.to_string());
            metadata["creationTimestamp"] = json!(status::whole_seconds(self.seen.now));
            metadata["labels"]["controller-revision-hash"] = json!(revision);
            metadata["ownerReferences"] = json!([{
                "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "dev", "uid": set_uid, "controller": true,
            }]);
            self.seen.pods.push(serde_json::from_value::<Pod>(pod).unwrap());
            self.seen.probes.remove(&format!("dev-{ordinal}"));
            let name = format!("data-dev-{ordinal}");
            if claim.is_object() && self.seen.claims.iter().all(|each| each.name_any() != name) {
                let mut claim = claim.clone();
                claim["metadata"]["name"] = json!(name);
                self.seen
                    .claims
                    .push(serde_json::from_value::<PersistentVolumeClaim>(claim).unwrap());
            }
        }
        self.seen.pods.sort_by_key(ResourceExt::name_any);
    }

    /// The same, but the leader keeps its role.
    pub fn kubelet_keeping_the_leader(&mut self) {
        let leader = crate::steps::leadership::lead(&self.seen, &std::collections::BTreeSet::new());
        self.kubelet();
        if let Some(leader) = leader.pod() {
            self.lead(leader);
        }
    }

    /// Acts as a kubelet: binds claims, starts pods, and lets their brains answer; the first one leads.
    pub fn kubelet(&mut self) {
        for claim in &mut self.seen.claims {
            let mut value = serde_json::to_value(&*claim).unwrap();
            let size = value["spec"]["resources"]["requests"]["storage"].clone();
            value["status"] = json!({"phase": "Bound", "capacity": {"storage": size}});
            *claim = serde_json::from_value(value).unwrap();
        }
        if let Some(trial) = self.seen.trial.as_mut().filter(|trial| trial.status.is_none()) {
            let ended = json!({"terminated": {"exitCode": 0}});
            let status = json!({
                "phase": "Succeeded",
                "containerStatuses": [{
                    "name": "brain", "ready": false, "restartCount": 0, "image": "", "imageID": "", "state": ended,
                }],
            });
            trial.status = serde_json::from_value(status).unwrap();
        }
        let names: Vec<String> = self
            .seen
            .pods
            .iter()
            .filter(|pod| !is_ready(pod))
            .map(ResourceExt::name_any)
            .collect();
        for name in names {
            self.set_ready(&name, true);
        }
        let tls = self.tls_in_use();
        for (member, pod) in (1..).zip(&self.seen.pods) {
            let brain = pod.spec.as_ref().and_then(|spec| spec.containers.first());
            let image = brain.and_then(|brain| brain.image.as_deref());
            let version = image
                .and_then(|image| image.rsplit_once(':'))
                .map_or("0.1.0", |(_, tag)| tag);
            let answer = MemberAnswer {
                tls: tls.clone(),
                version: version.to_owned(),
                ..answer(member, 1)
            };
            self.seen.probes.insert(pod.name_any(), Ok(answer));
        }
    }

    /// Makes this pod's brain the leader of the next epoch.
    pub fn lead(&mut self, leader: &str) {
        let answers = || self.seen.probes.values().flatten();
        let epoch = answers().map(|answer| answer.epoch).max().unwrap_or_default() + 1;
        let Some(Ok(new)) = self.seen.probes.get(leader).cloned() else {
            return;
        };
        for answer in self.seen.probes.values_mut().flatten() {
            answer.epoch = epoch;
            answer.role = if answer.member == new.member {
                BrainRole::Leader
            } else {
                BrainRole::Follower
            };
            answer.leader = Some(KnownLeader {
                name: new.name.clone(),
                member: new.member,
            });
        }
    }

    /// Returns the report of a member that has loaded everything that is stored; `None` if that is incomplete.
    fn tls_in_use(&self) -> Option<LoadedCertificates> {
        let bundle = self
            .seen
            .objects
            .get(&ObjectKey::new(ObjectKind::ConfigMap, "dev-ca-bundle"))?;
        let certificate = |name: &str| {
            let secret = self.seen.objects.get(&ObjectKey::new(ObjectKind::Secret, name))?;
            let pair = steps::stored_pair(secret, "tls.crt", "tls.key")?;
            in_use(&pair.certificate)
        };
        Some(LoadedCertificates {
            trust_bundle: CaBundle::parse(bundle.data["data"]["ca.crt"].as_str()?).ok()?.digest(),
            server: certificate("dev-server-tls")?,
            peer: certificate("dev-peer-tls"),
            peer_trust_bundle: None,
        })
    }

    /// Makes a pod ready from now on, or not ready.
    pub fn set_ready(&mut self, name: &str, ready: bool) {
        let now = status::whole_seconds(self.seen.now);
        let pod = self.pod(name);
        let mut value = serde_json::to_value(&*pod).unwrap();
        let word = if ready { "True" } else { "False" };
        value["status"] = json!({
            "phase": "Running",
            "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": word, "lastTransitionTime": now}],
        });
        *pod = serde_json::from_value(value).unwrap();
        if !ready {
            self.seen.probes.remove(name);
        }
    }

    pub fn pod(&mut self, name: &str) -> &mut Pod {
        self.seen.pods.iter_mut().find(|pod| pod.name_any() == name).unwrap()
    }

    pub fn object(&mut self, kind: ObjectKind, name: &str) -> &mut DynamicObject {
        self.seen.objects.get_mut(&ObjectKey::new(kind, name)).unwrap()
    }

    /// Returns `Status/Reason` of a condition after the last pass.
    pub fn condition(&self, type_: &str) -> String {
        let conditions = self.cluster.status.as_ref().unwrap().conditions.as_ref().unwrap();
        let found = conditions.iter().find(|condition| condition.type_ == type_);
        found.map_or("absent".to_owned(), |condition| {
            format!("{}/{}", condition.status, condition.reason)
        })
    }
}

/// Returns a certificate as a member reports it.
pub fn in_use(pem: &str) -> Option<CertificateInUse> {
    let found = InspectedCertificate::read(pem).ok()?;
    Some(CertificateInUse {
        fingerprint: found.certificate_fingerprint(),
        not_after: found.not_after,
    })
}

/// Returns the answer of a brain; 0 means no leader.
pub fn answer(member: u64, leader: u64) -> MemberAnswer {
    let name = |member: u64| format!("dev-{}", member.saturating_sub(1));
    MemberAnswer {
        name: name(member),
        member,
        cluster: Some(STORE.to_owned()),
        role: match leader {
            0 => BrainRole::None,
            leader if leader == member => BrainRole::Leader,
            _ => BrainRole::Follower,
        },
        leader: (leader != 0).then(|| KnownLeader {
            name: name(leader),
            member: leader,
        }),
        epoch: 2,
        ready: true,
        version: "0.1.0".to_owned(),
        formats: StoredFormats {
            lowest: 1,
            highest: 1,
            written: 1,
        },
        revision: 1,
        alarms: Vec::new(),
        storage: MemberStorage {
            type_: "Embedded".to_owned(),
            cluster_id: None,
            reachable: true,
            directory: None,
        },
        space: None,
        tls: None,
    }
}

fn revision_of(set: &DynamicObject) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    set.data["spec"]["template"].to_string().hash(&mut hasher);
    format!("dev-{:x}", hasher.finish())
}

/// Returns objects by their key, for tests that check what was written.
pub fn written(fake: &FakeCluster) -> BTreeMap<String, Value> {
    fake.seen
        .objects
        .iter()
        .map(|(key, object)| (key.to_string(), serde_json::to_value(object).unwrap()))
        .collect()
}

/// The answer of a follower in epoch 7.
pub fn full() -> Value {
    let digest = "0123456789abcdef".repeat(4);
    json!({
        "name": "dev-0", "memberID": "8e9e05c52164694d", "clusterID": "00000000000000ff", "version": "0.1.0",
        "formats": {"lowest": 1, "highest": 3, "written": 2},
        "role": "Follower", "ready": true, "epoch": 7, "revision": 1234, "appliedSlot": 5678,
        "leader": {"name": "dev-1", "memberID": "0000000000000010"},
        "alarms": ["NOSPACE"], "space": {"bytes": 5, "quotaBytes": 7, "disk": {"bytes": 11, "availableBytes": 3, "neededBytes": 2}},
        "storage": {"type": "TiKV", "clusterID": "7401234567890123456", "reachable": true},
        "tls": {
            "trustBundle": digest, "peerTrustBundle": digest,
            "server": {"fingerprint": digest, "notAfter": "2027-01-01T00:00:00Z"},
            "peer": {"fingerprint": digest, "notAfter": "2027-01-02T00:00:00Z"},
        },
    })
}
