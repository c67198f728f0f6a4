//! `status`: the status that the operator wrote, the lag of each member, and the holder of the Lease.

use crds::KubeBrainCluster;
use crds::cluster::election::ElectionBackend;
use crds::cluster::status::{
    BootstrapPhase, BootstrapStatus, CaStatus, CertificateStatus, LeaderStatus, MemberRole, MemberStatus,
    RolloutStatus, StorageStatus,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use kube::{Api, ResourceExt};
use plan::names::Names;
use serde::Serialize;

use super::connect::TargetNamespace;
use super::members::{self, MemberAnswers};
use super::table::{age, cell_of, table};

/// The output of `status`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StatusView {
    pub(super) namespace: String,
    pub(super) name: String,
    /// The version that all members run.
    pub(super) version: Option<String>,
    /// The version that the spec wants.
    pub(super) wanted_version: String,
    pub(super) wanted_members: i32,
    pub(super) paused: bool,
    pub(super) leader: Option<LeaderStatus>,
    pub(super) lock: LockView,
    pub(super) members: Vec<MemberView>,
    pub(super) storage: Option<StorageStatus>,
    pub(super) bootstrap: Option<BootstrapStatus>,
    pub(super) rollout: Option<RolloutStatus>,
    pub(super) ca: Option<CaStatus>,
    pub(super) certificates: Vec<CertificateStatus>,
    pub(super) conditions: Vec<Condition>,
    /// Facts that could not be determined, and why.
    pub(super) notes: Vec<String>,
}

/// The leader lock.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LockView {
    pub(super) backend: ElectionBackend,
    /// The holder of the Lease; `None` for other locks.
    pub(super) holder: Option<String>,
}

/// One member.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MemberView {
    #[serde(flatten)]
    pub(super) status: MemberStatus,
    /// Number of revisions by which it lags the leader; unknown unless both report theirs.
    pub(super) lag: Option<i64>,
}

/// Returns the view of the cluster `name`.
///
/// # Errors
/// The cluster does not exist, or the API server refused or did not answer.
pub(super) async fn view(target: &TargetNamespace, name: &str) -> anyhow::Result<StatusView> {
    let cluster = target.get(name).await?;
    let listed = cluster.status.iter().flat_map(|status| status.members.iter().flatten());
    let pods: Vec<String> = listed.map(|member| member.name.clone()).collect();
    let members = members::ask(target, &pods).await;
    let holder = if cluster.spec.election().backend == ElectionBackend::Lease {
        Some(holder(target, name).await)
    } else {
        None
    };
    Ok(of(cluster, &members, holder))
}

/// Returns the holder of the Lease of the cluster `name`, or the reason why it is unknown.
async fn holder(target: &TargetNamespace, name: &str) -> Result<String, String> {
    let names = Names {
        cluster: name.to_owned(),
        namespace: target.namespace.clone(),
        domain: String::new(),
    };
    let leases: Api<Lease> = Api::namespaced(target.client.clone(), &target.namespace);
    let found = leases.get(&names.lease()).await;
    let lease = found.map_err(|error| {
        target
            .explain(error, "get", &format!("Lease {}", names.lease()))
            .to_string()
    })?;
    let identity = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
    Ok(identity)
}

/// Builds the view from a cluster, the reports of its members and the holder of its Lease.
pub(super) fn of(
    cluster: KubeBrainCluster,
    said: &MemberAnswers,
    holder: Option<Result<String, String>>,
) -> StatusView {
    let mut notes = Vec::new();
    if let Some(why) = &said.not_asked {
        notes.push(format!("LAG is unknown: {why}"));
    }
    let holder = holder.and_then(|holder| holder.map_err(|why| notes.push(why)).ok());
    let status = cluster.status.clone().unwrap_or_default();
    if status.observed_generation != cluster.metadata.generation {
        notes.push("the operator has not observed the newest spec yet".to_owned());
    }
    let revision = |pod: &str| Some(said.answers.get(pod)?.as_ref().ok()?.revision);
    let newest = status.leader.as_ref().and_then(|leader| revision(&leader.member));
    let members = status.members.unwrap_or_default().into_iter().map(|member| MemberView {
        lag: newest
            .zip(revision(&member.name))
            .map(|(newest, own)| newest.saturating_sub(own).max(0)),
        status: member,
    });
    StatusView {
        namespace: cluster.namespace().unwrap_or_default(),
        name: cluster.name_any(),
        version: status.version,
        wanted_version: cluster.spec.version.clone(),
        wanted_members: cluster.spec.replicas,
        paused: cluster.spec.paused,
        leader: status.leader,
        lock: LockView {
            backend: cluster.spec.election().backend,
            holder,
        },
        members: members.collect(),
        storage: status.storage,
        bootstrap: status.bootstrap.map(|bootstrap| *bootstrap),
        rollout: status.rollout,
        ca: status.ca,
        certificates: status.certificates.unwrap_or_default(),
        conditions: status.conditions.unwrap_or_default(),
        notes,
    }
}

impl StatusView {
    /// Formats the view for humans; the remaining validity of certificates is relative to `now`.
    pub(super) fn table(&self, now: Timestamp) -> String {
        let mut text = String::new();
        for (title, said) in self.summary(now) {
            text.push_str(&format!("{title:<10}{}\n", cell_of(&said)));
        }
        let members: Vec<_> = self.members.iter().map(MemberView::row).collect();
        let certificates: Vec<_> = self.certificates.iter().map(|each| certificate(each, now)).collect();
        let conditions: Vec<_> = self.conditions.iter().map(condition).collect();
        let header = ["MEMBER", "ROLE", "READY", "NODE", "VERSION", "LAG", "MESSAGE"];
        let tables = [
            (members.len(), table(header, &members)),
            (
                certificates.len(),
                table(["CERTIFICATE", "ENDS", "LEFT", "RENEWED AT"], &certificates),
            ),
            (
                conditions.len(),
                table(["CONDITION", "STATUS", "REASON", "MESSAGE"], &conditions),
            ),
        ];
        for (_, table) in tables.into_iter().filter(|(rows, _)| *rows > 0) {
            text.push('\n');
            text.push_str(&table);
        }
        if !self.notes.is_empty() {
            text.push('\n');
        }
        for note in &self.notes {
            text.push_str(&format!("Note: {}\n", cell_of(note)));
        }
        text
    }

