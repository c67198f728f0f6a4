//! `plan`: runs the operator's own planner on the present state. Nothing is written.

use std::fmt;

use clap::Args;
use crds::KubeBrainCluster;
use kube::ResourceExt;
use kube::core::DynamicObject;
use plan::names::{Names, VERSION};
use plan::objects::{Object, ObjectKey, ObjectKind, Renderer};
use plan::observed::Observed;
use plan::spec::{self, Desired, OperatorSettings};
use plan::steps::{self, Plan, PlanStep, describe};
use serde::Serialize;
use serde_json::Value;

use super::connect::TargetNamespace;
use super::{members, observe};

/// Flags with which the operator was started, where the cluster's objects do not show them.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct OperatorFlags {
    /// The operator's --cluster-domain; taken from the running members if not given
    #[arg(long, value_name = "DOMAIN")]
    pub(super) cluster_domain: Option<String>,
    /// The operator's --default-image; taken from the running members if not given
    #[arg(long, value_name = "IMAGE")]
    pub(super) default_image: Option<String>,
    /// The operator's --ca-propagation
    #[arg(long, default_value = "10m", value_parser = super::duration)]
    pub(super) ca_propagation: std::time::Duration,
}

/// The next pass.
#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PassReport {
    pub(super) namespace: String,
    pub(super) name: String,
    /// Steps of the next pass, in order.
    pub(super) steps: Vec<String>,
    /// Steps that are held back by a pause or by a refusal of the spec.
    pub(super) held_back: Vec<String>,
    /// Reasons why further steps wait.
    pub(super) waits_for: Vec<String>,
    /// Sources of the report, and unknown facts.
    pub(super) notes: Vec<String>,
}

/// A cluster, and what a pass of the operator over it needs to know.
pub(super) struct PreparedPass {
    cluster: KubeBrainCluster,
    names: Names,
    desired: Desired,
    observed: Observed,
}

/// Returns the report on the next pass over the cluster `name`.
///
/// # Errors
/// The cluster does not exist, or the API server refused or did not answer.
pub(super) async fn report(target: &TargetNamespace, name: &str, flags: &OperatorFlags) -> anyhow::Result<PassReport> {
    let mut pass = Box::pin(prepare(target, name, flags)).await?;
    pass.report(target).await
}

/// Reads everything but the reports of the members.
///
/// # Errors
/// The cluster does not exist, or the API server refused or did not answer.
pub(super) async fn prepare(
    target: &TargetNamespace,
    name: &str,
    flags: &OperatorFlags,
) -> anyhow::Result<PreparedPass> {
    let cluster = target.get(name).await?;
    let mut names = Names {
        cluster: name.to_owned(),
        namespace: target.namespace.clone(),
        domain: String::new(),
    };
    let mut observed = observe::observe(target, &cluster, &names).await?;
    let set = observed.objects.get(&ObjectKey::new(ObjectKind::StatefulSet, name));
    let running = set.and_then(|set| i32::try_from(set.data["spec"]["replicas"].as_i64()?).ok());
    names.domain = domain(flags, set, &names);
    let settings = OperatorSettings {
        default_image: default_image(flags, set, &cluster),
        cluster_domain: names.domain.clone(),
        ca_propagation: flags.ca_propagation,
        // The operator checks this, and reports it in the status.
        allow_unsafe_pods: true,
        allowed_pod_metadata: Vec::new(),
    };
    let referenced = observe::referenced(target, &cluster).await?;
    let desired = spec::desired(&cluster, &settings, referenced.as_ref(), running, Ok(()), observed.now);
    let asked = observe::missing(target, &cluster, &desired, &mut observed).await;
    asked.map_err(|error| target.explain(error, "get", "objects of the cluster"))?;
    Ok(PreparedPass {
        cluster,
        names,
        desired,
        observed,
    })
}

impl PreparedPass {
    /// Queries the members, and returns the report.
    ///
    /// # Errors
    /// An object fails to serialise.
    pub(super) async fn report(&mut self, target: &TargetNamespace) -> anyhow::Result<PassReport> {
        let Self {
            cluster,
            names,
            desired,
            observed,
        } = self;
        let mut report = PassReport {
            namespace: names.namespace.clone(),
            name: names.cluster.clone(),
            ..PassReport::default()
        };
        if let Some(refusal) = desired.refusal() {
            report.waits_for.push(format!(
                "another spec: the operator refuses this one, {}: {}",
                refusal.reason, refusal.message
            ));
        }
        report.notes.push(members_of(target, cluster, observed).await);
        report.notes.extend(versions(cluster));
        let plan = steps::plan(cluster, desired, observed)?;
        report.fill(desired, &plan);
        Ok(report)
    }

    /// Returns the objects as the operator would write them, without certificates; none for a spec that it refuses.
    ///
    /// # Errors
    /// An object fails to serialise.
    pub(super) fn rendered(&self) -> anyhow::Result<Vec<Object>> {
        if self.desired.refusal().is_some() {
            return Ok(Vec::new());
        }
        let set = ObjectKey::new(ObjectKind::StatefulSet, &self.names.cluster);
        let live = self.observed.objects.get(&set);
        let renderer = Renderer::beside(live, &self.cluster, &self.desired)?;
        Ok(renderer.all(self.observed.pod_monitors)?)
    }
}

