//! `status` without a name: one line for each cluster.

use crds::KubeBrainCluster;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde::Serialize;

use super::connect::TargetNamespace;
use super::table::table;

/// One cluster.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ClusterRow {
    namespace: String,
    name: String,
    /// `True`, `False` or `Unknown`, and the reason.
    ready: String,
    reason: String,
    members: String,
    leader: String,
    version: String,
}

/// Returns the clusters of the namespace, or of all namespaces.
///
/// # Errors
/// The API server refused or did not answer.
pub(super) async fn view(target: &TargetNamespace, everywhere: bool) -> anyhow::Result<Vec<ClusterRow>> {
    let clusters: Api<KubeBrainCluster> = if everywhere {
        Api::all(target.client.clone())
    } else {
        target.clusters()
    };
    let listed = clusters.list(&ListParams::default()).await;
    let listed = listed.map_err(|error| target.explain(error, "list", "KubeBrainClusters"))?;
    let mut rows: Vec<ClusterRow> = listed.items.iter().map(row).collect();
    rows.sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
    Ok(rows)
}

fn row(cluster: &KubeBrainCluster) -> ClusterRow {
    let status = cluster.status.clone().unwrap_or_default();
    let conditions = status.conditions.unwrap_or_default();
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
    let (ready, reason) = ready.map_or(("Unknown".to_owned(), String::new()), |ready| {
        (ready.status, ready.reason)
    });
    ClusterRow {
        namespace: cluster.namespace().unwrap_or_default(),
        name: cluster.name_any(),
        ready,
        reason,
        members: format!(
            "{}/{}",
            status.ready_replicas.unwrap_or_default(),
            cluster.spec.replicas
        ),
        leader: status.leader.map(|leader| leader.member).unwrap_or_default(),
        version: status.version.unwrap_or_default(),
    }
}

/// Returns the rows as text, with the namespace if there are several.
pub(super) fn table_of(rows: &[ClusterRow], everywhere: bool) -> String {
    let cells = |row: &ClusterRow| {
        [
            &row.name,
            &row.ready,
            &row.reason,
            &row.members,
            &row.leader,
            &row.version,
        ]
        .map(Clone::clone)
    };
    if !everywhere {
        let rows: Vec<_> = rows.iter().map(cells).collect();
        return table(["NAME", "READY", "REASON", "MEMBERS", "LEADER", "VERSION"], &rows);
    }
    let rows: Vec<[String; 7]> = rows
        .iter()
        .map(|row| {
            let [name, ready, reason, members, leader, version] = cells(row);
            [row.namespace.clone(), name, ready, reason, members, leader, version]
        })
        .collect();
    let header = ["NAMESPACE", "NAME", "READY", "REASON", "MEMBERS", "LEADER", "VERSION"];
    table(header, &rows)
}
