//! Reports of the members, queried through the API server's proxy on the metrics port, or taken from the status.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use crds::cluster::status::{KubeBrainClusterStatus, MemberRole, MemberStatus};
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use kube::client::Body;
use plan::member::{BrainRole, KnownLeader, MemberAnswer, MemberStorage, StoredFormats};
use plan::names::METRICS_PORT;

use super::connect::TargetNamespace;

/// Timeout of a member's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of an answer, in bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// The answers of the members, by pod.
pub(super) struct MemberAnswers {
    pub(super) answers: BTreeMap<String, Result<MemberAnswer, String>>,
    /// Reason why they were not queried, if any.
    pub(super) not_asked: Option<String>,
}

/// Queries the members in `pods` concurrently.
pub(super) async fn ask(target: &TargetNamespace, pods: &[String]) -> MemberAnswers {
    let asked = pods.iter().map(async |pod| {
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, ask_one(target, pod)).await;
        let late = || AskError::Failed("it does not answer".to_owned());
        (pod.clone(), answer.unwrap_or_else(|_| Err(late())))
    });
    let mut members = MemberAnswers {
        answers: BTreeMap::new(),
        not_asked: None,
    };
    for (pod, answer) in futures::future::join_all(asked).await {
        match answer {
            Ok(answer) => drop(members.answers.insert(pod, Ok(answer))),
            Err(AskError::Failed(why)) => drop(members.answers.insert(pod, Err(why))),
            Err(AskError::Forbidden) => {
                members.not_asked = Some(AskError::Forbidden.message(&target.namespace));
            }
        }
    }
    members
}

pub(super) enum AskError {
    /// The user lacks the right.
    Forbidden,
    Failed(String),
}

impl AskError {
    pub(super) fn message(self, namespace: &str) -> String {
        match self {
            Self::Forbidden => format!("no permission to get pods/proxy in namespace {namespace}"),
            Self::Failed(why) => why,
        }
    }
}

async fn ask_one(target: &TargetNamespace, pod: &str) -> Result<MemberAnswer, AskError> {
    let (of, page) = ((pod, METRICS_PORT), ("member", MAX_ANSWER_BYTES));
    let answer = page_of(target, &target.namespace, of, page).await?;
    MemberAnswer::parse(&answer).map_err(AskError::Failed)
}

/// Reads a page of a pod, of at most this number of bytes, through the API server.
///
/// # Errors
/// The user lacks the right, or the pod did not answer.
pub(super) async fn page_of(
    target: &TargetNamespace,
    namespace: &str,
    (pod, port): (&str, i32),
    (page, max_bytes): (&str, usize),
) -> Result<Bytes, AskError> {
    let failed = |why: String| AskError::Failed(why);
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy/{page}");
    let request = Request::get(path).body(Body::empty());
    let request = request.map_err(|error| failed(error.to_string()))?;
    let answer = target.client.send(request).await;
    let answer = answer.map_err(|error| failed(error.to_string()))?;
    let status = answer.status();
    if matches!(status, StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED) {
        return Err(AskError::Forbidden);
    }
    if !status.is_success() {
        return Err(failed(format!("it answered {}", status.as_u16())));
    }
    let body = Limited::new(answer.into_body(), max_bytes).collect().await;
    let body = body.map_err(|error| failed(format!("its answer cannot be decoded: {error}")))?;
    Ok(body.to_bytes())
}

/// Returns the members from the status: without revisions, formats and the certificates that they use.
pub(super) fn by_status(status: Option<&KubeBrainClusterStatus>) -> BTreeMap<String, Result<MemberAnswer, String>> {
    let Some(status) = status else { return BTreeMap::new() };
    let members = status.members.iter().flatten();
    members
        .map(|member| {
            let answer = answer(status, member);
            let silent = || {
                member
                    .message
                    .clone()
                    .unwrap_or("it did not answer the operator".to_owned())
            };
            (member.name.clone(), answer.ok_or_else(silent))
        })
        .collect()
}

fn answer(status: &KubeBrainClusterStatus, member: &MemberStatus) -> Option<MemberAnswer> {
    let id = |member: &MemberStatus| u64::from_str_radix(member.member_id.as_deref()?, 16).ok();
    let leader = status.leader.as_ref();
    let leads = |member: &&MemberStatus| leader.is_some_and(|leader| leader.member == member.name);
    let leading = status.members.iter().flatten().find(leads);
    let storage = status.storage.as_ref();
    Some(MemberAnswer {
        name: member.name.clone(),
        member: id(member)?,
        cluster: storage.and_then(|storage| storage.store_id.clone()),
        role: match member.role {
            MemberRole::Leader => BrainRole::Leader,
            MemberRole::Follower => BrainRole::Follower,
            MemberRole::Unknown => BrainRole::None,
        },
        leader: leading.and_then(|leading| {
            Some(KnownLeader {
                name: leading.name.clone(),
                member: id(leading)?,
            })
        }),
        epoch: leader.and_then(|leader| leader.epoch).unwrap_or_default(),
        ready: member.ready,
        version: member.version.clone()?,
        // The status does not limit the formats, so every format that a spec requests counts as supported.
        formats: StoredFormats {
            lowest: 0,
            highest: u32::MAX,
            written: 0,
        },
        revision: 0,
        alarms: Vec::new(),
        storage: MemberStorage {
            type_: storage.map(|storage| storage.type_.clone()).unwrap_or_default(),
            cluster_id: storage.and_then(|storage| storage.cluster_id.clone()),
            reachable: true,
            directory: None,
        },
        space: None,
        tls: None,
    })
}
