//! One pass of the operator: converts the view to the planner's input, and its plan to events.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use crds::KubeBrainCluster;
use crds::cluster::status::{HandOver, KubeBrainClusterStatus, RolloutStatus};
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateWaiting, ContainerStatus, Pod as ApiPod, PodCondition, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::SignedDuration;
use kube::ResourceExt;
use kube::core::DynamicObject;
use serde_json::json;

use super::cluster::{Asked, Health, Member, Pod, Recorded, View};
use super::{Scenario, Wish};
use crate::applied::AppliedSteps;
use crate::names::RESTART_HASH;
use crate::objects::{ObjectKey, ObjectKind};
use crate::observed::Observed;
use crate::spec;
use crate::status::{self, StatusInput};
use crate::steps::{PlanStep, plan};
use crate::testing::{BEGIN, FakeCluster, answer, settings};

/// Epoch of the leader in every view; records of former leaders have a lower one.
const EPOCH: i64 = 2;

/// A step that counts for a roll-out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Done {
    /// The StatefulSet gets the newest template.
    Write,
    Replace(usize),
    HandOver {
        from: usize,
        to: usize,
    },
}

/// Actions of a pass.
#[derive(Debug)]
pub(super) struct Planned {
    pub steps: Vec<Done>,
    /// Members whose pods it labels.
    pub labels: Vec<usize>,
    /// True if it reports why an outdated member is not replaced.
    pub waits: bool,
    /// The record if the leader hands over, and the record if it does not.
    handed_over: Recorded,
    recorded: Recorded,
}

impl Planned {
    pub(super) fn asks(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Done::HandOver { .. }))
    }

    pub(super) fn record(&self, handed_over: bool) -> Recorded {
        if handed_over { &self.handed_over } else { &self.recorded }.clone()
    }
}

/// The planner, and its input that is not part of a view.
pub(super) struct Operator {
    /// The resource by its edits, and the StatefulSet of each.
    clusters: Vec<KubeBrainCluster>,
    sets: Vec<DynamicObject>,
    /// A pod of each member.
    pods: Vec<ApiPod>,
    seen: Observed,
    /// Cache of passes: a pass depends only on the view.
    known: Mutex<HashMap<View, Arc<Planned>>>,
}

