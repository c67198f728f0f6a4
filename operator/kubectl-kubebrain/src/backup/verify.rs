//! `backup verify`: a request to the operator, and its result.

use std::io::Write;
use std::time::Duration;

use crds::KubeBrainBackup;
use crds::backup::status::VerificationResult;
use crds::wishes::VERIFY;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use plan::backup::verification::{CONDITION, requested};
use serde_json::json;
use tokio::time::Instant;

use crate::connect::{FIELD_MANAGER, TargetNamespace};
use crate::wait::{ConditionState, watch};

/// Asks the operator to verify a backup, and returns the request as written.
///
/// # Errors
/// The backup does not exist or is not complete, or the API server refused or did not answer.
pub(super) async fn request(target: &TargetNamespace, name: &str, out: &mut impl Write) -> anyhow::Result<String> {
    let backup: KubeBrainBackup = target.read(name).await?;
    if !plan::backup::is_complete(&backup) {
        anyhow::bail!("KubeBrainBackup {name} is not complete: there is nothing to verify");
    }
    // The fraction makes it differ from the previous request.
    let request = Timestamp::now().to_string();
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let patch = Patch::Merge(json!({"metadata": {"annotations": {VERIFY: request}}}));
    let answer = target.all::<KubeBrainBackup>().patch(name, &params, &patch).await;
    answer.map_err(|error| target.explain(error, "patch", &format!("KubeBrainBackup {name}")))?;
    writeln!(out, "requested a verification of {name}")?;
    Ok(request)
}

/// Waits for the result of a request.
///
/// # Errors
/// The backup is damaged or cannot be read, or it takes longer than `timeout`, or another request replaces this one.
pub(super) async fn until_verified(
    target: &TargetNamespace,
    (name, request): (&str, &str),
    timeout: Duration,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let judge = |backup: &KubeBrainBackup| {
        let status = backup.status.as_ref();
        let last = status.and_then(|status| status.verification.as_ref());
        if let Some(last) = last.filter(|last| last.handled == request) {
            let text = format!("{:?}: {}", last.result, last.message);
            return match last.result {
                VerificationResult::Verified => ConditionState::Done(text),
                VerificationResult::Damaged | VerificationResult::Failed => ConditionState::Failed(text),
            };
        }
        if requested(backup) != Some(request) {
            return ConditionState::Failed(format!("another request replaced the one to verify {name}"));
        }
        let conditions = status.and_then(|status| status.conditions.as_ref());
        let found = conditions.into_iter().flatten().find(|found| found.type_ == CONDITION);
        // The condition of an earlier request has its result.
        match found.filter(|found| found.status == "Unknown" && found.reason != "VerificationFailed") {
            Some(found) => ConditionState::NotYet(format!("{}: {}", found.reason, found.message)),
            None => ConditionState::NotYet("waiting for the operator".to_owned()),
        }
    };
    watch(target, name, Instant::now() + timeout, out, judge).await
}
