//! Decides which replica works. No other file uses the elector.

use std::time::Duration;

use anyhow::Context;
use election::{AfterLoss, Config, ElectionState, Elector, Handle, LeaseLock};
use tokio_util::sync::CancellationToken;
use tracing::info;

/// The write was not sent: this replica does not lead, or cannot be sure that it still does.
#[derive(Debug, thiserror::Error)]
#[error("this replica does not lead")]
pub(crate) struct NotLeading;

/// Longest delay of the elector before `/livez` fails.
const MAX_ELECTOR_DELAY: Duration = Duration::from_secs(20);

/// The role of this replica, for other modules.
#[derive(Clone)]
pub(crate) enum Leadership {
    /// There is no election: this replica always works.
    Alone,
    /// This replica works while it holds the Lease.
    Elected(Handle),
}

impl Leadership {
    /// Checks that the elector, if there is one, is on time.
    ///
    /// # Errors
    /// A description of the problem.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self {
            Self::Alone => Ok(()),
            Self::Elected(handle) => handle.check(MAX_ELECTOR_DELAY).map_err(|overdue| overdue.to_string()),
        }
    }

    pub(crate) fn is_leading(&self) -> bool {
        match self {
            Self::Alone => true,
            Self::Elected(handle) => handle.is_leading(),
        }
    }

    /// Waits until this replica may work; `false` if `stop` came first.
    pub(crate) async fn won(&self, stop: &CancellationToken) -> bool {
        let Self::Elected(handle) = self else {
            return !stop.is_cancelled();
        };
        let mut election_state = handle.watch();
        let leading = election_state.wait_for(|election_state| matches!(election_state, ElectionState::Leading(_)));
        tokio::select! {
            biased;
            () = stop.cancelled() => false,
            won = leading => won.is_ok(),
        }
    }
}

/// Returns a candidate for the Lease `namespace`/`name`, and a handle to query it.
///
/// # Errors
/// The client cannot be created, or the configuration is invalid.
pub(crate) fn candidate(
    config: kube::Config,
    namespace: &str,
    name: &str,
    identity: &str,
) -> anyhow::Result<(Elector<LeaseLock>, Leadership)> {
    let election = Config::lease(Config::unique(identity));
    let client = election::client(config, election.call_timeout).context("make a client for the Lease")?;
    compete(LeaseLock::new(client, namespace, name), election)
}

fn compete(lock: LeaseLock, mut election: Config) -> anyhow::Result<(Elector<LeaseLock>, Leadership)> {
    election.after_loss = AfterLoss::Return;
    let (elector, handle) = Elector::new(lock, election).context("configure the election")?;
    Ok((elector, Leadership::Elected(handle)))
}

/// Campaigns and leads until `stop`, then releases the Lease. Its loss ends the process, because another replica already works.
///
/// # Errors
/// The Lease was lost.
pub(crate) async fn run(elector: Elector<LeaseLock>, stop: CancellationToken) -> anyhow::Result<()> {
    elector.run(stop).await?;
    info!("released the Lease");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use fake_api::{CLUSTERS, FakeApi, RecordedRequest, ScriptedReply};
    use plan::testing::cluster;
    use serde_json::json;
    use tokio::sync::Notify;

    use super::*;
    use crate::controller;
    use crate::expectations::Expectations;
    use crate::metrics::Metrics;
    use crate::tasks::Tasks;
    use crate::testing::scope;

    const HELD: &str = "/api/v1/namespaces/brains/secrets/dev-peer-tls";
    const SET: &str = "/apis/apps/v1/namespaces/brains/statefulsets/dev";

    fn server() -> FakeApi {
        let api = FakeApi::new();
        let cluster = serde_json::to_value(cluster(json!({}))).unwrap();
        api.put(&format!("{CLUSTERS}/dev"), cluster);
        api
    }

    fn elector(api: &FakeApi, identity: &str) -> (Elector<LeaseLock>, Leadership) {
        let client = crate::testing::fenced_client(api, Leadership::Alone, &Metrics::new(), &Expectations::default());
        let mut election = Config::lease(identity);
        election.lease_duration = Duration::from_millis(3000);
        election.renew_deadline = Duration::from_millis(2200);
        election.retry_period = Duration::from_millis(400);
        election.call_timeout = Duration::from_millis(700);
        compete(LeaseLock::new(client, "operators", "kubebrain-operator"), election).unwrap()
    }

    /// Starts an operator as the program does.
    fn operator(api: &FakeApi, identity: &str) -> Tasks {
        let (elector, leadership) = elector(api, identity);
        let stop = CancellationToken::new();
        let mut tasks = Tasks::new(stop.clone());
        tasks.spawn("election", run(elector, stop.clone()));
        let api = api.clone();
        tasks.spawn("controller", async move {
            assert!(leadership.won(&stop).await);
            controller::run(scope(&api, leadership), stop).await
        });
        tasks
    }

    async fn until(met: impl Fn() -> bool) {
        let waiting = async {
            while !met() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap();
    }

    #[tokio::test]
    async fn lost_lease_ends_the_process_in_the_middle_of_a_pass() {
        let api = server();
        let (cut, held) = (Arc::<AtomicBool>::default(), Arc::<Notify>::default());
        let (cutting, holding) = (cut.clone(), held.clone());
        let first = api.seen_by("first", move |asked| match asked.path.as_str() {
            path if path.contains("/leases") && cutting.load(Ordering::SeqCst) => ScriptedReply::Never,
            HELD if asked.writes() => ScriptedReply::After(holding.clone()),
            _ => ScriptedReply::Pass,
        });
        let second = api.seen_by("second", |_| ScriptedReply::Pass);
        let leader = operator(&first, "first");
        until(|| {
            api.writes()
                .iter()
                .any(|write| write.path == HELD || write.body["metadata"]["name"] == "dev-peer-tls")
        })
        .await;
        let standby = operator(&second, "second");

        cut.store(true, Ordering::SeqCst);
        let error = leader.join().await.unwrap_err();
        assert!(
            format!("{error:#}").contains("task \"election\" failed: lost the lock"),
            "{error:#}"
        );
        held.notify_one();
        until(|| api.get(SET).is_some()).await;
        let writes: Vec<RecordedRequest> = api
            .writes()
            .into_iter()
            .filter(|write| !write.path.contains("/leases"))
            .collect();
        let last = writes.iter().rposition(|write| write.by == "first").unwrap();
        let next = writes.iter().position(|write| write.by == "second").unwrap();
        assert!(
            last < next,
            "{:?}",
            writes.iter().map(|write| (write.by, &write.path)).collect::<Vec<_>>()
        );
        drop(standby);
    }

    #[tokio::test]
    async fn replica_that_does_not_lead_sends_no_write() {
        let api = server();
        let (_elector, leadership) = elector(&api, "standby");
        assert!(!leadership.is_leading());
        let scope = scope(&api, leadership);
        let known = cluster(json!({}));
        let problem = crate::reconcile::reconcile(&scope.context, &known, 0)
            .await
            .unwrap_err();
        assert_eq!(problem.class(), crate::api_error::FailureClass::Fenced);
        assert_eq!(api.writes().len(), 0);
    }
}