/// Puts the reports of the members into `observed`, and returns their source.
async fn members_of(target: &TargetNamespace, cluster: &KubeBrainCluster, observed: &mut Observed) -> String {
    let running = |phase: Option<&str>| phase == Some("Running");
    let pods = observed.pods.iter().filter(|pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        running(phase) && pod.metadata.deletion_timestamp.is_none()
    });
    let pods: Vec<String> = pods.map(ResourceExt::name_any).collect();
    let asked = members::ask(target, &pods).await;
    match asked.not_asked {
        None => {
            observed.probes = asked.answers;
            "members were queried through the API server".to_owned()
        }
        Some(why) => {
            observed.probes = members::by_status(cluster.status.as_ref());
            observed.probes.retain(|pod, _| pods.contains(pod));
            format!("leader and versions are from the status, and the certificates in use are unknown: {why}")
        }
    }
}

/// Returns a note if the operator has another version, which may plan differently.
fn versions(cluster: &KubeBrainCluster) -> Option<String> {
    const OWN: &str = env!("CARGO_PKG_VERSION");
    let status = cluster.status.as_ref();
    match status.and_then(|status| status.operator_version.as_deref()) {
        None => Some("no operator has reconciled this cluster yet".to_owned()),
        Some(OWN) => None,
        Some(other) => Some(format!("the operator is of version {other}, this planner of {OWN}")),
    }
}

/// Returns the operator's default image, as far as the running members show it.
fn default_image(flags: &OperatorFlags, set: Option<&DynamicObject>, cluster: &KubeBrainCluster) -> String {
    if let Some(image) = &flags.default_image {
        return image.clone();
    }
    let template = set.map(|set| &set.data["spec"]["template"]);
    let containers = template.and_then(|template| template["spec"]["containers"].as_array());
    let brain = containers.and_then(|all| all.iter().find(|container| container["name"] == "brain"));
    let image = brain.and_then(|brain| brain["image"].as_str());
    let tag = template.and_then(|template| template["metadata"]["labels"][VERSION].as_str());
    let status = || cluster.status.as_ref().and_then(|status| status.image.as_deref());
    let image = image.or_else(status).unwrap_or("kubebrain.io/kubebrain");
    let tag = tag.map(|tag| format!(":{tag}"));
    // If the tag is the version, the default has no tag.
    let untagged = tag.and_then(|tag| image.strip_suffix(tag.as_str()));
    untagged.unwrap_or(image).to_owned()
}

/// Returns the DNS domain of the Kubernetes cluster, from the arguments of the members.
fn domain(flags: &OperatorFlags, set: Option<&DynamicObject>, names: &Names) -> String {
    let discovery = format!("--discovery-srv={}.", names.host(&names.headless()));
    let shown = set.and_then(|set| {
        let containers = set.data["spec"]["template"]["spec"]["containers"].as_array()?;
        let mut arguments = containers.iter().filter_map(|each| each["args"].as_array()).flatten();
        arguments.find_map(|argument| Value::as_str(argument)?.strip_prefix(discovery.as_str()))
    });
    let shown = flags.cluster_domain.as_deref().or(shown);
    shown.unwrap_or("cluster.local").to_owned()
}

impl PassReport {
    pub(super) fn fill(&mut self, desired: &Desired, plan: &Plan) {
        let steps = match desired.held {
            Some(_) => plan.safe_steps(),
            None => plan.steps.clone(),
        };
        for step in &plan.steps {
            let list = if steps.contains(step) {
                &mut self.steps
            } else {
                &mut self.held_back
            };
            list.push(in_words(step, desired));
        }
        self.waits_for.extend(plan.rollout.waiting.clone());
        self.waits_for.extend(plan.certificates.waiting.clone());
        if let Some(problem) = &plan.certificates.problem {
            self.waits_for.push(problem.message.clone());
        }
        let foreign = plan.foreign.iter();
        self.waits_for
            .extend(foreign.map(|key| format!("{key} is not owned by this cluster: delete or rename it")));
        let former = plan.former.iter();
        self.waits_for
            .extend(former.map(|key| format!("{key} of a deleted cluster of the same name still exists")));
        if !plan.fixed.is_empty() {
            self.waits_for
                .push(format!("the StatefulSet cannot change {}", plan.fixed.join(", ")));
        }
    }
}

/// Returns the description of a step, with its reason.
fn in_words(step: &PlanStep, desired: &Desired) -> String {
    let what = describe(step, desired);
    match step {
        PlanStep::Replace { why, .. } | PlanStep::Issue { why, .. } => format!("{what}: {why}"),
        _ => what,
    }
}

impl fmt::Display for PassReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cluster = format!("{}/{}", self.namespace, self.name);
        if self.steps.is_empty() {
            writeln!(f, "Nothing to do for {cluster}.")?;
        } else {
            writeln!(f, "Next for {cluster}:")?;
        }
        for (number, step) in (1..).zip(&self.steps) {
            writeln!(f, "  {number}. {step}")?;
        }
        let lists = [
            ("Blocked:", &self.held_back),
            ("Waiting:", &self.waits_for),
            ("Note:", &self.notes),
        ];
        for (title, lines) in lists.into_iter().filter(|(_, lines)| !lines.is_empty()) {
            writeln!(f, "{title}")?;
            for line in lines {
                writeln!(f, "  - {line}")?;
            }
        }
        Ok(())
    }
}