    fn summary(&self, now: Timestamp) -> Vec<(&'static str, String)> {
        let mut lines = vec![("Cluster:", format!("{}/{}", self.namespace, self.name))];
        let running = self.version.as_deref().unwrap_or("-");
        lines.push((
            "Version:",
            if running == self.wanted_version {
                running.to_owned()
            } else {
                format!("{running}, becoming {}", self.wanted_version)
            },
        ));
        let ready = self.members.iter().filter(|member| member.status.ready).count();
        let paused = if self.paused { ", paused" } else { "" };
        lines.push(("Members:", format!("{ready} of {} ready{paused}", self.wanted_members)));
        lines.push((
            "Leader:",
            self.leader.as_ref().map_or("none is known".to_owned(), |leader| {
                let epoch = leader.epoch.map(|epoch| format!(", epoch {epoch}")).unwrap_or_default();
                let since = leader
                    .since
                    .as_ref()
                    .map(|since| format!(", since {}", since.0))
                    .unwrap_or_default();
                format!("{}{epoch}{since}", leader.member)
            }),
        ));
        lines.push((
            "Lock:",
            match (&self.lock.backend, self.lock.holder.as_deref()) {
                (ElectionBackend::Storage, _) => "Storage".to_owned(),
                (ElectionBackend::Lease, None) => "Lease".to_owned(),
                (ElectionBackend::Lease, Some("")) => "Lease, not held".to_owned(),
                (ElectionBackend::Lease, Some(holder)) => format!("Lease, held by {holder}"),
            },
        ));
        if let Some(storage) = &self.storage {
            lines.push(("Storage:", storage_in_words(storage)));
        }
        // Once it is complete, it is history.
        let unfinished = self.bootstrap.as_ref();
        if let Some(bootstrap) = unfinished.filter(|bootstrap| bootstrap.phase != BootstrapPhase::Complete) {
            lines.push(("Origin:", bootstrap_in_words(bootstrap, now)));
        }
        if let Some(ca) = &self.ca {
            let ends = ca
                .not_after
                .as_ref()
                .map(|at| format!(", expires {}", at.0))
                .unwrap_or_default();
            lines.push(("CA:", format!("generation {}, {}{ends}", ca.generation, ca.phase)));
        }
        if let Some(rollout) = &self.rollout {
            let step = rollout.step.clone().into_iter();
            let waiting = rollout.waiting_for.iter().map(|why| format!("waiting: {why}"));
            let said: Vec<String> = step.chain(waiting).collect();
            let said = if said.is_empty() {
                "in progress".to_owned()
            } else {
                said.join(", ")
            };
            lines.push(("Rollout:", said));
        }
        lines
    }
}

fn bootstrap_in_words(bootstrap: &BootstrapStatus, now: Timestamp) -> String {
    let mut parts = vec![format!("{:?}", bootstrap.phase)];
    parts.extend(bootstrap.source.clone());
    parts.extend(bootstrap.progress.as_ref().map(|progress| {
        format!(
            "revision {} of {}, lacks {}, seen {} ago",
            progress.revision,
            progress.source_revision,
            progress.lag_revisions,
            age(now.duration_since(progress.seen_at.0).as_secs().max(1))
        )
    }));
    parts.join(", ")
}

fn storage_in_words(storage: &StorageStatus) -> String {
    let mut parts = vec![storage.type_.clone()];
    parts.extend(storage.cluster_id.iter().map(|id| format!("cluster {id}")));
    parts.extend(storage.key_prefix.iter().map(|prefix| format!("prefix {prefix}")));
    parts.extend(
        storage
            .capacity
            .iter()
            .map(|capacity| format!("capacity {}", capacity.0)),
    );
    parts.extend(storage.pd_endpoints.iter().map(|all| format!("PD {}", all.join(" "))));
    parts.join(", ")
}

impl MemberView {
    fn row(&self) -> [String; 7] {
        let member = &self.status;
        let role = match member.role {
            MemberRole::Leader => "Leader",
            MemberRole::Follower => "Follower",
            MemberRole::Unknown => "Unknown",
        };
        [
            member.name.clone(),
            role.to_owned(),
            if member.ready { "True" } else { "False" }.to_owned(),
            member.node.clone().unwrap_or_default(),
            member.version.clone().unwrap_or_default(),
            self.lag.map(|lag| lag.to_string()).unwrap_or_default(),
            member.message.clone().unwrap_or_default(),
        ]
    }
}

fn certificate(certificate: &CertificateStatus, now: Timestamp) -> [String; 4] {
    let at = |time: &Option<Time>| time.as_ref().map(|time| time.0.to_string()).unwrap_or_default();
    let left = certificate
        .not_after
        .as_ref()
        .map(|ends| ends.0.duration_since(now).as_secs());
    [
        certificate.secret_name.clone(),
        at(&certificate.not_after),
        left.map(age).unwrap_or_default(),
        at(&certificate.renewal_time),
    ]
}

fn condition(condition: &Condition) -> [String; 4] {
    [
        condition.type_.clone(),
        condition.status.clone(),
        condition.reason.clone(),
        condition.message.clone(),
    ]
}