impl Operator {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let tikv = json!({"pdEndpoints": ["pd:2379"]});
        let mut fake = FakeCluster::settled(json!({
            "replicas": scenario.members,
            "storage": {"type": "TiKV", "embedded": null, "tikv": tikv},
            "tls": {"mode": "Disabled"},
            "updateStrategy": {"maxUnavailable": scenario.max_unavailable},
            "logLevel": "Info",
            "podDisruptionBudget": {"enabled": false},
            "services": {"leader": {"enabled": false}},
        }));
        fake.wait(3600);
        if let Some(wish) = scenario.wish {
            let text = match wish {
                Wish::Any => "any@1".to_owned(),
                Wish::Member(member) => format!("{}@1", name(member)),
            };
            let annotations = fake.cluster.annotations_mut();
            annotations.insert(crds::wishes::TRANSFER_LEADER.to_owned(), text);
        }
        let pods = fake.seen.pods.clone();
        let mut seen = fake.seen.clone();
        let settled = fake.cluster.status.clone();
        let (mut clusters, mut sets) = (Vec::new(), Vec::new());
        for level in ["Info", "Debug", "Warn"] {
            fake.edit(json!({"logLevel": level}));
            let mut cluster = fake.cluster.clone();
            cluster.status.clone_from(&settled);
            clusters.push(cluster);
            fake.pass();
            sets.push(fake.object(ObjectKind::StatefulSet, "dev").clone());
        }
        seen.now = status::whole_seconds(seen.now);
        Self {
            clusters,
            sets,
            pods,
            seen,
            known: Mutex::default(),
        }
    }

    /// Number of different views that were planned from.
    pub(super) fn plans(&self) -> usize {
        self.known.lock().unwrap().len()
    }

    pub(super) fn plan(&self, view: &View) -> Arc<Planned> {
        let known = self.known.lock().unwrap().get(view).cloned();
        known.unwrap_or_else(|| {
            let planned = Arc::new(self.pass(view));
            self.known.lock().unwrap().insert(view.clone(), Arc::clone(&planned));
            planned
        })
    }

    fn pass(&self, view: &View) -> Planned {
        let (cluster, observed) = (self.cluster(view), self.observed(view));
        let replicas = i32::try_from(view.members.len()).unwrap();
        let desired = spec::desired(
            &cluster,
            &settings(),
            None,
            Some(replicas),
            Ok(()),
            BEGIN.parse().unwrap(),
        );
        let plan = plan(&cluster, &desired, &observed).unwrap();
        let all = match desired.held {
            Some(_) => plan.safe_steps(),
            None => plan.steps.clone(),
        };
        let (mut steps, mut labels) = (Vec::new(), Vec::new());
        for step in &all {
            match step {
                PlanStep::Label { pod, .. } => labels.push(member(pod)),
                PlanStep::Apply { object, .. } if object.key.kind == ObjectKind::StatefulSet => steps.push(Done::Write),
                PlanStep::Replace { pod, .. } => steps.push(Done::Replace(member(pod))),
                PlanStep::HandOver { from, to, .. } => steps.push(Done::HandOver {
                    from: member(from),
                    to: member(to),
                }),
                other => panic!("{} in {view:?}", crate::steps::describe(other, &desired)),
            }
        }
        let asked = steps.iter().any(|step| matches!(step, Done::HandOver { .. }));
        let record = |handed_over| {
            let applied = AppliedSteps {
                asked,
                handed_over,
                ..AppliedSteps::default()
            };
            let pass = StatusInput {
                desired: &desired,
                observed: &observed,
                plan: &plan,
                applied: &applied,
            };
            self.recorded(&status::of(&cluster, &pass))
        };
        let recorded = record(false);
        Planned {
            waits: plan.rollout.waiting.is_some(),
            handed_over: if asked { record(true) } else { recorded.clone() },
            recorded,
            steps,
            labels,
        }
    }

    fn cluster(&self, view: &View) -> KubeBrainCluster {
        let mut cluster = self.clusters[view.wanted].clone();
        cluster.spec.paused = view.paused;
        let wish = cluster.annotations().get(crds::wishes::TRANSFER_LEADER).cloned();
        let asked = view.recorded.asked.map(|asked| HandOver {
            from: name(asked.from),
            to: name(asked.to),
            epoch: if asked.same_epoch { EPOCH } else { EPOCH - 1 },
            since: Time(self.seen.now - SignedDuration::from_secs(if asked.overdue { 30 } else { 0 })),
        });
        let change = view.recorded.change;
        let in_flight = change.is_some() || asked.is_some();
        let status = cluster.status.as_mut().unwrap();
        status.last_handled_transfer = wish.filter(|_| view.recorded.wish_handled);
        status.rollout = in_flight.then(|| RolloutStatus {
            generation: cluster.metadata.generation,
            type_: change,
            started_at: Some(Time(self.seen.now)),
            last_progress_at: Some(Time(self.seen.now)),
            hand_over: asked,
            ..RolloutStatus::default()
        });
        cluster
    }

    fn recorded(&self, status: &KubeBrainClusterStatus) -> Recorded {
        let rollout = status.rollout.as_ref();
        let asked = rollout.and_then(|rollout| rollout.hand_over.as_ref());
        Recorded {
            change: rollout.and_then(|rollout| rollout.type_),
            asked: asked.map(|asked| Asked {
                from: member(&asked.from),
                to: member(&asked.to),
                same_epoch: asked.epoch == EPOCH,
                overdue: asked.since.0 < self.seen.now,
            }),
            wish_handled: status.last_handled_transfer.is_some(),
        }
    }

    fn observed(&self, view: &View) -> Observed {
        let mut seen = self.seen.clone();
        let mut set = self.sets[view.template].clone();
        if !view.adopted {
            set.data["status"]["observedGeneration"] = json!(0);
        }
        seen.objects.insert(ObjectKey::new(ObjectKind::StatefulSet, "dev"), set);
        seen.pods = (0..view.members.len())
            .filter_map(|member| self.pod(view, member))
            .collect();
        let running = |(member, state): (usize, &Member)| {
            let pod = state.pod().filter(|pod| pod.runs())?;
            Some((member, pod.is_ready()))
        };
        let mut probes = BTreeMap::new();
        for (member, ready) in view.members.iter().enumerate().filter_map(running) {
            let id = |member: usize| u64::try_from(member).unwrap() + 1;
            let mut answer = answer(id(member), view.leader.map_or(0, id));
            answer.ready = ready;
            assert_eq!(answer.epoch, EPOCH);
            let silent = || "silent".to_owned();
            probes.insert(name(member), if view.silent { Err(silent()) } else { Ok(answer) });
        }
        seen.probes = probes;
        seen
    }

    fn pod(&self, view: &View, member: usize) -> Option<ApiPod> {
        let mut pod = self.pods[member].clone();
        match &view.members[member] {
            Member::Absent => return None,
            Member::Leaving => pod.metadata.deletion_timestamp = Some(Time(self.seen.now)),
            Member::Here(here) => {
                let hash = self.sets[here.template].data["spec"]["template"]["metadata"]["annotations"][RESTART_HASH]
                    .as_str()
                    .unwrap();
                pod.annotations_mut().insert(RESTART_HASH.to_owned(), hash.to_owned());
                pod.status = Some(self.pod_status(here));
            }
        }
        Some(pod)
    }

    fn pod_status(&self, pod: &Pod) -> PodStatus {
        let since = match pod.health {
            Health::Young => self.seen.now,
            _ => self.seen.now - SignedDuration::from_secs(3600),
        };
        let condition = |type_: &str, holds: bool| PodCondition {
            type_: type_.to_owned(),
            status: if holds { "True" } else { "False" }.to_owned(),
            last_transition_time: Some(Time(since)),
            ..PodCondition::default()
        };
        let mut conditions = vec![condition("Ready", pod.is_ready())];
        if pod.evicted {
            conditions.push(condition("DisruptionTarget", true));
        }
        let waiting = (pod.health == Health::Dead).then(|| ContainerStateWaiting {
            reason: Some("CrashLoopBackOff".to_owned()),
            ..ContainerStateWaiting::default()
        });
        let container = ContainerStatus {
            name: "brain".to_owned(),
            state: Some(ContainerState {
                waiting,
                ..ContainerState::default()
            }),
            ..ContainerStatus::default()
        };
        PodStatus {
            phase: Some("Running".to_owned()),
            pod_ip: Some("10.0.0.1".to_owned()),
            conditions: Some(conditions),
            container_statuses: Some(vec![container]),
            ..PodStatus::default()
        }
    }
}

fn name(member: usize) -> String {
    format!("dev-{member}")
}

fn member(pod: &str) -> usize {
    pod.strip_prefix("dev-").unwrap().parse().unwrap()
}
