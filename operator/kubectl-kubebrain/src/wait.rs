//! Waits with a watch of one object, and prints one line per change of the state.

use std::fmt::Debug;
use std::io::Write;
use std::pin::pin;

use futures::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watch_object};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::connect::TargetNamespace;

/// State of the condition that is waited for.
pub(super) enum ConditionState {
    /// It is not reached yet; the text describes the state.
    NotYet(String),
    /// It is reached; the text describes the result.
    Done(String),
    /// It will not be reached.
    Failed(String),
}

/// Prints changes until `judge` reports that the condition is reached.
///
/// # Errors
/// It is not reached before `deadline`, or never will be, or the object is deleted.
pub(super) async fn watch<K>(
    target: &TargetNamespace,
    name: &str,
    deadline: Instant,
    out: &mut impl Write,
    judge: impl Fn(&K) -> ConditionState,
) -> anyhow::Result<()>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let kind = K::kind(&());
    // The first request shows why the object cannot be read; a watch would retry endlessly.
    target.read::<K>(name).await?;
    let mut changes = pin!(watch_object(target.all::<K>(), name).default_backoff());
    let mut said = String::new();
    loop {
        let Ok(change) = tokio::time::timeout_at(deadline, changes.next()).await else {
            anyhow::bail!("timed out waiting for {name}: {said}");
        };
        let seen = match change {
            Some(Ok(Some(object))) if object.name_any() == name => judge(&object),
            Some(Ok(Some(_))) => continue,
            Some(Ok(None)) | None => anyhow::bail!("{kind} {name} was deleted"),
            Some(Err(watcher::Error::InitialListFailed(error))) if is_refusal(&error) => {
                return Err(target.explain(error, "list and watch", &format!("{kind} {name}")));
            }
            Some(Err(error)) => ConditionState::NotYet(format!("the API server does not answer: {error}")),
        };
        match seen {
            ConditionState::Done(how) => {
                writeln!(out, "{how}")?;
                return Ok(());
            }
            ConditionState::Failed(why) => anyhow::bail!("{why}"),
            ConditionState::NotYet(what) if what == said => {}
            ConditionState::NotYet(what) => {
                writeln!(out, "{what}")?;
                said = what;
            }
        }
    }
}

fn is_refusal(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if [401, 403, 404].contains(&status.code))
}
